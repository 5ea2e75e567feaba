#include "planner/share_programs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ark::planner {
namespace {

using abi::TaskKind;

/// Which numbers of a program may go into the records: integers that are added, or that number a stream of random
/// numbers; where sizes vary also what can only be a size or a stride (and no main loop's index): the extent that an
/// index has to lie in, and factors in the place of an element in a stream.
class FreeNumbers {
 public:
  FreeNumbers(const Program& program, bool sizes_vary) : program_(program), sizes_vary_(sizes_vary) {
    if (sizes_vary) find_places();
  }

  std::vector<int> find() const {
    const std::vector<Instr>& instrs = program_.instrs;
    std::vector<bool> used(instrs.size(), false), freely(instrs.size(), true);
    for (size_t i = 0; i < instrs.size(); ++i)
      for (const int16_t input : {instrs[i].a, instrs[i].b, instrs[i].c, instrs[i].d}) {
        if (input < 0) continue;
        used[static_cast<size_t>(input)] = true;
        if (!takes_freely(i, input)) freely[static_cast<size_t>(input)] = false;
      }
    std::vector<int> found;
    for (size_t k = 0; k < instrs.size(); ++k) {
      const Instr& i = instrs[k];
      if (i.op == Opcode::kConst && i.dtype == DType::kI64 && used[k] && freely[k])
        found.push_back(static_cast<int>(k));
    }
    return found;
  }

  /// A number that varies with the sizes, whether the programs of this plan differ in it or not.
  bool is_size(int number) const {
    if (!sizes_vary_) return false;
    for (size_t i = 0; i < program_.instrs.size(); ++i)
      for (const int16_t input : {program_.instrs[i].a, program_.instrs[i].b})
        if (input == number && (is_extent(i, number) || is_place_factor(i))) return true;
    return false;
  }

 private:
  /// Whether instruction i takes register `input` as a number that might as well be any other.
  bool takes_freely(size_t i, int input) const {
    const Instr& instr = program_.instrs[i];
    if (instr.op == Opcode::kRand) return instr.c != input;  // seed or offset
    if (sizes_vary_ && (is_extent(i, input) || is_place_factor(i))) return true;
    return instr.op == Opcode::kAdd && compute_type(instr.dtype) == DType::kI64;
  }
  bool is_extent(size_t i, int input) const {
    const Instr& instr = program_.instrs[i];
    return instr.op == Opcode::kCheckIndex && instr.b == input && instr.a != input;
  }
  bool is_place_factor(size_t i) const { return program_.instrs[i].op == Opcode::kMul && place_[i]; }

  /// Sums and products that are used in places of streams only, from the last instruction to the first.
  void find_places() {
    const std::vector<Instr>& instrs = program_.instrs;
    std::vector<bool> elsewhere(instrs.size(), false);
    place_.assign(instrs.size(), false);
    for (size_t i = instrs.size(); i-- > 0;) {
      const Instr& instr = instrs[i];
      place_[i] = place_[i] && !elsewhere[i] && (instr.op == Opcode::kAdd || instr.op == Opcode::kMul);
      for (const int16_t input : {instr.a, instr.b, instr.c, instr.d}) {
        if (input < 0) continue;
        const bool in_place = place_[i] || (instr.op == Opcode::kRand && input == instr.c);
        (in_place ? place_ : elsewhere)[static_cast<size_t>(input)] = true;
      }
    }
  }

  const Program& program_;
  const bool sizes_vary_;
  std::vector<bool> place_;
};

/// The program without these numbers, and room to compare the rest by.
Program without_numbers(Program program, const std::vector<int>& numbers) {
  for (const int k : numbers) program.instrs[static_cast<size_t>(k)].imm_int = 0;
  return program;
}

/// Where a record of a kind with one program keeps its number and first operand.
struct Place {
  abi::i32* program;
  abi::i32 first_operand;
};
std::optional<Place> place_of(abi::OpRecord& record) {
  switch (record.kind) {
    case TaskKind::kPointwise:
    case TaskKind::kRow:
    case TaskKind::kColumn:
      return Place{&record.params.program.program, record.params.program.first_operand};
    case TaskKind::kMatmulTile:
    case TaskKind::kMatmulSimple:
      return Place{&record.params.matmul.program, record.params.matmul.first_operand};
    default:
      return std::nullopt;
  }
}

class Sharing {
 public:
  Sharing(FusedGraph& graph, bool sizes_vary) : graph_(graph), sizes_vary_(sizes_vary), users_(graph.programs.size()) {
    for (size_t op = 0; op < graph.ops.size(); ++op)
      for (const int program : graph.ops[op].op.programs) users_[static_cast<size_t>(program)].push_back(op);
  }

