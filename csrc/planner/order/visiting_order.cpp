#include "planner/order/visiting_order.h"

#include <algorithm>
#include <numeric>

#include "plan/kinds.h"
#include "planner/cost.h"

namespace ark::planner {
namespace {

using abi::GridAxis;

/// All heads of a block of queries, then the next block: what reads rows of all heads can start with the first blocks.
/// The longest tiles first where they differ, so that the short ones fill up what is left of the workers' time.
std::vector<int64_t> by_query_blocks(const plan::Op& op) {
  const abi::OpRecord& record = op.record;
  const bool triangle = sees_triangle(op);
  const int64_t heads = record.grid[GridAxis::kHead], blocks = record.grid[GridAxis::kBlock];
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(num_tiles(record)));
  for (int64_t batch = 0; batch < record.grid[GridAxis::kBatch]; ++batch)
    for (int64_t i = 0; i < blocks; ++i)
      for (int64_t head = 0; head < heads; ++head)
        order.push_back((batch * heads + head) * blocks + (triangle ? blocks - 1 - i : i));
  return order;
}

/// Of a product whose batches are what each rank has sent (tile/split_by_boxes.h), or is sent (tile/send_by_batch.h):
/// row blocks that come, or are read, at the same time go together.
bool comes_by_rows(const abi::OpRecord& record) {
  return record.grid[GridAxis::kBatch] > 1 &&
         std::any_of(record.wait, record.wait + record.num_waits, [](const abi::Wait& wait) {
           return wait.rank_stride != 0 && wait.coef[0] == 0 && wait.coef[1] != 0;
         });
}
/// Batches [first, end), row blocks of all of them together. `sent`: the last rows are few at a time, so that little is
/// left to do with them when the product ends.
void add_by_rows(const abi::OpRecord& record, int first, int end, int group, bool sent, std::vector<int64_t>& order) {
  const int most = std::max(1, group / std::max(1, end - first));
  for (int m = 0, rows = 0; m < record.grid[GridAxis::kRowBlock]; m += rows) {
    const int left = record.grid[GridAxis::kRowBlock] - m;
    rows = std::min(most, sent ? (left + 1) / 2 : left);
    for (int n = 0; n < record.grid[GridAxis::kColumnBlock]; ++n)
      for (int b = first; b < end; ++b)
        for (int i = m; i < m + rows; ++i)
          order.push_back((int64_t{b} * record.grid[GridAxis::kRowBlock] + i) * record.grid[GridAxis::kColumnBlock] +
                          n);
  }
}
/// Own rows (batch 0 of a list, abi::turned_tile) are there already: what others send has the time that they take.
std::vector<int64_t> by_rows(const abi::OpRecord& record, int group, bool sent) {
  const int own = abi::has_own_rows(record) ? 1 : 0;
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(num_tiles(record)));
  add_by_rows(record, 0, own, group, sent, order);
  add_by_rows(record, own, record.grid[GridAxis::kBatch], group, sent, order);
  return order;
}

/// Tiles of a wide matmul in groups of 16 m blocks: the 132 tiles that run together then read about 16 x 128 rows of A
/// and 8 x 256 columns of B instead of one block row of A and all of B, which may exceed the L2.
constexpr int kGroup = 16;

}  // namespace

/// Of what is sent, the first and the last groups are small: sends begin early, and little is left when the product
/// ends. 4 m blocks of wide tiles, 32 across, are a wave.
std::vector<int> groups_of_m(const abi::OpRecord& record, bool sent) {
  constexpr int kLeastSent = 4;
  std::vector<int> groups;
  const int blocks = record.grid[GridAxis::kRowBlock],
            most = record.grid[GridAxis::kColumnBlock] <= kGroup ? 1 : kGroup;
  for (int at = 0; at < blocks; at += groups.back()) {
    const int left = blocks - at, grown = std::max(kLeastSent, std::min(at, left / 2));
    groups.push_back(std::min({most, left, sent ? grown : left}));
  }
  return groups;
}

std::vector<int64_t> visiting_order(const plan::Op& op, const std::vector<int>& m_order, bool sends_batches) {
  const abi::OpRecord& record = op.record;
  const plan::Order how = plan::kind_of(record).order;
  if (how == plan::Order::kQueryBlocks) return by_query_blocks(op);
  if (how == plan::Order::kGroupsOfM && (sends_batches || comes_by_rows(record)))
    return by_rows(record, kGroup, sends_batches);
  std::vector<int64_t> order(static_cast<size_t>(num_tiles(record)));
  std::iota(order.begin(), order.end(), int64_t{0});
  const bool sent = !m_order.empty();
  if (how != plan::Order::kGroupsOfM || (record.grid[GridAxis::kColumnBlock] <= kGroup && !sent)) return order;
  const std::vector<int> groups = groups_of_m(record, sent);
  size_t at = 0;
  for (int b = 0; b < record.grid[GridAxis::kBatch]; ++b) {
    for (int m = 0; const int group : groups) {
      for (int n = 0; n < record.grid[GridAxis::kColumnBlock]; ++n)
        for (int i = m; i < m + group; ++i)
          order[at++] = (int64_t{b} * record.grid[GridAxis::kRowBlock] + (sent ? m_order[static_cast<size_t>(i)] : i)) *
                            record.grid[GridAxis::kColumnBlock] +
                        n;
      m += group;
    }
  }
  return order;
}

}  // namespace ark::planner
