#include "planner/order/counters.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "planner/draft.h"

namespace ark::planner {
namespace {

using abi::GridAxis;

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }
bool fits(int64_t value) { return value >= -(INT64_C(1) << 30) && value <= (INT64_C(1) << 30); }

/// Calls f(tile, c) for all tiles in order.
template <class F>
void for_each_tile(const abi::OpRecord& record, F f) {
  int64_t tile = 0;
  int c[3];
  for (c[0] = 0; c[0] < record.grid[GridAxis::kOuter]; ++c[0]) {
    for (c[1] = 0; c[1] < record.grid[GridAxis::kMiddle]; ++c[1]) {
      for (c[2] = 0; c[2] < record.grid[GridAxis::kInner]; ++c[2]) f(tile++, c);
    }
  }
}

int64_t position(const int64_t step[3], const int c[3]) { return c[0] * step[0] + c[1] * step[1] + c[2] * step[2]; }

Interval row_blocks(int64_t row, int64_t extent, int64_t div, int64_t limit) {
  const int64_t first = std::max<int64_t>(row, 0), last = std::min(row + extent, limit) - 1;
  if (first > last) return {};
  return {first / div, last / div + 1};
}

/// Counts arrivals for blocks of `block`; true when they are equal but for the last.
bool count_arrivals(const abi::OpRecord& record, CounterGroup& group) {
  const Axis& axis = group.axis;
  group.num_blocks = static_cast<int32_t>(ceil_div(axis.total, group.block));
  auto tile_blocks = std::make_shared<std::vector<Interval>>(num_tiles(record));
  std::vector<uint32_t> arrivals(group.num_blocks, 0);
  for_each_tile(record, [&](int64_t tile, const int* c) {
    const Interval blocks = row_blocks(position(axis.step, c), axis.extent, group.block, axis.total);
    (*tile_blocks)[tile] = blocks;
    for (int64_t b = blocks.begin; b < blocks.end; ++b) ++arrivals[b];
  });
  group.tile_blocks = std::move(tile_blocks);
  group.target = arrivals.front();
  group.last_target = arrivals.back();
  return std::all_of(arrivals.begin(), arrivals.end() - 1, [&](uint32_t n) { return n == group.target && n > 0; }) &&
         group.last_target > 0;
}

/// Finds the map that gives tile_blocks: coordinates that never leave a block left out if possible, else exact.
bool make_arrive(const abi::OpRecord& record, CounterGroup& group) {
  const Axis& axis = group.axis;
  for (const bool fold : {true, false}) {
    int64_t unit = group.block, kept[3];
    for (int i = 0; i < 3; ++i) {
      const int64_t reach = std::abs(axis.step[i]) * (record.grid[i] - 1);
      kept[i] = record.grid[i] == 1 || (fold && reach < group.block) ? 0 : axis.step[i];
      unit = std::gcd(unit, kept[i]);
    }
    abi::Arrive& map = group.arrive;
    map = {};
    if (!fits(axis.total / unit + 1)) continue;
    for (int i = 0; i < 3; ++i) map.coef[i] = static_cast<int>(kept[i] / unit);
    map.extent = fold ? 1 : static_cast<int>(ceil_div(axis.extent, unit));
    map.div = static_cast<int>(group.block / unit);
    map.limit = static_cast<int>(ceil_div(axis.total, unit));
    bool exact = true;
    for_each_tile(record, [&](int64_t tile, const int* c) {
      const Interval blocks = blocks_of(map, c), &wanted = (*group.tile_blocks)[tile];
      exact = exact && blocks.begin == wanted.begin && blocks.end == wanted.end;
    });
    if (exact) return true;
  }
  return false;
}

}  // namespace

CounterGroup whole_group(const abi::OpRecord& record) {
  CounterGroup group;
  group.target = group.last_target = static_cast<uint32_t>(num_tiles(record));
  group.arrive = {0, 0, {0, 0, 0}, 1, 1, 1};
  return group;
}

std::vector<CounterGroup> fine_groups(const abi::OpRecord& record, const Axis& axis, int64_t reader_extent) {
  if (num_tiles(record) > kMaxTilesForFine || num_tiles(record) < 2) return {};
  std::vector<int64_t> steps;
  for (int i = 0; i < 3; ++i) {
    if (record.grid[i] > 1 && axis.step[i] > 0) steps.push_back(axis.step[i]);
    if (record.grid[i] > 1 && axis.step[i] < 0) return {};
  }
  std::sort(steps.begin(), steps.end());
  for (int64_t step : steps) {
    if (axis.extent > step) continue;  // tiles would straddle
    // A reader's interval is a hull that may end a little early: round to the nearest.
    const int64_t most = std::max<int64_t>(1, (reader_extent + step / 2) / step);
    std::vector<int64_t> multiples = {most, 1};
    for (int64_t power = 2; power < most; power *= 2) multiples.push_back(power);
    std::sort(multiples.begin(), multiples.end(), std::greater<>());
    multiples.erase(std::unique(multiples.begin(), multiples.end()), multiples.end());
    std::vector<CounterGroup> groups;
    for (int64_t multiple : multiples) {
      CounterGroup group;
      group.axis = axis;
      group.block = step * multiple;
      const int64_t blocks = ceil_div(axis.total, group.block);
      if (blocks < 2 || blocks > kMaxBlocks) continue;
      if (count_arrivals(record, group) && make_arrive(record, group)) groups.push_back(std::move(group));
    }
    if (!groups.empty()) return groups;
  }
  return {};
}

