// Which counters the tiles of an item add to, and how much: worked out by the fetch warp before the item is done.
#pragma once
#include "device/abi/abi.h"

namespace ark::device {

/// Of one arrival: `tiles[0]` tiles of an item fall on counter `low` of the map, `tiles[1]` on the next one.
struct ItemArrivals {
  int low = 0, tiles[2] = {};
  bool known = true;  // false: the item's tiles fall on more counters, or in a way that takes a look at each

  /// `first`: where the item's first tile lies.
  static __device__ __forceinline__ ItemArrivals of(const abi::Arrive& map, const abi::OpRecord& r,
                                                    const abi::Coordinates& first, int count) {
    ItemArrivals at;
    int row = map.base, step = 0;  // of the first tile, and from tile to tile
    if ((map.coef[0] | map.coef[1] | map.coef[2]) != 0) {
      const int inner = r.grid[abi::GridAxis::kInner], middle = r.grid[abi::GridAxis::kMiddle];
      row = abi::row_of(map, first);
      step = map.coef[inner > 1 ? abi::GridAxis::kInner : middle > 1 ? abi::GridAxis::kMiddle : abi::GridAxis::kOuter];
      const int left = inner > 1 ? inner - first.inner : middle > 1 ? middle - first.middle : count;
      if (count > left) at.known = false;
    }
    if (count == 1 || step == 0) {
      const int begin = max(row, 0), end = min(row + map.extent, map.limit);
      if (begin >= end) return at;
      at.low = begin / map.div;
      at.known = at.known && end - at.low * map.div <= map.div;
      at.tiles[0] = count;
      return at;
    }
    // Tiles that lie in blocks of `step` rows, and those within blocks of `div`: none falls on two counters.
    if (step < map.extent || map.div % step != 0 || row % step != 0) at.known = false;
    const int skipped = row < 0 ? -row / step : 0, end = min(count, (map.limit - row + step - 1) / step);
    if (!at.known || skipped >= end) return at;
    const int begin = row + skipped * step;
    at.low = begin / map.div;
    const int border = min(end, skipped + (map.div - (begin - at.low * map.div)) / step);
    at.tiles[0] = border - skipped;
    at.tiles[1] = end - border;
    at.known = at.tiles[1] * step <= map.div;
    return at;
  }
};

}  // namespace ark::device
