#include "planner/tile/share_programs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/params.h"
#include "planner/tile/free_numbers.h"

namespace ark::planner {
namespace {

/// The program without these numbers, and room to compare the rest by.
Program without_numbers(Program program, const std::vector<int>& numbers) {
  for (const int k : numbers) program.instrs[static_cast<size_t>(k)].imm_int = 0;
  return program;
}

/// Where a record names a program, and the program's first operand.
struct Place {
  abi::i32* program;
  abi::i32 first_operand;
};
std::vector<Place> places_of(abi::OpRecord& record) {
  std::vector<Place> places;
  plan::for_each_program(record, [&](abi::i32& program, abi::i32 first, ProgramKind) {
    if (program >= 0) places.push_back({&program, first});
  });
  return places;
}
/// Of a kind with one program.
std::optional<Place> place_of(abi::OpRecord& record) {
  const plan::Family family = plan::kind_of(record).family;
  if (family != plan::Family::kProgram && family != plan::Family::kMatmul) return std::nullopt;
  const std::vector<Place> places = places_of(record);
  return places.empty() ? std::nullopt : std::optional(places.front());
}

/// Numbers behind the strides and extents of an operand that holds index strides (abi::Operand).
constexpr int kFirstSpare = 4, kNumSpare = abi::kMaxDims - kFirstSpare;

/// An operand of the program, counted from its first, that holds index strides in this op; -1: it has none.
int spare_operand(const plan::Op& op, const Place& place, const Program& program) {
  for (const Instr& i : program.instrs) {
    const bool indexed = (i.op == Opcode::kLoad && i.a >= 0) || (i.op == Opcode::kStore && (i.b >= 0 || i.c >= 0));
    if (!indexed) continue;
    const int index = op.operands[static_cast<size_t>(place.first_operand + i.operand)].index_operand;
    if (index >= place.first_operand) return index - place.first_operand;
  }
  return -1;
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

  /// Whether the op's record names the program once, with operands that are its last and room for one more.
  bool may_append(size_t program, plan::Op& op) const {
    const std::optional<Place> place = place_of(op.record);
    if (!place || *place->program != static_cast<int>(program)) return false;
    const size_t end = static_cast<size_t>(place->first_operand + graph_.programs[program].num_operands);
    const size_t bytes = sizeof(abi::OpRecord) + (op.operands.size() + 1) * sizeof(abi::Operand);
    return end == op.operands.size() && bytes <= abi::kMaxRecordBytes;
  }

  std::vector<Place> places_of_program(size_t program, plan::Op& op) const {
    std::vector<Place> places = places_of(op.record);
    std::erase_if(places, [&](const Place& x) { return *x.program != static_cast<int>(program); });
    return places;
  }

  /// The operand that has spare numbers in every record that names the program, else -1.
  int spare_in_all(size_t program) const {
    int spare = -1;
    for (const size_t index : users_[program]) {
      const std::vector<Place> places = places_of_program(program, graph_.ops[index].op);
      if (places.empty()) return -1;
      for (const Place& place : places) {
        const int found = spare_operand(graph_.ops[index].op, place, graph_.programs[program]);
        if (found < 0 || (spare >= 0 && found != spare)) return -1;
        spare = found;
      }
    }
    return spare;
  }

  bool all_may_append(size_t program) const {
    return std::ranges::all_of(users_[program],
                               [&](size_t index) { return may_append(program, graph_.ops[index].op); });
  }

  bool may_share(size_t program) const {
    if (users_[program].empty()) return false;
    return all_may_append(program) || (sizes_vary_ && spare_in_all(program) >= 0);
  }

  /// Numbers of the class's programs that go into the records.
  std::vector<int> differing(const Class& c) const {
    const FreeNumbers free(c.rest, sizes_vary_);
    std::vector<int> result;
    for (const int k : c.numbers)
      if (free.is_size(k) ||
          std::ranges::any_of(c.members, [&](size_t p) { return number_of(p, k) != number_of(c.members.front(), k); }))
        result.push_back(k);
    return result;
  }
  int64_t number_of(size_t program, int k) const {
    return graph_.programs[program].instrs[static_cast<size_t>(k)].imm_int;
  }

  void merge(const Class& c) {
    if (c.members.size() < 2 && !sizes_vary_) return;
    const std::vector<int> numbers = differing(c);
    if (numbers.empty() || numbers.size() > abi::kMaxDims) return;
    int operand = spare_in_all(c.members.front()), first_stride = kFirstSpare;
    const bool spare = sizes_vary_ && operand >= 0 && numbers.size() <= kNumSpare &&
                       std::ranges::all_of(c.members, [&](size_t p) { return spare_in_all(p) == operand; });
    if (!spare) {
      if (!std::ranges::all_of(c.members, [&](size_t p) { return all_may_append(p); })) return;
      operand = graph_.programs[c.members.front()].num_operands, first_stride = 0;
    }
    for (const size_t program : c.members)
      for (const size_t index : users_[program]) {
        FusedOp& op = graph_.ops[index];
        if (!spare) append_parameters(op);
        for (const Place& place : places_of_program(program, op.op)) {
          abi::Operand& parameters = op.op.operands[static_cast<size_t>(place.first_operand + operand)];
          for (size_t n = 0; n < numbers.size(); ++n)
            parameters.stride[first_stride + static_cast<int>(n)] = number_of(program, numbers[n]);
          *place.program = static_cast<int>(c.members.front());
        }
        rename(op.op.programs, static_cast<int>(program), static_cast<int>(c.members.front()));
      }
    Program& shared = graph_.programs[c.members.front()];
    for (size_t n = 0; n < numbers.size(); ++n)
      shared.instrs[static_cast<size_t>(numbers[n])] = {
          .op = Opcode::kParameter,
          .dtype = DType::kI64,
          .operand = static_cast<int16_t>(operand),
          .aux = static_cast<int16_t>(first_stride + static_cast<int>(n))};
    if (!spare) ++shared.num_operands;
  }

  static void append_parameters(FusedOp& op) {
    op.op.operands.push_back(
        {.slot = abi::kNoSlot, .dtype = static_cast<short>(DType::kI64), .vector = 1, .index_operand = -1});
    op.access.push_back(Access::kParameters);
  }
  /// Every program that an op names is listed once.
  static void rename(std::vector<int>& programs, int from, int to) {
    std::erase(programs, from);
    if (std::ranges::find(programs, to) == programs.end()) programs.push_back(to);
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
      for (const Place& place : places_of(op.op.record)) renumber(*place.program);
    }
  }

  FusedGraph& graph_;
  const bool sizes_vary_;
  std::vector<std::vector<size_t>> users_;  // per program: ops
};

}  // namespace

void share_programs(FusedGraph& graph, bool sizes_vary) { Sharing(graph, sizes_vary).run(); }

}  // namespace ark::planner
