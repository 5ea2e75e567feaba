// kMatmulRows: a few rows (m <= 8) times a weight [n][k] that streams through the ring. One item = up to
// kMaxRowsPerItem weight rows.
//
// Few rows through tensor cores. The k axis is cut into pieces of 8 elements; a step of 128 elements is 8 pieces of the
// lower and 8 of the upper 64. ldmatrix turns 128 contiguous bytes of a weight row into 8 rows of the A fragment, one
// per piece (no bank conflicts, no swizzle); B holds the activation with the pieces as its 8 columns, so of the product
// only the diagonal counts: the sums per piece. Each of the 4 warps of a group takes every fourth step. Measured
// against CUDA cores: 0.15 us against 0.36 us per page.
//
// Pages. k <= 4096: a page holds 8192 / k rows; the two halves of a fragment are two rows (kPairs). k > 4096: a page
// holds one row or half of one (k > 8192); the halves of a fragment are the halves of its k range. Page p of the
// sequence belongs to consumer group p % 2: the number of slots is even, so a group's slots are its own and no phase
// can be missed.
//
// The activation is the prologue's result: computed by every worker for itself into shared memory, then kept as B
// fragments in registers for the whole item (at most 64 of them: m * k <= 16384).
//
// Weights of other types (fp32) are read by the consumers themselves and multiplied on the CUDA cores; no pages.
#pragma once
#include "device/program_support.cuh"
#include "device/row.cuh"

namespace ark::device {

/// a / b for 0 <= a < 2^20, b > 0: half the latency of the general division, which is on the way of every item.
ARK_DEVICE int small_divide(int a, int b) {
  return static_cast<int>(divide_approx(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
}

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
    units_per_page = pairs ? small_divide(kPageElements, k * lanes) : 0;
    rows_per_page = pairs ? units_per_page * lanes : 1;
    chunks = k > kPageElements ? 2 : 1;
    chunk_k = chunks == 1 ? k : ((k + 1) / 2 + 127) / 128 * 128;
  }
  /// Pages of `units` units of one segment.
  ARK_DEVICE int pages(int units) const {
    if (!streams) return 0;
    return pairs ? small_divide(units + units_per_page - 1, units_per_page) : units * lanes * chunks;
  }
  /// First slot of a unit's row (one per row, or per page of a row), from the segment's first slot on.
  ARK_DEVICE int slot_of(int unit, int lane) const {
    if (!pairs) return (unit * lanes + lane) * chunks;
    const int page = small_divide(unit, units_per_page);
    return page * rows_per_page + lane * units_per_page + unit - page * units_per_page;
  }
  ARK_DEVICE int slots(int units) const { return pairs ? pages(units) * rows_per_page : units * lanes * chunks; }
};

/// The units of an item that lie in segment s.
struct RowsRange {
  int first, count;  // relative to the segment
  ARK_DEVICE RowsRange(const abi::Segment& s, const Task& task) {
    const int begin = max(task.first, s.first_unit), end = min(task.first + task.count, s.first_unit + s.num_units);
    first = begin - s.first_unit;
    count = max(0, end - begin);
  }
};

/// Output column (and weight row) of a segment's unit.
ARK_DEVICE int rows_column(const abi::MatmulRowsParams& p, const abi::Segment& s, int unit, int lane) {
  if (p.lanes == 1 || p.gated) return s.column + unit;
  // unit + (whole blocks before it) * distance + lane * distance
  return s.column + unit + (unit / p.pair_distance + lane) * p.pair_distance;
}

struct RowsLoader {
  /// Both loaders walk the pages; the one that `fills` copies them.
  static ARK_DEVICE void load(Loader& loader, const Task& task, bool fills) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    const RowsShape shape(p);
    if (!shape.streams) return;
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

/// A prologue's activation on its way into shared memory: elements [first, end) of the row; others are dropped.
template <class S>
struct ActivationSink {
  S* row;  // of element `first`
  int first, end;

