// Sends in the background: which ops, in whose lists, what the schedule makes of them, what a damaged one is told, and
// that ranks compute the same. (The host target runs them as tiles of workers; what the GPU makes of them is in
// tests/multigpu.)
#include <algorithm>
#include <set>

#include "codegen/kernel.h"
#include "planner/planner.h"
#include "planner/verify/rank_interface.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
#include "support/rank_evaluator.h"
#include "support/rank_threads.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

plan::Plan plan_of(const Graph& graph, planner::Options options = {}) { return planner::make_plan(graph, options); }

/// Of small graphs too.
planner::Options eager(int workers) {
  planner::Options options;
  options.machine.num_workers = workers;
  options.machine.background_send_seconds = 0;
  return options;
}

std::vector<size_t> in_background(const plan::Plan& plan) {
  std::vector<size_t> found;
  for (size_t i = 0; i < plan.ops.size(); ++i)
    if (plan.ops[i].record.background != 0) found.push_back(i);
  return found;
}

Graph gathered_product(int world, DType dtype, int64_t rows, int64_t k, int64_t n) {
  ExchangeBuilder b(world);
  ValueId x = b.input(dtype, {rows, k}), w = b.input(dtype, {k, n});
  return b.finish({b.unary(Opcode::kRelu, b.matmul(b.all_gather(x), w))}, "gathered product");
}
Graph scattered_product(int world, DType dtype, int64_t m, int64_t k, int64_t n) {
  ExchangeBuilder b(world);
  ValueId y = b.matmul(b.input(dtype, {m, k}), b.input(dtype, {k, n}));
  return b.finish({b.reduce_scatter(y), y}, "scattered product");
}

/// All workers send, in line; the product has all workers too, and the plan is reckoned to end sooner.
void test_plans() {
  for (const Graph& graph :
       {gathered_product(4, DType::kBF16, 2048, 8192, 2048), scattered_product(4, DType::kBF16, 8192, 2048, 8192)}) {
    planner::Options without;
    without.background = false;
    const plan::Plan plan = plan_of(graph), before = plan_of(graph, without);
    const std::vector<size_t> sends = in_background(plan);
    EXPECT_EQ(sends.size(), size_t{1});
    EXPECT_EQ(in_background(before).size(), size_t{0});
    std::set<size_t> senders, others;
    for (size_t w = 0; w < plan.lists.size(); ++w) {
      int64_t last = -1;
      for (const abi::WorkItem& item : plan.lists[w]) {
        const bool sends_it = static_cast<size_t>(item.op) == sends[0];
        (sends_it ? senders : others).insert(w);
        if (!sends_it) continue;
        EXPECT(item.count == 1 && item.first > last);
        EXPECT_EQ(static_cast<size_t>(item.first) % plan.lists.size(), w);
        last = item.first;
      }
    }
    EXPECT(senders.size() == plan.lists.size() && others.size() == plan.lists.size());
    std::printf("%s: predicted %.3f ms, %.3f with sends by workers\n", graph.name.c_str(), plan.predicted_ms,
                before.predicted_ms);
    EXPECT(plan.predicted_ms < before.predicted_ms);
  }
}

/// Short sends, values that are computed, runs that are no whole vectors, a loop's, one with nothing beside it.
void test_left_to_workers() {
  auto none = [](const Graph& graph, const planner::Options& options = {}) {
    const plan::Plan plan = plan_of(graph, options);
    if (!in_background(plan).empty()) test::fail(graph.name, __FILE__, __LINE__);
  };
  none(gathered_product(4, DType::kBF16, 256, 512, 512));
  none(gathered_product(2, DType::kBF16, 9, 17, 512), eager(8));
  ExchangeBuilder alone(4);
  none(alone.finish({alone.all_gather(alone.input(DType::kBF16, {8192, 8192}))}, "nothing beside it"));
  ExchangeBuilder computed(2);
  ValueId x = computed.unary(Opcode::kNeg, computed.input(DType::kBF16, {1024, 2048}));
  ValueId w = computed.input(DType::kBF16, {2048, 2048});
  none(computed.finish({computed.matmul(computed.all_gather(x), w)}, "computed"));
}

