// Tiles of an op that fall on the same counters, as blocks of its grid: waits and arrivals depend on few coordinates,
// so that whole rows and planes of a grid are alike.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/row_map.h"
#include "planner/verify/tile_block.h"

namespace ark::planner {

using plan::row_map;
using plan::RowMap;

/// Counters [first, last].
struct CounterRange {
  int32_t first = 0, last = -1;
  bool empty() const { return first > last; }
  friend bool operator==(const CounterRange&, const CounterRange&) = default;
  friend auto operator<=>(const CounterRange&, const CounterRange&) = default;
};

/// Counters of a wait or an arrival.
template <class Map>
int32_t num_counters(const Map& map) {
  return map.limit == 0 ? 0 : (map.limit - 1) / map.div + 1;
}
inline CounterRange counters_at(const RowMap& map, const int64_t (&c)[3]) {
  int64_t row = map.base;
  for (int i = 0; i < 3; ++i) row += c[i] * map.coef[i];
  const int64_t begin = std::max<int64_t>(row, 0), end = std::min<int64_t>(row + map.extent, map.limit);
  if (begin >= end) return {};
  const auto div = static_cast<uint32_t>(map.div);  // rows below the limit have 31 bits
  return {static_cast<int32_t>(map.counter + static_cast<uint32_t>(begin) / div),
          static_cast<int32_t>(map.counter + static_cast<uint32_t>(end - 1) / div)};
}
template <class Map>
CounterRange counters_of(const Map& map, const abi::OpRecord& record, int64_t tile) {
  return counters_at(row_map(map), block_of_tile(record, tile).first);
}

/// Blocks that make up a grid; ranges of block b: maps [b * maps, (b + 1) * maps).
struct CounterBlocks {
  int maps = 0;
  std::vector<TileBlock> blocks;
  std::vector<CounterRange> ranges;
  size_t size() const { return blocks.size(); }
  std::span<const CounterRange> of(size_t block) const {
    return {ranges.data() + block * static_cast<size_t>(maps), static_cast<size_t>(maps)};
  }
};
/// The block that holds the first tile of another block.
size_t find_block(const CounterBlocks& blocks, const TileBlock& other);
CounterBlocks counter_blocks(const abi::OpRecord& record, std::span<const RowMap> maps);
std::vector<RowMap> wait_maps(const abi::OpRecord& record);
std::vector<RowMap> arrive_maps(const abi::OpRecord& record);

}  // namespace ark::planner
