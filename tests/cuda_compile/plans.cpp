#include "plans.h"

#include "device/abi/roles.h"

namespace ark::cuda_compile {
namespace {

using abi::TaskKind;

plan::Op program_op(TaskKind kind, int program, const std::string& name) {
  plan::Op op;
  op.name = name;
  op.record.kind = kind;
  op.record.params.program.program = program;
  return op;
}

/// All unary, binary and ternary opcodes on one type in one pointwise program.
ProgramBuilder every_opcode(DType type) {
  ProgramBuilder b(ProgramKind::kPointwise, 2, 0, 3);
  const int x = b.load(0, type), y = b.load(1, type);
  const bool floating = is_float(type);
  int sum = b.op(Opcode::kAdd, x, y, -1, type);
  const auto fold = [&](int value) { sum = b.op(Opcode::kAdd, sum, value, -1, type); };
  for (int code = static_cast<int>(Opcode::kNeg); code <= static_cast<int>(Opcode::kLogicalXor); ++code) {
    const auto op = static_cast<Opcode>(code);
    const bool bits = op == Opcode::kBitNot || (op >= Opcode::kAnd && op <= Opcode::kShr);
    const bool integer_too = op == Opcode::kNeg || op == Opcode::kAbs || op == Opcode::kSign || op == Opcode::kRelu ||
                             (op >= Opcode::kAdd && op <= Opcode::kMinimum);
    const bool boolean = (op >= Opcode::kEq && op <= Opcode::kGe) || op == Opcode::kIsNan || op == Opcode::kIsInf ||
                         op == Opcode::kLogicalNot || (op >= Opcode::kLogicalAnd && op <= Opcode::kLogicalXor);
    if (boolean) {
      const int condition = b.op(op, x, y, -1, DType::kBool);
      fold(b.op(Opcode::kWhere, condition, x, y, type));
    } else if (floating ? !bits : (bits || integer_too)) {
      fold(b.op(op, x, y, -1, type));
    }
  }
  fold(b.op(Opcode::kFma, x, y, sum, type));
  b.store(2, type, sum);
  return b;
}

NamedPlan pointwise_plan() {
  plan::Plan p;
  for (const DType type : {DType::kF32, DType::kI64})
    p.ops.push_back(program_op(TaskKind::kPointwise, add_program(p, every_opcode(type)), "every opcode"));
  {  // gather of rows, predicate, random numbers, scatter
    ProgramBuilder b(ProgramKind::kPointwise, 3, 0, 6);
    const int row = b.load(0, DType::kI64);
    const int table = b.load(1, DType::kBF16, row);
    const int d0 = b.index(0), d2 = b.index(2), limit = b.constant(5, DType::kI64);
    const int inside = b.op(Opcode::kLt, d2, limit, -1, DType::kBool);
    const int guarded = b.load(3, DType::kF16, -1, -1, inside);
    const int random = b.op(Opcode::kRand, row, d0, d2);
    int sum = b.op(Opcode::kAdd, table, guarded);
    sum = b.op(Opcode::kMul, sum, random);
    const int rounded = b.op(Opcode::kCast, sum, -1, -1, DType::kBF16);
    b.store(4, DType::kBF16, rounded, false, row, inside);
    b.store(5, DType::kF32, sum);
    p.ops.push_back(program_op(TaskKind::kPointwise, add_program(p, b), "gather, dropout, scatter"));
  }
  {  // gelu (tanh) in bf16
    ProgramBuilder b(ProgramKind::kPointwise, 1, 0, 2);
    const int x = b.load(0, DType::kBF16);
    const int cube = b.op(Opcode::kPow, x, b.constant(3));
    const int inner = b.op(Opcode::kMul, b.op(Opcode::kFma, cube, b.constant(0.044715), x), b.constant(0.7978845608));
    const int one = b.op(Opcode::kAdd, b.op(Opcode::kTanh, inner), b.constant(1));
    const int half = b.op(Opcode::kMul, x, b.constant(0.5));
    b.store(1, DType::kBF16, b.op(Opcode::kMul, half, one));
    p.ops.push_back(program_op(TaskKind::kPointwise, add_program(p, b), "gelu"));
  }
  return {"pointwise", p};
}

/// An operand over a pointwise domain.
struct PointwiseOperand {
  DType type;
  std::vector<int64_t> strides;
};
void set_operands(plan::Op& op, const std::vector<int64_t>& sizes, const std::vector<PointwiseOperand>& operands) {
  std::copy(sizes.begin(), sizes.end(), op.record.size);
  for (const PointwiseOperand& x : operands) {
    abi::Operand o{};
    o.slot = 0;
    o.dtype = static_cast<short>(x.type);
    o.index_operand = -1;
    std::copy(x.strides.begin(), x.strides.end(), o.stride);
    op.operands.push_back(o);
  }
}
/// The sum of the operands but the last, which it goes to.
void add_sum(plan::Plan& plan, const std::vector<int64_t>& sizes, const std::vector<PointwiseOperand>& operands) {
  const int last = static_cast<int>(operands.size()) - 1;
  ProgramBuilder b(ProgramKind::kPointwise, static_cast<int>(sizes.size()), 0, last + 1);
  int sum = b.load(0, operands[0].type);
  for (int i = 1; i < last; ++i) sum = b.op(Opcode::kAdd, sum, b.load(i, operands[i].type), -1, operands.back().type);
  b.store(last, operands.back().type, sum);
  plan::Op op = program_op(TaskKind::kPointwise, add_program(plan, b), "sum");
  set_operands(op, sizes, operands);
  plan.ops.push_back(op);
}

/// Operands that go through tiles: every size of element, several of them, beside others.
NamedPlan transposed_plan() {
  plan::Plan p;
  add_sum(p, {3, 4, 129, 65},
          {{DType::kBF16, {4096, 30000, 1, 129}}, {DType::kBF16, {4096, 30000, 65, 1}}, {DType::kBF16, {0, 0, 65, 1}}});
  add_sum(p, {64, 64},
          {{DType::kU8, {1, 64}}, {DType::kBF16, {1, 65}}, {DType::kF32, {1, 66}}, {DType::kF32, {64, 1}}});
  for (const DType type : {DType::kU8, DType::kF16, DType::kF32, DType::kI64, DType::kF64})
    add_sum(p, {3, 65, 33}, {{type, {8192, 1, 65}}, {type, {65 * 33, 33, 1}}});
  add_sum(p, {3, 65, 33}, {{DType::kBF16, {8192, 1, 65}}, {DType::kU8, {8192, 1, 65}}, {DType::kF64, {2145, 33, 1}}});
  return {"pointwise_transposed", p};
}

/// A mere copy, the shortest loop over blocks.
NamedPlan transposed_copy_plan() {
  plan::Plan p;
  add_sum(p, {8, 1024, 256}, {{DType::kBF16, {262144, 1, 1024}}, {DType::kBF16, {256, 2048, 1}}});
  return {"pointwise_transposed_copy", p};
}

/// Vectors that end in the next row: values of a row, of columns, of a middle dimension, every size of element; many
/// functions; a batch norm.
NamedPlan flat_plan() {
  plan::Plan p;
  for (const DType type : {DType::kBF16, DType::kU8, DType::kF32, DType::kI64, DType::kF64})
    add_sum(p, {8, 64, 49}, {{type, {3136, 49, 1}}, {type, {0, 1, 0}}, {type, {49, 0, 1}}, {type, {3136, 49, 1}}});
  add_sum(p, {4096, 4097},
          {{DType::kBF16, {4097, 1}}, {DType::kF32, {0, 1}}, {DType::kU8, {1, 0}}, {DType::kF32, {4097, 1}}});
  add_sum(p, {2, 3, 4, 5, 6, 70},
          {{DType::kF32, {25200, 8400, 2100, 420, 70, 1}},
           {DType::kBF16, {0, 1, 0, 3, 0, 0}},
           {DType::kF32, {25200, 8400, 2100, 420, 70, 1}}});
  ProgramBuilder b(ProgramKind::kPointwise, 3, 0, 6);
  const int x = b.load(0, DType::kBF16), mean = b.load(1, DType::kF32), variance = b.load(2, DType::kF32);
  const int scale = b.op(Opcode::kReciprocal, b.op(Opcode::kSqrt, b.op(Opcode::kAdd, variance, b.constant(1e-5))));
  const int normed = b.op(Opcode::kMul, b.op(Opcode::kSub, x, mean), scale);
  const int y = b.op(Opcode::kAdd, b.op(Opcode::kMul, normed, b.load(3, DType::kBF16)), b.load(4, DType::kBF16));
  b.store(5, DType::kBF16, b.op(Opcode::kRelu, b.op(Opcode::kCast, y, -1, -1, DType::kBF16)));
  plan::Op norm = program_op(TaskKind::kPointwise, add_program(p, b), "batch norm");
  set_operands(norm, {8, 2048, 49},
               {{DType::kBF16, {100352, 49, 1}},
                {DType::kF32, {0, 1, 0}},
                {DType::kF32, {0, 1, 0}},
                {DType::kBF16, {0, 1, 0}},
                {DType::kBF16, {0, 1, 0}},
                {DType::kBF16, {100352, 49, 1}}});
  p.ops.push_back(norm);
  return {"pointwise_flat", p};
}

/// Pieces of a concatenation: one that is copied, one that is computed, two halves that share an op.
NamedPlan pieces_plan() {
  plan::Plan p;
  add_sum(p, {2048, 769}, {{DType::kBF16, {769, 1}}, {DType::kBF16, {1537, 1}}});
  add_sum(p, {16, 70, 128},
          {{DType::kF32, {8960, 128, 1}}, {DType::kF32, {8960, 1, 70}}, {DType::kF32, {12928, 128, 1}}});
  ProgramBuilder b(ProgramKind::kPointwise, 2, 0, 4);
  const int high = b.load(0, DType::kBF16), low = b.load(1, DType::kBF16);
  b.store(2, DType::kBF16, b.op(Opcode::kNeg, high));
  b.store(3, DType::kBF16, low);
  p.ops.push_back(program_op(TaskKind::kPointwise, add_program(p, b), "rotated halves"));
  return {"pieces", p};
}

}  // namespace

ProgramBuilder rms_norm(ProgramKind kind) {
  ProgramBuilder b(kind, 2, 1, kind == ProgramKind::kRow ? 3 : 2);
  const int x = b.load(0, DType::kBF16), w = b.load(1, DType::kBF16);
  const int mean = b.op(Opcode::kMul, b.reduce(ReduceOp::kSum, b.op(Opcode::kMul, x, x)), b.constant(1.0 / 2048));
  const int scale = b.op(Opcode::kRsqrt, b.op(Opcode::kAdd, mean, b.constant(1e-5)));
  const int normed = b.op(Opcode::kCast, b.op(Opcode::kMul, x, scale), -1, -1, DType::kBF16);
  const int y = b.op(Opcode::kMul, w, normed);
  if (kind == ProgramKind::kRow)
    b.store(2, DType::kBF16, y);
  else
    b.op(Opcode::kYield, y);
  return b;
}

plan::Op row_op(int program, const std::string& name, const std::vector<int64_t>& sizes, int reduce_dims,
                const std::vector<RowOperand>& operands) {
  plan::Op op = program_op(TaskKind::kRow, program, name);
  abi::ProgramParams& p = op.record.params.program;
  p.num_dims = static_cast<int>(sizes.size());
  p.reduce_dims = reduce_dims;
  p.num_rows = p.row_size = 1;
  for (int d = 0; d < p.num_dims; ++d) {
    op.record.size[d] = sizes[d];
    (d < p.num_dims - reduce_dims ? p.num_rows : p.row_size) *= sizes[d];
  }
  p.tile = p.row_size > 4096 ? 2 : 32;
  for (const RowOperand& x : operands) {
    abi::Operand operand = {};
    operand.dtype = static_cast<short>(x.type);
    operand.vector = static_cast<signed char>(x.vector);
    operand.index_operand = -1;
    std::copy(x.strides.begin(), x.strides.end(), operand.stride);
    op.operands.push_back(operand);
  }
  return op;
}

namespace {

NamedPlan row_plan() {
  plan::Plan p;
  const int norm = add_program(p, rms_norm(ProgramKind::kRow));
  p.ops.push_back(row_op(norm, "rms norm", {512, 2048}, 1,
                         {{DType::kBF16, {2048, 1}, 8}, {DType::kBF16, {0, 1}, 8}, {DType::kBF16, {2048, 1}, 8}}));
  {  // layer norm with statistics
    ProgramBuilder b(ProgramKind::kRow, 3, 1, 6);
    const int x = b.op(Opcode::kAdd, b.load(0, DType::kF32), b.load(1, DType::kBF16));
    const int n = b.constant(1.0 / 1024);
    const int mean = b.op(Opcode::kMul, b.reduce(ReduceOp::kSum, x), n);
    const int d = b.op(Opcode::kSub, x, mean);
    const int variance = b.op(Opcode::kMul, b.reduce(ReduceOp::kSum, b.op(Opcode::kMul, d, d)), n);
    const int scale = b.op(Opcode::kRsqrt, b.op(Opcode::kAdd, variance, b.constant(1e-12)));
    const int y = b.op(Opcode::kFma, b.op(Opcode::kMul, d, scale), b.load(2, DType::kF32), b.load(3, DType::kF32));
    b.store(4, DType::kF16, y);
    b.store(5, DType::kF32, scale, true);
    const RowOperand row = {DType::kF32, {393216, 1024, 1}, 4}, half = {DType::kBF16, {393216, 1024, 1}, 8};
    const RowOperand weight = {DType::kF32, {0, 0, 1}, 4}, one = {DType::kF32, {384, 1, 0}};
    p.ops.push_back(row_op(add_program(p, b), "layer norm", {10, 384, 1024}, 1,
                           {row, half, weight, weight, {DType::kF16, {393216, 1024, 1}, 8}, one}));
  }
  {  // softmax, argmax, any over two dimensions
    ProgramBuilder b(ProgramKind::kRow, 4, 2, 5);
    const int x = b.load(0, DType::kF32);
    const int e = b.op(Opcode::kExp, b.op(Opcode::kSub, x, b.reduce(ReduceOp::kMax, x)));
    const int sum = b.reduce(ReduceOp::kSum, e);
    b.store(1, DType::kF32, b.op(Opcode::kDiv, e, sum));
    b.store(2, DType::kI64, b.reduce(ReduceOp::kArgMax, x, DType::kI64), true);
    const int nan = b.op(Opcode::kIsNan, x, -1, -1, DType::kBool);
    b.store(3, DType::kBool, b.reduce(ReduceOp::kAny, nan, DType::kBool), true);
    b.store(4, DType::kF64, b.reduce(ReduceOp::kSum, b.op(Opcode::kCast, x, -1, -1, DType::kF64), DType::kF64), true);
    const RowOperand row = {DType::kF32, {900, 300, 30, 1}, 2};
    const auto one = [](DType type) { return RowOperand{type, {3, 1, 0, 0}}; };
    p.ops.push_back(row_op(add_program(p, b), "softmax", {20, 3, 10, 30}, 2,
                           {row, row, one(DType::kI64), one(DType::kBool), one(DType::kF64)}));
  }
  {  // rows that start off alignment, a value of the row that is a table's
    ProgramBuilder b(ProgramKind::kRow, 2, 1, 3);
    const int x = b.load(0, DType::kBF16), scale = b.load(1, DType::kF32);
    const int e = b.op(Opcode::kExp, b.op(Opcode::kSub, x, b.reduce(ReduceOp::kMax, x)));
    const int sum = b.op(Opcode::kMul, b.reduce(ReduceOp::kSum, e), scale);
    b.store(2, DType::kF32, b.op(Opcode::kDiv, e, sum));
    p.ops.push_back(row_op(add_program(p, b), "vocabulary", {3840, 30522}, 1,
                           {{DType::kBF16, {30522, 1}, 2}, {DType::kF32, {1, 0}}, {DType::kF32, {30522, 1}, 2}}));
  }
  plan::Op range;
  range.name = "mask range";
  range.record.kind = TaskKind::kMaskRange;
  p.ops.push_back(range);
  {  // long functions: the chunks of a row in turn
    ProgramBuilder b(ProgramKind::kRow, 2, 1, 2);
    const int x = b.op(Opcode::kAbs, b.load(0, DType::kBF16));
    const int y = b.op(Opcode::kLog1p, b.op(Opcode::kLog, b.op(Opcode::kErf, x)));
    b.store(1, DType::kBF16, b.op(Opcode::kSub, y, b.reduce(ReduceOp::kMax, y)));
    p.ops.push_back(row_op(add_program(p, b), "in turn", {100, 4096}, 1,
                           {{DType::kBF16, {4096, 1}, 8}, {DType::kBF16, {4096, 1}, 8}}));
  }
  return {"row", p};
}

/// Parts of rows of a vocabulary: extremes and places of (row, part, element). `counts`: sums beside them, of elements
/// that no later part has.
plan::Op places_of_parts(plan::Plan& p, DType type, const std::vector<int64_t>& sizes, const RowOperand& x,
                         bool counts) {
  const std::vector<ReduceOp> reduces = {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kArgMax, ReduceOp::kArgMin};
  const int results = counts ? 5 : 4;
  ProgramBuilder b(ProgramKind::kRow, 3, 1, 1 + results);
  const int value = b.load(0, type);
  const DType wide = compute_type(type);
  std::vector<RowOperand> operands = {x};
  const auto add = [&](int result, DType of) {
    b.store(static_cast<int>(operands.size()), of, result, true);
    operands.push_back({of, {sizes[1], 1, 0}});
  };
  for (const ReduceOp reduce : reduces) {
    const DType of = reduce >= ReduceOp::kArgMax ? DType::kI64 : wide;
    add(b.reduce(reduce, value, of), of);
  }
  if (counts) {
    const int before = b.op(Opcode::kLt, b.index(2), b.constant(4184, DType::kI64), -1, DType::kBool);
    const int is_last = b.op(Opcode::kEq, b.index(1), b.constant(11, DType::kI64), -1, DType::kBool);
    const int owned = b.op(Opcode::kLogicalOr, before, is_last, -1, DType::kBool);
    add(b.reduce(ReduceOp::kSum, b.op(Opcode::kWhere, owned, value, b.constant(0, wide), wide), wide), wide);
  }
  return row_op(add_program(p, b), "places of parts", sizes, 1, operands);
}

/// Places in whole rows, from those in their parts (planner/tile/split_places.h).
plan::Op places_of_rows(plan::Plan& p, DType type, int64_t rows, int64_t parts) {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 4);
  const int extremes = b.load(0, type), places = b.load(1, DType::kI64);
  b.store(2, type, b.reduce(ReduceOp::kMax, extremes, type), true);
  const int best = b.reduce(ReduceOp::kArgMax, extremes, DType::kI64), part = b.index(1);
  const int begin = b.op(Opcode::kMul, part, b.constant(4184, DType::kI64), -1, DType::kI64);
  const int place = b.op(Opcode::kAdd, places, begin, -1, DType::kI64);
  const int is_best = b.op(Opcode::kEq, part, best, -1, DType::kBool);
  const int chosen = b.op(Opcode::kWhere, is_best, place, b.constant(-1, DType::kI64), DType::kI64);
  b.store(3, DType::kI64, b.reduce(ReduceOp::kMax, chosen, DType::kI64), true);
  return row_op(add_program(p, b), "places of rows", {rows, parts}, 1,
                {{type, {parts, 1}}, {DType::kI64, {parts, 1}}, {type, {1, 0}}, {DType::kI64, {1, 0}}});
}

NamedPlan places_plan() {
  plan::Plan p;
  p.ops.push_back(places_of_parts(p, DType::kBF16, {1, 30, 4368}, {DType::kBF16, {128256, 4272, 1}, 8}, false));
  p.ops.push_back(places_of_parts(p, DType::kF32, {3, 12, 4233}, {DType::kF32, {50257, 4184, 1}}, true));
  p.ops.push_back(places_of_parts(p, DType::kI64, {3, 12, 4233}, {DType::kI64, {50257, 4184, 1}}, true));
  p.ops.push_back(places_of_rows(p, DType::kF32, 3, 12));
  p.ops.push_back(places_of_rows(p, DType::kI64, 64, 12));
  return {"places", p};
}

NamedPlan column_plan() {
  plan::Plan p;
  {  // two sums of a layer norm's backward
    ProgramBuilder b(ProgramKind::kColumn, 2, 1, 4);
    const int dy = b.load(0, DType::kBF16), x = b.load(1, DType::kBF16);
    b.store(2, DType::kF32, b.reduce(ReduceOp::kSum, b.op(Opcode::kMul, dy, x)), true);
    b.store(3, DType::kF32, b.reduce(ReduceOp::kSum, dy), true);
    p.ops.push_back(program_op(TaskKind::kColumn, add_program(p, b), "norm backward"));
  }
  {
    ProgramBuilder b(ProgramKind::kColumn, 3, 2, 3);
    const int x = b.load(0, DType::kF64);
    b.store(1, DType::kI64, b.reduce(ReduceOp::kArgMin, x, DType::kI64), true);
    b.store(2, DType::kF64, b.reduce(ReduceOp::kProd, x, DType::kF64), true);
    p.ops.push_back(program_op(TaskKind::kColumn, add_program(p, b), "product"));
  }
  for (const DType type : {DType::kBF16, DType::kF32, DType::kU8}) {
    ProgramBuilder b(ProgramKind::kColumn, 2, 1, 2);
    b.store(1, DType::kF32, b.reduce(ReduceOp::kSum, b.load(0, type)), true);
    p.ops.push_back(program_op(TaskKind::kColumn, add_program(p, b), "sum"));
  }
  {  // types of several widths, columns of several rows
    ProgramBuilder b(ProgramKind::kColumn, 3, 1, 4);
    const int x = b.op(Opcode::kMul, b.load(0, DType::kBF16), b.load(1, DType::kF32));
    b.store(3, DType::kF32, b.reduce(ReduceOp::kMax, b.op(Opcode::kAdd, x, b.load(2, DType::kBF16))), true);
    p.ops.push_back(program_op(TaskKind::kColumn, add_program(p, b), "maximum"));
  }
  return {"column", p};
}

/// Heads of `dim` columns and so many query rows per kv head; keys of a cache, or keys that are none.
plan::Op decode_op(int dim, int rows, bool cached) {
  plan::Op op;
  op.name = "attention";
  op.record.kind = TaskKind::kAttentionDecode;
  abi::AttentionParams& attention = op.record.params.attention;
  attention.dtype = static_cast<int>(DType::kBF16);
  attention.head_dim = attention.value_dim = dim;
  attention.heads = rows;
  attention.kv_heads = attention.queries = 1;
  using X = ark::abi::AttentionOperand;
  if (cached) op.early = 1u << X::kK | 1u << X::kV | 1u << X::kPosition;
  return op;
}

/// Heads of 64 and 128 columns, few query rows and more.
NamedPlan decode_plan() {
  plan::Plan p;
  p.ops = {decode_op(64, 4, true), decode_op(128, 16, false)};
  return {"decode", p};
}

/// Two tiles at once, of one size of heads as a model has them, and of full pages and others together.
NamedPlan paired_decode_plan(bool several) {
  plan::Plan p;
  p.ops = {decode_op(64, 4, true)};
  if (several) p.ops = {decode_op(64, 16, true), decode_op(112, 4, true), decode_op(128, 4, true)};
  for (plan::Op& op : p.ops) op.record.params.attention.tiles_at_once = 2;
  return {several ? "decode_pairs" : "decode_pair", p};
}

/// Heads of 256 columns and up to four query rows. (With more rows 8 bytes are spilled, outside the walk over keys.)
NamedPlan wide_decode_plan() {
  plan::Plan p;
  p.ops = {decode_op(256, 4, true), decode_op(256, 2, false)};
  return {"decode_256", p};
}

/// Heads whose pages are not full: fewer than eight pieces at the end, alone or of each slice, and a slice of nine.
NamedPlan odd_decode_plan() {
  plan::Plan p;
  for (const int dim : {80, 112, 144, 192}) p.ops.push_back(decode_op(dim, dim == 112 ? 16 : 4, dim < 192));
  return {"decode_odd", p};
}

/// On the CUDA cores (one and two chunks of columns, fp64) or on the tensor cores.
NamedPlan simple_attention_plan(bool tensor_cores) {
  plan::Plan p;
  const auto add = [&](DType type, int queries, int dim) {
    plan::Op op;
    op.name = "attention";
    op.record.kind = TaskKind::kAttentionSimple;
    abi::AttentionParams& attention = op.record.params.attention;
    attention.dtype = static_cast<int>(type);
    attention.head_dim = attention.value_dim = dim;
    attention.tile_q = queries;
    p.ops.push_back(op);
  };
  if (tensor_cores) {
    for (const int dim : {80, 96, 256}) add(DType::kBF16, abi::kMmaQueries, dim);
    add(DType::kF16, abi::kMmaQueries, 160);
  } else {
    add(DType::kF32, abi::kTiledQueries, 64);
    add(DType::kF32, abi::kTiledQueries, 128);
    add(DType::kF64, abi::kTiledQueriesF64, 64);
  }
  return {tensor_cores ? "attention_mma" : "attention_tiled", p};
}

/// Sums by index of every type.
NamedPlan scatter_plan() {
  plan::Plan p;
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    plan::Op op;
    op.name = "scatter sum";
    op.record.kind = TaskKind::kScatterSum;
    op.record.params.scatter_sum.dtype = static_cast<int>(type);
    p.ops.push_back(op);
  }
  return {"scatter_sum", p};
}

