// kMatmulTile: tiles of 128 x 256 or 128 x 128, k in steps of 64, by wgmma from operands that tensor copies bring in.
// Each consumer warpgroup computes 64 rows of the tile. Products of few tiles run as small ones, of 64 x 64 with steps
// of 128 k: each warpgroup sums all of the tile over half of every step, the epilogue joins the halves. What bounds
// large tiles (one H200, us per step of k on every SM): the products alone 0.65 at 1.71 GHz, the power limit (0.52 at
// 1.98); the copies alone 0.61 to 0.68; both together 0.66.
//
// Page sequence: per tile, per step of k: one page of A (128 x 64) and one page per 128 columns of B. A page holds rows
// of 128 bytes with 128-byte swizzle: k-major operands 128 rows of 64 k, the others two blocks of 64 k of 64 rows each.
// Of small tiles, a page of A and one of B (64 x 128 each): its halves are the warpgroups' 64 k, k-major 64 rows of 64
// k (of A no more than there are: abi::small_page_rows), else 64 k of 64 rows. Gated ones have a page of A and two of B
// as large tiles have it: each warpgroup's 64 k of 64 rows of the first weight, and behind them of the second. What
// both weights are multiplied with is read once.
#pragma once
#include "device/abi/variants.h"
#include "device/loop/loop.cuh"
#include "device/loop/page_walk.cuh"
#include "device/loop/tensor_map.cuh"
#include "device/matmul/epilogue.cuh"
#include "device/matmul/small_tile_loader.cuh"
#include "device/matmul/tile_coordinates.cuh"

namespace ark::device {

/// Where a step's operands lie among its pages. One wgmma of wide tiles reads both pages of B, so they must lie side by
/// side: a step whose pages 1 and 2 would be the last and the first of the ring has B before A.
struct StepPages {
  int a, b;
  ARK_DEVICE StepPages(int slot, bool wide) : a(0), b(1) {
    if (wide && slot == kPages - 2) {
      a = 2;
      b = 0;
    }
  }
};

/// Of tiles so many columns wide, of which 64 are small ones: k and pages of a step.
consteval int step_k(int columns) { return columns == abi::kSmallTile ? abi::kSmallTileK : 64; }
consteval int step_pages(int columns, bool gated) { return columns == 256 || gated ? 3 : 2; }

/// Which main loops a kernel holds (device/abi/variants.h), as generated code says; without that all large tiles.
template <class Programs>
consteval u32 matmul_variants() {
  if constexpr (requires { Programs::kMatmulVariants; })
    return Programs::kMatmulVariants;
  else
    return abi::kLargeVariants;
}

template <class Programs>
struct MatmulTile {
  static ARK_DEVICE void load_immutable(Loader& loader, const Task& task) {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    load<false>(loader, task, p.a_immutable != 0, p.b_immutable != 0);
  }
  static ARK_DEVICE void load_dependent(Loader& loader, const Task& task) {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    load<true>(loader, task, p.a_immutable == 0, p.b_immutable == 0);
  }

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    float acc[kAccumulators];
    for (int i = 0; i < task.count; ++i) {
      const TileCoordinates at(*task.record, task.coordinates(i));
      // Defined on every path: accumulators that one path leaves undefined stay alive through the whole kernel and take
      // their registers from every other task, and what is put into them later serialises all wgmmas (C7512, C7515).
#pragma unroll
      for (int j = 0; j < kAccumulators; ++j) acc[j] = 0.0f;
      wgmma_keep(acc);
      multiply_any<0>(consumer, abi::matmul_variant(p), p, acc);
      consumer.mark_loaded();
      consumer.stamp(2);
      // Pages of the dependent loader carry its acquire; without any the epilogue's operands still have to be there.
      if (p.a_immutable && p.b_immutable) consumer.wait_for(task, task.first + i, 1);
      // Of the 16 rows that a warp has of a small tile, the first warpgroup ends 8 and the second the others.
      const int group_rows = kForms == kLargeTiles || p.tile_m != abi::kSmallTile ? 64 : 8;
      run_epilogue<Programs, kForms>(consumer, task, acc,
                                     TilePlace{at.batch, at.row + consumer.group() * group_rows, at.column}, p.tile_n);
      if (i + 1 < task.count) consumer.arrive(task, 1);
    }
  }