  void run() {
    // Buckets by what is cheap to compare, then by the programs themselves.
    std::map<std::pair<size_t, int>, std::vector<Class>> classes;
    for (size_t p = 0; p < graph_.programs.size(); ++p) {
      const Program& program = graph_.programs[p];
      std::vector<int> numbers = FreeNumbers(program, sizes_vary_).find();
      if (numbers.empty() || !may_share(p)) continue;
      std::vector<Class>& bucket = classes[{program.instrs.size(), program.num_operands}];
      Program rest = without_numbers(program, numbers);
      auto same = std::find_if(bucket.begin(), bucket.end(), [&](const Class& c) { return c.rest == rest; });
      if (same == bucket.end()) same = bucket.insert(bucket.end(), Class{std::move(rest), std::move(numbers), {}});
      same->members.push_back(p);
    }
    for (auto& [key, bucket] : classes)
      for (const Class& c : bucket) merge(c);
    drop_unused();
  }

 private:
  struct Class {
    Program rest;
    std::vector<int> numbers;
    std::vector<size_t> members;
  };

  bool may_share(size_t program) {
    for (const size_t index : users_[program]) {
      plan::Op& op = graph_.ops[index].op;
      const std::optional<Place> place = place_of(op.record);
      if (!place || *place->program != static_cast<int>(program)) return false;
      const size_t end = static_cast<size_t>(place->first_operand + graph_.programs[program].num_operands);
      const size_t bytes = sizeof(abi::OpRecord) + (op.operands.size() + 1) * sizeof(abi::Operand);
      if (end != op.operands.size() || bytes > abi::kMaxRecordBytes) return false;
    }
    return !users_[program].empty();
  }

  void merge(const Class& c) {
    if (c.members.size() < 2 && !sizes_vary_) return;
    auto number_of = [&](size_t program, int k) {
      return graph_.programs[program].instrs[static_cast<size_t>(k)].imm_int;
    };
    const FreeNumbers free(c.rest, sizes_vary_);
    std::vector<int> differing;
    for (const int k : c.numbers)
      if (free.is_size(k) || std::any_of(c.members.begin(), c.members.end(),
                                         [&](size_t p) { return number_of(p, k) != number_of(c.members.front(), k); }))
        differing.push_back(k);
    if (differing.empty() || differing.size() > abi::kMaxDims) return;
    for (const size_t program : c.members)
      for (const size_t index : users_[program]) {
        FusedOp& op = graph_.ops[index];
        abi::Operand parameters{
            .slot = abi::kNoSlot, .dtype = static_cast<short>(DType::kI64), .vector = 1, .index_operand = -1};
        for (size_t d = 0; d < differing.size(); ++d) parameters.stride[d] = number_of(program, differing[d]);
        op.op.operands.push_back(parameters);
        op.access.push_back(Access::kParameters);
        *place_of(op.op.record)->program = static_cast<int>(c.members.front());
        op.op.programs = {static_cast<int>(c.members.front())};
      }
    Program& shared = graph_.programs[c.members.front()];
    for (size_t d = 0; d < differing.size(); ++d)
      shared.instrs[static_cast<size_t>(differing[d])] = {.op = Opcode::kParameter,
                                                          .dtype = DType::kI64,
                                                          .operand = static_cast<int16_t>(shared.num_operands),
                                                          .aux = static_cast<int16_t>(d)};
    ++shared.num_operands;
  }

  /// Programs that nobody names any more go; the others move up.
  void drop_unused() {
    std::vector<int> number(graph_.programs.size(), -1);
    for (const FusedOp& op : graph_.ops)
      for (const int program : op.op.programs) number[static_cast<size_t>(program)] = 0;
    std::vector<Program> kept;
    for (size_t p = 0; p < number.size(); ++p)
      if (number[p] == 0) {
        number[p] = static_cast<int>(kept.size());
        kept.push_back(std::move(graph_.programs[p]));
      }
    graph_.programs = std::move(kept);
    auto renumber = [&](abi::i32& program) {
      if (program >= 0) program = number[static_cast<size_t>(program)];
    };
    for (FusedOp& op : graph_.ops) {
      for (int& program : op.op.programs) renumber(program);
      if (const std::optional<Place> place = place_of(op.op.record)) renumber(*place->program);
      if (op.op.record.kind != TaskKind::kMatmulRows) continue;
      abi::MatmulRowsParams& rows = op.op.record.params.rows;
      renumber(rows.prologue);
      for (int s = 0; s < rows.num_segments; ++s) renumber(rows.segment[s].program);
    }
  }

  FusedGraph& graph_;
  const bool sizes_vary_;
  std::vector<std::vector<size_t>> users_;  // per program: ops
};

}  // namespace

void share_programs(FusedGraph& graph, bool sizes_vary) { Sharing(graph, sizes_vary).run(); }

}  // namespace ark::planner
