// Small tiles (tile.cuh): both warpgroups have summed the same 64 x 64 elements, each over its half of k. Of the 16
// rows of a warp, that of the first warpgroup ends 8 and the same warp of the second the others: each stages what the
// other ends in the other's scratch memory and adds its own there. So no thread holds the sums of both halves, and sums
// of two numbers are the same whoever adds them.
#pragma once
#include "device/matmul/epilogue_chunk.cuh"

namespace ark::device {

/// Chunk number `chunk` of the 8 rows that this warp ends, staged at `staging` as Chunk::stage would: the same for all
/// lanes of both warps, which meet here. Their scratch memory is free at chunk 0. The sums of a gated product's second
/// weight follow those of the first.
template <class Layout, int kRegisters>
ARK_DEVICE void stage_joined(int chunk, const float (&acc)[kRegisters], u32 staging) {
  constexpr int kGroupWarps = 4, kBlocks = Layout::kProducts * abi::kSmallTile / 8;
  static_assert(kBlocks * 4 <= kRegisters);
  const int thread = thread_index(), lane = thread & 31, warp = (thread >> 5) - 4;
  const bool first = warp < kGroupWarps;
  auto meet = [&] { named_barrier_sync(kJoinBarrier + (warp & (kGroupWarps - 1)), 64); };
  const u32 own = Layout::lane_line(staging, lane),
            others = first ? own + kGroupWarps * Layout::kBytes : own - kGroupWarps * Layout::kBytes;
  const bool mine = Layout::kRows == 8 || lane >> 4 == chunk;  // the chunk has rows of this lane
  if (chunk > 0) meet();                                       // both have read the chunk before
  if (mine) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const float *low = &acc[j * 4], *high = &acc[j * 4 + 2];
      shared_store_two(Layout::pair_at(others, j), first ? high[0] : low[0], first ? high[1] : low[1]);
    }
  }
  meet();
  if (mine) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const float *low = &acc[j * 4], *high = &acc[j * 4 + 2];
      float sum[2];
      shared_load_two(sum, Layout::pair_at(own, j));
      shared_store_two(Layout::pair_at(own, j), sum[0] + (first ? low[0] : high[0]),
                       sum[1] + (first ? low[1] : high[1]));
    }
  }
  __syncwarp();
}

}  // namespace ark::device
