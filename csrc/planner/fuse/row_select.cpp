// The ops of a row select: one a round of digits, and one that chooses the last digit; a single one where a row is one
// worker's.
#include <algorithm>
#include <utility>

#include "base/unsupported.h"
#include "device/abi/roles.h"
#include "plan/kinds.h"
#include "planner/fuse/emit.h"

namespace ark::planner {
namespace {

using X = abi::RowSelectOperand;

struct Parts {
  int count, size;
};

int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

/// As many as give every worker one, each long enough to be worth its sums, which others read, and short enough for
/// masses. Two or three parts save less time than their ops take.
Parts parts_of(int64_t rows, int64_t size, int num_workers) {
  constexpr int64_t kLeast = 2048, kFewest = 4, kVector = 4;
  const int64_t least = blocks(size, abi::kSelectMostPart);
  int64_t parts = std::min<int64_t>(num_workers / rows, size / kLeast);
  if (parts < kFewest) parts = 1;
  parts = std::max({parts, least, int64_t{1}});
  const int64_t part = std::max(blocks(blocks(size, parts), kVector) * kVector, kVector);
  return {static_cast<int>(std::max<int64_t>(blocks(size, part), 1)), static_cast<int>(part)};
}

/// Functions of a few instructions that every program rounds alike: a product may become one with a sum behind it, here
/// and not there, and whoever compares distances with what was selected needs the same bits.
bool is_cheap(Opcode op) {
  switch (op) {
    case Opcode::kCast:
    case Opcode::kNeg:
    case Opcode::kAbs:
    case Opcode::kLogicalNot:
    case Opcode::kWhere:
    case Opcode::kAdd:
    case Opcode::kSub:
    case Opcode::kDiv:
      return true;
    default:
      return (op >= Opcode::kMaximum && op <= Opcode::kMinimum) || (op >= Opcode::kEq && op <= Opcode::kGe) ||
             (op >= Opcode::kLogicalAnd && op <= Opcode::kLogicalXor);
  }
}

/// Adds the owners that computing `v` from cheap functions reads; false: it takes more than `budget` of them, or others.
bool add_sources(const State& state, int v, int& budget, std::vector<int>& sources) {
  const Tensor& t = state.tensor(v);
  const bool known = t.owner == v && !state.is_input(v) && t.node >= 0;
  if (known && state.node(t.node).op == ir::OpKind::kFull) return true;
  if (known && !state.forced[static_cast<size_t>(v)] && state.node(t.node).op == ir::OpKind::kPointwise) {
    const Opcode op = state.node(t.node).attrs.opcode;
    if (!is_cheap(op) || --budget < 0) return false;
    return std::ranges::all_of(state.node(t.node).inputs,
                               [&](int input) { return add_sources(state, input, budget, sources); });
  }
  sources.push_back(t.owner);
  return true;
}

bool is_plain(const BuiltProgram& built) {
  return std::ranges::all_of(built.program.instrs, [](const Instr& in) {
    return in.op != Opcode::kLoadParts && (in.op != Opcode::kLoad || (in.a < 0 && in.b < 0 && in.c < 0));
  });
}

}  // namespace

std::vector<int> sources_of_distances(const State& state, int distances) {
  constexpr int kMostFunctions = 24;  // once a round, where an op and its memory are a round trip for all
  std::vector<int> sources;
  int budget = kMostFunctions;
  if (!add_sources(state, distances, budget, sources) || budget == kMostFunctions) return {};
  return sources;
}

/// A program that yields the distances, over rows and their elements.
BuiltProgram Emitter::distances(int g, int value) const {
  const Tensor& rows = state_.tensor(value);
  if (!sources_of_distances(state_, value).empty()) {
    ProgramSpec spec;
    spec.kind = ProgramKind::kPrologue;
    spec.reader = g;
    spec.dims = rows.sizes;
    spec.reduce_dims = 1;
    ProgramBuilder builder(state_, spec);
    builder.yield(builder.eval(value, {dim_expr(0, rows.sizes[0]), dim_expr(1, rows.sizes[1])}));
    BuiltProgram built = builder.finish();
    if (!is_plain(built)) throw NeedStored{rows.owner};
    return built;
  }
  BuiltProgram built;
  built.program.kind = ProgramKind::kPrologue;
  built.program.num_dims = 2, built.program.reduce_dims = built.program.num_operands = 1;
  built.program.instrs = {{.op = Opcode::kLoad, .dtype = DType::kF32, .operand = 0},
                          {.op = Opcode::kYield, .dtype = DType::kF32, .a = 0}};
  abi::Operand x = strided_operand(value, DType::kF32);
  const auto even = [](int64_t n) { return n % 4 == 0; };
  x.vector = x.stride[1] == 1 && even(x.offset) && even(x.stride[0]) ? 4 : 1;
  built.operands = {x};
  built.access = {Access::kRead};
  return built;
}

/// What all ops of the select share; operands that are not there.
FusedOp Emitter::row_select_op(const ir::Node& node, int round) const {
  const Tensor& rows = state_.tensor(node.inputs[0]);
  FusedOp op;
  abi::OpRecord& record = op.op.record;
  record.kind = abi::TaskKind::kRowSelect;
  std::fill(record.size, record.size + abi::kMaxDims, 1);
  record.size[0] = rows.sizes[0];
  abi::RowSelectParams& p = record.params.row_select;
  p.rows = static_cast<int>(rows.sizes[0]), p.size = static_cast<int>(rows.sizes[1]);
  p.by_mass = state_.tensor(node.inputs[1]).dtype == DType::kF32;
  p.round = round;
  const Parts parts = parts_of(p.rows, p.size, state_.num_workers);
  p.parts = parts.count, p.part = parts.size;
  op.op.operands.assign(X::kCount, absent_operand());
  for (const plan::Role& role : plan::kind_of(record).roles) op.access.push_back(role.access);
  return op;
}

/// Memory for what the op hands to the next one.
abi::Operand Emitter::select_storage(const FusedOp& op, int operand) {
  const abi::RowSelectParams& p = op.op.record.params.row_select;
  const bool sums = operand == X::kSums;
  const DType dtype = sums ? DType::kI32 : DType::kI64;
  const int64_t inner = sums ? abi::kSelectWords : abi::kSelectState;
  const std::vector<int64_t> strides = {p.parts * inner, inner, 1};
  abi::Operand x = absent_operand();
  x.slot = static_cast<uint32_t>(add_storage(dtype, {p.rows, p.parts, inner}, strides, sums ? "sums" : "state"));
  x.dtype = static_cast<short>(dtype);
  std::ranges::copy(strides, x.stride);
  return x;
}

void Emitter::row_select_group(int g) {
  const int number = state_.groups[static_cast<size_t>(g)].anchors[0];
  const ir::Node& node = state_.node(number);
  const int distance = node.inputs[0], bound = node.inputs[1];
  const Tensor& rows = state_.tensor(distance);
  if (rows.sizes[0] == 0) return;
  constexpr int64_t kMost = abi::kSelectMost;
  check_node(rows.sizes[0] <= INT32_MAX && rows.sizes[1] <= kMost, node.name, "row select '", node.name, "' of ",
             rows.sizes[0], " rows of ", rows.sizes[1], ", at most ", kMost);
  const BuiltProgram elements = distances(g, distance);
  const bool whole = row_select_op(node, 0).op.record.params.row_select.parts == 1;
  abi::Operand sums = absent_operand(), state = absent_operand();  // of the op before
  for (int round = 0; round <= (whole ? 0 : abi::kSelectRounds); ++round) {
    FusedOp op = row_select_op(node, round);
    std::vector<abi::Operand>& x = op.op.operands;
    const bool counts = round < abi::kSelectRounds, last = whole || !counts;
    x[X::kSumsBefore] = std::exchange(sums, absent_operand());
    x[X::kStateBefore] = std::exchange(state, absent_operand());
    if (whole || round == 1) x[X::kBound] = strided_operand(bound, state_.tensor(bound).dtype);
    if (last) x[X::kOut] = strided_operand(node.outputs[0], DType::kI64);
    if (!last) x[X::kSums] = sums = select_storage(op, X::kSums);
    if (!last && round > 0) x[X::kState] = state = select_storage(op, X::kState);
    abi::RowSelectParams& p = op.op.record.params.row_select;
    p.program = counts ? add_program(elements.program) : -1;
    p.first_operand = X::kCount;
    if (counts) append(op, elements), op.op.programs = {p.program};
    op.op.flops = whole ? abi::kSelectRounds * rows.numel : counts ? rows.numel : 0;
    finish(std::move(op), {number}, number);
    if (!last) result_.ops.back().op.name += cat(".round", round);
  }
}

}  // namespace ark::planner
