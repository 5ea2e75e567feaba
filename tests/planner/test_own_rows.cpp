// Products of what ranks gather read the own rank's rows where they are: which plans do, whose tiles come first and
// wait for whom, that ranks compute what they did, and that what is damaged is refused.
#include <bit>

#include "device/abi/roles.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
#include "support/rank_damages.h"
#include "support/rank_threads.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

using X = abi::MatmulOperand;

plan::Plan plan_of(const Graph& graph, int workers = 2) {
  planner::Options options;
  options.machine.num_workers = workers;
  options.machine.background_send_seconds = 0;
  return planner::make_plan(graph, options);
}

int product_of(const plan::Plan& plan) {
  for (size_t i = 0; i < plan.ops.size(); ++i)
    if (plan.ops[i].record.kind == abi::TaskKind::kMatmulTile) return static_cast<int>(i);
  throw InternalError("no product in tiles");
}
abi::OpRecord& record(plan::Plan& plan) { return plan.ops[static_cast<size_t>(product_of(plan))].record; }
abi::Operand& operand(plan::Plan& plan, int i) {
  return plan.ops[static_cast<size_t>(product_of(plan))].operands[static_cast<size_t>(i)];
}

Graph gathered_product(int world, int64_t rows, int64_t k, int64_t n) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kBF16, {rows, k}), w = b.input(DType::kBF16, {k, n});
  return b.finish({b.unary(Opcode::kRelu, b.matmul(b.all_gather(x), w))}, "gathered product");
}

/// The same plan with all rows through the boxes, and waits for all ranks.
plan::Plan through_boxes(plan::Plan plan) {
  plan::Op& op = plan.ops[static_cast<size_t>(product_of(plan))];
  op.operands.erase(op.operands.begin() + X::kOwn);
  op.early &= (1u << X::kOwn) - 1;
  abi::MatmulTileParams& p = op.record.params.matmul;
  p.own_rows = p.map_own = 0;
  p.first_operand = X::kCount;
  op.record.num_operands = static_cast<int>(op.operands.size());
  for (int w = 0; w < op.record.num_waits; ++w) op.record.wait[w].role = 0;
  return plan;
}

plan::Plan with_own_boxes(plan::Plan plan) {
  for (plan::Op& op : plan.ops)
    if (op.record.background != 0) op.record.background = abi::kToAll;
  EXPECT_EQ(complaint(plan), std::string());
  return plan;
}

void test_plan() {
  constexpr int kWorld = 4;
  plan::Plan plan = plan_of(gathered_product(kWorld, 512, 128, 512), 4);
  const abi::OpRecord& r = record(plan);
  EXPECT_EQ(r.params.matmul.own_rows, 1);
  EXPECT(plan.buffers[operand(plan, X::kA).slot].kind == plan::BufferKind::kBoxes);
  EXPECT(plan.buffers[operand(plan, X::kOwn).slot].kind == plan::BufferKind::kInput);
  EXPECT_EQ(r.num_waits, 1);
  EXPECT(r.wait[0].role == static_cast<int>(abi::WaitRole::kSource) && r.wait[0].rank_stride > 1);
  EXPECT(r.wait[0].coef[0] == 0 && r.wait[0].coef[1] != 0);
  for (const std::vector<abi::WorkItem>& list : plan.lists) {
    bool others = false;
    for (const abi::WorkItem& item : list) {
      if (item.op != r.op) continue;
      const bool own = item.first < r.grid[1] * r.grid[2];
      EXPECT(!(own && others));
      others |= !own;
    }
  }
  for (int rank = 0; rank < kWorld; ++rank) {  // every tile once, from the own batch on
    std::vector<int> runs(static_cast<size_t>(r.grid[0] * r.grid[1] * r.grid[2]), 0);
    for (int tile = 0; tile < static_cast<int>(runs.size()); ++tile)
      ++runs[static_cast<size_t>(abi::turned_tile(r, tile, rank))];
    EXPECT(std::ranges::all_of(runs, [](int n) { return n == 1; }));
    EXPECT_EQ(abi::turned_tile(r, 0, rank) / (r.grid[1] * r.grid[2]), rank);
  }
  EXPECT_EQ(plan::to_json(plan::from_json(plan::to_json(plan))), plan::to_json(plan));
  EXPECT(plan::to_string(plan).find(", own rows through map ") != std::string::npos);
  EXPECT(plan::to_string(plan).find(", the batch's rank of, all ranks, ") != std::string::npos);
}

