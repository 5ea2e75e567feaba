// Plans with the kinds and epilogues of a transformer's training step: several main loops on the tensor cores in one
// kernel, which is where registers run out.
#include "plans.h"

namespace ark::cuda_compile {
namespace {

using abi::TaskKind;

int gaussian_cdf(ProgramBuilder& b, int x) {
  const int erf = b.op(Opcode::kErf, b.op(Opcode::kMul, x, b.constant(0.7071067811865476)));
  return b.op(Opcode::kMul, b.op(Opcode::kAdd, erf, b.constant(1)), b.constant(0.5));
}

/// bf16(product + bias), f32 bias.
int with_bias(ProgramBuilder& b) {
  const int bias = b.op(Opcode::kCast, b.load(0, DType::kF32), -1, -1, DType::kBF16);
  return b.op(Opcode::kAdd, b.root(), bias);
}

/// Products that end in the program: rows of whole vectors, and (`odd`) rows that go element by element.
void add_matmul(plan::Plan& p, int program, int tile_n, bool a_k_major, bool b_k_major, const char* name,
                int odd = 1027) {
  plan::Op op;
  op.name = name;
  op.record.kind = TaskKind::kMatmulTile;
  abi::MatmulTileParams& m = op.record.params.matmul;
  m.dtype = static_cast<int>(DType::kBF16);
  m.tile_m = 128, m.tile_n = tile_n, m.tile_k = 64;
  m.a_k_major = a_k_major, m.b_k_major = b_k_major;
  m.program = program;
  op.operands.resize(static_cast<size_t>(p.programs[static_cast<size_t>(program)].num_operands));
  for (const int n : {1024, odd}) {
    m.n = n;
    for (abi::Operand& o : op.operands) {
      o.stride[1] = n, o.stride[2] = 1;
      o.vector = n % 8 == 0 ? 8 : n % 2 == 0 ? 2 : 1;
    }
    p.ops.push_back(op);
  }
}

void add_float_matmul(plan::Plan& p, int program, bool a_k_major, bool b_k_major, const char* name) {
  const size_t first = p.ops.size();
  add_matmul(p, program, 128, a_k_major, b_k_major, name);
  for (size_t i = first; i < p.ops.size(); ++i) {
    p.ops[i].record.kind = TaskKind::kMatmulFloat;
    p.ops[i].record.params.matmul.dtype = static_cast<int>(DType::kF32);
  }
}

void add_attention(plan::Plan& p, TaskKind kind, const char* name) {
  plan::Op op;
  op.name = name;
  op.record.kind = kind;
  abi::AttentionParams& a = op.record.params.attention;
  a.dtype = static_cast<int>(DType::kBF16);
  a.head_dim = a.value_dim = 64;
  p.ops.push_back(op);
}

NamedPlan forward_plan() {
  plan::Plan p;
  p.maps.resize(1);
  ProgramBuilder bias(ProgramKind::kEpilogue, 3, 0, 2);
  bias.store(1, DType::kBF16, with_bias(bias));
  ProgramBuilder gelu(ProgramKind::kEpilogue, 3, 0, 3);
  const int x = with_bias(gelu);
  gelu.store(1, DType::kBF16, x);
  gelu.store(2, DType::kBF16, gelu.op(Opcode::kMul, x, gaussian_cdf(gelu, x)));
  ProgramBuilder tanh(ProgramKind::kEpilogue, 3, 0, 2);
  tanh.store(1, DType::kBF16, tanh.op(Opcode::kTanh, with_bias(tanh)));
  add_matmul(p, add_program(p, bias), 256, true, true, "bias", 1026);  // rows of pairs
  add_matmul(p, add_program(p, gelu), 256, true, true, "bias, gelu");
  add_matmul(p, add_program(p, tanh), 128, true, true, "bias, tanh");
  add_attention(p, TaskKind::kAttentionForward, "attention");
  plan::Op range;
  range.name = "mask range";
  range.record.kind = TaskKind::kMaskRange;
  p.ops.push_back(range);
  return {"training_forward", p};
}

NamedPlan backward_plan() {
  plan::Plan p;
  p.maps.resize(1);
  ProgramBuilder plain(ProgramKind::kEpilogue, 3, 0, 1);
  plain.store(0, DType::kBF16, plain.op(Opcode::kCast, plain.root(), -1, -1, DType::kBF16));
  ProgramBuilder weight(ProgramKind::kEpilogue, 3, 0, 1);
  weight.store(0, DType::kF32, weight.op(Opcode::kCast, weight.root(), -1, -1, DType::kBF16));
  ProgramBuilder gelu(ProgramKind::kEpilogue, 3, 0, 2);
  const int x = gelu.load(0, DType::kBF16);
  const int square = gelu.op(Opcode::kMul, gelu.op(Opcode::kMul, x, x), gelu.constant(-0.5));
  const int density = gelu.op(Opcode::kMul, gelu.op(Opcode::kExp, square), gelu.constant(0.3989422804014327));
  const int slope = gelu.op(Opcode::kAdd, gaussian_cdf(gelu, x), gelu.op(Opcode::kMul, x, density));
  gelu.store(1, DType::kBF16, gelu.op(Opcode::kMul, gelu.root(), slope));
  add_matmul(p, add_program(p, plain), 256, true, false, "gradient");
  add_matmul(p, add_program(p, gelu), 256, true, false, "gradient, gelu");
  add_matmul(p, add_program(p, weight), 256, false, false, "weight gradient");
  add_matmul(p, 2, 128, false, false, "small weight gradient");
  add_attention(p, TaskKind::kAttentionBackwardRows, "attention rows");
  add_attention(p, TaskKind::kAttentionBackward, "attention keys");
  add_attention(p, TaskKind::kAttentionBackwardQuery, "attention queries");
  return {"training_backward", p};
}

/// fp32 products in every layout beside main loops on the tensor cores; an epilogue of several layouts.
NamedPlan mixed_plan() {
  plan::Plan p;
  p.maps.resize(1);
  ProgramBuilder half(ProgramKind::kEpilogue, 3, 0, 2);
  half.store(1, DType::kBF16, with_bias(half));
  ProgramBuilder plain(ProgramKind::kEpilogue, 3, 0, 1);
  plain.store(0, DType::kF32, plain.root());
  ProgramBuilder gelu(ProgramKind::kEpilogue, 3, 0, 4);
  const int x = gelu.op(Opcode::kAdd, gelu.root(), gelu.load(0, DType::kF32));
  const int y = gelu.op(Opcode::kAdd, gelu.op(Opcode::kMul, x, gaussian_cdf(gelu, x)), gelu.load(1, DType::kF32));
  gelu.store(2, DType::kF32, x);
  gelu.store(3, DType::kF32, y);
  ProgramBuilder pairs(ProgramKind::kEpilogue, 3, 0, 2);
  pairs.store(1, DType::kF32, pairs.op(Opcode::kFma, pairs.root(0, 1), pairs.load(0, DType::kF32), pairs.root(0, -1)));
  add_matmul(p, add_program(p, half), 256, true, true, "bias");
  add_attention(p, TaskKind::kAttentionForward, "attention");
  const int store = add_program(p, plain);
  for (const bool a : {false, true})
    for (const bool b : {false, true}) add_float_matmul(p, store, a, b, "product");
  add_float_matmul(p, add_program(p, gelu), true, true, "bias, gelu, residual");
  add_float_matmul(p, add_program(p, pairs), true, false, "pairs");
  return {"mixed", p};
}

}  // namespace

std::vector<NamedPlan> training_plans() { return {forward_plan(), backward_plan(), mixed_plan()}; }

}  // namespace ark::cuda_compile