 private:
  static constexpr u32 kVariants = matmul_variants<Programs>();
  static constexpr int kAccumulators = (kVariants & abi::kWideVariants) != 0                             ? 128
                                       : (kVariants & (abi::kNarrowVariants | abi::kGatedVariants)) != 0 ? 64
                                                                                                         : 32;
  static constexpr bool kGates = (kVariants & abi::kGatedVariants) != 0;
  static constexpr u32 kForms = ((kVariants & abi::kLargeVariants) != 0 ? kLargeTiles : 0u) |
                                ((kVariants & abi::kSmallVariants) != 0 ? kSmallTiles : 0u);
  /// Kernels of inference: products with weights as nn.Linear has them, or small ones. (Others have no registers left.)
  static constexpr bool kStreams = (kVariants & (abi::kSmallVariants | abi::kLargeWithoutRows)) != 0;
  /// Whether a kernel has loaders for a variant.
  static consteval bool loads(int variant) {
    const int half = variant | abi::half_bit(abi::is_small_variant(variant));
    return abi::loader_variant(variant) == variant && (kVariants >> variant & 1 | kVariants >> half & 1) != 0;
  }

  template <bool kDependent>
  static ARK_DEVICE void load(Loader& loader, const Task& task, bool load_a, bool load_b) {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    const int steps = (p.k + p.tile_k - 1) >> (p.tile_m == abi::kSmallTile ? 7 : 6),
              pages = p.tile_n == 256 || (kGates && p.gated != 0) ? 3 : 2;
    if (!load_a && !load_b) {
      loader.skip(task.count * steps * pages);
      return;
    }
    wait_tensor_maps(loader);
    prefetch_tensor_maps(loader, &p.map_a, kRanks > 1 && p.own_rows != 0 ? 3 : 2, kGates && p.gated != 0 ? 1 : 0);
    for (int i = 0; i < task.count && loader.ok; ++i) {
      TileCoordinates at(*task.record, task.coordinates(i));
      if constexpr ((kForms & kLargeTiles) != 0) at.join_batches(task);  // small tiles have none to join
      if constexpr (kDependent) {
        if constexpr ((kForms & kSmallTiles) != 0)
          loader.wait_at_once(task, task.first + i);
        else
          loader.wait_for(task, task.first + i, 1);
      }
      const Elected one = elect_lane();
      if (one.chosen) {
        if (kForms == kSmallTiles || (kForms != kLargeTiles && p.tile_m == abi::kSmallTile)) {
          if constexpr ((kForms & kSmallTiles) != 0)
            SmallTileLoader<kVariants & abi::kSmallVariants, kDependent>(loader, task, at).run(load_a, load_b);
        } else if constexpr ((kForms & kLargeTiles) != 0) {
          bool once = false;
          if constexpr (kStreams && !kDependent) once = reads_once(task);
          if (once)
            load_any<0, kStreams>(loader, p, abi::loader_variant(p), at, load_a, load_b);
          else
            load_any<0, false>(loader, p, abi::loader_variant(p), at, load_a, load_b);
        }
      }
      PageWalk::rejoin(loader, one.lane);
    }
  }

  /// Of large tiles' operands that nothing writes, mostly weights: what is read once should not push out of the L2 what
  /// is read again. Of weights that tiles share it gains nothing: a prefill of 2048 tokens takes 9.57 ms without and
  /// 9.59 with it (one H200).
  static ARK_DEVICE bool reads_once(const Task& task) {
    const abi::OpRecord& r = *task.record;
    const abi::MatmulTileParams& p = r.params.matmul;
    const int tiles = r.grid[abi::GridAxis::kBatch] * abi::tiles_of_outer(r);
    return (p.a_immutable ? tiles : r.grid[abi::GridAxis::kRowBlock]) == 1;
  }

  template <int kVariant, bool kOnce>
  static ARK_DEVICE void load_any(Loader& loader, const abi::MatmulTileParams& p, int variant,
                                  const TileCoordinates& at, bool load_a, bool load_b) {
    if constexpr (kVariant < abi::kFirstSmallTile) {
      if constexpr (loads(kVariant))
        if (variant == kVariant) {
          load_tile<abi::variant_columns(kVariant), abi::has_rows_of_a(kVariant), abi::has_rows_of_b(kVariant), kOnce>(
              loader, p, at, load_a, load_b);
          return;
        }
      load_any<kVariant + 1, kOnce>(loader, p, variant, at, load_a, load_b);
    }
  }

