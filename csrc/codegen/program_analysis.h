// What the printing of a program needs to know of it, found once: which values are the same for a whole vector or count
// up along it, which loads can be issued ahead, what a pass over a row's elements needs, how long vectors are.
#pragma once
#include <string>
#include <vector>

#include "codegen/batch_stores.h"
#include "codegen/column_ways.h"
#include "codegen/flat_form.h"
#include "codegen/instr_uses.h"
#include "codegen/lazy_arms.h"
#include "codegen/row_form.h"
#include "ir/program.h"

namespace ark::codegen {

struct RowFactor;

/// The call of a kLoadParts up to its operand (attention_parts.cpp).
std::string load_parts_call(const Program& program, const Instr& instr);

class ProgramAnalysis {
 public:
  /// `form`: of a row program. `broadcast`: operands that have stride 0 along the last dimension wherever it is used.
  /// Throws InternalError for a malformed program.
  explicit ProgramAnalysis(const Program& program, const RowForm* form = nullptr, uint32_t broadcast = 0);

  /// Operands that are gathered, a vector at a time, by indices that are the same for a whole row.
  uint32_t gathers() const;
  /// Elements per vector of a row program whose `same_operands` are known.
  int row_vector_length() const;
  /// Registers of one vector of a kept row, at most: what comes in, or what is kept beside what comes in last. `full`:
  /// the compiler keeps what later passes have in common with the first instead of what it was made of.
  int row_kept_registers(bool full) const;
  /// The same where what the first pass reads of the next row comes in beside what is kept of this one, and what stands
  /// for all rows stays.
  int row_ahead_registers() const;
  /// Machine instructions of an element of a row, about.
  int element_code() const;
  /// Whether elements are read where other elements say: in every pass, so that no row is kept.
  bool reads_irregularly() const;
  ColumnShape column_shape() const;
  /// `flat`: operands that are contiguous over the whole domain wherever the program is used.
  FlatForm flat_form(uint32_t flat) const;

 protected:
  struct Info {
    DType type = DType::kF32;
    bool scalar = false;         // the same for all elements of a vector
    bool run = false;            // integers: element i of a vector is the first one plus i
    bool aligned = false;        // integers: the (first) element is a multiple of the vector's length
    int pass = 0;                // first pass in which the value can be computed
    bool fast = false;           // only rounded to 16 bits afterwards
    bool rounded_later = false;  // the same, perhaps after products and sums
    bool plain_load = false;
    bool gather = false;  // of a row: the same indices and predicate for all of it, so that it loads like a plain one
    bool known = false;   // made of coordinates and numbers alone
    bool preloaded = false;  // a load whose address is: it is issued ahead, beside the plain ones
  };

