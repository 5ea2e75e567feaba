// Whole plans, as the planner makes them, on the host target: every seed, thread count, number of workers, schedule and
// memory reuse gives the same bits. Under ThreadSanitizer a wait that the planner forgot is a reported race.
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

using Sizes = std::vector<int64_t>;

/// Layers in the front end's vocabulary: views, broadcasts, reductions.
class Model : public GraphBuilder {
 public:
  explicit Model(DType dtype) : dtype_(dtype) {}

  ValueId weight(const Sizes& sizes) {
    const ValueId id = input(dtype_, sizes);
    graph.immutable.back() = true;
    return id;
  }
  ValueId view(ValueId of, const Sizes& sizes, const Sizes& strides = {}) {
    const ValueId id = value(dtype_, sizes, of);
    if (!strides.empty())
      for (size_t d = 0; d < sizes.size(); ++d) graph.values[id].strides[d].value = strides[d];
    node(OpKind::kView, {of}, {id});
    return id;
  }
  ValueId scalar(double x) {
    const ValueId id = value(DType::kF32, {});
    node(OpKind::kFull, {}, {id}).attrs.imm = x;
    return id;
  }
  ValueId f32(ValueId x, const Sizes& sizes) { return pointwise(Opcode::kCast, {x}, DType::kF32, sizes); }
  ValueId narrow(ValueId x, const Sizes& sizes) { return pointwise(Opcode::kCast, {x}, dtype_, sizes); }
  ValueId add(ValueId a, ValueId b, const Sizes& sizes) { return pointwise(Opcode::kAdd, {a, b}, dtype_, sizes); }

  /// x / sqrt(mean(x^2) + eps) * g
  ValueId norm(ValueId x, int64_t rows, int64_t width) {
    const Sizes full{rows, width}, one{rows, 1};
    const ValueId wide = f32(x, full), square = pointwise(Opcode::kMul, {wide, wide}, DType::kF32, full),
                  sum = value(DType::kF32, one);
    Node& reduce = node(OpKind::kReduce, {square}, {sum});
    reduce.attrs.dims = {1};
    reduce.attrs.keepdim = true;
    const ValueId mean = pointwise(Opcode::kMul, {sum, scalar(1.0 / double(width))}, DType::kF32, one);
    const ValueId scale =
        pointwise(Opcode::kRsqrt, {pointwise(Opcode::kAdd, {mean, scalar(1e-5)}, DType::kF32, one)}, DType::kF32, one);
    const ValueId normed = pointwise(Opcode::kMul, {wide, scale}, DType::kF32, full);
    return narrow(pointwise(Opcode::kMul, {normed, f32(weight({width}), {width})}, DType::kF32, full), full);
  }
  ValueId linear(ValueId x, int64_t rows, int64_t in, int64_t out) {
    const ValueId w = view(weight({out, in}), {in, out}, {1, in}), y = value(dtype_, {rows, out});
    node(OpKind::kMatmul, {x, w}, {y});
    return y;
  }
  ValueId silu(ValueId x, const Sizes& sizes) {
    const ValueId wide = f32(x, sizes);
    return narrow(
        pointwise(Opcode::kMul, {wide, pointwise(Opcode::kSigmoid, {wide}, DType::kF32, sizes)}, DType::kF32, sizes),
        sizes);
  }
  /// [rows, heads * d] as [1, heads, rows, d]
  ValueId heads(ValueId x, int64_t rows, int64_t heads, int64_t d) {
    return view(x, {1, heads, rows, d}, {rows * heads * d, d, heads * d, 1});
  }

  ValueId mlp(ValueId x, int64_t rows, int64_t width, int64_t hidden) {
    const ValueId n = norm(x, rows, width);
    const ValueId gate = silu(linear(n, rows, width, hidden), {rows, hidden}), up = linear(n, rows, width, hidden);
    return add(x, linear(pointwise(Opcode::kMul, {gate, up}, dtype_, {rows, hidden}), rows, hidden, width),
               {rows, width});
  }

  /// Self-attention over the rows themselves, causal.
  ValueId encoder_layer(ValueId x, int64_t rows, int64_t width, int64_t num_heads, int64_t hidden) {
    const int64_t d = width / num_heads;
    const ValueId n = norm(x, rows, width);
    const ValueId q = heads(linear(n, rows, width, width), rows, num_heads, d),
                  k = heads(linear(n, rows, width, width), rows, num_heads, d),
                  v = heads(linear(n, rows, width, width), rows, num_heads, d);
    return mlp(add(x, linear(attend(q, k, v, -1, rows, num_heads, d), rows, width, width), {rows, width}), rows, width,
               hidden);
  }

