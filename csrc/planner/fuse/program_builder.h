// Builds the program of one op by asking for the values that it stores: a value is loaded where it is in memory, and
// computed from its operands, at whatever coordinates they are needed, where it is not.
#pragma once
#include <map>
#include <set>

#include "planner/fuse/state.h"

namespace ark::planner {

/// One op's iteration domain.
struct ProgramSpec {
  ProgramKind kind = ProgramKind::kPointwise;
  int group = -1;             // whose values are computed here, -1: none
  int reader = -1;            // group that this is done for, where `group` does not say so; -1: comes last
  std::vector<int64_t> dims;  // see Group::dims; prologue: m, k; epilogue: b, m, n
  int reduce_dims = 0;
  std::vector<int> roots;                    // epilogue: matmul nodes, Root index by position
  std::vector<int> computes;                 // owners computed here although they are in memory (free values)
  bool trial = false;                        // nothing is in memory yet; what other groups compute counts as stored
  std::vector<std::vector<int64_t>> splits;  // per dimension: inner sizes at which it is cut, ascending
};

/// The finished program with its operands (slots are storages; index_operand and Instr::operand count from the first).
struct BuiltProgram {
  Program program;
  std::vector<abi::Operand> operands;
  std::vector<Access> access;
  std::vector<int64_t> dims;
  int64_t pair_distance = 0;
  std::vector<int> nodes;  // computed, for the name
};

class ProgramBuilder {
 public:
  /// Loops of writes, unrolled, reach it; the front end then cuts the segment.
  static constexpr size_t kMostInstructions = 10000;

  ProgramBuilder(const State& state, ProgramSpec spec);

  /// What is known of a register.
  struct Reg {
    DType type = DType::kF32;     // compute type
    DType rounded = DType::kF64;  // its value is exactly one of this type
    uint32_t dims = 0;            // refined dimensions that it depends on
    int phase = 0;                // Reduces before it
    uint32_t roots = 0;           // matmuls that it depends on
    int64_t pair = 0;             // distance of the second column that it reads, -1: several distances
  };

  /// Register that holds `value` (an owner or a view) at `coords`, expressions over the (refined) domain. Throws
  /// NeedStored.
  int eval(int value, const Coords& coords, int pred = -1);
  /// Coordinates over the domain as given -> over the refined one.
  Coords lift(const Coords& coords) const;
  /// Stores the owner at its place over the domain.
  void store(int owner, const Coords& coords);
  /// Stores any value, at these coordinates, at `place` (strides over the value's coordinates).
  void copy(int value, const Coords& coords, const Place& place);
  /// Stores the source of an index store node; these are the source's coordinates.
  void index_store(int node, const Coords& src_coords);
  void yield(int reg);
  int cast(int reg, DType type);
  int wrapped(int a, DType type);
  int as_stored(int a, DType type);

  const Reg& reg(int r) const { return regs_[static_cast<size_t>(r)]; }
  /// Cuts the domain where accesses ask for it, so that they need no index registers. False when there is nothing
  /// (more) to cut.
  bool refine(ProgramSpec& spec) const;
  int num_operands() const { return static_cast<int>(operands_.size()); }
  BuiltProgram finish();

 private:
  struct Memo {
    int owner, pred, reg;
    int next;  // in the chain of owners with the same head, -1: none
    Coords coords;
  };
  struct Bound {  // an active predicate of a cat: low <= expr < high
    Expr expr;
    int64_t low, high;
  };

