// The loader of few-row products: one piece of code for all forms (it runs ahead of the others, and code that every
// form repeats would only push the consumers' out of the instruction cache). Shape from the record.
#pragma once
#include "device/matmul/few_rows_column_loader.cuh"
#include "device/matmul/few_rows_strip_loader.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// What all roles derive from the record.
struct RowsShape {
  int k, lanes;
  bool streams;         // 16-bit weights: through the ring
  bool pairs;           // rows per page >= 2
  int rows_per_page;    // pairs: weight rows, else 1
  int units_per_page;   // pairs only
  int chunks, chunk_k;  // pages per row and the k elements of one (not pairs)

  ARK_DEVICE explicit RowsShape(const abi::MatmulRowsParams& p) : k(p.k), lanes(p.lanes) {
    constexpr int kPageElements = kPageBytes / 2;
    streams = element_bytes(p.dtype) == 2;
    pairs = k * 2 <= kPageElements;
    units_per_page = pairs ? min(small_divide(kPageElements, k * lanes), abi::kMaxRowsPerPage >> (lanes - 1)) : 0;
    rows_per_page = pairs ? units_per_page * lanes : 1;
    chunks = k > kPageElements ? 2 : 1;
    chunk_k = chunks == 1 ? k : ((k + 1) / 2 + 127) / 128 * 128;
  }
  /// Pages of `units` units of one segment.
  ARK_DEVICE int pages(int units) const {
    if (!streams) return 0;
    return pairs ? small_divide(units + units_per_page - 1, units_per_page) : units * lanes * chunks;
  }
};

struct RowsLoader {
  /// Both loaders walk the pages; the one that `fills` copies them. kStrips: some form has several rows of 16 bits;
  /// kColumns: weights [k][n].
  template <bool kStrips, bool kColumns>
  static ARK_DEVICE void load(Loader& loader, const Task& task, bool fills) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    const RowsShape shape(p);
    if (!shape.streams) return;
    if constexpr (kColumns)
      if (p.columns != 0) return ColumnLoader{loader, task}.load(fills);
    if constexpr (kStrips)
      if (p.m > 1) return StripLoader{loader, task}.load(fills);
#pragma unroll 1
    for (int s = 0; s < p.num_segments; ++s) {
      const RowsRange range(p.segment[s], task);
      if (range.count == 0) continue;
      if (!fills)
        loader.skip(shape.pages(range.count));
      else if (shape.pairs)
        load_pairs(loader, task, p, shape, p.segment[s], range);
      else
        load_rows(loader, task, p, shape, p.segment[s], range);
      if (!loader.ok) return;
    }
  }

 private:
  static ARK_DEVICE const unsigned char* row_address(const Task& task, const abi::MatmulRowsParams& p,
                                                     const abi::Segment& s, int unit, int lane) {
    const int operand = p.gated && lane == 1 ? s.weight2 : s.weight;
    return task.address<unsigned char>(operand) +
           static_cast<i64>(rows_column(p, s, unit, lane)) * task.operand(operand).stride[0] * 2;
  }

  static ARK_DEVICE void load_pairs(Loader& loader, const Task& task, const abi::MatmulRowsParams& p,
                                    const RowsShape& shape, const abi::Segment& s, const RowsRange& range) {
    const u64 policy = policy_evict_first();
    const int row_bytes = shape.k * 2, lane_bytes = shape.units_per_page * row_bytes;
    const i64 stride = task.operand(s.weight).stride[0] * 2;
    const i64 stride1 = p.gated ? task.operand(s.weight2).stride[0] * 2 : stride;
    const bool pair = p.lanes == 2 && !p.gated;
    // the unit's rows, and how many units of its block of pairs come before it; no division inside the loop: it must
    // keep up with 0.46 us per page
    const unsigned char* from0 = row_address(task, p, s, range.first, 0);
    const unsigned char* from1 = shape.lanes == 2 ? row_address(task, p, s, range.first, 1) : from0;
    int in_block = pair ? range.first % p.pair_distance : 0;
#pragma unroll 1
    for (int left = range.count; left > 0; left -= shape.units_per_page) {
      const int units = min(shape.units_per_page, left);
      const u32 page = loader.acquire();
      if (!loader.ok) return;
      loader.throttle();
      u64* barrier = loader.barrier();
      if (loader.lane() == 0) mbarrier_arrive_expect(barrier, units * shape.lanes * row_bytes);
      __syncwarp();
      u32 to = page;
#pragma unroll 1
      for (int u = 0; u < units;) {
        // rows that lie together: until the page's end, or until the pair's block ends
        int run = stride == row_bytes && stride1 == row_bytes ? units - u : 1;
        if (pair) run = min(run, p.pair_distance - in_block);
        if (loader.lane() == 0) bulk_load(to, from0, run * row_bytes, barrier, policy);
        if (loader.lane() == 1 && shape.lanes == 2) bulk_load(to + lane_bytes, from1, run * row_bytes, barrier, policy);
        to += run * row_bytes;
        from0 += run * stride;
        from1 += run * stride1;
        u += run;
        if (pair && (in_block += run) == p.pair_distance) {
          in_block = 0;
          from0 += p.pair_distance * stride;
          from1 += p.pair_distance * stride1;
        }
      }
      loader.advance();
    }
  }

  static ARK_DEVICE void load_rows(Loader& loader, const Task& task, const abi::MatmulRowsParams& p,
                                   const RowsShape& shape, const abi::Segment& s, const RowsRange& range) {
    const u64 policy = policy_evict_first();
    const int rest = shape.k - shape.chunk_k;  // elements of the second page of a row
#pragma unroll 1
    for (int r = 0; r < range.count * shape.lanes; ++r) {
      const unsigned char* from =
          row_address(task, p, s, range.first + (r >> (shape.lanes - 1)), r & (shape.lanes - 1));
#pragma unroll 1
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        const int bytes = (chunk == 0 ? shape.chunk_k : rest) * 2;
        const u32 page = loader.acquire();
        if (!loader.ok) return;
        loader.throttle();
        if (loader.lane() == 0) {
          mbarrier_arrive_expect(loader.barrier(), bytes);
          bulk_load(page, from + chunk * shape.chunk_k * 2, bytes, loader.barrier(), policy);
        }
        loader.advance();
      }
    }
  }
};

}  // namespace ark::device