  struct At {
    S* to;
    template <int V, class T>
    ARK_DEVICE void yield(const T (&value)[V]) const {
      if (to == nullptr) return;
      Vec<S, V> out;
      ARK_EACH out.v[i] = narrow<S>(value[i]);
      *reinterpret_cast<Vec<S, V>*>(to) = out;
    }
  };
  ARK_DEVICE At at(i64 e) const { return {e >= first && e < end ? row + (e - first) : nullptr}; }
};

/// The accumulators of one unit's program: its own column and the pair's other, or the two weights' columns.
struct UnitRoots {
  float own, other;
  bool gated;
  template <int V>
  ARK_DEVICE void get(int root, int sign, float (&out)[V]) const {
    static_assert(V == 1, "few-row epilogues run element by element");
    out[0] = (gated ? root == 0 : sign == 0) ? own : other;
  }
};

template <class Programs>
struct MatmulRows {
  static ARK_DEVICE void load_immutable(Loader& loader, const Task& task) {
    RowsLoader::load(loader, task, task.record->params.rows.weights_immutable != 0);
  }
  static ARK_DEVICE void load_dependent(Loader& loader, const Task& task) {
    const bool fills = task.record->params.rows.weights_immutable == 0;
    if (fills) loader.wait_for(task, task.first, task.count);
    RowsLoader::load(loader, task, fills);
    prefetch_operands(loader, task);
  }

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    consumer.wait_for(task, task.first, task.count);
    if constexpr (Programs::kRowsBF16)
      if (p.dtype == 7) consume_halves<MmaType::kBF16, bf16>(consumer, task);
    if constexpr (Programs::kRowsF16)
      if (p.dtype == 6) consume_halves<MmaType::kF16, f16>(consumer, task);
    if constexpr (Programs::kRowsOther)
      if (p.dtype == 8) consume_floats(consumer, task);
  }

 private:
  static constexpr int kStepElements = 128;
  static constexpr int kPartStride =
      36;  // words per row of partial sums: 4 warps x 8 pieces, padded: no bank conflicts

  /// What the prologue reads comes closer (L2) while the worker still waits: norm weights are cold.
  static ARK_DEVICE void prefetch_operands(Loader& loader, const Task& task) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    Programs::prologue_rows(p.prologue, [&](auto program) __attribute__((always_inline)) {
      using P = decltype(program);
#pragma unroll 1
      for (int i = p.prologue_operand; i < p.prologue_operand + P::kNumOperands; ++i) {
        const abi::Operand& o = task.operand(i);
        if (o.slot == abi::kNoSlot || o.index_operand >= 0 || o.vector < 4) continue;
        const int bytes = p.k * element_bytes(o.dtype);
        for (int at = loader.lane() * 128; at < bytes; at += 32 * 128) prefetch_l2(task.address<unsigned char>(i) + at);
      }
    });
  }