/// Where the source is written before the product reads it, and where what is sent is computed on the way.
void test_through_boxes() {
  ExchangeBuilder written(2);
  ValueId x = written.input(DType::kBF16, {256, 128}), w = written.input(DType::kBF16, {128, 512});
  ValueId y = written.all_gather(x), stored = written.value(DType::kBF16, {256, 128}, x);
  written.node(OpKind::kCopyTo, {x, written.unary(Opcode::kNeg, x)}, {stored});
  plan::Plan plan = plan_of(written.finish({written.matmul(y, w)}, "written"));
  EXPECT_EQ(complaint(plan), std::string());
  ExchangeBuilder computed(2);
  x = computed.unary(Opcode::kNeg, computed.input(DType::kBF16, {256, 128}));
  plan::Plan other = plan_of(
      computed.finish({computed.matmul(computed.all_gather(x), computed.input(DType::kBF16, {128, 512}))}, "computed"));
  EXPECT_EQ(record(other).params.matmul.own_rows, 0);
}

float bf16_at(const Floats& x, int64_t i) {
  uint16_t half = 0;
  std::memcpy(&half, reinterpret_cast<const std::byte*>(x.data()) + 2 * i, 2);
  return std::bit_cast<float>(uint32_t{half} << 16);
}
uint16_t rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Bit for bit as through the boxes, and as three loops say. (Inputs are f32 whose halves are read as two bf16.)
void test_results(int world) {
  constexpr int64_t kRows = 256, kK = 192, kN = 512;
  const Graph graph = gathered_product(world, kRows, kK, kN);
  const RankRun run{.launches = 3, .seed = 5, .stragglers = true, .same = {1}};
  plan::Plan plan = plan_of(graph);
  EXPECT_EQ(record(plan).params.matmul.own_rows, 1);
  EXPECT_EQ(complaint(plan), std::string());
  const auto results = run_ranks(graph, plan, run), before = run_ranks(graph, with_own_boxes(through_boxes(plan)), run);
  EXPECT(results == before);
  const int launch = run.launches - 1;
  std::vector<Tensors> inputs;
  for (int rank = 0; rank < world; ++rank) inputs.push_back(make_inputs(graph, rank, launch, run.same));
  int wrong = 0;
  for (int64_t row = 0; row < kRows * world; row += 37)
    for (int64_t n = 0; n < kN; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < kK; ++k)
        sum += bf16_at(inputs[static_cast<size_t>(row / kRows)][0], row % kRows * kK + k) *
               bf16_at(inputs[0][1], k * kN + n);
      for (int rank = 0; rank < world; ++rank)
        wrong += rounded(bf16_at(results[static_cast<size_t>(launch)][static_cast<size_t>(rank)][0], row * kN + n)) !=
                 rounded(std::max(sum, 0.0f));
    }
  EXPECT_EQ(wrong, 0);
}

/// Waits and arrivals, against both enumerations of all ranks.
void test_races() {
  plan::Plan plan = plan_of(gathered_product(2, 128, 16, 256), 1);
  EXPECT_EQ(record(plan).params.matmul.own_rows, 1);
  EXPECT_EQ(record(plan).num_waits, 1);
  RankDamages damages(plan);
  damages.check_whole();
  const auto product = static_cast<size_t>(product_of(plan));
  for (int w = 0; w < record(plan).num_waits; ++w) {
    damages.remove_wait(product, w);
    damages.damage_exactly("another row block", [&](plan::Plan& p) { p.ops[product].record.wait[w].base += 4096; });
  }
  EXPECT(damages.count().races > 0 && damages.count().races == damages.count().refused);
}

