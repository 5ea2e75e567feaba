// Two products of one activation, the second of which reads what the first stores, become one of two weights: where,
// where not, and the same values.
#include <cmath>
#include <functional>
#include <string>

#include "planner/planner.h"
#include "planner/verify/structure_key.h"
#include "planner/verify/verify_plan.h"
#include "support/model_graph.h"
#include "support/plan_run.h"

using namespace ark;
using namespace ark::test;
using abi::TaskKind;

namespace {

template <class A, class B>
void expect_equal(const A& got, const B& wanted, const std::string& what) {
  expect(got == wanted, cat(what, ": got ", got, ", expected ", wanted));
}

struct Sizes {
  int64_t m, n, k;
};
/// What is made of an activation and two weights, n x k: the outputs.
using Body = std::function<std::vector<ValueId>(Model&, ValueId x, ValueId gate, ValueId up)>;

ir::Graph graph_of(const Body& body, const Sizes& s) {
  Model model;
  const ValueId x = model.input(kBF16, {s.m, s.k}), gate = model.input(kBF16, {s.n, s.k}),
                up = model.input(kBF16, {s.n, s.k});
  model.graph.outputs = body(model, x, gate, up);
  ir::verify(model.graph);
  return model.graph;
}

plan::Plan plan_of(const ir::Graph& graph, int workers = 132) {
  planner::Options options;
  options.machine.num_workers = workers;
  return planner::make_plan(graph, options);
}

/// The ops: kind, parts of a product, whether it has two weights, operands of its epilogue.
std::string ops_of(const plan::Plan& plan) {
  std::string text;
  for (const plan::Op& op : plan.ops) {
    if (!text.empty()) text += ", ";
    text += plan::name(op.record.kind);
    if (op.record.kind != TaskKind::kMatmulTile) continue;
    const abi::MatmulTileParams& p = op.record.params.matmul;
    text += cat(" ", op.record.grid[0], p.gated != 0 ? " gated" : "", " ", op.operands.size() - p.first_operand);
  }
  return text;
}

ValueId silu(Model& m, ValueId x) { return m.binary(Opcode::kMul, x, m.unary(Opcode::kSigmoid, x)); }
ValueId product(Model& m, ValueId x, ValueId w) { return m.matmul(x, m.transposed(w), kBF16); }
ValueId times(Model& m, ValueId a, ValueId b) { return m.binary(Opcode::kMul, a, b); }

const Body kSwiglu = [](Model& m, ValueId x, ValueId gate, ValueId up) {
  const ValueId g = silu(m, product(m, x, gate));
  return std::vector{times(m, g, product(m, x, up))};
};
const Body kUpFirst = [](Model& m, ValueId x, ValueId gate, ValueId up) {
  const ValueId u = product(m, x, up);
  return std::vector{times(m, silu(m, product(m, x, gate)), u)};
};
const Body kKept = [](Model& m, ValueId x, ValueId gate, ValueId up) {
  const ValueId g = silu(m, product(m, x, gate));
  return std::vector{g, times(m, g, product(m, x, up))};
};
const Body kOtherActivation = [](Model& m, ValueId x, ValueId gate, ValueId up) {
  const ValueId g = silu(m, product(m, x, gate)), y = m.input(kBF16, m.sizes(x));
  return std::vector{times(m, g, product(m, y, up))};
};
const Body kComputedWeight = [](Model& m, ValueId x, ValueId gate, ValueId up) {
  const ValueId g = silu(m, product(m, x, gate));
  return std::vector{times(m, g, product(m, x, m.unary(Opcode::kRelu, up)))};
};
/// Epilogues with operands of their own.
const Body kBiased = [](Model& m, ValueId x, ValueId gate, ValueId up) {
  const ValueId y = product(m, x, gate), more = m.input(kBF16, m.sizes(y)), last = m.input(kBF16, m.sizes(y));
  const ValueId g = silu(m, m.binary(Opcode::kAdd, y, more));
  const ValueId u = m.binary(Opcode::kSub, product(m, x, up), last);
  return std::vector{m.binary(Opcode::kAdd, times(m, u, g), more)};
};
/// Layers whose products stand in turn.
const Body kInTurn = [](Model& m, ValueId x, ValueId gate, ValueId up) {
  const ValueId other = m.input(kBF16, m.sizes(gate));
  const ValueId g = silu(m, product(m, x, gate)), h = m.unary(Opcode::kRelu, product(m, x, other));
  const ValueId y = times(m, g, product(m, x, up));
  return std::vector{y, times(m, h, product(m, x, m.input(kBF16, m.sizes(up))))};
};
/// The launch writes the second weight when it has been read.
const Body kWrittenWeight = [](Model& m, ValueId x, ValueId gate, ValueId up) {
  const ValueId y = times(m, silu(m, product(m, x, gate)), product(m, x, up));
  m.copy_to(up, m.unary(Opcode::kRelu, up));
  return std::vector{y};
};

/// Another reader of the first value, before the second product or behind it.
std::vector<ValueId> read(Model& m, ValueId x, ValueId gate, ValueId up, bool before) {
  const ValueId g = silu(m, product(m, x, gate)), none = -1;
  const auto most = [&] { return m.reduce(ReduceOp::kMax, g, {1}, true, kBF16); };
  const ValueId early = before ? most() : none, y = times(m, g, product(m, x, up));
  return {y, before ? early : most()};
}
const Body kReadBefore = [](Model& m, ValueId x, ValueId gate, ValueId up) { return read(m, x, gate, up, true); };
const Body kReadBehind = [](Model& m, ValueId x, ValueId gate, ValueId up) { return read(m, x, gate, up, false); };

std::vector<std::vector<double>> values_of(const ir::Graph& graph, const plan::Plan& plan) {
  PlanRun run(graph, plan, [](int64_t i, bool) { return i; });
  auto executable = targets::make_host(plan, {.num_threads = 3});
  std::vector<uint32_t> state(executable->state_bytes() / 4);
  const auto first = run.launch(*executable, state, 1);
  expect(same_bits(first, run.launch(*executable, state, 2)), "another order, other bits");
  return first;
}

/// The same bits as of a plan with large tiles, which joins nothing: two workers.
void check_values(const ir::Graph& graph, const std::string& what) {
  const auto joined = values_of(graph, plan_of(graph)), apart = values_of(graph, plan_of(graph, 2));
  expect(ops_of(plan_of(graph, 2)).find("gated") == std::string::npos, "two workers join nothing");
  expect(same_bits(joined, apart), cat(what, ": other values than two products have"));
}

void test_joined() {
  const Sizes sizes{64, 256, 192};
  expect_equal(ops_of(plan_of(graph_of(kSwiglu, sizes))), "matmul_tile 1 gated 1", "gate, then up");
  expect_equal(ops_of(plan_of(graph_of(kUpFirst, sizes))), "matmul_tile 1 gated 1", "up, then gate");
  expect_equal(ops_of(plan_of(graph_of(kKept, sizes))), "matmul_tile 1 gated 2", "the first value is an output");
  expect_equal(ops_of(plan_of(graph_of(kBiased, sizes))), "matmul_tile 1 gated 4", "operands of both");
  expect_equal(ops_of(plan_of(graph_of(kInTurn, sizes))), "matmul_tile 1 gated 1, matmul_tile 1 gated 1", "two pairs");
  for (const auto& [body, what] : {std::pair{&kSwiglu, "swiglu"},
                                   {&kUpFirst, "up first"},
                                   {&kKept, "kept"},
                                   {&kBiased, "biased"},
                                   {&kInTurn, "in turn"}})
    for (const Sizes& s : {sizes, Sizes{37, 136, 320}}) check_values(graph_of(*body, s), cat(what, ", ", s.m, " rows"));
}

void test_not_joined() {
  const Sizes sizes{64, 256, 192};
  expect_equal(ops_of(plan_of(graph_of(kOtherActivation, sizes))), "matmul_tile 1 1, matmul_tile 1 2",
               "two activations");
  expect_equal(ops_of(plan_of(graph_of(kComputedWeight, sizes))), "matmul_tile 1 1, pointwise, matmul_tile 1 2",
               "a weight that this launch computes");
  expect(ops_of(plan_of(graph_of(kWrittenWeight, sizes))).find("gated") == std::string::npos,
         "a weight that this launch writes");
}

/// Parts of a long k are sooner done where there are few tiles.
void test_cost() {
  expect_equal(ops_of(plan_of(graph_of(kSwiglu, {64, 8192, 2048}))), "matmul_tile 1 gated 1", "128 tiles");
  expect_equal(ops_of(plan_of(graph_of(kSwiglu, {64, 512, 8192}))),
               "matmul_tile 4 1, matmul_tile 4 1, pointwise, pointwise", "8 tiles of 8192 k, in parts");
  expect(ops_of(plan_of(graph_of(kSwiglu, {64, 133 * 64, 1024}))).find("gated") == std::string::npos,
         "more tiles than workers: large ones");
}

void test_readers() {
  const Sizes sizes{64, 256, 192};
  expect_equal(ops_of(plan_of(graph_of(kReadBefore, sizes))), "matmul_tile 1 1, row, matmul_tile 1 2", "read before");
  expect_equal(ops_of(plan_of(graph_of(kReadBehind, sizes))), "matmul_tile 1 gated 2, row", "read behind");
  check_values(graph_of(kReadBehind, sizes), "read behind");
}

std::string refusal(const plan::Plan& plan) {
  try {
    verify_plan(plan, planner::VerifyLevel::kFull);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

/// What is checked once per structure is checked anew; a saved plan comes back.
void test_structure() {
  const plan::Plan plan = plan_of(graph_of(kSwiglu, {64, 256, 192}));
  plan::Plan other = plan;
  other.ops[0].record.params.matmul.gated = 0;
  expect(planner::structure_key(plan) != planner::structure_key(other), "another structure");
  expect_equal(plan::to_json(plan::from_json(plan::to_json(plan))), plan::to_json(plan), "saved and read");
  expect(plan::to_json(plan).find("\"gated\": 1") != std::string::npos, "saved as gated");
}

void test_damage() {
  const plan::Plan plan = plan_of(graph_of(kSwiglu, {64, 256, 192}));
  expect_equal(refusal(plan), "", "as planned");
  const auto damaged = [&](const std::string& wanted, const std::function<void(plan::Op&, plan::Plan&)>& damage) {
    plan::Plan other = plan;
    damage(other.ops[0], other);
    const std::string got = refusal(other);
    expect(got.find(wanted) != std::string::npos, cat("got '", got, "', expected '", wanted, "'"));
  };
  using Op = plan::Op;
  using Plan = plan::Plan;
  damaged("in the epilogue of one product", [](Op& op, Plan&) { op.record.params.matmul.gated = 0; });
  damaged("gated 2", [](Op& op, Plan&) { op.record.params.matmul.gated = 2; });
  damaged("pairs 32 apart", [](Op& op, Plan&) { op.record.params.matmul.pair_distance = 32; });
  damaged("rows of a tile 128", [](Op& op, Plan&) { op.record.params.matmul.tile_m = 128; });
  damaged("operands from 2", [](Op& op, Plan&) { op.record.params.matmul.first_operand = 2; });
  damaged("weights of types", [](Op& op, Plan&) { op.operands[2].dtype = static_cast<short>(DType::kF16); });
  damaged("k major", [](Op& op, Plan&) { op.record.params.matmul.b_k_major = 0; });
  damaged("sums number 2", [](Op&, Plan& p) {
    for (Instr& in : p.programs[0].instrs)
      if (in.op == Opcode::kRoot && in.aux == 1) in.aux = 2;
  });
  damaged("early operands", [](Op& op, Plan&) { op.early &= ~4u; });
  damaged("strides along k", [](Op& op, Plan&) { std::swap(op.operands[2].stride[1], op.operands[2].stride[2]); });
  damaged("map", [](Op& op, Plan& p) { p.maps[op.record.params.matmul.map_b + size_t{1}].slot = op.operands[1].slot; });
  damaged("map", [](Op&, Plan& p) { p.maps.pop_back(); });
  damaged("bytes along dimension 1, expected 384",
          [](Op& op, Plan& p) { p.maps[op.record.params.matmul.map_b + size_t{1}].strides_bytes[0] = 192; });
}

}  // namespace

int main() {
  test_joined();
  test_not_joined();
  test_cost();
  test_readers();
  test_structure();
  test_damage();
  return finish("join gated");
}
