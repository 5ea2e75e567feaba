// Which counters the tiles of an item add to, and how much: worked out by the fetch warp before the item is done.
#pragma once
#include "device/abi/abi.h"

namespace ark::device {

/// Of one arrival: `tiles[0]` tiles of an item fall on counter `low` of the map, `tiles[1]` on the next one.
struct ItemArrivals {
  int low = 0, tiles[2] = {};
  bool known = true;  // false: the item's tiles fall on more counters, or in a way that takes a look at each

  __device__ __forceinline__ ItemArrivals(const abi::Arrive& map, const abi::OpRecord& r, int first, int count) {
    int row = map.base, step = 0;  // of the first tile, and from tile to tile
    if ((map.coef[0] | map.coef[1] | map.coef[2]) != 0) {
      const int inner = r.grid[2], c2 = first % inner, rest = first / inner, c0 = rest / r.grid[1],
                c1 = rest % r.grid[1];
      row += c0 * map.coef[0] + c1 * map.coef[1] + c2 * map.coef[2];
      step = inner > 1 ? map.coef[2] : r.grid[1] > 1 ? map.coef[1] : map.coef[0];
      const int left = inner > 1 ? inner - c2 : r.grid[1] > 1 ? r.grid[1] - c1 : count;
      if (count > left) known = false;
    }
    if (count == 1 || step == 0) {
      const int begin = max(row, 0), end = min(row + map.extent, map.limit);
      if (begin >= end) return;
      low = begin / map.div;
      known = known && end - low * map.div <= map.div;
      tiles[0] = count;
      return;
    }
    // Tiles that lie in blocks of `step` rows, and those within blocks of `div`: none falls on two counters.
    if (step < map.extent || map.div % step != 0 || row % step != 0) known = false;
    if (!known) return;
    const int skipped = row < 0 ? -row / step : 0, end = min(count, (map.limit - row + step - 1) / step);
    if (skipped >= end) return;
    low = (row + skipped * step) / map.div;
    const int in_low = map.div - (row + skipped * step - low * map.div);
    const int border = min(end, skipped + in_low / step);
    tiles[0] = border - skipped;
    tiles[1] = end - border;
    known = tiles[1] * step <= map.div;
  }
};

}  // namespace ark::device
