// What ranks gather is read where it lies: no copy, a product waits for its rows of each rank, and visits first what
// comes first. Proved, enumerated, damaged, and run by ranks that are threads.
#include <algorithm>

#include "device/abi/roles.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
#include "support/plan_brute.h"
#include "support/rank_evaluator.h"
#include "support/rank_threads.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

constexpr int kWorkers = 4;

plan::Plan plan_of(const Graph& graph, int workers = kWorkers) {
  planner::Options options;
  options.machine.num_workers = workers;
  return planner::make_plan(graph, options);
}

int count(const plan::Plan& plan, plan::BufferKind kind) {
  return static_cast<int>(
      std::count_if(plan.buffers.begin(), plan.buffers.end(), [&](const plan::Buffer& b) { return b.kind == kind; }));
}

const plan::Op& product_of(const plan::Plan& plan) {
  const auto found = std::find_if(plan.ops.begin(), plan.ops.end(), [](const plan::Op& op) {
    return op.record.kind == abi::TaskKind::kMatmulTile || op.record.kind == abi::TaskKind::kMatmulFloat;
  });
  check(found != plan.ops.end(), "no product in tiles");
  return *found;
}

/// relu(gathered x @ w) of `rows` rows from each rank.
Graph gathered_product(int world, DType dtype, int64_t rows, int64_t k, int64_t n) {
  ExchangeBuilder b(world);
  ValueId x = b.input(dtype, {rows, k}), w = b.input(dtype, {k, n});
  return b.finish({b.unary(Opcode::kRelu, b.matmul(b.all_gather(x), w))}, "gathered product");
}

void test_plan(DType dtype) {
  constexpr int kWorld = 4;
  const plan::Plan plan = plan_of(gathered_product(kWorld, dtype, 512, 128, 256));
  EXPECT_EQ(plan.ops.size(), size_t{2});
  EXPECT_EQ(count(plan, plan::BufferKind::kBoxes), 1);
  EXPECT_EQ(count(plan, plan::BufferKind::kBox), kWorld);
  const abi::OpRecord& product = product_of(plan).record;
  EXPECT_EQ(product.grid[0], kWorld);
  EXPECT_EQ(product.num_waits, 1);
  const abi::Wait& wait = product.wait[0];
  EXPECT(wait.rank_stride > 1);  // counters of row blocks
  EXPECT(wait.coef[0] == 0 && wait.coef[1] != 0 && wait.coef[2] == 0);
  EXPECT(plan.buffers[product_of(plan).operands[abi::MatmulOperand::kA].slot].kind == plan::BufferKind::kBoxes);
  // The first rows of all ranks before the last rows of any.
  for (const std::vector<abi::WorkItem>& list : plan.lists) {
    int last_block = 0;
    for (const abi::WorkItem& item : list) {
      if (plan.ops[static_cast<size_t>(item.op)].record.op != product.op) continue;
      const int block = item.first / product.grid[2] % product.grid[1];
      EXPECT(block >= last_block - 3);
      last_block = std::max(last_block, block);
    }
  }
}

/// Every wait taken away, and every joined slot changed, is found.
void test_damages() {
  const plan::Plan plan = plan_of(gathered_product(2, DType::kF32, 256, 64, 256));
  EXPECT_EQ(complaint(plan), std::string());
  const auto conflicts = BrutePlan(plan).conflicts();
  EXPECT(BrutePlan(plan).all_ordered(conflicts));
  plan::Plan damaged = plan;
  damaged.ops[1].record.num_waits = 0;
  EXPECT(!BrutePlan(damaged).all_ordered(conflicts));
  EXPECT(!complaint(damaged).empty());
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    if (plan.buffers[slot].kind != plan::BufferKind::kBoxes) continue;
    auto must_fail = [&](const char* what, auto&& change) {
      damaged = plan;
      change(damaged.buffers[slot]);
      if (complaint(damaged).empty()) test::fail(what, __FILE__, __LINE__);
    };
    must_fail("moved", [](plan::Buffer& b) { b.arena_offset += 256; });
    must_fail("larger", [](plan::Buffer& b) { b.size_bytes += 256; });
    must_fail("smaller", [](plan::Buffer& b) { b.size_bytes -= 256; });
    must_fail("no twin", [](plan::Buffer& b) { b.twin = -1; });
    must_fail("another rank's twin", [](plan::Buffer& b) { b.twin += 2; });
    must_fail("an out-box as twin", [](plan::Buffer& b) { b.twin += 1; });
    must_fail("a box", [](plan::Buffer& b) { b.kind = plan::BufferKind::kBox; });
  }
  damaged = plan;  // loads take batches that share b for further rows of a
  damaged.ops[1].operands[abi::MatmulOperand::kA].stride[0] -=
      damaged.ops[1].operands[abi::MatmulOperand::kA].stride[1];
  EXPECT(complaint(damaged).find("all batches share b") != std::string::npos);
  damaged = plan;  // a box is written through the joined slot
  for (abi::Operand& x : damaged.ops[0].operands)
    if (x.slot != abi::kNoSlot && plan.buffers[x.slot].kind == plan::BufferKind::kBoxOut)
      x.slot = plan.ops[1].operands[abi::MatmulOperand::kA].slot;
  EXPECT(!complaint(damaged).empty());
}

