// Products that store the rows of each rank in the box there: no op that sends, readers that begin with the first rows,
// a visiting order in which all ranks' rows go together. Proved, enumerated, damaged, and run by ranks that are
// threads.
#include <algorithm>

#include "device/abi/roles.h"
#include "planner/exchange_report.h"
#include "planner/planner.h"
#include "planner/verify/ranks.h"
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

std::vector<int> boxes_out(const plan::Plan& plan, const plan::Op& op) {
  std::vector<int> operands;
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (op.operands[i].slot != abi::kNoSlot && plan.buffers[op.operands[i].slot].kind == plan::BufferKind::kBoxOut)
      operands.push_back(static_cast<int>(i));
  return operands;
}

bool is_product(const plan::Op& op) {
  return op.record.kind == abi::TaskKind::kMatmulTile || op.record.kind == abi::TaskKind::kMatmulFloat;
}
int senders(const plan::Plan& plan) {
  return static_cast<int>(
      std::ranges::count_if(plan.ops, [&](const plan::Op& op) { return !boxes_out(plan, op).empty(); }));
}

struct Case {
  int world = 4;
  DType dtype = DType::kF32;
  int64_t m = 1024, n = 256, k = 64;
  bool biased = false;
};

/// relu(x @ w + bias), scattered by rows.
Graph scattered_product(const Case& c) {
  ExchangeBuilder b(c.world);
  ValueId y = b.matmul(b.input(c.dtype, {c.m, c.k}), b.input(c.dtype, {c.k, c.n}));
  if (c.biased) y = b.unary(Opcode::kRelu, b.binary(Opcode::kAdd, y, b.input(c.dtype, {c.m, c.n})));
  return b.finish({b.reduce_scatter(y)}, "scattered product");
}

void test_plan(DType dtype) {
  constexpr int kWorld = 4;
  const plan::Plan plan = plan_of(scattered_product({.dtype = dtype, .m = 2048, .biased = true}));
  EXPECT_EQ(plan.ops.size(), size_t{2});
  const plan::Op& product = plan.ops[0];
  EXPECT(is_product(product));
  EXPECT_EQ(product.record.grid[0], kWorld);
  EXPECT_EQ(boxes_out(plan, product).size(), size_t{kWorld});
  for (const plan::Buffer& b : plan.buffers)
    EXPECT(b.kind != plan::BufferKind::kArena);  // nothing is stored here first
  const abi::OpRecord& sum = plan.ops[1].record;
  EXPECT_EQ(sum.num_waits, 1);
  EXPECT(sum.wait[0].rank_stride > 1 && sum.wait[0].coef[0] != 0);  // counters of rows
  int64_t stored = 0;
  for (const planner::ExchangeReport& exchange : planner::report_exchanges(plan)) stored += exchange.parts;
  EXPECT_EQ(stored, 1);
  // The first rows of all ranks before the last rows of any.
  for (const std::vector<abi::WorkItem>& list : plan.lists) {
    int last_block = 0;
    for (const abi::WorkItem& item : list) {
      if (item.op != 0) continue;
      const int block = item.first / product.record.grid[2] % product.record.grid[1];
      EXPECT(block >= last_block - 3);
      last_block = std::max(last_block, block);
    }
  }
}

Program& program_of(plan::Plan& plan) {
  return plan.programs[static_cast<size_t>(plan.ops[0].record.params.matmul.program)];
}

