// Counters of one op, and the maps of abi.h between tiles and counters. Used by `synchronize`.
//
// An op has at most two groups of counters: a whole one (every tile adds 1 to a single counter) and a fine one. The
// fine group cuts an axis on which the op's tiles lie, the element numbers of one of its operands (for a few-row
// matmul: its units), into blocks of equal length, one counter per block.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plan/row_map.h"
#include "planner/footprint.h"

namespace ark::planner {

using plan::row_map;
using plan::RowMap;

struct Interval {
  int64_t begin = 0, end = 0;  // blocks [begin, end)
  bool empty() const { return begin >= end; }
  bool contains(const Interval& other) const { return other.empty() || (begin <= other.begin && other.end <= end); }
};

/// Per tile of an op: the blocks that it arrives on, or waits for. Shared, since layers are alike.
using Blocks = std::shared_ptr<const std::vector<Interval>>;

/// Where tiles lie on an axis of `total` positions: tile c covers [sum c[i] * step[i], ... + extent).
struct Axis {
  int64_t step[3] = {0, 0, 0};
  int64_t extent = 1, total = 1;
};

struct CounterGroup {
  Axis axis;
  int64_t block = 1;  // positions per counter
  int32_t num_blocks = 1;
  uint32_t target = 1, last_target = 1;
  int32_t counter = -1;  // first one; -1: not used
  abi::Arrive arrive{};
  Blocks tile_blocks;  // fine groups only
};

/// One counter for all tiles.
CounterGroup whole_group(const abi::OpRecord& record);

/// Groups over `axis` with blocks of at most about `reader_extent` positions, largest blocks first, all for the
/// smallest step of the axis that works: only those that give every counter (but the last) the same number of arrivals.
std::vector<CounterGroup> fine_groups(const abi::OpRecord& record, const Axis& axis, int64_t reader_extent);

/// How an operand of the op that owns a group lies on the group's axis: block b of the group is elements
/// [origin + b * block, origin + (b + 1) * block) of the operand's storage.
struct Scale {
  int64_t origin = 0, block = 1;
};
/// None when the group's blocks do not cover what the op's tiles touch through an operand with footprint `own`.
std::optional<Scale> scale_of(const CounterGroup& group, const abi::OpRecord& record, const Footprint& own);

/// The wait of a reader's tiles for what they touch (`reads`), as rows of the group; none when it does not fit the
/// map's 32 bits.
std::optional<abi::Wait> make_wait(const CounterGroup& group, const Scale& scale, const Footprint& reads,
                                   const abi::OpRecord& reader);
abi::Wait wait_for_all(const CounterGroup& group);

/// Blocks that a tile with coordinates c waits for (or arrives on), as abi.h defines it.
Interval blocks_of(const RowMap& map, const int c[3]);
/// The same for all tiles of a grid.
std::vector<Interval> blocks_per_tile(const RowMap& map, const abi::OpRecord& record);

/// The functions above that look at every tile, remembered by their arguments: equal layers ask the same again.
class CounterMemo {
 public:
  const std::vector<CounterGroup>& groups(const abi::OpRecord& record, const Axis& axis, int64_t reader_extent);
  std::optional<Scale> scale(const CounterGroup& group, const abi::OpRecord& record, const Footprint& own);
  Blocks blocks(const RowMap& map, const abi::OpRecord& record);
  Blocks blocks(const abi::Wait& wait, const abi::OpRecord& record) { return blocks(row_map(wait), record); }

 private:
  std::map<std::array<int64_t, 9>, std::vector<CounterGroup>> groups_;
  std::map<std::array<int64_t, 17>, std::optional<Scale>> scales_;
  std::map<std::array<int64_t, 10>, Blocks> blocks_;
};

/// Ops with more tiles than this have a whole group only, so that planning time stays bounded.
inline constexpr int64_t kMaxTilesForFine = 16384;
/// Counters per fine group, and counters that one wait may poll.
inline constexpr int32_t kMaxBlocks = 2048;

}  // namespace ark::planner
