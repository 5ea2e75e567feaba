// The loader of few-row products whose activation has several rows (few_rows_strips.cuh has the order of pages). One
// lane issues all copies.
#pragma once
#include "device/loop/page_walk.cuh"
#include "device/matmul/few_rows_range.cuh"

namespace ark::device {

/// What loops outside of a strip need is worked out again from the record: the service warps have few registers.
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
  ARK_DEVICE int slices() const { return abi::strip_slices(params().k); }

  ARK_DEVICE int num_pages() const {
    const int rows = abi::strip_page_rows(params().k);
    int pages = 0;
    for (int s = 0; s < params().num_segments; ++s)
      pages += (RowsRange(params().segment[s], task).count + rows - 1) / rows * params().lanes;
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
          load_strip(walk, s, unit, first, min(slices(), first + window));
          if (!loader.ok) return;
        }
      }
    }
  }

  /// Eight weight rows or fewer, of consecutive units of one lane.
  struct Rows {
    const unsigned char* from;  // of the first one, at the first slice
    i32 stride, count;          // elements; rows, 0 or less: none
  };
  ARK_DEVICE Rows rows_of(const abi::Segment& s, int unit, int lane, int count) const {
    const abi::MatmulRowsParams& p = params();
    const int operand = p.gated && lane == 1 ? s.weight2 : s.weight;
    const i32 stride = static_cast<i32>(task.operand(operand).stride[0]);
    return {task.address<unsigned char>(operand) + rows_column(p, s, unit, lane) * (i64{2} * stride), stride, count};
  }

  /// A page must not take longer to ask for than to come: what its copies need is worked out once a strip. Of rows of
  /// 4096 k, with 4 copies a page, 235 MB took 68 us by one loop for all kinds of rows, and take 53 (one H200).
  ARK_DEVICE void load_strip(PageWalk& walk, int segment, int unit, int slice, int end) {
    const abi::MatmulRowsParams& p = params();
    const abi::Segment& s = p.segment[segment];
    const RowsRange range(s, task);
    const int units = range.count - unit, first = range.first + unit, two = p.lanes == 2;
    Rows upper = rows_of(s, first, 0, min(units, 8));
    Rows lower = two ? rows_of(s, first, 1, min(units, 8)) : rows_of(s, first + 8, 0, min(units - 8, 8));
    // rows until the next one lies further away: the end of a block of pairs
    const int until_jump = two && !p.gated ? p.pair_distance - first % p.pair_distance : abi::kStripRows;
    const int width = abi::strip_page_k(p.k), row_bytes = abi::strip_row_bytes(p.k);
    upper.from += slice * (width * 2);
    lower.from += slice * (width * 2);
#pragma unroll 1
    for (int left = min(p.k, end * width) - slice * width; left > 0 && loader.ok; left -= width) {
      load_half(walk, upper, until_jump, row_bytes, min(width, left) * 2);
      load_half(walk, lower, until_jump, row_bytes, min(width, left) * 2);
      upper.from += width * 2;
      lower.from += width * 2;
    }
  }

  /// The pages of eight rows or fewer, `bytes` of each.
  ARK_DEVICE void load_half(PageWalk& walk, const Rows& rows, int until_jump, int row_bytes, int bytes) {
    const int page_rows = abi::strip_page_rows(params().k);
    const i64 stride = i64{2} * rows.stride;
    // rows that lie in memory as they do in the page are one copy
    const bool together = bytes == row_bytes && stride == row_bytes;
    const unsigned char* from = rows.from;
#pragma unroll 1
    for (int count = rows.count; count > 0; count -= page_rows) {
      u32 to = walk.acquire();
      if (!loader.ok) return;
      walk.throttle();
      int here = min(count, page_rows);
      mbarrier_arrive_expect(walk.barrier(), here * bytes);
      if (!together && here < until_jump) {
        load_apart(walk, to, from, here, stride, row_bytes, bytes);
        from += here * stride;
        until_jump -= here;
      } else {
#pragma unroll 1
        while (here > 0) {
          const int run = together ? min(here, until_jump) : 1;
          bulk_load(to, from, run * bytes, walk.barrier(), kEvictFirst);
          to += run * row_bytes;
          from += run * stride;
          here -= run;
          until_jump -= run;
          if (until_jump == 0) {
            from += stride * params().pair_distance;
            until_jump = params().pair_distance;
          }
        }
      }
      walk.advance();
      walk.publish();
    }
  }

  /// Rows that lie apart, but evenly: a copy each.
  static ARK_DEVICE void load_apart(const PageWalk& walk, u32 to, const unsigned char* from, int rows, i64 stride,
                                    int row_bytes, int bytes) {
#pragma unroll 1
    for (; rows > 0; --rows, from += stride, to += row_bytes) bulk_load(to, from, bytes, walk.barrier(), kEvictFirst);
  }
};

}  // namespace ark::device