/// What is computed, gathered for a large product and much is stored first, so that the sends are copies.
void test_apart() {
  ExchangeBuilder b(4);
  ValueId x = b.norm(b.input(DType::kBF16, {1024, 4096})), w = b.input(DType::kBF16, {1024, 4096});
  ValueId y = b.all_gather(x);
  const plan::Plan plan = plan_of(b.finish({b.linear(y, w), y}, "a layer's first product"));
  EXPECT_EQ(in_background(plan).size(), size_t{1});
  EXPECT(plan.ops[0].record.kind == abi::TaskKind::kRow && plan.ops[1].record.background == 1);
  EXPECT_EQ(plan.ops.size(), size_t{4});  // and the product, and the copy that is returned
}

/// Ranks whose code differs send by the same tiles: what one computes another has as it is.
void test_ranks_differ() {
  enum Way { kAsItIs, kComputed, kOfAnotherType };
  auto graph_of = [](Way way) {
    ExchangeBuilder b(4);
    ValueId x = b.input(way == kOfAnotherType ? DType::kF32 : DType::kBF16, {8192, 1000});
    if (way == kComputed) x = b.unary(Opcode::kNeg, x);
    if (way == kOfAnotherType) x = b.pointwise(Opcode::kCast, {x}, DType::kBF16, {8192, 1000});
    return b.finish({b.all_gather(x)}, "ranks differ");
  };
  const auto terms_of = [&](Way way) {
    std::vector<std::string> terms;
    for (const planner::RankTerm& term : planner::rank_interface(plan_of(graph_of(way)))) terms.push_back(term.value);
    return terms;
  };
  const std::vector<std::string> terms = terms_of(kAsItIs);
  EXPECT(!terms.empty() && terms == terms_of(kComputed) && terms == terms_of(kOfAnotherType));
}

/// What pack gives to the kernel: the items of the workers' lists, the others in lists behind them.
void test_packed() {
  const plan::Plan plan = plan_of(gathered_product(2, DType::kF32, 256, 512, 512), eager(6));
  const std::vector<size_t> sends = in_background(plan);
  EXPECT_EQ(sends.size(), size_t{1});
  const plan::Packed packed = plan::pack(plan);
  EXPECT_EQ(packed.list_begin.size(), 2 * plan.lists.size());
  for (size_t list = 0; list < packed.list_begin.size(); ++list) {
    std::vector<std::pair<int, int>> expected, got;
    const bool background = list >= plan.lists.size();
    for (const abi::WorkItem& item : plan.lists[list % plan.lists.size()])
      if ((static_cast<size_t>(item.op) == sends[0]) == background) expected.emplace_back(item.op, item.first);
    for (auto at = static_cast<size_t>(packed.list_begin[list]); packed.items[at].record != abi::kEnd; ++at)
      got.emplace_back(packed.items[at].op, packed.items[at].first);
    EXPECT(expected == got && !got.empty());
  }
  const plan::Plan* const plans[] = {&plan};
  EXPECT(codegen::make_kernel(plans).features.background);
  EXPECT_EQ(plan::to_json(plan::from_json(plan::to_json(plan))), plan::to_json(plan));
  EXPECT(plan::from_json(plan::to_json(plan)).ops[sends[0]].record.background == 1);
  EXPECT(plan::to_string(plan).find(" in the background") != std::string::npos);
}