  /// One lane: the pages of a large tile that this loader fills.
  template <int kN, bool kTransA, bool kTransB, bool kOnce>
  static ARK_DEVICE void load_tile(Loader& loader, const abi::MatmulTileParams& p, const TileCoordinates& at,
                                   bool load_a, bool load_b) {
    constexpr int kStepPages = step_pages(kN, false);
    const void* map_a = tensor_map(loader.worker, p.map_a);
    const void* map_b = tensor_map(loader.worker, p.map_b);
    const int size_k = p.k;
    PageWalk walk(loader);
#pragma unroll 1
    for (int k = 0; k < size_k; k += step_k(kN)) {
      const StepPages order(walk.slot, kN == abi::kWideTileColumns);
      constexpr u32 kAll = (1u << kStepPages) - 1;
      const u32 bit_a = 1u << order.a, own = (load_a ? bit_a : 0) | (load_b ? kAll & ~bit_a : 0);
      walk.acquire<kStepPages>(own);
      if (!loader.ok) break;
      if (load_a) {
        mbarrier_arrive_expect(walk.barrier(order.a), kPageBytes);
        load_page<kTransA, kOnce>(walk.address(order.a), map_a, walk.barrier(order.a), k, at.row, at.batch);
      }
      if (load_b) {
#pragma unroll
        for (int i = 0; i < kStepPages - 1; ++i) {
          mbarrier_arrive_expect(walk.barrier(order.b + i), kPageBytes);
          load_page<kTransB, kOnce>(walk.address(order.b + i), map_b, walk.barrier(order.b + i), k, at.column + i * 128,
                                    at.batch);
        }
      }
      walk.advance<kStepPages>(own);
      walk.publish();
    }
    walk.finish();
  }

  /// 128 rows x 64 k of an operand.
  template <bool kTrans, bool kOnce>
  static ARK_DEVICE void load_page(u32 shared, const void* map, u32 barrier, int k, int row, int batch) {
    auto copy = [&](u32 to, auto... at) __attribute__((always_inline)) {
      if constexpr (kOnce)
        tensor_load(to, map, barrier, at..., kEvictFirst);
      else
        tensor_load(to, map, barrier, at...);
    };
    if constexpr (kTrans) {
      copy(shared, row, k, batch);
      copy(shared + kPageBytes / 2, row + 64, k, batch);
    } else {
      copy(shared, k, row, batch);
    }
  }

  template <int kVariant>
  static ARK_DEVICE void multiply_any(Consumer& consumer, int variant, const abi::MatmulTileParams& p,
                                      float (&acc)[kAccumulators]) {
    if constexpr (kVariant < abi::kMatmulVariantEnd) {
      if constexpr ((kVariants >> kVariant & 1) != 0)
        if (variant == kVariant) {
          constexpr int kN = abi::variant_columns(kVariant), kStep = step_k(kN);
          const u32 half_of_a =
              kN == abi::kSmallTile && !abi::has_rows_of_a(kVariant) ? abi::small_page_rows(p) * 128 : kPageBytes / 2;
          multiply<kN, abi::is_gated_variant(kVariant), abi::is_half_variant(kVariant), abi::has_rows_of_a(kVariant),
                   abi::has_rows_of_b(kVariant)>(consumer, (p.k + kStep - 1) / kStep, half_of_a, acc);
          return;
        }
      multiply_any<kVariant + 1>(consumer, variant, p, acc);
    }
  }

  /// The main loop: acc = this warpgroup's 64 rows of the tile; of a small tile all 64 rows, over this warpgroup's half
  /// of every step. One group of wgmmas is always in flight. Gated: 64 columns with the first weight, then 64 with the
  /// second. `half_of_a`: bytes from the first warpgroup's part of a page of A to the second's.
  template <int kN, bool kGated, bool kHalf, bool kTransA, bool kTransB>
  static ARK_DEVICE void multiply(Consumer& consumer, int steps, u32 half_of_a, float (&storage)[kAccumulators]) {
    constexpr int kColumns = kGated ? 2 * kN : kN;
    auto& acc = reinterpret_cast<float(&)[kColumns / 2]>(storage);
    constexpr int kStepPages = step_pages(kN, kGated);
    constexpr u32 kAdvanceA = (kTransA ? 16 * 128 : 32) >> 4,
                  kAdvanceB = (kTransB ? 16 * 128 : 32) >> 4;  // 16 k, in units of 16 bytes
    PageReader pages(consumer);
    u32 previous = 0;
    for (int step = 0; step < steps; ++step) {
      const StepPages order(pages.slot, kN == abi::kWideTileColumns);
      pages.wait<kStepPages>();
      const u32 half = consumer.group() * (kPageBytes / 2);
      const u32 shared_a = pages.address(pages.slot_at(order.a)) + consumer.group() * half_of_a,
                shared_b = kGated ? pages.address(pages.slot_at(order.b + consumer.group()))
                                  : pages.address(pages.slot_at(order.b)) + (kN == abi::kSmallTile ? half : 0);
      const u64 a = matrix_descriptor(shared_a, kPageBytes / 2, 1024);
      const u64 b = matrix_descriptor(shared_b, kPageBytes / 2, 1024);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j)
        wgmma_ss<kColumns, kHalf, kTransA, kTransB>(acc, a + j * kAdvanceA, b + j * kAdvanceB, step + j > 0);
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        pages.release<kStepPages>(previous);
      }
      previous = pages.slot;
      pages.advance(kStepPages);
    }
    wgmma_wait<0>();
    pages.release<kStepPages>(previous);
    consumer.advance(steps * kStepPages);
  }
};

}  // namespace ark::device