  /// The activation's elements [begin, end) of every row, at `to` [m][end - begin].
  template <class S>
  static ARK_DEVICE void stage(Consumer& consumer, const Task& task, S* to, int begin, int end,
                               unsigned char* reduction) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    Programs::prologue_rows(p.prologue, [&](auto program) __attribute__((always_inline)) {
      using P = decltype(program);
      constexpr int V = P::kVector;
      const ProgramContext c(task, p.prologue_operand, consumer.worker);
      if (p.k <= P::kCachedChunks * V * kConsumerThreads) {  // k is a multiple of 8 (4 for fp32): the planner's promise
        const int per_thread = P::kCachedChunks * V;
        const int size = p.m >= 8 && p.k <= per_thread * 32    ? 32
                         : p.m >= 2 && p.k <= per_thread * 128 ? 128
                                                               : kConsumerThreads;
        stage_rows<P, V, true>(consumer, c, size, to, begin, end, reduction);
      } else {
        stage_rows<P, V, false>(consumer, c, kConsumerThreads, to, begin, end, reduction);
      }
    });
  }
  template <class P, int V, bool kCached, class S>
  static ARK_DEVICE void stage_rows(Consumer& consumer, const ProgramContext& c, int group_size, S* to, int begin,
                                    int end, unsigned char* reduction) {
    const abi::MatmulRowsParams& p = c.task.record->params.rows;
    const RowGroup group{consumer, group_size};
    RowWalk<P, V, kCached> walk{c, group, p.k};
#pragma unroll 1
    for (int m = group.index(); m < p.m; m += group.count()) {
      i32 row[P::kDims] = {};
      row[P::kDims - 2] = m;
      typename P::Uniform u{};
      walk.load(row);
      walk.template run<0>(row, u, reduction, ActivationSink<S>{to + m * (end - begin), begin, end});
    }
  }

  // ---------------------------------------------------------------- 16-bit types: tensor cores

  /// A variant of the page loop. kRows: m, padded. kSteps: steps of 128 elements that one warp takes of a row (kPairs)
  /// or of half a page's row, all pages of a row together.
  template <int kRowsOf, bool kPairsOf, int kStepsOf>
  struct Variant {
    static constexpr int kRows = kRowsOf, kSteps = kStepsOf, kHalves = kPairsOf ? 1 : 2;
    static constexpr bool kPairs = kPairsOf;
    static constexpr int kStepsPerPage = kPairsOf ? kStepsOf : 8;
    static constexpr bool kKeepsPieces = kRows == 1 && kSteps == kStepsPerPage;  // else the warp sums them up at once
    static ARK_DEVICE constexpr int index(int r, int h, int j, int w) {
      return ((r * kHalves + h) * kSteps + j) * 2 + w;
    }
  };
  static constexpr int kMaxFragments = 64;

  /// Calls f(Variant) for the record's m and k. Only the numbers of rows that the plan contains are compiled.
  template <class F>
  static ARK_DEVICE void choose(const abi::MatmulRowsParams& p, F&& f) {
    if constexpr (Programs::kRows1)
      if (p.m == 1) {
        if (p.k <= 2048) return f(Variant<1, true, 4>{});
        if (p.k <= 4096) return f(Variant<1, true, 8>{});
        if (p.k <= 8192) return f(Variant<1, false, 8>{});
        return f(Variant<1, false, 16>{});
      }
    if constexpr (Programs::kRows2)
      if (p.m == 2) {
        if (p.k <= 2048) return f(Variant<2, true, 4>{});
        if (p.k <= 4096) return f(Variant<2, true, 8>{});
        return f(Variant<2, false, 8>{});
      }
    if constexpr (Programs::kRows4)
      if (p.m == 3 || p.m == 4) {
        if (p.k <= 2048) return f(Variant<4, true, 4>{});
        return f(Variant<4, true, 8>{});
      }
    if constexpr (Programs::kRows8)
      if (p.m > 4) return f(Variant<8, true, 4>{});
  }

  template <MmaType kType, class S>
  static ARK_DEVICE void consume_halves(Consumer& consumer, const Task& task) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    const RowsShape shape(p);
    const int lane = consumer.lane(), quarter = consumer.warp() & 3;
    unsigned char* scratch = consumer.scratch();

    // ---- the activation, in windows that fit the scratch memory, into registers
    u32 b[kMaxFragments] = {};
    constexpr int kActivationBytes = kScratchBytes - 512;
    const int window = p.m * p.k * 2 <= kActivationBytes ? p.k : kActivationBytes / 2 / p.m / 512 * 512;
    unsigned char* reduction = scratch + kActivationBytes;  // 8 accumulators of a prologue
    int staged_bytes = 0;
#pragma unroll 1
    for (int begin = 0; begin < p.k; begin += window) {
      const int end = min(p.k, begin + window);
      if (begin > 0) consumer.sync();
      stage<S>(consumer, task, reinterpret_cast<S*>(scratch), begin, end, reduction);
      consumer.sync();
      choose(p, [&](auto variant) __attribute__((always_inline)) {
        load_fragments<decltype(variant)>(b, scratch, p.m, shape, begin, end, quarter, lane);
      });
      staged_bytes = p.m * (end - begin) * 2;
    }
    // the sums lie behind the activation if there is room, else over it
    int total_slots = 0;
#pragma unroll 1
    for (int s = 0; s < p.num_segments; ++s) total_slots += shape.slots(RowsRange(p.segment[s], task).count);
    const int padded = p.m <= 1 ? 1 : p.m <= 2 ? 2 : p.m <= 4 ? 4 : 8;
    const int sum_bytes = total_slots * (p.m == 1 && shape.chunks == 1 ? kPartStride : 4 * padded) * 4;
    float* sums = reinterpret_cast<float*>(scratch + (staged_bytes + 15) / 16 * 16);
    if (staged_bytes + 16 + sum_bytes > kScratchBytes) {
      consumer.sync();
      sums = reinterpret_cast<float*>(scratch);
    }
    if constexpr (kTrace) consumer.wait_end = global_time_ns();  // the activation is there

    prefetch_epilogues(consumer, task);

    // ---- the pages
    choose(p, [&](auto variant) __attribute__((always_inline)) {
      u32 page = consumer.page;
      int slot = 0;
#pragma unroll 1
      for (int s = 0; s < p.num_segments; ++s) {
        const int units = RowsRange(p.segment[s], task).count, pages = shape.pages(units);
        run_pages<kType, decltype(variant)>(consumer, shape, b, sums, page, pages, slot, quarter, lane);
        page += pages;
        slot += shape.slots(units);
      }
      consumer.advance(page - consumer.page);
    });
    consumer.sync();
    consumer.mark_loaded();

    // ---- the epilogues, one thread per element
    int slot = 0;