/// Where x is near enough, x with noise: the place of the largest.
plan::Op draw_op(plan::Plan& p) {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 4);
  const int x = b.load(0, DType::kBF16), near = b.op(Opcode::kLe, x, b.load(1, DType::kF32), -1, DType::kBool);
  const int random = b.op(Opcode::kRand, b.load(2, DType::kI64), b.constant(0, DType::kI64), b.index(1));
  const int noise = b.op(Opcode::kLog, b.op(Opcode::kNeg, b.op(Opcode::kLog1p, b.op(Opcode::kNeg, random))));
  const int drawn = b.op(Opcode::kWhere, near, b.op(Opcode::kSub, x, noise), b.constant(-1e30));
  b.store(3, DType::kI64, b.reduce(ReduceOp::kArgMax, drawn, DType::kI64), true);
  const RowOperand one = {DType::kI64, {0, 0}};
  return row_op(add_program(p, b), "draw", {16, 8016}, 1,
                {{DType::kBF16, {8016, 1}, 8}, {DType::kF32, {1, 0}}, one, {DType::kI64, {1, 0}}});
}

NamedPlan select_plan() {
  plan::Plan p;
  for (const int by_mass : {0, 1}) {
    plan::Op op;
    op.name = "row select";
    op.record.kind = TaskKind::kRowSelect;
    op.record.params.row_select.by_mass = by_mass;
    p.ops.push_back(op);
  }
  p.ops.push_back(draw_op(p));
  return {"row_select", p};
}

NamedPlan draw_plan() {
  plan::Plan p;
  plan::Op op;
  op.name = "row draw";
  op.record.kind = TaskKind::kRowDraw;
  p.ops.push_back(op);
  return {"row_draw", p};
}

}  // namespace

std::vector<NamedPlan> plans() {
  return {pointwise_plan(),
          transposed_plan(),
          transposed_copy_plan(),
          flat_plan(),
          pieces_plan(),
          row_plan(),
          places_plan(),
          column_plan(),
          scatter_plan(),
          select_plan(),
          draw_plan(),
          decode_plan(),
          wide_decode_plan(),
          paired_decode_plan(false),
          paired_decode_plan(true),
          odd_decode_plan(),
          simple_attention_plan(false),
          simple_attention_plan(true)};
}

}  // namespace ark::cuda_compile
