// The loader of few-row products whose weights lie [k][n] (few_rows_columns.cuh has the order of pages). One lane
// issues all copies.
#pragma once
#include "device/loop/loop.cuh"
#include "device/loop/page_walk.cuh"
#include "device/loop/tensor_map.cuh"
#include "device/matmul/few_rows_range.cuh"

namespace ark::device {

struct ColumnLoader {
  Loader& loader;
  const Task& task;

  ARK_DEVICE void load(bool fills) {
    if (!fills) return loader.skip(num_pages());
    wait_tensor_maps(loader);
    prefetch_tensor_maps(loader, params().map, params().num_segments * (params().gated ? 2 : 1));
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

  ARK_DEVICE int num_pages() const {
    int strips = 0;
    for (int s = 0; s < params().num_segments; ++s)
      strips += (RowsRange(params().segment[s], task).count + params().columns - 1) / params().columns;
    return strips * params().lanes * abi::column_pages(params().k, params().columns);
  }

  /// Of k: what an item walks at once.
  ARK_DEVICE int window() const {
    const int windows = abi::column_windows(params().m, params().k);
    return (abi::column_slices(params().k) + windows - 1) / windows * abi::kColumnSliceK;
  }
  /// First unit of a piece: one lane of a strip.
  ARK_DEVICE int unit_of(int piece) const { return (piece >> (params().lanes - 1)) * params().columns; }

  /// What loops outside of a piece need is worked out again from the record: the service warps have few registers.
  ARK_DEVICE void load_windows(PageWalk& walk) {
#pragma unroll 1
    for (int first = 0; first < params().k; first += window()) {
#pragma unroll 1
      for (int s = 0; s < params().num_segments; ++s) {
#pragma unroll 1
        for (int piece = 0; unit_of(piece) < RowsRange(params().segment[s], task).count; ++piece) {
          load_piece(walk, s, piece, first);
          if (!loader.ok) return;
        }
      }
    }
  }

  /// What lies behind the last k or column arrives as zeros, whole boxes behind it not at all: of them nobody takes
  /// products.
  ARK_DEVICE void load_piece(PageWalk& walk, int segment, int piece, int k) {
    const abi::MatmulRowsParams& p = params();
    const abi::Segment& s = p.segment[segment];
    const int lane = piece & (p.lanes - 1), of_weight = p.gated ? lane * p.num_segments : 0;
    const void* map = tensor_map(loader.worker, p.map[segment + of_weight]);
    const int column = rows_column(p, s, RowsRange(s, task).first + unit_of(piece), lane), end = min(p.k, k + window()),
              page_k = abi::column_page_k(p.columns);
#pragma unroll 1
    while (k < end) {
      u32 to = walk.acquire();
      if (!loader.ok) return;
      walk.throttle();
      const int box_k = min(page_k, abi::kColumnBoxK), count = min(page_k, end - k);
      mbarrier_arrive_expect(walk.barrier(), ((count + box_k - 1) & -box_k) * p.columns * 2);
      const int behind = k + count;
#pragma unroll 1
      for (; k < behind; k += abi::kColumnBoxK, to += abi::kColumnBoxK * 2 * p.columns)
        tensor_load(to, map, walk.barrier(), column, k, 0, kEvictFirst);
      if (page_k < abi::kColumnBoxK) k += page_k - abi::kColumnBoxK;
      walk.advance();
      walk.publish();
    }
  }
};

}  // namespace ark::device
