// The loaders of small tiles (tile.cuh says what their pages hold). One loop serves every layout, gated products too:
// its code is fetched anew by every stage. But what a page takes counts as well: when the wait is over the ring is
// filled at once (with all numbers read from shared memory for every page, products of BERT-Large with 128 tokens took
// 4.4 us from the wait to their last page instead of 3.5; one H200).
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
class SmallTileLoader {
 public:
  ARK_DEVICE SmallTileLoader(Loader& of, const Task& task, const TileCoordinates& at)
      : loader_(of), size_k_(task.record->params.matmul.k), batch_(at.batch), row_(at.row), column_(at.column) {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    gated_ = is_one_of<kGated>(p.gated != 0);
    rows_of_a_ = is_one_of<kRowsOfA>(p.a_k_major == 0);
    bytes_of_a_ = abi::small_page_rows(p) * abi::kSmallTileK * 2;
    rows_of_b_ = is_one_of<kRowsOfB>(p.b_k_major == 0);
    map_a_ = tensor_map(of.worker, p.map_a);
    map_b_ = static_cast<const unsigned char*>(tensor_map(of.worker, p.map_b));
  }

  /// The pages that this loader fills: of A, of B.
  ARK_DEVICE void run(bool load_a, bool load_b) const {
    const u32 pages_of_b = gated_ ? 2 : 1;
    PageWalk walk(loader_);
#pragma unroll 1
    for (int k = 0; k < size_k_; k += abi::kSmallTileK) {
      if (load_a) {
        walk.acquire();
        if (!loader_.ok) break;
        mbarrier_arrive_expect(walk.barrier(), bytes_of_a_);
        copy(rows_of_a_, walk.next_address(), map_a_, walk.barrier(), row_, k, batch_);
        walk.advance();
      } else {
        walk.pass(1);
      }
      if (!load_b)
        walk.pass(pages_of_b);
      else if (!load_step_of_b(walk, k, pages_of_b, load_a))
        break;
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

  Loader& loader_;
  // In registers: read again for every page, they would make one take longer than the tensor cores need.
  int size_k_, batch_, row_, column_, bytes_of_a_;
  bool gated_, rows_of_a_, rows_of_b_;  // rows: whether they are contiguous, not k
  const void* map_a_;
  const unsigned char* map_b_;  // of gated ones the second weight's lies behind it

  /// `is`, of which some variants say so: known where the kernel has no others, or none of them.
  template <u32 kThose>
  static ARK_DEVICE bool is_one_of(bool is) {
    if constexpr ((kVariants & kThose) == 0 || (kVariants & ~kThose) == 0) return (kVariants & kThose) != 0;
    return is;
  }

  /// A page of 64 rows x 128 k; of gated ones two, 64 k of 64 rows of each weight. Weights for which the ring has no
  /// room ahead of the waits come when the products have begun, from memory: sent for into the L2 ahead of the waits,
  /// they stood in the way of the stores and reports of the op before (ms with and without it, one call on two H200:
  /// Llama-3.2-1B with 64 rows 1.314 and 1.196, with 32 1.204 and 1.141, BERT-Large with 128 tokens 0.922 and 0.901).
  ARK_DEVICE bool load_step_of_b(PageWalk& walk, int k, u32 pages, bool load_a) const {
    const int ring = static_cast<int>(gated_ ? kPages / 3 : kPages / 2) * abi::kSmallTileK;  // k that it has room for
#pragma unroll 1
    for (u32 i = 0; i < pages; ++i) {
      walk.acquire();
      if (!loader_.ok) return false;
      if (i == 0 && !load_a) walk.throttle(0, (pages + 1) * (k < ring ? kStepsAhead : kStepsInFlight));
      const u32 to = walk.next_address(), barrier = walk.barrier();
      mbarrier_arrive_expect(barrier, kPageBytes);
      if (gated_) {
        copy(rows_of_b_, to, map_b_, barrier, column_, k, 0);
        copy(rows_of_b_, to + kPageBytes / 2, map_b_ + abi::kTensorMapBytes, barrier, column_, k, 0);
        k += abi::kSmallTileK / 2;
      } else {
        copy(rows_of_b_, to, map_b_, barrier, column_, k, batch_);
      }
      walk.advance();
    }
    return true;
  }

  static ARK_DEVICE void copy(bool rows, u32 shared, const void* map, u32 barrier, int row, int k, int batch) {
    auto to_page = [&](auto... at) __attribute__((always_inline)) {
      if constexpr (kDependent)
        tensor_load(shared, map, barrier, at...);
      else
        tensor_load(shared, map, barrier, at..., kEvictFirst);
    };
    if (rows)
      to_page(row, k, batch);
    else
      to_page(0, row, k >> 6, batch);
  }
};

}  // namespace ark::device