/// What is no tensor of boxes: gaps between them, a box that is read too, a result that is returned, another order.
void test_copies() {
  auto boxes_of = [](const Graph& graph) { return count(plan_of(graph), plan::BufferKind::kBoxes); };
  ExchangeBuilder gaps(2);
  ValueId x = gaps.input(DType::kF32, {5, 7});
  EXPECT_EQ(boxes_of(gaps.finish({gaps.norm(gaps.all_gather(x))}, "gaps")), 0);
  ExchangeBuilder whole(2);
  x = whole.input(DType::kF32, {8, 64});
  EXPECT_EQ(boxes_of(whole.finish({whole.norm(whole.all_gather(x))}, "whole")), 1);
  ExchangeBuilder read(2);
  x = read.input(DType::kF32, {8, 64});
  std::vector<ValueId> boxes = read.exchange({x});
  EXPECT_EQ(boxes_of(read.finish({read.norm(read.joined(boxes)), read.unary(Opcode::kNeg, boxes[1])}, "read")), 0);
  ExchangeBuilder returned(2);
  x = returned.input(DType::kF32, {8, 64});
  EXPECT_EQ(boxes_of(returned.finish({returned.all_gather(x)}, "returned")), 0);
  ExchangeBuilder saved(2);  // for a backward: who reads it here reads the boxes
  x = saved.input(DType::kF32, {8, 64});
  ValueId gathered = saved.all_gather(x), weight = saved.input(DType::kF32, {64, 64});
  const plan::Plan both = plan_of(saved.finish({saved.matmul(gathered, weight), gathered}, "saved"));
  EXPECT_EQ(count(both, plan::BufferKind::kBoxes), 1);
  EXPECT_EQ(both.ops.size(), size_t{3});  // it sends, it multiplies, it copies
  EXPECT_EQ(complaint(both), std::string());
  ExchangeBuilder turned(2);
  x = turned.input(DType::kF32, {8, 64});
  boxes = turned.exchange({x});
  std::reverse(boxes.begin(), boxes.end());
  EXPECT_EQ(boxes_of(turned.finish({turned.norm(turned.joined(boxes))}, "turned")), 0);
}

/// Bit for bit, with ranks that are late; also behind other exchanges, whose boxes take turns.
void test_results() {
  const RankRun run{.launches = 4, .seed = 3, .stragglers = true};
  const Graph product = gathered_product(2, DType::kF32, 128, 32, 512);
  EXPECT_EQ(product_of(plan_of(product)).record.grid[0], 2);
  expect_evaluated(product, plan_of(product), run, product.name);
  ExchangeBuilder b(4);
  ValueId x = b.input(DType::kF32, {16, 64});
  for (int l = 0; l < 3; ++l) {  // no products: their order of sums is their own
    ValueId y = b.all_gather(b.unary(Opcode::kNeg, x));
    y = b.binary(Opcode::kMaximum, y, b.input(DType::kF32, {64, 64}));
    x = b.binary(Opcode::kAdd, x, b.reduce_scatter(y));
  }
  const Graph layers = b.finish({b.unary(Opcode::kNeg, b.all_to_all(x))}, "sequence parallel");
  const plan::Plan plan = plan_of(layers);
  EXPECT_EQ(count(plan, plan::BufferKind::kBoxes), 4);
  EXPECT_EQ(complaint(plan), std::string());
  expect_evaluated(layers, plan, run, layers.name);
}

/// What is read and returned; as a view too, which is one of a tensor that is written.
void test_returned() {
  const RankRun run{.launches = 4, .seed = 11, .stragglers = true};
  for (const bool view : {false, true}) {
    ExchangeBuilder b(3);
    ValueId y = b.all_gather(b.input(DType::kF32, {64, 64}));
    const ValueId product = b.matmul(y, b.input(DType::kF32, {64, 32}));
    const Graph graph = b.finish({b.unary(Opcode::kNeg, y), product, view ? b.parts(y)[1] : y, y}, "returned");
    const plan::Plan plan = plan_of(graph);
    EXPECT_EQ(count(plan, plan::BufferKind::kBoxes), view ? 0 : 1);
    EXPECT_EQ(complaint(plan), std::string());
    if (!view) expect_evaluated(graph, plan, run, graph.name);
  }
}

/// Planned again from text.
void test_saved() {
  const plan::Plan plan = plan_of(gathered_product(2, DType::kBF16, 256, 64, 256));
  EXPECT_EQ(plan::to_json(plan::from_json(plan::to_json(plan))), plan::to_json(plan));
  EXPECT(plan::to_string(plan).find(": boxes of all ranks at 0, ") != std::string::npos);
}

}  // namespace

int main() {
  test_plan(DType::kBF16);
  test_plan(DType::kF32);
  test_damages();
  test_copies();
  test_results();
  test_returned();
  test_saved();
  return test::result("joined_boxes");
}
