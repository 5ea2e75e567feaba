// The loader of few-row products: one piece of code for all forms (it runs ahead of the others, and code that every
// form repeats would only push the consumers' out of the instruction cache). Shape from the record.
#pragma once
#include "device/matmul/few_rows_column_loader.cuh"
#include "device/matmul/few_rows_strip_loader.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// What the loader derives from the record.
struct RowsShape {
  int k, lanes;
  bool pairs;           // rows per page >= 2
  int units_per_page;   // pairs only
  int chunks, chunk_k;  // pages per row and the k elements of one (not pairs)

  ARK_DEVICE explicit RowsShape(const abi::MatmulRowsParams& p) : k(p.k), lanes(p.lanes) {
    constexpr int kPageElements = kPageBytes / 2;
    pairs = k * 2 <= kPageElements;
    units_per_page = pairs ? min(small_divide(kPageElements, k * lanes), abi::kMaxRowsPerPage >> (lanes - 1)) : 0;
    chunks = k > kPageElements ? 2 : 1;
    chunk_k = chunks == 1 ? k : ((k + 1) / 2 + 127) / 128 * 128;
  }
  /// Pages of `units` units of one segment.
  ARK_DEVICE int pages(int units) const {
    return pairs ? small_divide(units + units_per_page - 1, units_per_page) : units * lanes * chunks;
  }
};

struct RowsLoader {
  /// Of two loaders both walk the pages; the one that `fills` copies them. Programs: which forms there are of several
  /// rows of 16 bits (kStrips), of weights [k][n] (kColumns), of one row else (kPages).
  template <class Programs>
  static ARK_DEVICE void load(Loader& loader, const Task& task, bool fills) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    if (element_bytes(p.dtype) != 2) return;
    if constexpr (Programs::kColumns)
      if (p.columns != 0) return ColumnLoader{loader, task}.load(fills);
    if constexpr (Programs::kStrips)
      if (p.m > 1) return StripLoader{loader, task}.load(fills);
    if constexpr (Programs::kPages) load_pages(loader, task, fills);
  }

 private:
  static ARK_DEVICE void load_pages(Loader& loader, const Task& task, bool fills) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    const RowsShape shape(p);
#pragma unroll 1
    for (int s = 0; s < p.num_segments; ++s) {
      const RowsRange range(p.segment[s], task);
      if (range.count == 0) continue;
      if (fills)
        Segment(loader, task, shape, p.segment[s], range).load();
      else
        loader.skip(shape.pages(range.count));
      if (!loader.ok) return;
    }
  }

  /// The units of an item in one segment, page after page: of pairs many units a page, else a row or half of one. No
  /// division inside the loop: it must keep up with 0.46 us per page.
  struct Segment {
    Loader& loader;
    const RowsShape& shape;
    const unsigned char* from[2];  // the rows of the next unit
    i64 stride[2];                 // to those of the one behind it
    int pair_distance;             // of pairs of rows: units of a block, else 0
    int in_block = 0;              // units of the next one's block of pairs that come before it
    int left;

    ARK_DEVICE Segment(Loader& of, const Task& task, const RowsShape& rows, const abi::Segment& s,
                       const RowsRange& range)
        : loader(of), shape(rows), left(range.count) {
      const abi::MatmulRowsParams& p = task.record->params.rows;
      const abi::Operand &w0 = task.operand(s.weight), &w1 = task.operand(p.gated ? s.weight2 : s.weight);
      pair_distance = p.lanes == 2 && !p.gated ? p.pair_distance : 0;
      int column = s.column + range.first;
      if (pair_distance != 0) {  // as rows_column
        const int before = range.first / pair_distance * pair_distance;
        in_block = range.first - before;
        column += before;
      }
      stride[0] = w0.stride[0] * 2;
      stride[1] = w1.stride[0] * 2;
      from[0] = reinterpret_cast<const unsigned char*>(w0.offset) + column * stride[0];
      from[1] = reinterpret_cast<const unsigned char*>(w1.offset) + (column + pair_distance) * stride[1];
    }

    ARK_DEVICE void load() {
      const u64 policy = policy_evict_first();
      const int row_bytes = shape.k * 2;
      int lane = 0, chunk = 0;  // of a unit whose rows have pages of their own: the next one
#pragma unroll 1
      while (left > 0) {
        const int units = shape.pairs ? min(shape.units_per_page, left) : 0, begin = chunk * shape.chunk_k;
        const int bytes =
            shape.pairs ? units * shape.lanes * row_bytes : (chunk == 0 ? shape.chunk_k : shape.k - shape.chunk_k) * 2;
        const u32 page = loader.acquire();
        if (!loader.ok) return;
        loader.throttle();
        u64* barrier = loader.barrier();
        if (loader.lane() == 0) mbarrier_arrive_expect(barrier, bytes);
        __syncwarp();
        if (shape.pairs) {
          load_units(page, units, row_bytes, barrier, policy);
        } else {
          if (loader.lane() == 0) bulk_load(page, (lane == 0 ? from[0] : from[1]) + begin * 2, bytes, barrier, policy);
          if (++chunk == shape.chunks) {
            chunk = 0;
            if (++lane == shape.lanes) {
              lane = 0;
              step(1);
            }
          }
        }
        loader.advance();
      }
    }

   private:
    ARK_DEVICE void load_units(u32 to, int units, int row_bytes, u64* barrier, u64 policy) {
      const int lane_bytes = shape.units_per_page * row_bytes;
#pragma unroll 1
      for (int u = 0; u < units;) {
        // rows that lie together: until the page's end, or until the pair's block ends
        int run = stride[0] == row_bytes && stride[1] == row_bytes ? units - u : 1;
        if (pair_distance != 0) run = min(run, pair_distance - in_block);
        if (loader.lane() < shape.lanes)
          bulk_load(to + loader.lane() * lane_bytes, loader.lane() == 0 ? from[0] : from[1], run * row_bytes, barrier,
                    policy);
        to += run * row_bytes;
        u += run;
        step(run);
      }
    }
    /// `run` units further, at most to the end of the block.
    ARK_DEVICE void step(int run) {
      left -= run;
      in_block += run;
      const bool ends = pair_distance != 0 && in_block == pair_distance;
      const int rows = ends ? run + pair_distance : run;
      if (ends) in_block = 0;
      from[0] += rows * stride[0];
      from[1] += rows * stride[1];
    }
  };
};

}  // namespace ark::device
