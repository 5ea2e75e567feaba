// kRowDraw: the few elements of many whose sum with the noise is largest. A thread keeps two, and a warp lists some of
// those. The key of whatever is left out on the way is noted, so that a list says what it may lack.
#pragma once
#include "device/program/row_draw_row.cuh"

namespace ark::device {

/// Key of the sum, bits of the value, place in the row; of a list's last one then its bound, of the others its top.
using DrawEntry = Vec<u32, 4>;

struct DrawBest {
  u32 first[3] = {}, second[3] = {};
  u32 bound = 0, top = 0;  // keys: of a sum that no element exceeds which is not listed; of the largest value

  ARK_DEVICE void add(u32 key, u32 value, u32 place) {
    const bool is_first = key > first[0], is_second = key > second[0];
    bound = max(bound, is_second ? second[0] : key);
    const u32 x[3] = {key, value, place};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      second[i] = is_first ? first[i] : is_second ? x[i] : second[i];
      first[i] = is_first ? x[i] : first[i];
    }
  }
  /// Of a list of `count`, a power of two.
  ARK_DEVICE void add(const DrawEntry& x, int at, int count) {
    add(x.v[0], x.v[1], x.v[2]);
    const bool is_last = (at & (count - 1)) == count - 1;
    bound = max(bound, is_last ? x.v[3] : 0);
    top = max(top, is_last ? 0 : x.v[3]);
  }

  /// The warp's best, in order. Leaves its bound and top with all lanes.
  ARK_DEVICE void list(int lane, DrawEntry* to, int count) {
    bound = __reduce_max_sync(~0u, bound);
    top = __reduce_max_sync(~0u, top);
    u32 most = __reduce_max_sync(~0u, first[0]);
#pragma unroll 1
    for (int i = 1;; ++i) {
      const bool own = __ffs(__ballot_sync(~0u, first[0] == most)) - 1 == lane;
      DrawEntry x = {{first[0], first[1], first[2], top}};
#pragma unroll
      for (int j = 0; j < 3; ++j)
        if (own) first[j] = second[j];
      if (own) second[0] = 0;
      most = __reduce_max_sync(~0u, first[0]);
      if (i == count) x.v[3] = bound = max(bound, most);
      if (own) to[i - 1] = x;
      if (i == count) return;
    }
  }
};

}  // namespace ark::device
