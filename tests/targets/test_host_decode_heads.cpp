// Decode attention of every head size, as the planner makes it, on the host target against plain loops in double: kv
// heads that several query heads share, masks, causality, caches of a part and of several.
#include <memory>

#include "planner/planner.h"
#include "support/graph_builder.h"
#include "support/plan_run.h"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::ir;
using ark::cat;
using ark::test::expect;
using ark::test::GraphBuilder;

namespace {

using Values = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

enum class Mask { kNone, kCausal, kBool, kAdded };

struct Case {
  DType t;
  int64_t d, heads, kv_heads, queries, keys;
  Mask mask;
  static constexpr int64_t kBatch = 2;
  DType mask_type() const { return mask == Mask::kBool ? DType::kBool : t; }
  bool has_mask() const { return mask == Mask::kBool || mask == Mask::kAdded; }
  /// Of 132 workers: a kv head's keys are cut where there are more than two workers for it.
  int64_t parts() const { return (keys + each() - 1) / each(); }
  int64_t each() const { return d <= 128 ? 256 : 128; }
};

std::string to_string(const Case& c) {
  return cat(name(c.t), " heads of ", c.d, ", ", c.heads, '/', c.kv_heads, ", ", c.queries, " x ", c.keys, ", mask ",
             int(c.mask));
}

Graph graph_of(const Case& c) {
  GraphBuilder b;
  const ValueId q = b.input(c.t, {c.kBatch, c.heads, c.queries, c.d}),
                k = b.input(c.t, {c.kBatch, c.kv_heads, c.keys, c.d}),
                v = b.input(c.t, {c.kBatch, c.kv_heads, c.keys, c.d});
  const ValueId out = b.value(c.t, {c.kBatch, c.heads, c.queries, c.d}),
                lse = b.value(DType::kF32, {c.kBatch, c.heads, c.queries});
  std::vector<ValueId> inputs{q, k, v};
  if (c.has_mask()) inputs.push_back(b.input(c.mask_type(), {c.kBatch, 1, c.queries, c.keys}));
  Node& attention = b.node(OpKind::kAttention, inputs, {out, lse});
  attention.attrs.scale = 1 / std::sqrt(double(c.d));
  attention.attrs.causal = c.mask == Mask::kCausal;
  attention.attrs.has_mask = c.has_mask();
  b.graph.outputs = {out};
  return bind(b.graph, {});
}

Values read_all(const Values& memory, DType t, int64_t n) {
  Values v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const test::Value x = test::read_value(memory.data(), t, i);
    v[static_cast<size_t>(i)] = t == DType::kBool ? double(x.i) : x.f;
  }
  return v;
}

/// The result of query s of a head, `seen` as PlanRun returns it; of no visible key zeros.
Values exact(const Case& c, const std::vector<Values>& in, int64_t b, int64_t h, int64_t s) {
  const double* q = &in[0][static_cast<size_t>(((b * c.heads + h) * c.queries + s) * c.d)];
  const size_t rows = static_cast<size_t>((b * c.kv_heads + h / (c.heads / c.kv_heads)) * c.keys * c.d);
  Values weights(static_cast<size_t>(c.keys)), result(static_cast<size_t>(c.d));
  double top = -kInf, sum = 0;
  for (int64_t t = 0; t < c.keys; ++t) {
    double score = 0;
    for (int64_t i = 0; i < c.d; ++i) score += q[i] * in[1][rows + static_cast<size_t>(t * c.d + i)];
    score /= std::sqrt(double(c.d));
    const double mask = c.has_mask() ? in[3][static_cast<size_t>((b * c.queries + s) * c.keys + t)] : 0;
    if (c.mask == Mask::kAdded) score += mask;
    if ((c.mask == Mask::kBool && mask == 0) || (c.mask == Mask::kCausal && t > s)) score = -kInf;
    top = std::max(top, weights[static_cast<size_t>(t)] = score);
  }
  for (double& w : weights) sum += w = top == -kInf ? 0 : std::exp(w - top);
  for (int64_t t = 0; t < c.keys; ++t)
    for (int64_t i = 0; i < c.d && sum > 0; ++i)
      result[static_cast<size_t>(i)] +=
          weights[static_cast<size_t>(t)] / sum * in[2][rows + static_cast<size_t>(t * c.d + i)];
  return result;
}

void check(const Case& c) {
  const Graph graph = graph_of(c);
  verify(graph);
  planner::Options options;
  options.machine.num_workers = 132;
  const plan::Plan plan = planner::make_plan(graph, options);
  int found = 0;
  for (const plan::Op& op : plan.ops) {
    if (op.record.kind != abi::TaskKind::kAttentionDecode) continue;
    const abi::AttentionParams& p = op.record.params.attention;
    ++found;
    expect(p.head_dim == c.d && p.parts == c.parts() && p.positions_per_part == c.each(),
           cat(to_string(c), ": heads of ", p.head_dim, ", ", p.parts, " parts of ", p.positions_per_part,
               ", expected ", c.parts(), " of ", c.each()));
  }
  expect(found == 1, cat(to_string(c), ": ", found, " ops of decode attention, expected 1"));

  test::PlanRun run(graph, plan, [](int64_t, bool) { return 0; }, 1);
  const auto executable = targets::make_host(plan, {.num_threads = 2});
  std::vector<uint32_t> state(executable->state_bytes() / 4);
  const std::vector<Values> seen = run.launch(*executable, state, 1);
  std::vector<Values> in;
  for (const ValueId id : graph.inputs) {
    int64_t n = 1;
    for (const Size& size : graph.values[static_cast<size_t>(id)].sizes) n *= size.value;
    in.push_back(read_all(seen[in.size()], graph.values[static_cast<size_t>(id)].dtype, n));
  }
  const Values out = read_all(seen.back(), c.t, c.kBatch * c.heads * c.queries * c.d);
  // computed in fp32, rounded once
  const double rounding = c.t == DType::kBF16 ? 1.0 / 256 : 1.0 / 2048, slack = 1e-5;
  for (int64_t row = 0; row < c.kBatch * c.heads * c.queries; ++row) {
    const Values wanted = exact(c, in, row / c.queries / c.heads, row / c.queries % c.heads, row % c.queries);
    for (int64_t i = 0; i < c.d; ++i) {
      const double got = out[static_cast<size_t>(row * c.d + i)], is = wanted[static_cast<size_t>(i)];
      expect(std::fabs(got - is) <= rounding * std::fabs(is) + slack,
             cat(to_string(c), " row ", row, " column ", i, ": got ", got, ", expected ", is));
    }
  }
}

}  // namespace

int main() {
  for (const int64_t d : {64, 80, 96, 112, 128, 160, 192, 256}) {
    check({DType::kBF16, d, 4, 1, 1, 5, Mask::kNone});
    check({DType::kF16, d, 6, 2, 1, 70, Mask::kBool});
    check({DType::kBF16, d, 4, 2, 3, 70, Mask::kCausal});
    check({DType::kBF16, d, 4, 2, 1, 700, Mask::kBool});
    check({DType::kF16, d, 3, 3, 2, 700, Mask::kAdded});
    check({DType::kBF16, d, 16, 1, 1, 300, Mask::kAdded});
  }
  return test::finish("test_host_decode_heads");
}