/// The kernel copies without a look at the program: whatever it could not do is found.
void test_damages() {
  const plan::Plan plan = plan_of(gathered_product(2, DType::kF32, 256, 512, 512), eager(6));
  EXPECT_EQ(complaint(plan), std::string());
  const size_t sender = in_background(plan).at(0);
  auto must_fail = [&](const char* what, auto&& change) {
    plan::Plan damaged = plan;
    change(damaged, damaged.ops[sender]);
    if (complaint(damaged).find("is in the background, expected") == std::string::npos)
      test::fail(cat(what, ": ", complaint(damaged)), __FILE__, __LINE__);
  };
  auto program = [](plan::Plan& p, const plan::Op& op) -> Program& {
    return p.programs[static_cast<size_t>(op.record.params.program.program)];
  };
  must_fail("another value", [&](plan::Plan& p, plan::Op& op) {
    Program& its = program(p, op);
    const auto store = std::ranges::find(its.instrs, Opcode::kStore, &Instr::op);
    const Instr neg{.op = Opcode::kNeg, .dtype = DType::kF32, .a = store->a};
    const auto at = static_cast<int16_t>(store - its.instrs.begin());
    its.instrs.insert(store, neg);
    for (Instr& i : its.instrs)
      if (i.op == Opcode::kStore) i.a = at;
  });
  must_fail("operands in another order", [&](plan::Plan& p, plan::Op& op) {
    std::swap(op.operands[0], op.operands[1]);
    for (Instr& i : program(p, op).instrs)
      if (i.operand < 2) i.operand = static_cast<int16_t>(1 - i.operand);
  });
  must_fail("every second element", [](plan::Plan&, plan::Op& op) { op.operands[0].stride[0] = 0; });
  must_fail("single elements", [](plan::Plan&, plan::Op& op) { op.operands[1].vector = 1; });
  must_fail("half a vector in", [](plan::Plan&, plan::Op& op) { op.operands[0].offset = 2; });
  must_fail("half a vector long", [](plan::Plan&, plan::Op& op) { op.record.size[0] -= 2; });
  must_fail("flags", [](plan::Plan&, plan::Op& op) {
    op.record.wait[op.record.num_waits++] = {.extent = 0, .div = 1, .limit = 1};
    op.flags.dropped_waits = 1;
  });
  must_fail("an operand that the program has not", [&](plan::Plan&, plan::Op& op) {
    abi::Operand far = op.operands[0];
    far.offset = int64_t{1} << 40;
    op.operands.push_back(far);
    ++op.record.num_operands;
  });
  must_fail("items of two tiles", [&](plan::Plan& p, plan::Op&) {
    for (std::vector<abi::WorkItem>& list : p.lists)
      std::erase_if(list,
                    [&](const abi::WorkItem& i) { return static_cast<size_t>(i.op) == sender && i.first % 2 == 1; });
    for (std::vector<abi::WorkItem>& list : p.lists)
      for (abi::WorkItem& i : list)
        if (static_cast<size_t>(i.op) == sender && i.first + 1 < plan::num_tiles(p.ops[sender].record)) i.count = 2;
  });
  plan::Plan damaged = plan;
  for (plan::Op& op : damaged.ops)
    if (op.record.kind != abi::TaskKind::kPointwise) op.record.background = 1;
  EXPECT(complaint(damaged).find("expected a pointwise op of one dimension") != std::string::npos);
}

/// Bit for bit, by ranks that are threads, some of them late.
void test_results() {
  const RankRun run{.launches = 3, .seed = 5, .stragglers = true};
  for (int world : {2, 3}) {
    const Graph graph = gathered_product(world, DType::kF32, 1024, 16, 128);
    const plan::Plan plan = plan_of(graph, eager(5));
    EXPECT_EQ(in_background(plan).size(), size_t{1});
    expect_evaluated(graph, plan, run, cat(graph.name, " of ", world));
  }
  ExchangeBuilder b(4);  // boxes that are used again
  ValueId x = b.input(DType::kF32, {64, 64});
  for (int l = 0; l < 3; ++l)
    x = b.reduce_scatter(b.binary(Opcode::kMaximum, b.all_gather(x), b.input(DType::kF32, {256, 64})));
  const Graph layers = b.finish({b.unary(Opcode::kNeg, x)}, "layers");
  expect_evaluated(layers, plan_of(layers, eager(4)), run, layers.name);
}

}  // namespace

int main() {
  test_plans();
  test_left_to_workers();
  test_apart();
  test_ranks_differ();
  test_packed();
  test_damages();
  test_results();
  return test::result("background");
}
