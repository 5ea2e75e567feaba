// Sends that run beside what computes: the order of a product's m blocks, the workers that it leaves to the op that
// sends, and what the schedule's clock makes of it.
#include <algorithm>
#include <set>

#include "planner/cost.h"
#include "planner/order/order_ops.h"
#include "planner/order/overlap.h"
#include "planner/order/schedule.h"
#include "planner/order/synchronize.h"
#include "planner/order/visiting_order.h"
#include "planner/planner.h"
#include "planner/tile/tile.h"
#include "support/check.h"
#include "support/exchange_graphs.h"

using namespace ark;
using namespace ark::test;

namespace {

constexpr int64_t kSize = 8192;

struct Scheduled {
  planner::Options options;
  planner::Draft draft;
  std::vector<planner::Share> shares;
  planner::Timeline time;

  const planner::FusedGraph& graph() const { return draft.graph; }
  const abi::OpRecord& record(int op) const { return graph().ops[static_cast<size_t>(op)].op.record; }
  int num_ops() const { return static_cast<int>(graph().ops.size()); }
  /// The first op that sends, from `first` on.
  int sender(int first = 0) const {
    for (int i = first; i < num_ops(); ++i)
      if (is_exchange(graph(), graph().ops[static_cast<size_t>(i)])) return i;
    return -1;
  }
  const planner::Share& share(int op) const { return shares[static_cast<size_t>(op)]; }
  double start(int op) const { return time.start[static_cast<size_t>(op)]; }
  double finish(int op) const { return time.finish[static_cast<size_t>(op)]; }
  double link_seconds(int op) const {
    return planner::link_seconds(graph(), graph().ops[static_cast<size_t>(op)], options.machine);
  }
  /// Tiles of the op per worker.
  std::vector<int> tiles(int op) const {
    std::vector<int> count;
    for (const auto& list : draft.lists) {
      count.push_back(0);
      for (const abi::WorkItem& item : list) count.back() += item.op == op ? item.count : 0;
    }
    return count;
  }
};

/// What only copies would be sent in the background, by no worker (test_background).
Scheduled scheduled(const Graph& graph, planner::Options options = {}) {
  options.background = false;
  Scheduled s{.options = options};
  s.draft.graph = planner::fuse(graph, options);
  planner::tile(s.draft, options);
  planner::order_ops(s.draft, options);
  planner::synchronize(s.draft, options);
  s.shares = planner::share_workers(s.draft, options);
  s.time = planner::schedule(s.draft, options);
  return s;
}

/// What is scattered is returned too: else the product would store its rows in the boxes itself (tile/send_by_batch.h).
Graph product(int world, bool scattered, int64_t m = kSize, int64_t n = kSize, int64_t k = kSize) {
  ExchangeBuilder b(world);
  ValueId y = b.linear(b.input(DType::kBF16, {m, k / world}), b.input(DType::kBF16, {n, k / world}));
  return b.finish(scattered ? std::vector<ValueId>{b.reduce_scatter(y), y} : std::vector<ValueId>{y}, "product");
}

/// Op 0 computes, op 1 sends the parts, op 2 adds what has come.
void test_reduce_scatter() {
  for (int world : {2, 4}) {
    const Scheduled s = scheduled(product(world, true)), alone = scheduled(product(world, false));
    EXPECT_EQ(s.num_ops(), 3);
    EXPECT_EQ(s.sender(), 1);
    const planner::Share& share = s.share(0);
    EXPECT(share.spare >= 8 && share.spare <= s.options.machine.num_workers / 4);
    EXPECT_EQ(share.until, 1);

    const std::vector<int> computed = s.tiles(0), sent = s.tiles(1);
    int idle = 0, beside = 0;
    for (size_t w = 0; w < computed.size(); ++w)
      if (computed[w] == 0) ++idle, beside += sent[w];
    EXPECT_EQ(idle, share.spare);
    EXPECT(2 * beside > planner::num_tiles(s.record(1)));
    EXPECT(s.start(1) < s.finish(0) / 4);

    const double apart = alone.time.end + s.link_seconds(1);
    std::printf("%d ranks: product alone %.0f us, sends %.0f us, predicted %.0f us\n", world, 1e6 * alone.time.end,
                1e6 * s.link_seconds(1), 1e6 * s.time.end);
    EXPECT(s.finish(1) < apart - 0.5 * s.link_seconds(1));
    EXPECT(s.finish(1) - s.start(1) >= s.link_seconds(1));
  }
}

/// Blocks of all parts in turn, so that the first tiles that send have what they wait for after the first group.
void test_order() {
  constexpr int kWorld = 4;
  const Scheduled s = scheduled(product(kWorld, true));
  const std::vector<int>& order = s.share(0).m_order;
  const int blocks = s.record(0).grid[1], of_part = blocks / kWorld;
  EXPECT_EQ(order.size(), static_cast<size_t>(blocks));
  for (int i = 0; i < blocks; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i % kWorld * of_part + i / kWorld);

  const plan::Op& op = s.graph().ops[0].op;
  const std::vector<int64_t> visited = planner::visiting_order(op, order, false);
  EXPECT_EQ(std::set<int64_t>(visited.begin(), visited.end()).size(),
            static_cast<size_t>(planner::num_tiles(op.record)));
  const std::vector<int> groups = planner::groups_of_m(op.record, true),
                         others = planner::groups_of_m(op.record, false);
  std::set<int64_t> first;
  for (int i = 0; i < groups.front() * op.record.grid[2]; ++i)
    first.insert(visited[static_cast<size_t>(i)] / op.record.grid[2]);
  EXPECT(first == std::set<int64_t>(order.begin(), order.begin() + groups.front()));
  EXPECT_EQ(others.front(), 16);
  EXPECT(groups.front() < 16 && groups.back() < 16 && std::ranges::max(groups) == 16);
}

/// Little to send, few workers, or a product that is one wave: all workers do all, in the order that there was.
void test_not_worth_it() {
  planner::Options few;
  few.machine.num_workers = 24;
  const Scheduled cases[] = {scheduled(product(4, true, 1024, 1024, kSize)), scheduled(product(4, true), few),
                             scheduled(product(4, true, 1024, kSize / 4, kSize)), scheduled(product(4, false))};
  for (const Scheduled& s : cases)
    for (const planner::Share& share : s.shares)
      EXPECT(share.spare == 0 && share.until == -1 && share.most == INT_MAX && share.m_order.empty());
}

/// A product that needs nothing of the exchange is what the sends run beside: no other is held up, and they take no
/// more workers than fill the link, or are done with it.
void test_beside_others() {
  ExchangeBuilder b(4);
  ValueId x = b.input(DType::kBF16, {4096, 3584}), w = b.input(DType::kBF16, {4096, 3584});
  ValueId gradient = b.input(DType::kBF16, {4096, 4096}), y = b.linear(x, w);
  planner::Options options;
  options.machine.long_send_seconds = 10e-6;
  const Scheduled s =
      scheduled(b.finish({b.reduce_scatter(y), b.matmul(b.transposed(y), gradient)}, "beside"), options);
  const int sender = s.sender();
  EXPECT(sender > 0 && sender + 1 < s.num_ops());
  for (const planner::Share& share : s.shares) EXPECT_EQ(share.spare, 0);
  const std::vector<int> sent = s.tiles(sender);
  const auto senders = std::ranges::count_if(sent, [](int tiles) { return tiles > 0; });
  EXPECT_EQ(senders, s.share(sender).most);
  const double fill = s.options.machine.link_bytes_per_second / s.options.machine.worker_link_bytes_per_second;
  EXPECT(senders > 1 && senders < fill + 1);  // fewer where that is in time
  int other = -1;                             // the second product
  for (int i = sender + 1; i < s.num_ops(); ++i)
    if (s.record(i).kind == abi::TaskKind::kMatmulTile) other = i;
  EXPECT(other > 0 && s.start(other) < s.finish(sender) - 0.5 * s.link_seconds(sender));
}

/// The whole planning with its proofs.
void test_verified() {
  const plan::Plan plan = planner::make_plan(product(4, true), {});
  const plan::Plan alone = planner::make_plan(product(4, false), {});
  std::printf("predicted %.3f ms, the product alone %.3f ms\n", plan.predicted_ms, alone.predicted_ms);
  EXPECT(plan.predicted_ms < 1.5 * alone.predicted_ms);
}

}  // namespace

int main() {
  test_reduce_scatter();
  test_order();
  test_not_worth_it();
  test_beside_others();
  test_verified();
  return test::result("overlap");
}