  /// Functions of many instructions have intermediate values of several vectors at once.
  int function_registers() const;
  const Instr& instr(int i) const { return program_.instrs[i]; }
  int last_dim() const { return program_.num_dims - 1; }
  void check_program() const;
  /// Plain load of an operand that is the same along the row.
  bool same_along_row(int i) const;
  /// Gather of one element for the whole row.
  bool same_gather(int i) const;
  /// Loaded once a row, as one of its Scalars.
  bool row_scalar(int i) const { return same_along_row(i) || same_gather(i); }
  void classify();
  /// A load that has the same address for all elements of a vector.
  bool broadcast(const Instr& in) const;
  void classify_preload(int i);
  /// How an integer changes along a vector, whose first coordinate is a multiple of its length: indices made of
  /// coordinates by shifts and masks mostly stay the same or count up, so that one address serves the vector.
  /// (Vectors of columns, and of rows that say nothing of it, may begin anywhere.)
  void classify_lanes(const Instr& in, Info& info) const;
  bool has_lanes() const;
  template <class Good>
  bool all_uses(int value, const Good& good) const;
  /// Whether that use rounds the value to a 16-bit float.
  bool rounds(int use, int value) const;
  /// Every use does.
  bool only_rounded(int value) const;
  /// Every use ends in a rounding to a 16-bit float, on ways that keep relative errors as they are: products, sums
  /// with what is not a negative constant. Asks for it of later instructions only.
  bool rounded_later(int value) const;
  bool negative_constant(int i) const { return instr(i).op == Opcode::kConst && instr(i).imm < 0; }
  static bool is_half(DType t) { return t == DType::kBF16 || t == DType::kF16; }
  /// erf(x) + 1 (gelu), where a value a little off is rounded to 16 bits later: x, else -1.
  int erf_plus_one(int i) const;
  /// Rows of which a worker has one or two, and whose elements are long: a token fetches the code anew, which takes
  /// longer than running it.
  bool long_rows() const;
  /// A long function of such a row, whose elements go one after the other (device/program/in_turn.cuh).
  bool is_called_in_turn(int i) const;
  bool uniform_store(int i) const;
  /// Whether an epilogue reads accumulators of other columns.
  bool reads_pairs() const;
  /// Root 1 too.
  bool reads_two_products() const;
  bool plain_store(int i) const;
  /// Whether the results depend on where elements lie.
  bool names_places() const;
  /// Whether a prologue yields what it loads.
  bool only_copies() const;
  /// Operands that loads or stores (`op`) reach by coordinates alone, as a mask.
  uint32_t plain_operands(Opcode op) const;
  bool irregular_load(int i) const;
  int vector_length() const;
  /// Elements that a thread of a pointwise op takes at once where all vectors are whole: where types of two and of four
  /// bytes meet, so few that a warp's accesses of the wider type are without gaps.
  int whole_vector() const;
  /// Loads and sums of a column program: at most so many has a thread V elements of.
  int columns_held() const;
  /// Functions of a hundred instructions and more per element: copies of the program must be few.
  bool is_long() const;
  /// Vectors that a thread has in flight, each a copy of the program, in about 64 registers. A column keeps nothing
  /// else between them, and narrow loads need many: a worker's share of the bandwidth wants about 40 KB in flight.
  int unroll() const;
  /// Registers of a load whose vector may begin anywhere, and such vectors that a thread has in flight.
  int held_registers(int i) const;
  int held_unroll() const;
  int vector_registers(int i) const { return std::max(1, size_bytes(instr(i).dtype) * vector_length() / 4); }
  /// Vectors of a streamed row that a thread has in flight in a pass.
  int in_flight(int pass) const;
  /// Values of the first pass of which later ones are made.
  int kept_values() const;
  /// Vectors of a row that a thread keeps in registers between passes: about 64 registers of raw loads.
  int cached_chunks() const;
  /// Everything that the marked instructions need, themselves included.
  std::vector<bool> needed_by(std::vector<bool> wanted, bool stop_at_reduce = false) const;
  /// Whether rounding `value` to `type` is done two elements at a time.
  bool by_pairs(int value, DType type) const;
  /// What a store takes: a cast to the type that it rounds to anyway is left out.
  int stored_value(const Instr& in) const;
  /// Vectors and elements of a kept row may be beyond its last.
  bool keeps_edges() const { return form_ != nullptr && form_->edges && form_->chunks > 0; }
  int reduce_pass(int i) const { return column_ ? 0 : info_[i].pass; }
  /// Type in which an element enters its accumulator.
  DType accumulated_type(int i) const;
  /// What pass `pass` over the elements computes: for reductions of that pass and, in the last one, stores and yields.
  std::vector<bool> needed_in(int pass) const;
  std::vector<LazyArm> lazy_arms_in(int pass) const;
  bool loaded_in(int i, int pass) const;
  bool loaded_ahead(int i) const;
  bool loaded_before(int i, int pass) const;
  /// Kept from row to row.
  bool stands(int i) const {
    return info_[i].plain_load && !info_[i].scalar && instr(i).operand < 32 &&
           (form_->standing_operands >> instr(i).operand & 1) != 0;
  }

  /// Of a column: what the device asks about the program. Of a row: its form, and where vectors begin.
  std::string column_source(uint32_t ways) const;
  std::string form_source() const;
  /// Whether words of two elements are all that the walk of a prologue with a factor works on, and what it needs then.
  bool is_of_squares(const RowFactor& of) const;
  std::string squares_source(const RowFactor& of) const;

  /// Declares Uniform and, for each pass, its Accumulator with what starts, merges and finishes it.
  std::string accumulators() const;

  bool once_per_vector(int i) const { return info_[i].scalar || info_[i].run; }
  bool rand_of_vector(int i) const {
    return !once_per_vector(i) && info_[instr(i).a].scalar && info_[instr(i).b].scalar;
  }
  /// Whether an access with these index registers and this predicate is one run of elements a constant step apart: the
  /// registers stay the same along the vector or, one of them, count up.
  bool is_run(int a, int b, int predicate) const;

  Program program_;
  BatchStores by_batch_;  // those of program_ that one store stands for
  const RowForm* form_;
  int count_;
  uint32_t broadcast_;  // operands whose address is the same for all elements of a vector
  bool row_ = false, column_ = false, flagged_ = false;
  bool in_run_ = false;  // what is loaded ahead needs no indices
  int num_passes_ = 1;
  std::vector<Info> info_;
};

}  // namespace ark::codegen