/// Every wait taken away, and every store that goes to another box, or to several, is found.
void test_damages() {
  const plan::Plan plan = plan_of(scattered_product({.world = 2, .m = 512}));
  EXPECT_EQ(complaint(plan), std::string());
  EXPECT_EQ(senders(plan), 1);
  const auto conflicts = BrutePlan(plan).conflicts();
  EXPECT(!conflicts.empty() && BrutePlan(plan).all_ordered(conflicts));
  plan::Plan damaged = plan;
  damaged.ops[1].record.num_waits = 0;
  EXPECT(!BrutePlan(damaged).all_ordered(conflicts));
  EXPECT(!complaint(damaged).empty());
  const auto must_fail = [&](const char* what, auto&& change) {
    damaged = plan;
    change(damaged);
    if (complaint(damaged).empty()) test::fail(what, __FILE__, __LINE__);
  };
  const std::vector<int> boxes = boxes_out(plan, plan.ops[0]);
  must_fail("boxes change places", [&](plan::Plan& p) {
    std::swap(p.ops[0].operands[static_cast<size_t>(boxes[0])].slot,
              p.ops[0].operands[static_cast<size_t>(boxes[1])].slot);
  });
  must_fail("a box twice", [&](plan::Plan& p) {
    p.ops[0].operands[static_cast<size_t>(boxes[0])].slot = p.ops[0].operands[static_cast<size_t>(boxes[1])].slot;
  });
  must_fail("batches lie apart",
            [&](plan::Plan& p) { p.ops[0].operands[static_cast<size_t>(boxes[0])].stride[0] = 1; });
  must_fail("rows lie closer", [&](plan::Plan& p) {
    for (int i : boxes) --p.ops[0].operands[static_cast<size_t>(i)].stride[1];
  });
  for (const int64_t rows : {-1, 1, 255}) {
    must_fail("moved by rows", [&](plan::Plan& p) {
      for (int i : boxes) {
        abi::Operand& x = p.ops[0].operands[static_cast<size_t>(i)];
        x.offset += rows * x.stride[1];
      }
    });
  }
  must_fail("rows lie twice as far apart", [&](plan::Plan& p) {
    for (int i : boxes) p.ops[0].operands[static_cast<size_t>(i)].stride[1] *= 2;
  });
  must_fail("all batches go to a rank", [&](plan::Plan& p) {
    for (Instr& i : program_of(p).instrs)
      if (i.op == Opcode::kStore) i.d = -1;
  });
  must_fail("no batch is rank 0's", [&](plan::Plan& p) {
    for (Instr& i : program_of(p).instrs)
      if (i.op == Opcode::kConst && i.dtype == DType::kI64 && i.imm_int == 0) i.imm_int = 2;
  });
  must_fail("by rows, not by batches", [&](plan::Plan& p) {
    for (Instr& i : program_of(p).instrs)
      if (i.op == Opcode::kIndex) i.aux = 1;
  });
  must_fail("all but a batch", [&](plan::Plan& p) {
    for (Instr& i : program_of(p).instrs)
      if (i.op == Opcode::kEq) i.op = Opcode::kNe;
  });
  must_fail("arrives here alone", [&](plan::Plan& p) {
    for (int a = 0; a < p.ops[0].record.num_arrivals; ++a) p.ops[0].record.arrive_rank_stride[a] = 0;
  });
}

/// All ranks and two launches together.
void test_merged() {
  for (int world : {2, 4}) {
    const plan::Plan plan = plan_of(scattered_product({.world = world, .m = 256 * world, .biased = true}));
    EXPECT_EQ(senders(plan), 1);
    planner::VerifyReport report;
    planner::verify_ranks(plan, report);
    EXPECT(report.op_pairs > 0);
  }
}

/// What is stored as before: a result that something else reads too, or that is returned; ranks' rows that do not begin
/// on a tile; few tiles; columns instead of rows; a program that asks where its row is.
void test_kept() {
  const auto ops_of = [](const Graph& graph, int workers = kWorkers) { return plan_of(graph, workers).ops.size(); };
  EXPECT_EQ(ops_of(scattered_product({})), size_t{2});
  EXPECT_EQ(ops_of(scattered_product({.m = 4 * 160})), size_t{3});
  EXPECT_EQ(ops_of(scattered_product({}), 132), size_t{3});
  for (const bool returned : {true, false}) {
    ExchangeBuilder b(4);
    ValueId y = b.matmul(b.input(DType::kF32, {1024, 64}), b.input(DType::kF32, {64, 256}));
    const plan::Plan plan = plan_of(b.finish({b.reduce_scatter(y), returned ? y : b.row_sum(y, 0, false)}, "read"));
    const auto product = std::ranges::find_if(plan.ops, is_product);
    EXPECT(product != plan.ops.end() && boxes_out(plan, *product).empty());
  }
}

/// Bit for bit, with ranks that are late; a chain whose boxes take turns.
void test_results() {
  const RankRun run{.launches = 4, .seed = 3, .stragglers = true};
  for (const Case& c : {Case{.world = 2, .m = 512, .n = 128, .k = 32}, Case{.world = 4, .m = 512, .n = 256, .k = 32},
                        Case{.world = 2, .m = 256, .n = 512, .k = 32, .biased = true}}) {
    const Graph graph = scattered_product(c);
    const plan::Plan plan = plan_of(graph);
    EXPECT_EQ(plan.ops.size(), size_t{2});
    expect_evaluated(graph, plan, run, graph.name);
  }
}

/// Planned again from text; eight ranks.
void test_saved() {
  const plan::Plan plan = plan_of(scattered_product({.world = 8, .dtype = DType::kBF16, .m = 2048}));
  EXPECT_EQ(senders(plan), 1);
  EXPECT_EQ(boxes_out(plan, plan.ops[0]).size(), size_t{8});
  EXPECT_EQ(plan::to_json(plan::from_json(plan::to_json(plan))), plan::to_json(plan));
}

}  // namespace

int main() {
  test_plan(DType::kBF16);
  test_plan(DType::kF32);
  test_damages();
  test_merged();
  test_kept();
  test_results();
  test_saved();
  return test::result("send_by_batch");
}