  static int16_t narrow(int i) { return static_cast<int16_t>(i); }
  int& memo_head(int owner) { return memo_heads_[static_cast<size_t>(owner) & (memo_heads_.size() - 1)]; }
  void remember(int owner, int pred, int reg, const Coords& coords);
  bool in_memory(int owner) const;
  bool computes(int owner) const;
  int eval_owner(int owner, const Coords& coords, int pred);
  bool is_reduced_everywhere(int owner, const Coords& coords) const;
  int compute(int owner, const Coords& coords, int pred);
  int pointwise(int owner, const ir::Node& node, const Coords& coords, int pred);
  int power(const ir::Node& node, int base, int exponent, DType type);
  int reduce(int owner, const ir::Node& node, const Coords& coords, int pred);
  int root(int owner, const Coords& coords);
  int concatenate(int owner, const ir::Node& node, const Coords& coords, int pred);
  int pad(const ir::Node& node, const Coords& coords, int pred);
  int index_load(int owner, const ir::Node& node, const Coords& coords, int pred);
  int select_store(const ir::Node& node, const Coords& coords, int pred);
  int random(int owner, const ir::Node& node, const Coords& coords, int pred);
  int load_parts(int owner, const Coords& coords);
  int load(const Expr& linear, DType dtype, StorageId storage, int pred);
  int eval_broadcast(int value, const std::vector<int64_t>& sizes, const Coords& coords, int pred);
  int wrapped_index(int reg, int64_t extent, int pred);
  int keep_check(int value, int index, int64_t extent);
  std::optional<Expr> linear_place(int value, const Coords& coords, StorageId* storage) const;

  /// Throws TooLong.
  static void check_length(size_t needed);
  int emit(Instr instr, Reg meta);
  int check_index(int index, int extent, bool wraps, int pred);
  int unary(Opcode op, int a, DType type);
  int binary(Opcode op, int a, int b, DType type);
  int select(int condition, int a, int b);
  int constant(DType type, double number, int64_t integer);
  int integer(int64_t value) { return constant(DType::kI64, 0, value); }
  int term_register(const Term& term);
  int expr_register(const Expr& expr);
  int in_range(const Expr& expr, int64_t low, int64_t high, int pred);
  void note_split(const Term& term);

  struct Address {
    abi::Operand operand{};
    int index[2] = {-1, -1};
    int64_t index_stride[2] = {0, 0}, index_extent[2] = {0, 0};
    int pred = -1;  // where the access takes place
  };
  Address address(const Expr& linear, DType dtype, StorageId storage, int pred);
  int add_operand(const Address& address, Access access);
  uint32_t expr_dims(const Expr& expr) const;

  const State& state_;
  ProgramSpec spec_;
  std::vector<int64_t> dims_;   // refined
  std::vector<int> given_;      // per refined dimension: the given one that it is part of
  std::vector<int64_t> inner_;  // and its step there
  uint32_t row_mask_ = 0;       // refined dimensions that are reduced
  Coords base_;                 // given dimension over refined ones
  std::vector<Instr> instrs_;
  std::vector<Reg> regs_;
  std::vector<abi::Operand> operands_;
  std::vector<Access> access_;
  std::vector<Memo> memo_;
  std::vector<int> memo_heads_;                                    // a power of two of them, by the owner's low bits
  std::map<std::tuple<DType, uint64_t, int64_t>, int> constants_;  // floats by their bits
  std::vector<std::pair<Expr, int>> expr_regs_;
  std::vector<Bound> bounds_;
  std::vector<std::set<int64_t>> wanted_splits_;  // per given dimension: inner sizes
  struct Loaded {
    Expr linear;
    StorageId storage;
    DType dtype;
    int pred, reg;
  };
  std::vector<Loaded> loaded_;
  std::vector<Instr> stores_;           // after everything else, so that what is overwritten has been read
  std::vector<uint32_t> operand_dims_;  // what an operand's index and predicate registers depend on
  std::set<int> raw_operands_;          // LoadParts: their strides are numbers of its own
  int64_t pair_distance_ = 0;
  std::vector<int> nodes_;
};

/// Runs `body` on builders whose domain is cut where the body's accesses ask for it.
template <class Body>
ProgramBuilder build(const State& state, ProgramSpec spec, const Body& body) {
  constexpr int kMaxRounds = 4;
  for (int round = 0;; ++round) {
    ProgramBuilder builder(state, spec);
    body(builder);
    if (round == kMaxRounds || !builder.refine(spec)) return builder;
  }
}

}  // namespace ark::planner
