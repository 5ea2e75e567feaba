// A norm behind a product whose k is split adds the parts itself: where, where not, and the same values.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "planner/planner.h"
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

/// What is made of a product, a residual and a norm's weight: the outputs.
using Body = std::function<std::vector<ValueId>(Model&, ValueId y, ValueId more, ValueId weight)>;

ir::Graph graph_of(const Body& body, int64_t m, int64_t n, int64_t k) {
  Model model;
  const ValueId x = model.input(kBF16, {m, k}), w = model.input(kBF16, {n, k}), more = model.input(kBF16, {m, n}),
                weight = model.input(kBF16, {n});
  model.graph.immutable[1] = true;
  model.graph.outputs = body(model, model.matmul(x, model.transposed(w), kBF16), more, weight);
  ir::verify(model.graph);
  return model.graph;
}

plan::Plan plan_of(const ir::Graph& graph, int workers) {
  planner::Options options;
  options.machine.num_workers = workers;
  return planner::make_plan(graph, options);
}

/// The ops: kind, parts of a product, operands of a row op.
std::string ops_of(const plan::Plan& plan) {
  std::string text;
  for (const plan::Op& op : plan.ops) {
    if (!text.empty()) text += ", ";
    text += plan::name(op.record.kind);
    if (op.record.kind == TaskKind::kMatmulTile) text += cat(" ", op.record.grid[0]);
    if (op.record.kind == TaskKind::kRow) text += cat(" ", op.operands.size(), " of ", op.record.grid[0], " tiles");
  }
  return text;
}

std::vector<std::vector<double>> values_of(const ir::Graph& graph, const plan::Plan& plan) {
  PlanRun run(graph, plan, [](int64_t i, bool) { return i; });
  auto executable = targets::make_host(plan, {.num_threads = 3});
  std::vector<uint32_t> state(executable->state_bytes() / 4);
  const auto first = run.launch(*executable, state, 1);
  expect(same_bits(first, run.launch(*executable, state, 2)), "another order, other bits");
  return first;
}

/// Of outputs in bf16, relative to numbers of about 1.
double distance(const std::vector<double>& a, const std::vector<double>& b, int64_t count) {
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double x = read_value(a.data(), kBF16, i).f, y = read_value(b.data(), kBF16, i).f;
    const double far = std::abs(x - y) / std::max(1.0, std::abs(y));
    if (!(far <= worst)) worst = far;  // NaN too
  }
  return worst;
}

/// The same values as those of a plan that splits nothing: two workers.
void check_values(const ir::Graph& graph, const std::string& what) {
  const auto split = values_of(graph, plan_of(graph, 132)), whole = values_of(graph, plan_of(graph, 2));
  for (size_t o = graph.inputs.size(); o < split.size(); ++o) {
    int64_t elements = 1;
    for (const ir::Size& size : graph.values[static_cast<size_t>(graph.outputs[o - graph.inputs.size()])].sizes)
      elements *= size.value;
    const double far = distance(split[o], whole[o], elements);
    expect(far <= 1.0 / 64, cat(what, ", output ", o - graph.inputs.size(), ": ", far, " from the unsplit product"));
  }
}

ValueId add(Model& m, ValueId a, ValueId b) { return m.binary(Opcode::kAdd, a, b); }

const Body kBehind = [](Model& m, ValueId y, ValueId more, ValueId weight) {
  return std::vector{rms_norm(m, add(m, y, more), weight)};
};
const Body kBefore = [](Model& m, ValueId y, ValueId more, ValueId weight) {
  const ValueId r = add(m, y, more), normed = rms_norm(m, r, weight);
  return std::vector{add(m, r, m.unary(Opcode::kRelu, normed)), r};
};
const Body kReadTwice = [](Model& m, ValueId y, ValueId more, ValueId weight) {
  const ValueId r = add(m, y, more), other = m.matmul(m.transposed(m.cast(r, kBF16)), r, kBF16);
  return std::vector{rms_norm(m, r, weight), other};
};

const Body kTwo = [](Model& m, ValueId y, ValueId more, ValueId weight) {
  const ValueId other = m.matmul(more, m.transposed(m.input(kBF16, {m.sizes(y)[1], m.sizes(more)[1]})), kBF16);
  return std::vector{m.binary(Opcode::kMul, rms_norm(m, y, weight), other)};
};

/// Nobody knows whose parts a row op would add that reads two products.
void test_two_products() {
  const ir::Graph graph = graph_of(kTwo, 100, 1024, 1024);
  expect_equal(ops_of(plan_of(graph, 132)), "matmul_tile 1, matmul_tile 1, row 4 of 100 tiles", "two products");
  check_values(graph, "two products");
}

void test_joined() {
  const ir::Graph behind = graph_of(kBehind, 100, 512, 4096);
  expect_equal(ops_of(plan_of(behind, 132)), "matmul_tile 4, row 7 of 100 tiles", "norm of a sum that nobody keeps");
  check_values(behind, "not kept");
  const ir::Graph before = graph_of(kBefore, 64, 512, 4096);
  expect_equal(ops_of(plan_of(before, 132)), "matmul_tile 4, row 8 of 64 tiles", "norm of a sum that is an output too");
  check_values(before, "kept");
}

/// From 512 k on, 4 parts of two blocks: a split costs no hop then.
void test_lengths() {
  for (const int64_t k : {384, 448, 512, 1024, 2048}) {
    const ir::Graph graph = graph_of(kBehind, 100, 512, k);
    const std::string wanted = k >= 512 ? "matmul_tile 4, row 7 of 100 tiles" : "matmul_tile 1, row 3 of 13 tiles";
    expect_equal(ops_of(plan_of(graph, 132)), wanted, cat("k of ", k));
    check_values(graph, cat("k of ", k));
  }
}

/// A product of another sum's reader that comes first: the sum is an op of its own.
void test_read_before() {
  const ir::Graph graph = graph_of(kReadTwice, 100, 512, 4096);
  expect_equal(ops_of(plan_of(graph, 132)), "matmul_tile 4, pointwise, matmul_tile 1, row 3 of 13 tiles",
               "read before");
  check_values(graph, "read before");
}

/// What the epilogue rounds, the row op rounds too; more rows than workers have tiles of several.
void test_more_rows() {
  const ir::Graph graph = graph_of(kBehind, 200, 128, 4096);
  expect_equal(ops_of(plan_of(graph, 132)), "matmul_tile 4, row 7 of 25 tiles", "more rows than workers");
  check_values(graph, "more rows than workers");
}

}  // namespace

int main() {
  test_joined();
  test_lengths();
  test_read_before();
  test_more_rows();
  test_two_products();
  return finish("join sums");
}