std::optional<Scale> scale_of(const CounterGroup& group, const abi::OpRecord& record, const Footprint& own) {
  int largest = -1;
  for (int i = 0; i < 3; ++i) {
    if (record.grid[i] > 1 && group.axis.step[i] > 0 && (largest < 0 || group.axis.step[i] > group.axis.step[largest]))
      largest = i;
  }
  if (largest < 0 || own.step[largest] <= 0) return std::nullopt;
  // block (axis) : step (axis) = block (operand) : step (operand)
  if (group.block > INT64_MAX / own.step[largest]) return std::nullopt;
  const int64_t product = group.block * own.step[largest];
  if (product % group.axis.step[largest] != 0) return std::nullopt;
  const Scale scale{own.base, product / group.axis.step[largest]};
  if (own.granule > 0 && scale.block % own.granule != 0) return std::nullopt;
  bool inside = true;
  for_each_tile(record, [&](int64_t tile, const int* c) {
    int64_t first = own.base + position(own.step, c), last = first + own.extent - 1;
    first = std::max(first, own.first);
    last = std::min(last, own.last);
    if (first > last || !inside) return;
    if (own.granule > 0) last = first;  // a unit's columns lie in the granule of its first one
    const Interval blocks{floor_div(first - scale.origin, scale.block),
                          floor_div(last - scale.origin, scale.block) + 1};
    inside = (*group.tile_blocks)[tile].contains(blocks);
  });
  if (!inside) return std::nullopt;
  return scale;
}

std::optional<abi::Wait> make_wait(const CounterGroup& group, const Scale& scale, const Footprint& reads,
                                   const abi::OpRecord& reader) {
  int64_t low = reads.base - scale.origin, extent = reads.extent, unit = scale.block;
  int64_t kept[3];
  for (int i = 0; i < 3; ++i) kept[i] = reader.grid[i] == 1 ? 0 : reads.step[i];
  // Coordinates that cost no further block are left out, smallest step first.
  int order[3] = {0, 1, 2};
  std::sort(order, order + 3, [&](int a, int b) { return std::abs(kept[a]) < std::abs(kept[b]); });
  for (int i : order) {
    const int64_t reach = std::abs(kept[i]) * (reader.grid[i] - 1);
    if (ceil_div(extent + reach, scale.block) > ceil_div(extent, scale.block)) continue;
    extent += reach;
    if (kept[i] < 0) low -= reach;
    kept[i] = 0;
  }
  for (int64_t step : kept) unit = std::gcd(unit, step);
  abi::Wait wait{};
  const int64_t base = floor_div(low, unit), limit = int64_t{group.num_blocks} * (scale.block / unit);
  const int64_t rows = floor_div(low + extent - 1, unit) - base + 1;
  int64_t reach = 0;
  for (int i = 0; i < 3; ++i) reach += std::abs(kept[i] / unit) * (reader.grid[i] - 1);
  if (!fits(base) || !fits(rows) || !fits(limit) || !fits(reach)) return std::nullopt;
  wait.base = static_cast<int>(base);
  for (int i = 0; i < 3; ++i) wait.coef[i] = static_cast<int>(kept[i] / unit);
  wait.extent = static_cast<int>(rows);
  wait.div = static_cast<int>(scale.block / unit);
  wait.limit = static_cast<int>(limit);
  wait.target = group.target;
  wait.last_target = group.last_target;
  return wait;
}

abi::Wait wait_for_all(const CounterGroup& group) {
  abi::Wait wait{};
  wait.extent = wait.limit = group.num_blocks;
  wait.div = 1;
  wait.target = group.target;
  wait.last_target = group.last_target;
  return wait;
}

Interval blocks_of(const RowMap& map, const int c[3]) {
  const int64_t row =
      map.base + int64_t{c[0]} * map.coef[0] + int64_t{c[1]} * map.coef[1] + int64_t{c[2]} * map.coef[2];
  return row_blocks(row, map.extent, map.div, map.limit);
}

std::vector<Interval> blocks_per_tile(const RowMap& map, const abi::OpRecord& record) {
  std::vector<Interval> result(num_tiles(record));
  for_each_tile(record, [&](int64_t tile, const int* c) { result[tile] = blocks_of(map, c); });
  return result;
}

const std::vector<CounterGroup>& CounterMemo::groups(const abi::OpRecord& record, const Axis& axis,
                                                     int64_t reader_extent) {
  const auto [found, added] =
      groups_.try_emplace({record.grid[GridAxis::kOuter], record.grid[GridAxis::kMiddle], record.grid[GridAxis::kInner],
                           axis.step[0], axis.step[1], axis.step[2], axis.extent, axis.total, reader_extent});
  if (added) found->second = fine_groups(record, axis, reader_extent);
  return found->second;
}

std::optional<Scale> CounterMemo::scale(const CounterGroup& group, const abi::OpRecord& record, const Footprint& own) {
  const Axis& axis = group.axis;
  const auto [found, added] =
      scales_.try_emplace({record.grid[GridAxis::kOuter], record.grid[GridAxis::kMiddle], record.grid[GridAxis::kInner],
                           axis.step[0], axis.step[1], axis.step[2], axis.extent, axis.total, group.block, own.base,
                           own.step[0], own.step[1], own.step[2], own.extent, own.first, own.last, own.granule});
  if (added) found->second = scale_of(group, record, own);
  return found->second;
}

Blocks CounterMemo::blocks(const RowMap& map, const abi::OpRecord& record) {
  const auto [found, added] = blocks_.try_emplace({map.base, map.coef[0], map.coef[1], map.coef[2], map.extent, map.div,
                                                   map.limit, record.grid[GridAxis::kOuter],
                                                   record.grid[GridAxis::kMiddle], record.grid[GridAxis::kInner]});
  if (added) found->second = std::make_shared<const std::vector<Interval>>(blocks_per_tile(map, record));
  return found->second;
}

}  // namespace ark::planner