/// The proof of one rank, which takes own rows for what it sends.
void test_damages() {
  const plan::Plan whole = plan_of(gathered_product(2, 256, 512, 512));
  EXPECT_EQ(complaint(whole), std::string());
  auto refused = [&](const char* what, auto&& change, planner::VerifyLevel level = planner::VerifyLevel::kFull) {
    plan::Plan damaged = whole;
    change(damaged);
    if (complaint(damaged, level).empty()) test::fail(what, __FILE__, __LINE__);
  };
  refused("no wait", [](plan::Plan& p) { record(p).num_waits = 0; });
  refused("fewer rows", [](plan::Plan& p) { record(p).wait[0].coef[1] = 0; });
  refused("other rows", [](plan::Plan& p) { record(p).wait[0].base += record(p).wait[0].div; });
  refused("no stride", [](plan::Plan& p) { record(p).wait[0].rank_stride = 0; });
  refused("batches wait for other rows", [](plan::Plan& p) { record(p).wait[0].coef[0] = record(p).wait[0].div; });
  refused("other own rows", [](plan::Plan& p) { operand(p, X::kOwn).offset += 64; });
  refused("another slot", [](plan::Plan& p) { operand(p, X::kOwn).slot = operand(p, X::kB).slot; });
  refused("a batch of its own", [](plan::Plan& p) { operand(p, X::kOwn).stride[0] = 64; });
  refused("another map", [](plan::Plan& p) { record(p).params.matmul.map_own = record(p).params.matmul.map_a; });
  refused("no own rows", [](plan::Plan& p) { record(p).params.matmul.own_rows = 0; });
  refused("through two boxes", [](plan::Plan& p) { operand(p, X::kA).offset += 64; });
  refused("an item of two batches", [](plan::Plan& p) {
    const int of_batch = record(p).grid[1] * record(p).grid[2];
    for (std::vector<abi::WorkItem>& list : p.lists)
      for (size_t i = 0; i < list.size(); ++i)
        if (list[i].op == record(p).op && list[i].first == of_batch - 1) list[i].count = 2;
  });
  refused("sent from elsewhere", [](plan::Plan& p) {
    for (abi::Operand& x : p.ops[0].operands)
      if (p.buffers[x.slot].kind == plan::BufferKind::kInput) x.offset += 8;
  });
  refused("who has no own rows waits for one rank", [](plan::Plan& p) {
    p = with_own_boxes(through_boxes(p));
    record(p).wait[0].role = static_cast<int>(abi::WaitRole::kSource);
  });
}

/// Nothing goes to the own box where no rank reads it.
void test_own_box() {
  plan::Plan plan = plan_of(gathered_product(4, 256, 512, 512));
  EXPECT_EQ(plan.ops[0].record.background, abi::kToOthers);
  EXPECT(plan::to_string(plan).find(" in the background, to others") != std::string::npos);
  plan::Plan damaged = through_boxes(plan);
  EXPECT(complaint(damaged).find("nobody to read the own rank's box") != std::string::npos);
  damaged = plan;
  std::swap(damaged.ops[0].operands[1], damaged.ops[0].operands[2]);
  EXPECT(complaint(damaged).find("the boxes of all ranks behind each source") != std::string::npos);
  ExchangeBuilder b(4);
  ValueId gathered = b.all_gather(b.input(DType::kBF16, {256, 512}));
  const ValueId w = b.input(DType::kBF16, {512, 512});
  plan::Plan returned = plan_of(b.finish({b.matmul(gathered, w), gathered}, "returned"));
  EXPECT_EQ(record(returned).params.matmul.own_rows, 1);
  EXPECT_EQ(returned.ops[0].record.background, abi::kToAll);
  returned.ops[0].record.background = abi::kToOthers;
  EXPECT(complaint(returned).find("nobody to read the own rank's box") != std::string::npos);
}

/// What a later op overwrites is not over for this rank's sender when the product has seen the other ranks.
void test_reuse() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kBF16, {256, 128}), w = b.input(DType::kBF16, {128, 512});
  for (int l = 0; l < 3; ++l) {
    ValueId y = b.matmul(b.all_gather(x), w);
    x = b.reduce_scatter(b.matmul(y, b.input(DType::kBF16, {512, 128})));
  }
  const Graph graph = b.finish({x}, "sequence parallel");
  const plan::Plan plan = plan_of(graph);
  EXPECT_EQ(complaint(plan), std::string());
  EXPECT(std::ranges::any_of(plan.ops, [](const plan::Op& op) { return abi::has_own_rows(op.record); }));
  const RankRun run{.launches = 6, .seed = 9, .stragglers = true};
  planner::Options options;
  options.machine.num_workers = 2;
  options.reuse_memory = false;
  EXPECT(run_ranks(graph, plan, run) == run_ranks(graph, planner::make_plan(graph, options), run));
}

}  // namespace

int main() {
  test_plan();
  test_through_boxes();
  for (const int world : {2, 3, 4}) test_results(world);
  test_races();
  test_damages();
  test_own_box();
  test_reuse();
  return test::result("own_rows");
}