  /// Rows appended to a cache at `position`, attention over all of it with a mask.
  ValueId decoder_layer(ValueId x, int64_t rows, int64_t width, int64_t num_heads, int64_t kv_heads, int64_t hidden,
                        int64_t keys, ValueId position, ValueId mask) {
    const int64_t d = width / num_heads;
    const ValueId n = norm(x, rows, width);
    const ValueId q = heads(linear(n, rows, width, width), rows, num_heads, d);
    const auto cached = [&] {
      const ValueId cache = input(dtype_, {1, kv_heads, keys, d}),
                    fresh = heads(linear(n, rows, width, kv_heads * d), rows, kv_heads, d);
      const ValueId stored = value(dtype_, {1, kv_heads, keys, d}), back = value(dtype_, {1, kv_heads, keys, d}, cache);
      node(OpKind::kIndexStore, {cache, fresh, position}, {stored}).attrs.map = {0, 1, ~0, 3};
      copies.push_back({cache, stored, back});
      return stored;
    };
    const ValueId k = cached(), v = cached();
    return mlp(add(x, linear(attend(q, k, v, mask, rows, num_heads, d), rows, width, width), {rows, width}), rows,
               width, hidden);
  }

  ValueId attend(ValueId q, ValueId k, ValueId v, ValueId mask, int64_t rows, int64_t num_heads, int64_t d) {
    const ValueId out = value(dtype_, {1, num_heads, rows, d}), lse = value(DType::kF32, {1, num_heads, rows});
    for (size_t i = 0; i < 4; ++i)
      graph.values[out].strides[i].value = Sizes{rows * num_heads * d, d, num_heads * d, 1}[i];
    Node& attention = node(OpKind::kAttention, {q, k, v}, {out, lse});
    attention.attrs.scale = 1 / std::sqrt(double(d));
    attention.attrs.causal = mask < 0;
    attention.attrs.has_mask = mask >= 0;
    if (mask >= 0) attention.inputs.push_back(mask);
    return view(out, {rows, num_heads * d});
  }

  Graph finish(ValueId out) {
    for (const Copy& c : copies) node(OpKind::kCopyTo, {c.cache, c.stored}, {c.back});
    graph.outputs = {out};
    return graph;
  }

 private:
  struct Copy {
    ValueId cache, stored, back;
  };
  DType dtype_;
  std::vector<Copy> copies;
};

void check_graph(const Graph& symbolic, int seeds, const std::string& what) {
  const Graph graph = bind(symbolic, {});
  verify(graph);
  std::vector<std::vector<double>> first;
  for (const auto schedule : {planner::Schedule::kSequential, planner::Schedule::kGreedy})
    for (const bool reuse : {false, true})
      for (const int workers : {132, 7}) {
        planner::Options options;
        options.schedule = schedule;
        options.reuse_memory = reuse;
        options.machine.num_workers = workers;
        const plan::Plan plan = planner::make_plan(graph, options);
        test::PlanRun run(graph, plan, [](int64_t i, bool) { return 5 + i; });
        for (const int threads : {1, 3}) {
          auto executable = targets::make_host(plan, {.num_threads = threads});
          std::vector<uint32_t> state(executable->state_bytes() / 4);
          for (int seed = 0; seed < seeds; ++seed) {
            const auto seen = run.launch(*executable, state, uint64_t(seed));
            if (first.empty()) first = seen;
            expect(test::same_bits(first, seen),
                   cat(what, ": schedule ", int(schedule), " reuse ", reuse, " workers ", workers, " threads ", threads,
                       " seed ", seed, " gives other bits"));
          }
        }
      }
  for (const double x : first.back()) {
    expect(x == x, what + ": a result was never written");
    if (x != x) break;
  }
}

Graph encoder(DType dtype, int64_t rows, int64_t width, int64_t heads, int layers) {
  Model m(dtype);
  ValueId x = m.input(dtype, {rows, width});
  for (int l = 0; l < layers; ++l) x = m.encoder_layer(x, rows, width, heads, 3 * width);
  return m.finish(x);
}

Graph decoder(DType dtype, int64_t rows, int64_t keys, int layers) {
  Model m(dtype);
  ValueId x = m.input(dtype, {rows, 64});
  const ValueId position = m.input(DType::kI64, {rows, 1}), mask = m.input(DType::kBool, {1, 1, rows, keys});
  for (int l = 0; l < layers; ++l) x = m.decoder_layer(x, rows, 64, 4, 2, 160, keys, position, mask);
  return m.finish(x);
}

}  // namespace

int main(int argc, char**) {
  const int seeds = argc > 1 ? 100 : 8;
  check_graph(encoder(DType::kF32, 150, 64, 4, 2), seeds, "encoder f32");
  check_graph(encoder(DType::kBF16, 200, 128, 2, 2), seeds, "encoder bf16");
  check_graph(decoder(DType::kBF16, 1, 70, 3), seeds, "decoder of a row");
  check_graph(decoder(DType::kF32, 4, 300, 2), seeds, "decoder of four rows");
  return test::finish("test_host_plans");
}