#pragma unroll 1
    for (int s = 0; s < p.num_segments; ++s) {
      const RowsRange range(p.segment[s], task);
      if (range.count == 0) continue;
      finish(consumer, task, p.segment[s], range, [&](int unit, int unit_lane, int m) __attribute__((always_inline)) {
        return total(sums, slot + shape.slot_of(unit, unit_lane), m, padded, shape.chunks);
      });
      slot += shape.slots(range.count);
    }
  }

  /// This lane's part of B: word w of a step covers elements 2w and 2w + 1. Elements outside [begin, end) keep what
  /// they had; b starts as zero.
  template <class Var>
  static ARK_DEVICE void load_fragments(u32 (&b)[kMaxFragments], const unsigned char* staged, int m,
                                        const RowsShape& shape, int begin, int end, int quarter, int lane) {
#pragma unroll
    for (int h = 0; h < Var::kHalves; ++h)
#pragma unroll
      for (int chunk = 0; chunk < Var::kSteps / Var::kStepsPerPage; ++chunk) {
        // of a page's row, the first half must not reach into the second
        const int start = row_start<Var>(shape, h, chunk) + quarter * kStepElements + lane * 2 - begin;
        const int limit = min(row_limit<Var>(shape, h, chunk), end) - begin;
#pragma unroll
        for (int r = 0; r < Var::kRows; ++r) {
          const unsigned char* from = staged + (r * (end - begin) + start) * 2;
          const int last = r < m ? limit - start : 0;
#pragma unroll
          for (int j = 0; j < Var::kStepsPerPage; ++j)
#pragma unroll
            for (int w = 0; w < 2; ++w)
              if (j * 512 + w * 64 < last && (begin == 0 || start + j * 512 + w * 64 >= 0))
                b[Var::index(r, h, chunk * Var::kStepsPerPage + j, w)] =
                    *reinterpret_cast<const u32*>(from + (j * 512 + w * 64) * 2);
        }
      }
  }
  /// Elements in the first half of a page's row (whole steps).
  static ARK_DEVICE int half_elements(int length) { return (length + 255) / 256 * 128; }
  /// The elements of k that a page's row (half h of it, unless kPairs) covers.
  template <class Var>
  static ARK_DEVICE int row_start(const RowsShape& shape, int h, int chunk) {
    if constexpr (Var::kPairs) return 0;
    const int length = min(shape.chunk_k, shape.k - chunk * shape.chunk_k);
    return chunk * shape.chunk_k + h * half_elements(length);
  }
  template <class Var>
  static ARK_DEVICE int row_limit(const RowsShape& shape, int h, int chunk) {
    if constexpr (Var::kPairs) return shape.k;
    const int length = min(shape.chunk_k, shape.k - chunk * shape.chunk_k);
    return chunk * shape.chunk_k + (h == 0 ? half_elements(length) : length);
  }

  /// This group's pages of one segment.
  template <MmaType kType, class Var>
  static ARK_DEVICE void run_pages(Consumer& consumer, const RowsShape& shape, const u32 (&b)[kMaxFragments],
                                   float* sums, u32 first_page, int pages, int first_slot, int quarter, int lane) {
    constexpr int kRows = Var::kRows, kSteps = Var::kSteps;
    const u32 zeros = shared_address(consumer.worker.shared.zeros);
    // the lane's 16 bytes of a fragment: row of the 8 x 8 matrix = piece, matrices 0 and 2: lower and upper 64 elements
    const int piece = (lane & 7) * 8 + (lane >> 4 & 1) * 64, lower = lane >> 3 & 1;
#pragma unroll 1
    for (int i = (consumer.group() - static_cast<int>(first_page)) & 1; i < pages; i += 2) {
      const u32 data = shared_address(consumer.wait_page(first_page + i));
      if constexpr (Var::kPairs) {
        constexpr int kAtOnce = 8 / kSteps;  // pairs of rows in registers: 8 fragments
        const int element = quarter * kStepElements + piece;
        const u32 address = data + (lower * shape.k + element) * 2;
        const int num_pairs = (shape.rows_per_page + 1) / 2;
#pragma unroll 1
        for (int pair = 0; pair < num_pairs; pair += kAtOnce) {
          u32 a[kAtOnce][kSteps][4];
#pragma unroll
          for (int q = 0; q < kAtOnce; ++q)
#pragma unroll
            for (int j = 0; j < kSteps; ++j)
              ldmatrix_x4(a[q][j],
                          element + j * 512 < shape.k ? address + ((pair + q) * 2 * shape.k + j * 512) * 2 : zeros);
          if (pair + kAtOnce >= num_pairs) consumer.release_page(first_page + i, 2);
          const int slot = first_slot + i * shape.rows_per_page + pair * 2;
#pragma unroll
          for (int q = 0; q < kAtOnce; ++q)
            if (pair + q < num_pairs) {
              float c[kRows][4];
#pragma unroll
              for (int r = 0; r < kRows; ++r) multiply<kType, Var>(c[r], a[q], b, r);
              const int here = slot + q * 2;
              store_sums<Var>(c, sums, here, pair * 2 + q * 2 + 1 < shape.rows_per_page, quarter, lane);
            }
        }
      } else {
        constexpr int kPerPage = 8;
        const int chunk = i % shape.chunks;
        const int length = min(shape.chunk_k, shape.k - chunk * shape.chunk_k), half = half_elements(length);
        const int element = quarter * kStepElements + piece, limit = lower ? length - half : half;
        const u32 address = data + (lower * half + element) * 2;
        u32 a[kPerPage][4];
#pragma unroll
        for (int j = 0; j < kPerPage; ++j) ldmatrix_x4(a[j], element + j * 512 < limit ? address + j * 1024 : zeros);
        consumer.release_page(first_page + i, 2);
        const int slot = first_slot + i;
        if (kSteps <= kPerPage || chunk == 0)
          multiply_halves<kType, Var, 0>(a, b, sums, slot, quarter, lane);
        else
          multiply_halves<kType, Var, kSteps - kPerPage>(a, b, sums, slot, quarter, lane);
      }
    }
  }

  /// One page's row: upper and lower halves of the fragments meet different halves of the activation.
  template <MmaType kType, class Var, int kFirst>
  static ARK_DEVICE void multiply_halves(const u32 (&a)[8][4], const u32 (&b)[kMaxFragments], float* sums, int slot,
                                         int quarter, int lane) {
    constexpr int kRows = Var::kRows;
    float row[kRows][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float c0[4] = {}, c1[4] = {}, d0[4] = {}, d1[4] = {};
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        mma_16x8x16<kType>(c0, a[j], b[Var::index(r, 0, kFirst + j, 0)], b[Var::index(r, 0, kFirst + j, 1)]);
        mma_16x8x16<kType>(d0, a[j], b[Var::index(r, 1, kFirst + j, 0)], b[Var::index(r, 1, kFirst + j, 1)]);
        mma_16x8x16<kType>(c1, a[j + 1], b[Var::index(r, 0, kFirst + j + 1, 0)],
                           b[Var::index(r, 0, kFirst + j + 1, 1)]);
        mma_16x8x16<kType>(d1, a[j + 1], b[Var::index(r, 1, kFirst + j + 1, 0)],
                           b[Var::index(r, 1, kFirst + j + 1, 1)]);
      }
      // both halves belong to one row: their sum, in the upper half's place
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        row[r][e] = (c0[e] + c1[e]) + (d0[e + 2] + d1[e + 2]);
        row[r][e + 2] = 0.0f;
      }
    }
    store_sums<Var>(row, sums, slot, false, quarter, lane);
  }

  /// c = a * b over kSteps steps, in two chains.
  template <MmaType kType, class Var>
  static ARK_DEVICE void multiply(float (&c)[4], const u32 (&a)[Var::kSteps][4], const u32 (&b)[kMaxFragments], int r) {
    float d[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] = 0.0f;
#pragma unroll
    for (int j = 0; j < Var::kSteps; j += 2) {
      mma_16x8x16<kType>(c, a[j], b[Var::index(r, 0, j, 0)], b[Var::index(r, 0, j, 1)]);
      mma_16x8x16<kType>(d, a[j + 1], b[Var::index(r, 0, j + 1, 0)], b[Var::index(r, 0, j + 1, 1)]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += d[e];
  }

  /// The diagonals of the products: piece i of the upper row in lane 4 i + i / 2 (elements 0 and 1), of the lower row
  /// in elements 2 and 3. One activation row: the pieces are stored and summed at the end; several: summed over the
  /// warp here.
  template <class Var>
  static ARK_DEVICE void store_sums(const float (&c)[Var::kRows][4], float* sums, int slot, bool two, int quarter,
                                    int lane) {
    const bool useful = (lane & 3) == (lane >> 3), odd = lane & 4;
    constexpr int kRows = Var::kRows;
    if constexpr (Var::kKeepsPieces) {
      float* to = sums + slot * kPartStride + quarter * 8 + (lane >> 2);
      if (useful) {
        to[0] = odd ? c[0][1] : c[0][0];
        if (two) to[kPartStride] = odd ? c[0][3] : c[0][2];
      }
    } else {
      float v[2 * kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        v[r] = useful ? (odd ? c[r][1] : c[r][0]) : 0.0f;
        v[kRows + r] = useful ? (odd ? c[r][3] : c[r][2]) : 0.0f;
      }
      const float sum = transpose_sum<2 * kRows>(v, lane);
      // lane l holds value l / (32 / count)
      constexpr int kShare = 32 / (2 * kRows);
      const int value = lane / kShare, row = value / kRows;
      if (lane % kShare == 0 && (row == 0 || two)) sums[((slot + row) * kRows + value % kRows) * 4 + quarter] = sum;
    }
  }
  /// Sums v[i] over the warp; lane l gets the sum of value l / (32 / kCount). A fixed tree.
  template <int kCount>
  static ARK_DEVICE float transpose_sum(float (&v)[kCount], int lane) {
    int mask = 16;
#pragma unroll
    for (int count = kCount; count > 1; count /= 2, mask /= 2) {
      const bool upper = lane & mask;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        if (i < count / 2) {
          const float keep = upper ? v[i + count / 2] : v[i], give = upper ? v[i] : v[i + count / 2];
          v[i] = keep + __shfl_xor_sync(~0u, give, mask);
        }
      }
    }
#pragma unroll 1
    for (; mask > 0; mask /= 2) v[0] += __shfl_xor_sync(~0u, v[0], mask);
    return v[0];
  }

  /// Sums of one weight row and activation row, over warps (and pieces, and pages of the row) in a fixed order.
  static ARK_DEVICE float total(const float* sums, int slot, int m, int padded, int chunks) {
    if (padded == 1 && chunks == 1) {
      const float4* part = reinterpret_cast<const float4*>(sums + slot * kPartStride);
      float y = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float4 v = part[j];
        y += (v.x + v.y) + (v.z + v.w);
      }
      return y;
    }
    const float4* part = reinterpret_cast<const float4*>(sums) + slot * padded + m;
    float y = 0;
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      const float4 v = part[c];  // chunks > 1 only with one activation row
      y += (v.x + v.y) + (v.z + v.w);
    }
    return y;
  }

  /// What the epilogues read comes into the first-level cache while the pages arrive: the loads are issued and never
  /// waited for.
  static ARK_DEVICE void prefetch_epilogues(Consumer& consumer, const Task& task) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
