// Products of few tiles (64 x 64 with steps of 128 k): alone, and beside the main loops that have the most registers.
#include "plans.h"

namespace ark::cuda_compile {
namespace {

using abi::TaskKind;

struct Product {
  int program;
  bool a_k_major, b_k_major;
  DType type = DType::kBF16;
  int odd = 1027;  // columns of a second product: their epilogue moves single elements, or two
  bool gated = false;
};

void add_product(plan::Plan& p, const Product& product, int tile_m, int tile_n) {
  plan::Op op;
  op.name = "product";
  op.record.kind = TaskKind::kMatmulTile;
  abi::MatmulTileParams& m = op.record.params.matmul;
  m.dtype = static_cast<int>(product.type);
  m.tile_m = tile_m, m.tile_n = tile_n, m.tile_k = tile_m == abi::kSmallTile ? abi::kSmallTileK : 64;
  m.a_k_major = product.a_k_major, m.b_k_major = product.b_k_major;
  m.program = product.program;
  m.gated = product.gated;
  op.operands.resize(static_cast<size_t>(p.programs[static_cast<size_t>(product.program)].num_operands));
  for (const int n : {1024, product.odd}) {
    m.n = n;
    for (abi::Operand& o : op.operands) {
      o.stride[1] = n, o.stride[2] = 1;
      o.vector = n % 8 == 0 ? 8 : n % 2 == 0 ? 2 : 1;
    }
    p.ops.push_back(op);
  }
}
void add_small(plan::Plan& p, const Product& product) { add_product(p, product, abi::kSmallTile, abi::kSmallTile); }

/// bf16(product + bias).
int with_bias(ProgramBuilder& b) { return b.op(Opcode::kAdd, b.root(), b.load(0, DType::kBF16)); }

int gelu_of(ProgramBuilder& b, int x) {
  const int erf = b.op(Opcode::kErf, b.op(Opcode::kMul, x, b.constant(0.7071067811865476)));
  return b.op(Opcode::kMul, x, b.op(Opcode::kMul, b.op(Opcode::kAdd, erf, b.constant(1)), b.constant(0.5)));
}

/// Bias; bias and gelu with two outputs; bias, gate and residual; rotary pairs; sums of parts.
struct Epilogues {
  int bias, gelu, residual, rotary, parts;
};
Epilogues add_epilogues(plan::Plan& p) {
  ProgramBuilder bias(ProgramKind::kEpilogue, 3, 0, 2);
  bias.store(1, DType::kBF16, with_bias(bias));
  ProgramBuilder gelu(ProgramKind::kEpilogue, 3, 0, 3);
  const int x = with_bias(gelu);
  gelu.store(1, DType::kBF16, x);
  gelu.store(2, DType::kBF16, gelu_of(gelu, x));
  ProgramBuilder residual(ProgramKind::kEpilogue, 3, 0, 4);
  const int gate = residual.op(Opcode::kSigmoid, residual.load(1, DType::kBF16));
  const int gated = residual.op(Opcode::kMul, with_bias(residual), gate);
  residual.store(3, DType::kBF16, residual.op(Opcode::kAdd, gated, residual.load(2, DType::kBF16)));
  ProgramBuilder rotary(ProgramKind::kEpilogue, 3, 0, 3);
  {
    const int head = rotary.op(Opcode::kRemainder, rotary.index(2), rotary.constant(64, DType::kI64), -1, DType::kI64);
    const int left = rotary.op(Opcode::kLt, head, rotary.constant(32, DType::kI64), -1, DType::kBool);
    const int turned = rotary.op(Opcode::kWhere, left, rotary.op(Opcode::kNeg, rotary.root(0, 1)), rotary.root(0, -1));
    const int sine = rotary.op(Opcode::kMul, turned, rotary.load(1, DType::kF32));
    rotary.store(2, DType::kBF16, rotary.op(Opcode::kFma, rotary.root(), rotary.load(0, DType::kF32), sine));
  }
  ProgramBuilder parts(ProgramKind::kEpilogue, 3, 0, 1);
  parts.store(0, DType::kF32, parts.root());
  return {add_program(p, bias), add_program(p, gelu), add_program(p, residual), add_program(p, rotary),
          add_program(p, parts)};
}

void add_attention(plan::Plan& p, TaskKind kind) {
  plan::Op op;
  op.name = "attention";
  op.record.kind = kind;
  abi::AttentionParams& a = op.record.params.attention;
  a.dtype = static_cast<int>(DType::kBF16);
  a.head_dim = a.value_dim = 64;
  p.ops.push_back(op);
}

/// Every layout and epilogue of one type, nothing else. (All of both types at once spill, as all large ones do.)
NamedPlan alone_plan(DType type) {
  plan::Plan p;
  p.maps.resize(1);
  const Epilogues e = add_epilogues(p);
  add_small(p, {e.bias, true, true, type, 1026});
  add_small(p, {e.gelu, true, true, type});
  add_small(p, {e.residual, true, false, type});
  add_small(p, {e.rotary, true, true, type});
  add_small(p, {e.parts, false, type == DType::kF16, type});
  return {type == DType::kF16 ? "small_tiles_half" : "small_tiles", p};
}

/// silu(first) * second + an operand.
int add_gate(plan::Plan& p) {
  ProgramBuilder gate(ProgramKind::kEpilogue, 3, 0, 2);
  const int x = gate.op(Opcode::kCast, gate.root(), -1, -1, DType::kBF16);
  const int y = gate.op(Opcode::kMul, gate.op(Opcode::kMul, x, gate.op(Opcode::kSigmoid, x)), gate.root(1));
  gate.store(1, DType::kBF16, gate.op(Opcode::kAdd, y, gate.load(0, DType::kBF16)));
  return add_program(p, gate);
}

/// Products of two weights beside small tiles of one, of both layouts.
NamedPlan gated_plan(DType type) {
  plan::Plan p;
  p.maps.resize(1);
  const int gate = add_gate(p);
  const Epilogues e = add_epilogues(p);
  add_small(p, {gate, true, type == DType::kBF16, type, 1027, true});
  add_small(p, {e.parts, true, type == DType::kBF16, type});
  add_small(p, {e.rotary, true, type == DType::kBF16, type});
  return {type == DType::kF16 ? "gated_tiles_half" : "gated_tiles", p};
}

/// Epilogues that end tiles of every form, and attention of either direction beside them.
NamedPlan beside_plan(bool backward) {
  plan::Plan p;
  p.maps.resize(1);
  const Epilogues e = add_epilogues(p);
  for (const int program : {e.gelu, e.bias, e.parts}) {
    add_small(p, {program, true, !backward});
    add_product(p, {program, true, !backward}, 128, 256);
  }
  if (!backward) add_small(p, {add_gate(p), true, true, DType::kBF16, 1027, true});
  if (backward) {
    add_small(p, {e.parts, false, false});
    add_product(p, {e.parts, false, false}, 128, 128);
    for (const TaskKind kind :
         {TaskKind::kAttentionBackwardRows, TaskKind::kAttentionBackward, TaskKind::kAttentionBackwardQuery})
      add_attention(p, kind);
  } else {
    add_attention(p, TaskKind::kAttentionForward);
  }
  return {backward ? "small_tiles_backward" : "small_tiles_forward", p};
}

}  // namespace

std::vector<NamedPlan> small_tile_plans() {
  return {alone_plan(DType::kBF16), alone_plan(DType::kF16), gated_plan(DType::kBF16),
          gated_plan(DType::kF16),  beside_plan(false),      beside_plan(true)};
}

}  // namespace ark::cuda_compile
