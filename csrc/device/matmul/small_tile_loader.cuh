// The loaders of small tiles (tile.cuh says what their pages hold). One loop over pages serves every layout, gated
// products too: a stage runs the code of its loaders once or twice, so that fetching it is what it takes.
#pragma once
#include "device/abi/variants.h"
#include "device/loop/loop.cuh"
#include "device/loop/page_walk.cuh"
#include "device/loop/tensor_map.cuh"
#include "device/matmul/tile_coordinates.cuh"

namespace ark::device {

/// One lane's view of a tile, for the pages of one step after the other. kVariants: small ones, those of the kernel.
/// kDependent: by the loader whose operands wait; the other's are read once, or by tiles that run at once, and are not
/// to push out of the L2 what is read again (its own instructions among it: 8 KB of code that come from there cost a
/// stage 1.1 us, from memory 3; one H200).
template <u32 kVariants, bool kDependent>
struct SmallTileLoader {
  Loader& loader;
  const abi::MatmulTileParams& p;
  const TileCoordinates& at;

  /// The pages that this loader fills: of A, of B.
  ARK_DEVICE void run(bool load_a, bool load_b) const {
    const u32 pages = gated() ? 3 : 2;
    const int ring = static_cast<int>(kPages / pages) * abi::kSmallTileK;  // k that the ring has room for
    PageWalk walk(loader);
#pragma unroll 1
    for (int k = 0; k < p.k; k += abi::kSmallTileK) {
#pragma unroll 1
      for (u32 i = 0; i < pages; ++i) {
        if (!(i == 0 ? load_a : load_b)) {
          walk.pass();
          continue;
        }
        walk.acquire();
        if (!loader.ok) return walk.finish();
        if (i == 1 && !load_a) walk.throttle(0, pages * (k < ring ? kStepsAhead : kStepsInFlight));
        mbarrier_arrive_expect(walk.barrier(), kPageBytes);
        // what the ring has no room for ahead of the waits comes when the products have begun: from the L2 by then
        const bool ahead = !kDependent && i > 0 && k < ring && k + ring < p.k;
        load_page(walk, k, i, ahead ? ring : 0);
        walk.advance();
      }
      walk.publish();
    }
    walk.finish();
  }

 private:
  static constexpr u32 kGated = kVariants & abi::kGatedVariants;
  static constexpr u32 kRowsOfA =
      abi::mask_where(abi::kMatmulVariantEnd, [](int v) { return abi::is_small_variant(v) && abi::has_rows_of_a(v); });
  static constexpr u32 kRowsOfB =
      abi::mask_where(abi::kMatmulVariantEnd, [](int v) { return abi::is_small_variant(v) && abi::has_rows_of_b(v); });

  /// Of weights. What is under way to an SM stands in the way of instructions that it fetches from the L2, most of all
  /// while an epilogue runs that the item before ends with: of what the ring has room for ahead of the item, one step
  /// at a time is under way (ms with both numbers 2, and with these; one H200: Llama-3.2-1B, 32 rows, 1.586 and 1.533,
  /// 64 rows 1.675 and 1.675; BERT-Large with 128 tokens 1.356 and 1.340).
  static constexpr u32 kStepsAhead = 1, kStepsInFlight = 3;

  ARK_DEVICE bool gated() const {
    if constexpr (kGated == 0 || kGated == kVariants) return kGated != 0;
    return p.gated != 0;
  }
  /// Whether an operand has its rows, not k, contiguous; `kRows`: the variants of which it has.
  template <u32 kRows>
  ARK_DEVICE bool has_rows(int k_major) const {
    if constexpr ((kVariants & kRows) == 0 || (kVariants & ~kRows) == 0) return (kVariants & kRows) != 0;
    return k_major == 0;
  }

  /// Page i of the step at `k`: 64 rows x 128 k of A or B; of gated ones 64 k of 64 rows of each weight, the second's
  /// map behind the first's. `ahead`: the same so many k further on is sent for to the L2, if not 0.
  ARK_DEVICE void load_page(const PageWalk& walk, int k, u32 i, int ahead) const {
    const bool of_b = i > 0, both = of_b && gated();
    const int row = of_b ? at.column : at.row, batch = both ? 0 : at.batch;
    const bool rows = of_b ? has_rows<kRowsOfB>(p.b_k_major) : has_rows<kRowsOfA>(p.a_k_major);
    const auto* map = static_cast<const unsigned char*>(tensor_map(loader.worker, of_b ? p.map_b : p.map_a));
    u32 shared = walk.ring + walk.slot * kPageBytes;
    if (both) k += static_cast<int>(i - 1) * 64;
#pragma unroll 1
    for (int more = both ? 1 : 0; more >= 0; --more) {
      if (rows) {
        copy(shared, map, walk.barrier(), row, k, batch);
        if (ahead != 0) tensor_prefetch(map, row, k + ahead, batch, kEvictFirst);
      } else {
        copy(shared, map, walk.barrier(), 0, row, k >> 6, batch);
        if (ahead != 0) tensor_prefetch(map, 0, row, (k + ahead) >> 6, batch, kEvictFirst);
      }
      shared += kPageBytes / 2;
      map += abi::kTensorMapBytes;
    }
  }
  template <class... At>
  static ARK_DEVICE void copy(u32 shared, const void* map, u32 barrier, At... at) {
    if constexpr (kDependent)
      tensor_load(shared, map, barrier, at...);
    else
      tensor_load(shared, map, barrier, at..., kEvictFirst);
  }
};

}  // namespace ark::device
