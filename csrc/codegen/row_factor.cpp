#include "codegen/row_factor.h"

#include <algorithm>
#include <vector>

#include "codegen/expressions.h"
#include "codegen/instr_uses.h"

namespace ark::codegen {
namespace {

class Splitter {
 public:
  explicit Splitter(const Program& program)
      : program_(program), uniform_(program.instrs.size()), reduced_(program.instrs.size()) {}

  std::optional<RowFactor> split() {
    const int yield = only_result();
    if (yield < 0 || !classify()) return std::nullopt;
    RowFactor result{program_, -1};
    const int value = without_factor(result, at(yield).a);
    if (result.factor < 0) return std::nullopt;
    result.rest.instrs[static_cast<size_t>(yield)].a = static_cast<int16_t>(value);
    find_squares(result, value);
    return result;
  }

 private:
  static constexpr int kMostReductions = 2;  // of 8 bytes: what the device has shared memory for

  const Instr& at(int i) const { return program_.instrs[static_cast<size_t>(i)]; }
  bool uniform(int i) const { return uniform_[static_cast<size_t>(i)]; }
  bool reduced(int i) const { return reduced_[static_cast<size_t>(i)]; }

  /// The yield of a program that does nothing else, or -1.
  int only_result() const {
    int yield = -1;
    for (int i = 0; i < static_cast<int>(program_.instrs.size()); ++i) {
      if (at(i).op == Opcode::kLoadParts || (at(i).op == Opcode::kLoad && !inputs_of(at(i)).empty())) return -1;
      if (!is_sink(at(i).op)) continue;
      if (yield >= 0 || at(i).op != Opcode::kYield) return -1;
      yield = i;
    }
    return yield;
  }

  /// What is the same along a row, and what follows from reductions. Are these few, and none made of others?
  bool classify() {
    int reductions = 0;
    for (int i = 0; i < static_cast<int>(program_.instrs.size()); ++i) {
      const Instr& in = at(i);
      bool same = in.op == Opcode::kConst || in.op == Opcode::kReduce || call_arity(in.op) > 0, follows = false;
      for (const int input : inputs_of(in)) {
        same = same && (uniform(input) || in.op == Opcode::kReduce);
        follows = follows || reduced(input);
      }
      if (in.op == Opcode::kReduce && (follows || ++reductions > kMostReductions)) return false;
      uniform_[static_cast<size_t>(i)] = same;
      reduced_[static_cast<size_t>(i)] = follows || in.op == Opcode::kReduce;
    }
    return true;
  }

  /// The number of what stands for value `i` in the rest; sets the factor where one is found.
  int without_factor(RowFactor& result, int i) const {
    const Instr& in = at(i);
    if (in.dtype != DType::kF32 && in.dtype != DType::kBF16) return i;
    if (in.op == Opcode::kCast && reduced(i)) return without_factor(result, in.a);
    if (in.op != Opcode::kMul || reduced(in.a) == reduced(in.b)) return i;
    const bool first = reduced(in.a);
    const int of_rows = first ? in.a : in.b, other = first ? in.b : in.a;
    if (uniform(of_rows)) {
      result.factor = of_rows;
      return other;
    }
    Instr& product = result.rest.instrs[static_cast<size_t>(i)];
    (first ? product.a : product.b) = static_cast<int16_t>(without_factor(result, of_rows));
    return i;
  }

  /// The load of bfloat16 that a value of the rest is, or -1.
  static int load_of(const Program& rest, int i) {
    const Instr& in = rest.instrs[static_cast<size_t>(i)];
    if (in.op == Opcode::kCast && in.dtype == DType::kF32) return load_of(rest, in.a);
    return in.op == Opcode::kLoad && in.dtype == DType::kBF16 ? i : -1;
  }

  void find_squares(RowFactor& result, int value) const {
    const Program& rest = result.rest;
    const auto is_reduction = [](const Instr& in) { return in.op == Opcode::kReduce; };
    if (std::ranges::count_if(rest.instrs, is_reduction) != 1) return;
    const auto sum = std::ranges::find_if(rest.instrs, is_reduction);
    const Instr &squares = at(sum->a), &product = rest.instrs[static_cast<size_t>(value)];
    if (static_cast<ReduceOp>(sum->aux) != ReduceOp::kSum || squares.op != Opcode::kMul) return;
    const int x = load_of(rest, squares.a);
    if (x < 0 || x != load_of(rest, squares.b)) return;
    int weight = -1;
    if (load_of(rest, value) != x) {
      if (product.op != Opcode::kMul) return;
      const int a = load_of(rest, product.a), b = load_of(rest, product.b);
      if (a < 0 || b < 0 || (a != x && b != x)) return;
      weight = a == x ? b : a;
    }
    result.squared = x, result.weight = weight, result.reduction = static_cast<int>(sum - rest.instrs.begin());
  }

  const Program& program_;
  std::vector<bool> uniform_, reduced_;
};

}  // namespace

std::optional<RowFactor> split_row_factor(const Program& program) { return Splitter(program).split(); }

}  // namespace ark::codegen
