// What the fetch warp and the sends in the background (background.cuh) work out of a record: counters, addresses.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

/// What a wait has in common with an arrival, with which it begins: where the rows of a tile fall.
ARK_DEVICE const abi::Arrive& map_of(const abi::Wait& wait) { return reinterpret_cast<const abi::Arrive&>(wait); }

/// The first counter that rows [row, row + extent) of a tile fall on, and how many rows there are from its first on
/// (0: none). One division: it is on the way of every item.
struct Counters {
  int low = 0, rows = 0, div;
  ARK_DEVICE Counters(const abi::Arrive& map, const abi::OpRecord& r, int tile)
      : Counters(map, fixed(map) ? abi::Coordinates{} : abi::coordinates_of(r, tile)) {}
  ARK_DEVICE Counters(const abi::Arrive& map, const abi::Coordinates& at) : div(map.div) {
    const int row = abi::row_of(map, at);
    const int begin = max(row, 0), end = min(row + map.extent, map.limit);
    if (begin >= end) return;
    low = begin / div;
    rows = end - low * div;
  }
  ARK_DEVICE int count() const { return rows > 0 ? (rows - 1) / div + 1 : 0; }
  ARK_DEVICE bool single() const { return rows > 0 && rows <= div; }
  ARK_DEVICE bool low_is_last(const abi::Arrive& map) const { return map.limit - low * div <= div; }
  /// The same rows for every tile.
  static ARK_DEVICE bool fixed(const abi::Arrive& map) { return (map.coef[0] | map.coef[1] | map.coef[2]) == 0; }
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
