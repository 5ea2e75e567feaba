// The loader of few-row products whose activation has several rows (few_rows_strips.cuh has the order of pages). One lane
// issues all copies.
#pragma once
#include "device/loop/page_walk.cuh"
#include "device/matmul/few_rows_range.cuh"

namespace ark::device {

/// What follows from the record is worked out again where it is needed: the service warps have few registers.
struct StripLoader {
  Loader& loader;
  const Task& task;

  ARK_DEVICE void load(bool fills) {
    if (!fills) return loader.skip(num_pages());
    const Elected one = elect_lane();
    if (one.chosen) {
      PageWalk walk(loader);
      load_windows(walk);
      walk.finish();
    }
    PageWalk::rejoin(loader, one.lane);
  }

 private:
  ARK_DEVICE const abi::MatmulRowsParams& params() const { return task.record->params.rows; }
  ARK_DEVICE int units_per_strip() const { return abi::kStripRows >> (params().lanes - 1); }
  ARK_DEVICE int slices() const { return (params().k + abi::kStripK - 1) / abi::kStripK; }

  ARK_DEVICE int num_pages() const {
    int pages = 0;
    for (int s = 0; s < params().num_segments; ++s) {
      const int units = RowsRange(params().segment[s], task).count, half = abi::kStripPageRows;
      pages += params().lanes == 2 ? (units + half - 1) / half * 2 : (units + half - 1) / half;
    }
    return pages * slices();
  }

  ARK_DEVICE void load_windows(PageWalk& walk) {
    const int windows = abi::strip_windows(params().m, params().k), window = (slices() + windows - 1) / windows;
#pragma unroll 1
    for (int first = 0; first < slices(); first += window) {
#pragma unroll 1
      for (int s = 0; s < params().num_segments; ++s) {
#pragma unroll 1
        for (int unit = 0; unit < RowsRange(params().segment[s], task).count; unit += units_per_strip()) {
#pragma unroll 1
          for (int slice = first; slice < min(slices(), first + window); ++slice) {
            load_page(walk, s, unit, 0, slice);
            load_page(walk, s, unit, 1, slice);
            if (!loader.ok) return;
          }
        }
      }
    }
  }

  /// The strip's first eight weight rows, or the others: of the second lane, or of the next eight units.
  ARK_DEVICE void load_page(PageWalk& walk, int segment, int unit, int half, int slice) {
    const abi::MatmulRowsParams& p = params();
    const abi::Segment& s = p.segment[segment];
    const RowsRange range(s, task);
    const int lane = p.lanes == 2 ? half : 0, skipped = p.lanes == 2 ? 0 : half * abi::kStripPageRows;
    const int rows = min(abi::kStripPageRows, range.count - unit - skipped);
    if (rows <= 0) return;
    u32 to = walk.acquire();
    if (!loader.ok) return;
    walk.throttle();
    const int bytes = min(abi::kStripK, p.k - slice * abi::kStripK) * 2;
    mbarrier_arrive_expect(walk.barrier(), rows * bytes);
    const int operand = p.gated && lane == 1 ? s.weight2 : s.weight, column = range.first + unit + skipped;
    const i64 stride = task.operand(operand).stride[0] * 2;
    const unsigned char* from =
        task.address<unsigned char>(operand) + rows_column(p, s, column, lane) * stride + slice * (abi::kStripK * 2);
    const bool pairs = p.lanes == 2 && !p.gated;
    int in_block = pairs ? column % p.pair_distance : 0;  // units of a block of pairs before this one
    const u64 policy = policy_evict_first();
#pragma unroll 1
    for (int left = rows; left > 0; --left) {
      bulk_load(to, from, bytes, walk.barrier(), policy);
      to += abi::kStripK * 2;
      from += stride;
      if (pairs && ++in_block == p.pair_distance) {
        in_block = 0;
        from += stride * p.pair_distance;
      }
    }
    walk.advance();
    walk.publish();
  }
};

}  // namespace ark::device