#pragma unroll 1
    for (int s = 0; s < p.num_segments; ++s) {
      const RowsRange range(p.segment[s], task);
      const int per_row = range.count * p.lanes;
      if (consumer.thread() >= per_row) continue;
      Programs::epilogue_rows(p.segment[s].program, [&](auto program) __attribute__((always_inline)) {
        using P = decltype(program);
        const ProgramContext c(task, p.segment[s].first_operand, consumer.worker);
        i32 x[P::kDims] = {};
        x[P::kDims - 1] = rows_column(p, p.segment[s], range.first + (consumer.thread() >> (p.lanes - 1)),
                                      consumer.thread() & (p.lanes - 1));
        typename P::template Inputs<1> in;
        P::template load<1>(c, x, in);
      });
    }
  }

  /// Epilogue of one segment's units: thread = (activation row, unit, lane of the unit), lanes of a unit side by side.
  template <class Total>
  static ARK_DEVICE void finish(Consumer& consumer, const Task& task, const abi::Segment& s, const RowsRange& range,
                                const Total& total_of) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    const int per_row = range.count * p.lanes, elements = per_row * p.m;
    Programs::epilogue_rows(s.program, [&](auto program) __attribute__((always_inline)) {
      using P = decltype(program);
      const ProgramContext c(task, s.first_operand, consumer.worker);
#pragma unroll 1
      for (int first = consumer.warp() * 32; first < elements; first += kConsumerThreads) {
        const int e = min(first + consumer.lane(), elements - 1);
        const int m = p.m == 1 ? 0 : e / per_row, in_row = e - m * per_row;
        const int lane = in_row & (p.lanes - 1), unit = in_row >> (p.lanes - 1);
        UnitRoots roots{total_of(unit, lane, m), 0, p.gated != 0};
        roots.other = __shfl_xor_sync(~0u, roots.own, 1);
        if (first + consumer.lane() >= elements || (p.gated && lane == 1)) continue;
        i32 x[P::kDims] = {};
        x[P::kDims - 2] = m;
        x[P::kDims - 1] = rows_column(p, s, range.first + unit, lane);
        P::template run<1>(c, x, roots);
      }
    });
  }

  // ---------------------------------------------------------------- fp32: CUDA cores

  /// A warp takes a weight row; the activation comes from shared memory, window by window.
  static ARK_DEVICE void consume_floats(Consumer& consumer, const Task& task) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    constexpr int kSumBytes = abi::kMaxRowsPerItem * 8 * 4, kActivationBytes = kScratchBytes - kSumBytes - 512;
    float* sums = reinterpret_cast<float*>(consumer.scratch());  // [row of the item][8]
    float* activation = reinterpret_cast<float*>(consumer.scratch() + kSumBytes);
    unsigned char* reduction = consumer.scratch() + kScratchBytes - 512;
    const int window = min(p.k, kActivationBytes / 4 / p.m / 4 * 4);
