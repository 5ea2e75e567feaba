// Which algorithm for which size: data, measured by benchmarks/collectives.py and `test_cuda_collectives time` on H200
// (2, 4 and 8 GPUs).
#pragma once
#include <cstdint>

#include "device/abi/collective.h"

namespace ark::comm {

inline constexpr uint64_t kNever = ~uint64_t{0};

struct SizeRange {
  uint64_t from = kNever, below = kNever;  // bytes
  bool has(uint64_t bytes) const { return bytes >= from && bytes < below; }
};

struct CollectiveTuning {
  int world;                      // up to this size
  uint64_t one_shot_bytes;        // all-reduce: at most this many in one hop
  uint64_t two_shot_bytes;        // more than that, up to here, in two
  uint64_t reduce_scatter_bytes;  // whole input: by packets up to here
  uint64_t pair_bytes;            // exchange: of one pair, by packets up to here
  // On registered memory, in place: tensor of an all-reduce, input of a reduce-scatter, output of an exchange.
  SizeRange direct_reduce, direct_scatter, direct_move;
  int direct_workers;  // CTAs
  SizeRange modest;    // tensors for which the rings leave a computation beside them room
  int modest_workers;  // CTAs of the rings then, else kMaxRingWorkers

  /// Of tensors of so many bytes; 0: known to no rank, as pairs differ (an all-to-all goes by the size of each pair).
  int ring_workers_for(uint64_t bytes) const {
    const bool as_modest = bytes == 0 ? modest_workers > 0 : modest.has(bytes);
    return as_modest ? modest_workers : abi::kMaxRingWorkers;
  }
};

// Above two_shot_bytes, which is what the boxes hold, the rings win: packets are polled and cleared, rings are not.
// Four ranks: 32 CTAs leave a computation beside them room (31 % slower instead of 90 %), and take 3 % longer alone
// than 64 (16 MB: 6 %), which are for tensors of 256 MB and more, and for those smaller than DDP's buckets. Reductions
// in place are slower than the rings there; of two ranks, all-reduces and moves in place are faster at 16 MB and slower
// from 64 MB on (1 GB: 3274 : 3067, 1697 : 1528 us).
inline constexpr uint64_t kKB = 1 << 10, kMB = 1 << 20;
inline constexpr CollectiveTuning kCollectiveTuning[] = {
    {2, 4 * kMB, 4 * kMB, 4 * kMB, 512 * kKB, {4 * kMB + 1, 32 * kMB}, {4 * kMB + 1}, {8 * kMB, 32 * kMB}, 64, {}, 0},
    {4, 256 * kKB, 4 * kMB, 4 * kMB, 128 * kKB, {}, {}, {4 * kMB}, 64, {24 * kMB, 256 * kMB}, 32},
    {8, 128 * kKB, 4 * kMB, 4 * kMB, 64 * kKB, {4 * kMB + 1}, {4 * kMB + 1}, {8 * kMB}, 64, {}, 0},
};

inline constexpr uint64_t kPacketSetBytes = 8 << 20;  // of each of two sets: 4 MB in two hops of 16-byte packets
inline constexpr int kPacketThreads = 256;
/// CTAs of a kernel by packets that move data (one more exchanges the calls). Two of them share an SM, so that two
/// kernels of two groups fit on the GPU together, and groups whose ranks call in different orders do not keep each
/// other out.
inline constexpr int kMaxPacketWorkers = 128;

/// CTAs of a launch that may be brought in while the one before it runs: two launches of two groups fit together.
inline constexpr int kMaxEarlyWorkers = 65;

/// CTAs beyond those that the rings need, so that these need not share pairs of SMs: four pairs are given twice of 32
/// or 64 CTAs otherwise.
inline constexpr int kSpareWorkers = 8, kMinWorkersToSpread = 16;

inline const CollectiveTuning& tuning_for(int world) {
  for (const CollectiveTuning& t : kCollectiveTuning)
    if (world <= t.world) return t;
  return kCollectiveTuning[2];
}

}  // namespace ark::comm
