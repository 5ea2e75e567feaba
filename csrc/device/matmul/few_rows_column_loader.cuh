// The loader of few-row products whose weights lie [k][n] (few_rows_columns.cuh has the order of pages). One lane issues
// all copies.
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
    acquire_tensor_maps(loader, params().map, params().num_segments);
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
    return strips * abi::column_pages(params().k, params().columns);
  }

  ARK_DEVICE void load_windows(PageWalk& walk) {
    const int windows = abi::column_windows(params().m, params().k),
              window = (abi::column_slices(params().k) + windows - 1) / windows * abi::kColumnSliceK;
#pragma unroll 1
    for (int first = 0; first < params().k; first += window) {
#pragma unroll 1
      for (int s = 0; s < params().num_segments; ++s) {
        const RowsRange range(params().segment[s], task);
        const void* map = tensor_map(loader.worker, params().map[s]);
#pragma unroll 1
        for (int unit = 0; unit < range.count; unit += params().columns) {
          load_strip(walk, map, params().segment[s].column + range.first + unit, first,
                     min(params().k, first + window));
          if (!loader.ok) return;
        }
      }
    }
  }

  /// What lies behind the last k or column arrives as zeros.
  ARK_DEVICE void load_strip(PageWalk& walk, const void* map, int column, int k, int end) {
    const int page_k = abi::column_page_k(params().columns);
#pragma unroll 1
    for (; k < end; k += page_k) {
      const u32 to = walk.acquire();
      if (!loader.ok) return;
      walk.throttle();
      mbarrier_arrive_expect(walk.barrier(), kPageBytes);
      tensor_load(to, map, walk.barrier(), column, k, 0, kEvictFirst);
      if (page_k > abi::kColumnBoxK)
        tensor_load(to + kPageBytes / 2, map, walk.barrier(), column, k + abi::kColumnBoxK, 0, kEvictFirst);
      walk.advance();
      walk.publish();
    }
  }
};

}  // namespace ark::device