#pragma unroll 1
    for (int begin = 0; begin < p.k; begin += window) {
      const int end = min(p.k, begin + window);
      consumer.sync();
      stage<float>(consumer, task, activation, begin, end, reduction);
      consumer.sync();
      int row = 0;
#pragma unroll 1
      for (int s = 0; s < p.num_segments; ++s) {
        const RowsRange range(p.segment[s], task);
#pragma unroll 1
        for (int r = consumer.warp(); r < range.count * p.lanes; r += kConsumerWarps)
          multiply_floats(consumer, task, p.segment[s], range.first + r / p.lanes, r % p.lanes, activation, begin, end,
                          sums + (row + r) * 8);
        row += range.count * p.lanes;
      }
    }
    consumer.sync();
    consumer.mark_loaded();
    int row = 0;
#pragma unroll 1
    for (int s = 0; s < p.num_segments; ++s) {
      const RowsRange range(p.segment[s], task);
      if (range.count == 0) continue;
      finish(consumer, task, p.segment[s], range, [&](int unit, int unit_lane, int m) __attribute__((always_inline)) {
        return sums[(row + unit * p.lanes + unit_lane) * 8 + m];
      });
      row += range.count * p.lanes;
    }
  }

  /// One weight row's elements [begin, end) times all activation rows, added to sums[0..m).
  static ARK_DEVICE void multiply_floats(Consumer& consumer, const Task& task, const abi::Segment& s, int unit,
                                         int lane, const float* activation, int begin, int end, float* sums) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
    const int operand = p.gated && lane == 1 ? s.weight2 : s.weight;
    const float* weight =
        task.address<float>(operand) + rows_column(p, s, unit, lane) * task.operand(operand).stride[0] + begin;
    const int length = end - begin;
    float acc[8] = {};
#pragma unroll 4
    for (int e = consumer.lane() * 4; e < length; e += 128) {
      Vec<float, 4> w;
      load_vector(weight + e, w);
#pragma unroll
      for (int m = 0; m < 8; ++m)
        if (m < p.m) {
          const float4 x = *reinterpret_cast<const float4*>(activation + m * length + e);
          acc[m] = ::fmaf(w.v[0], x.x, ::fmaf(w.v[1], x.y, ::fmaf(w.v[2], x.z, ::fmaf(w.v[3], x.w, acc[m]))));
        }
    }
    const float sum = transpose_sum<8>(acc, consumer.lane());
    if (consumer.lane() % 4 == 0 && consumer.lane() / 4 < p.m) {
      float* to = sums + consumer.lane() / 4;
      *to = begin == 0 ? sum : *to + sum;
    }
  }
};

}  // namespace ark::device
