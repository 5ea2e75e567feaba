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
    acquire_tensor_maps(loader, params().map, params().num_segments * (params().gated ? 2 : 1));
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

  ARK_DEVICE void load_windows(PageWalk& walk) {
    const int windows = abi::column_windows(params().m, params().k),
              window = (abi::column_slices(params().k) + windows - 1) / windows * abi::kColumnSliceK;
#pragma unroll 1
    for (int first = 0; first < params().k; first += window) {
#pragma unroll 1
      for (int s = 0; s < params().num_segments; ++s) {
        const RowsRange range(params().segment[s], task);
#pragma unroll 1
        for (int unit = 0; unit < range.count; unit += params().columns) {
#pragma unroll 1
          for (int lane = 0; lane < params().lanes; ++lane) {
            load_strip(walk, map_of(s, lane), rows_column(params(), params().segment[s], range.first + unit, lane),
                       first, min(params().k, first + window));
            if (!loader.ok) return;
          }
        }
      }
    }
  }
  ARK_DEVICE const void* map_of(int segment, int lane) const {
    const int second = params().gated ? lane * params().num_segments : 0;
    return tensor_map(loader.worker, params().map[segment + second]);
  }

  /// One lane of a strip. What lies behind the last k or column arrives as zeros, whole boxes behind it not at all: of
  /// them nobody takes products.
  ARK_DEVICE void load_strip(PageWalk& walk, const void* map, int column, int k, int end) {
    const int page_k = abi::column_page_k(params().columns), box_k = min(page_k, abi::kColumnBoxK),
              box_bytes = box_k * params().columns * 2;
#pragma unroll 1
    for (; k < end; k += page_k) {
      u32 to = walk.acquire();
      if (!loader.ok) return;
      walk.throttle();
      const int boxes = (min(page_k, end - k) + box_k - 1) / box_k;
      mbarrier_arrive_expect(walk.barrier(), boxes * box_bytes);
#pragma unroll 1
      for (int box = 0; box < boxes; ++box, to += box_bytes)
        tensor_load(to, map, walk.barrier(), column, k + box * box_k, 0, kEvictFirst);
      walk.advance();
      walk.publish();
    }
  }
};

}  // namespace ark::device
