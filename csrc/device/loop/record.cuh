// What the fetch warp and the sends in the background (background.cuh) work out of a record: counters, addresses.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

/// First and last counter that rows [row, row + extent) of a tile fall on, or an empty range.
struct Counters {
  int low = 0, high = -1;
  template <class Map>
  ARK_DEVICE Counters(const Map& map, const abi::OpRecord& r, int tile) {
    int row = map.base;
    if (!fixed(map)) {
      const int c2 = tile % r.grid[2], rest = tile / r.grid[2];
      row += rest / r.grid[1] * map.coef[0] + rest % r.grid[1] * map.coef[1] + c2 * map.coef[2];
    }
    const int begin = max(row, 0), end = min(row + map.extent, map.limit);
    if (begin >= end) return;
    low = begin / map.div;
    high = (end - 1) / map.div;
  }
  ARK_DEVICE bool single() const { return low == high; }
  /// The same rows for every tile.
  template <class Map>
  static ARK_DEVICE bool fixed(const Map& map) {
    return (map.coef[0] | map.coef[1] | map.coef[2]) == 0;
  }
};

/// The address in a slot of the launch; boxes lie twice in memory, for even and for odd launches.
ARK_DEVICE i64 slot_address(const Worker& worker, const u64* slots, u32 slot) {
  if constexpr (kRanks > 1)
    if ((slot & abi::kBoxSlot) != 0) {
      const u32 number = slot & (kGroups > 1 ? abi::kSlotNumber : ~abi::kBoxSlot);
      return static_cast<i64>(slots[number]) + (worker.epoch & 1) * box_bytes(worker, slot);
    }
  return static_cast<i64>(slots[slot]);
}

}  // namespace ark::device
