// The three kinds of attention's backward, for heads of up to 128 columns on the tensor cores.
//
// kAttentionBackward (a tile = 128 keys: dk, dv) and kAttentionBackwardQuery (a tile = 128 queries: dq) are one
// computation with the roles of queries and keys exchanged. Each consumer warpgroup owns 64 *rows*, whose two operands
// stay in shared memory, and walks over *columns* in steps of 64:
//            rows      held X, Y   streamed x, y   results
//   dk, dv   keys      K, V        Q, dO           dk += dS x, dv += P y   (S and P transposed: rows are keys)
//   dq       queries   Q, dO       K, V            dq += dS x
//   S = X x^T,  dP = Y y^T,  P = exp(S - logsumexp),  dS = P (dP - delta)
// P and dS go from accumulators to A fragments in registers; nothing is accumulated across tiles, so the result does
// not depend on the order of tiles. Computing S and dP twice costs 7 matrix products instead of 5, and saves a sum of
// dq over key blocks.
//
// Page sequence: X, Y (held, tall); then pairs x, y (wide): 128 columns' rows for one page of a head, 64 for two.
#pragma once
#include "device/attention/common.cuh"

namespace ark::device {

/// kAttentionBackwardRows: delta = rowsum(dout * out) in f32. A warp takes 16 of the tile's 128 rows.
template <class Programs>
struct AttentionBackwardRows {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    const i32 dtype = task.record->params.attention.dtype;
    for (int i = 0; i < task.count; ++i) {
      if (dtype == kTypeF32)
        run<float>(task, task.first + i, consumer.warp());
      else if (dtype == kTypeF16)
        run<f16>(task, task.first + i, consumer.warp());
      else
        run<bf16>(task, task.first + i, consumer.warp());
    }
  }

 private:
  static constexpr int kWarpRows = 128 / kConsumerWarps;

  /// Lanes side by side share a row, 8 elements each; all loads of four passes are in flight together.
  template <class T>
  static ARK_DEVICE void run(const Task& task, int tile, int warp) {
    const abi::OpRecord& r = *task.record;
    const abi::AttentionParams& p = r.params.attention;
    const abi::Coordinates at = abi::coordinates_of(r, tile);
    const int head = at.middle, batch = at.outer;
    const int first = at.inner * 128 + warp * kWarpRows, end = min(first + kWarpRows, p.queries);
    using X = abi::AttentionDeltaOperand;
    const abi::Operand &a = task.operand(X::kGradOut), &b = task.operand(X::kOut);
    const T* x = task.address<T>(X::kGradOut) + batch * a.stride[0] + head * a.stride[1];
    const T* y = task.address<T>(X::kOut) + batch * b.stride[0] + head * b.stride[1];
    const int lane = thread_index() & 31, lanes = p.value_dim > 64 ? 16 : 8;
    const bool together = a.vector >= 8 && b.vector >= 8 && p.value_dim % 8 == 0 && p.value_dim <= 128;
    if (!together) {
      for (int row = first; row < end; ++row) {
        float sum = 0.0f;
        for (int d = lane; d < p.value_dim; d += 32)
          sum += widen(load_element(x + row * a.stride[2] + d * a.stride[3])) *
                 widen(load_element(y + row * b.stride[2] + d * b.stride[3]));
        write(task, batch, head, row, add_lanes(sum, 16), lane == 0);
      }
      return;
    }
    const int rows = 32 / lanes;  // per pass
    const int d = min(lane % lanes * 8, p.value_dim - 8);
    const bool exists = lane % lanes * 8 < p.value_dim;
    for (int row0 = first + lane / lanes; row0 - lane / lanes < end; row0 += 4 * rows) {
      Vec<T, 8> u[4], v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = min(row0 + i * rows, end - 1);
        load_vector(x + row * a.stride[2] + d, u[i]);
        load_vector(y + row * b.stride[2] + d, v[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += widen(u[i].v[e]) * widen(v[i].v[e]);
        const int row = row0 + i * rows;
        sum = add_lanes(exists ? sum : 0.0f, lanes / 2);
        write(task, batch, head, row, sum, lane % lanes == 0 && row < end);
      }
    }
  }
  static ARK_DEVICE float add_lanes(float sum, int mask) {
    for (; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
    return sum;
  }
  static ARK_DEVICE void write(const Task& task, int batch, int head, int row, float sum, bool mine) {
    using X = abi::AttentionDeltaOperand;
    const abi::Operand& delta = task.operand(X::kDelta);
    if (mine)
      store_element(
          task.address<float>(X::kDelta) + batch * delta.stride[0] + head * delta.stride[1] + row * delta.stride[2],
          sum);
  }
};

/// Which columns a tile of rows walks over.
template <bool kQueryRows>
struct BackwardWalk {
  using X = abi::AttentionGradOperand;
  const Task& task;
  const abi::AttentionParams& p;
  int batch, head, row;            // head: of queries if rows are queries, else a kv head's part of them
  int pair_columns, first, pairs;  // pairs [first, first + pairs) per head
  int heads;                       // heads whose columns are walked over

  ARK_DEVICE BackwardWalk(const Task& t, int tile) : task(t), p(t.record->params.attention) {
    const abi::OpRecord& r = *t.record;
    const abi::Coordinates at = abi::coordinates_of(r, tile);
    batch = at.outer, head = at.middle, row = at.inner * 128;
    pair_columns = 128 / head_pages(p);
    heads = kQueryRows ? 1 : p.heads / r.grid[abi::GridAxis::kHead];
    first = 0;
    int end;
    if constexpr (kQueryRows) {
      end = causal_end(p, min(row + 127, p.queries - 1));
    } else {
      if (p.causal) first = max(0, row - p.causal_offset) / pair_columns;
      end = p.queries;
    }
    pairs = max(0, (end + pair_columns - 1) / pair_columns - first);
  }
  ARK_DEVICE int held_pages() const { return 2 * head_pages(p); }
  ARK_DEVICE int stream_pages() const { return 2 * heads * pairs; }
  ARK_DEVICE int query_head(int group_head) const { return kQueryRows ? head : head * heads + group_head; }
  ARK_DEVICE int kv_head() const {
    return head / ((kQueryRows ? p.heads : task.record->grid[abi::GridAxis::kHead]) / p.kv_heads);
  }
  ARK_DEVICE int held_head() const { return kQueryRows ? head : kv_head(); }
  ARK_DEVICE int column(int pair) const { return (first + pair) * pair_columns; }
  ARK_DEVICE KeyRange range(int group_head, int pair) const {
    return mask_range(task, X::kRange, batch, query_head(group_head),
                      (kQueryRows ? row : column(pair)) / abi::kRangeBlock);
  }
  /// False: the mask hides all of this pair; its pages are empty.
  ARK_DEVICE bool loaded(const KeyRange& range, int pair) const {
    const int key = kQueryRows ? column(pair) : row;
    return key < range.end && key + (kQueryRows ? pair_columns : 128) > range.begin;
  }
};

template <class Programs, bool kQueryRows>
struct AttentionBackwardTiles {
  using Walk = BackwardWalk<kQueryRows>;

  static ARK_DEVICE void load_immutable(Loader& loader, const Task& task) {
    for (int i = 0; i < task.count; ++i) {
      const Walk walk(task, task.first + i);
      loader.skip(static_cast<int>(TilePages(loader.slot, walk.held_pages(), walk.stream_pages()).total));
    }
  }

  static ARK_DEVICE void load_dependent(Loader& loader, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    wait_tensor_maps(loader);
    prefetch_tensor_maps(loader, p.map, 4);
    const int parts = head_pages(p);
    // Maps of X, Y, x, y among q, k, v, dout.
    constexpr int kX = kQueryRows ? 0 : 1, kY = kQueryRows ? 3 : 2, kColumnX = kQueryRows ? 1 : 0,
                  kColumnY = kQueryRows ? 2 : 3;
    for (int i = 0; i < task.count && loader.ok; ++i) {
      const Walk walk(task, task.first + i);
      loader.wait_for(task, task.first + i, 1);
      load_tile_pages(loader, TilePages(loader.slot, walk.held_pages(), walk.stream_pages()),
                      [&](int page, u32 shared, u32 barrier) {
                        if (page < 2 * parts) {
                          const void* map = tensor_map(loader.worker, p.map[page < parts ? kX : kY]);
                          load_tall_page(shared, map, barrier, page % parts * 64, walk.row, walk.held_head(),
                                         walk.batch);
                          return true;
                        }
                        page -= 2 * parts;
                        const int group_head = page / 2 / walk.pairs, pair = page / 2 % walk.pairs;
                        if (!walk.loaded(walk.range(group_head, pair), pair)) return false;
                        const void* map = tensor_map(loader.worker, p.map[page & 1 ? kColumnY : kColumnX]);
                        const int head = kQueryRows ? walk.kv_head() : walk.query_head(group_head);
                        if (parts == 1)
                          load_tall_page(shared, map, barrier, 0, walk.column(pair), head, walk.batch);
                        else
                          load_wide_page(shared, map, barrier, walk.column(pair), head, walk.batch);
                        return true;
                      });
    }
  }

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    for (int i = 0; i < task.count; ++i) {
      with_attention_variant<Programs>(task.record->params.attention, [&]<int kHeadDim, bool kHalf>() {
        Tile<kHeadDim, kHalf>(consumer, task, task.first + i).run();
      });
      if (i + 1 < task.count) consumer.arrive(task, 1);
    }
  }

 private:
  using X = abi::AttentionGradOperand;

  template <int kHeadDim, bool kHalf>
  struct Tile {
    static constexpr int kParts = kHeadDim / 64;
    static constexpr int kSteps = 2 / kParts;  // of 64 columns per pair of pages

    /// What comes from global memory for a pair, on its way while the pages land. (A pair ahead: 12 bytes of spills
    /// where the kinds of a training step share a kernel.)
    struct Fetched {
      KeyRange range;
      float lse, delta;  // of this thread's column, if columns are queries
    };

    Consumer& consumer;
    const Task& task;
    const abi::AttentionParams& p;
    const Walk walk;
    PageCursor pages;
    Fetched fetched;  // read after the first page, which carries the acquire of the tile's waits
    int row;          // this thread's first row; the other is row + 8
    float grad_x[kHeadDim / 2];
    float grad_y[kQueryRows ? 1 : kHeadDim / 2];
    float row_lse[2], row_delta[2];  // if rows are queries
    bool masked = false;             // the pair at hand, by a mask
    u32 published = 0;               // buffer of the pair's statistics

    ARK_DEVICE Tile(Consumer& c, const Task& t, int tile)
        : consumer(c),
          task(t),
          p(t.record->params.attention),
          walk(t, tile),
          pages(c, walk.held_pages(), walk.stream_pages()),
          fetched{kQueryRows ? walk.range(0, 0) : KeyRange{}, 0.0f, 0.0f},
          row(walk.row + c.group() * 64 + (c.warp() & 3) * 16 + (c.lane() >> 2)) {}

    ARK_DEVICE void run() {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) grad_x[i] = 0.0f;
      if constexpr (!kQueryRows) {
#pragma unroll
        for (int i = 0; i < kHeadDim / 2; ++i) grad_y[i] = 0.0f;
      } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          row_lse[h] = base_two(statistic(X::kLogSumExp, walk.head, row + h * 8));
          row_delta[h] = statistic(X::kDelta, walk.head, row + h * 8);
        }
      }
      for (int group_head = 0; group_head < walk.heads; ++group_head)
        for (int pair = 0; pair < walk.pairs; ++pair) {
          const int head = walk.query_head(group_head);
          fetch(group_head, pair);
          const u32 x = pages.take(), y = pages.take();
          masked = kQueryRows ? fetched.range.masked(p, walk.column(pair), walk.pair_columns)
                              : fetched.range.masked(p, walk.row, 128);
          if (walk.loaded(fetched.range, pair)) {
            if constexpr (!kQueryRows) publish_statistics();
#pragma unroll 1
            for (int s = 0; s < kSteps; ++s)
              step(pages.address(x), pages.address(y), s, head, walk.column(pair) + s * 64);
          }
          consumer.release_page(x);
          consumer.release_page(y);
        }
      pages.finish();
      write();
    }

   private:
    ARK_DEVICE void fetch(int group_head, int pair) {
      if constexpr (!kQueryRows) {
        const int head = walk.query_head(group_head), query = walk.column(pair) + (consumer.thread() & 127);
        fetched.range = walk.range(group_head, pair);
        fetched.lse = statistic(X::kLogSumExp, head, query);
        fetched.delta = statistic(X::kDelta, head, query);
      }
    }

    /// logsumexp or delta as it lies in memory; of a query that does not exist -inf or 0.
    ARK_DEVICE float statistic(int number, int head, int query) const {
      if (query >= p.queries) return number == X::kLogSumExp ? negative_infinity() : 0.0f;
      const abi::Operand& o = task.operand(number);
      return load_element(task.address<float>(number) + walk.batch * o.stride[0] + head * o.stride[1] +
                          query * o.stride[2]);
    }
    /// logsumexp in base-2 units, +inf where a query sees nothing or does not exist: its weights become 0.
    static ARK_DEVICE float base_two(float lse) { return lse == negative_infinity() ? -lse : lse * kLog2E; }
    /// Two columns' worth of 128 f32 per warpgroup in scratch: logsumexp, then delta. Two buffers in turn: whoever
    /// writes one has passed the barrier behind which the other is read, so nobody reads this one any more.
    ARK_DEVICE u32 statistics() const {
      return shared_address(consumer.scratch()) + consumer.group() * 2048 + published;
    }
    ARK_DEVICE void publish_statistics() {
      published ^= 1024;
      const u32 at = statistics() + (consumer.thread() & 127) * 4;
      shared_store_float(at, base_two(fetched.lse));
      shared_store_float(at + 512, fetched.delta);
      consumer.sync_group();
    }

    /// s = X x^T (64 rows by 64 columns), both k-major; committed.
    ARK_DEVICE void start_product(float (&s)[32], int held, u32 streamed) const {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const u64 a = k_major_descriptor(pages.held_address(held + i) + consumer.group() * kBlockBytes);
        const u64 b = k_major_descriptor(streamed + i * kBlockBytes);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          wgmma_ss<64, kHalf, false, false>(s, a + j * kKMajorStep, b + j * kKMajorStep, i + j > 0);
      }
      wgmma_commit();
    }
    /// grad += fragments (64 rows by 64 columns) times the columns' rows; committed.
    ARK_DEVICE void start_gradient(float (&grad)[kHeadDim / 2], const u32 (&fragment)[4][4], u32 streamed) const {
      wgmma_fence();
      const u64 b = mn_major_descriptor(streamed);
#pragma unroll
      for (int j = 0; j < 4; ++j) wgmma_rs<kHeadDim, kHalf, true>(grad, fragment[j], b + j * kMnMajorStep, true);
      wgmma_commit();
    }

    ARK_DEVICE void step(u32 x, u32 y, int s, int head, int column0) {
      u32 weights[4][4], slopes[4][4];
      // Rows of this step: the second block of a tall page; a wide page is one step.
      x += s * kBlockBytes;
      y += s * kBlockBytes;
      // dk and dv of 128 columns leave no room for scores and dP at once.
      constexpr bool kNarrow = !kQueryRows && kHeadDim == 128;
      float score[32], slope[32];
      // Defined before the products: values put into them later serialise all wgmmas (C7515).
#pragma unroll
      for (int i = 0; i < 32; ++i) score[i] = slope[i] = 0.0f;
      wgmma_keep(score);
      wgmma_keep(slope);
      wgmma_fence();
      start_product(score, 0, x);
      if constexpr (!kNarrow) start_product(slope, kParts, y);
      wgmma_wait<kNarrow ? 0 : 1>();
      wgmma_keep(score);
      apply_mask(score, head, column0);
      weigh(score, s);
      if constexpr (!kQueryRows) to_fragments<kHalf>(score, weights);
      if constexpr (kNarrow) {
        wgmma_fence();
        start_product(slope, kParts, y);
        start_gradient(grad_y, weights, y);
        wgmma_wait<1>();
        wgmma_keep(slope);
        from_fragments<kHalf>(weights, score);
      } else if constexpr (!kQueryRows) {
        start_gradient(grad_y, weights, y);
        wgmma_wait<1>();
        wgmma_keep(slope);
      } else {
        wgmma_wait<0>();
        wgmma_keep(slope);
      }
      slope_of_scores(slope, score, s);
      to_fragments<kHalf>(slope, slopes);
      start_gradient(grad_x, slopes, x);
      finish_step();
    }
    /// The step's gradients are complete. (Waiting for them in the next step instead takes 16 to 32 registers more than
    /// a kernel that also holds matrix products has.)
    ARK_DEVICE void finish_step() {
      wgmma_wait<0>();
      wgmma_keep(grad_x);
      if constexpr (!kQueryRows) wgmma_keep(grad_y);
    }

    ARK_DEVICE void apply_mask(float (&score)[32], int head, int column0) const {
      const int row0 = walk.row + consumer.group() * 64;
      const bool edge = kQueryRows ? block_has_edge(p, row0, column0, 64) : block_has_edge(p, column0, row0, 64);
      if (!scores_scaled(p, masked) && !edge) return;
      ScoreMask<kQueryRows, 32>(task, row, column0 + (consumer.lane() & 3) * 2, masked)
          .apply(score, X::kMask, walk.batch, head, consumer);
    }
    /// Scores -> weights.
    ARK_DEVICE void weigh(float (&score)[32], int s) const {
      const float factor = scores_scaled(p, masked) ? 1.0f : p.scale * kLog2E;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float lse[2] = {0.0f, 0.0f};
        if constexpr (!kQueryRows) shared_load_two(lse, statistics() + column_bytes(s, j));
#pragma unroll
        for (int i = 0; i < 4; ++i)
          score[j * 4 + i] = exp2_approx(fmaf(score[j * 4 + i], factor, -(kQueryRows ? row_lse[i >> 1] : lse[i & 1])));
      }
    }
    /// dP -> dS = P (dP - delta).
    ARK_DEVICE void slope_of_scores(float (&slope)[32], const float (&weight)[32], int s) const {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float delta[2] = {0.0f, 0.0f};
        if constexpr (!kQueryRows) shared_load_two(delta, statistics() + 512 + column_bytes(s, j));
#pragma unroll
        for (int i = 0; i < 4; ++i)
          slope[j * 4 + i] = weight[j * 4 + i] * (slope[j * 4 + i] - (kQueryRows ? row_delta[i >> 1] : delta[i & 1]));
      }
    }
    /// Where the statistics of this thread's pair of columns of group j of step s lie.
    ARK_DEVICE u32 column_bytes(int s, int j) const { return (s * 64 + j * 8 + (consumer.lane() & 3) * 2) * 4; }

    ARK_DEVICE void write() const {
      const int rows = kQueryRows ? p.queries : p.keys, column = (consumer.lane() & 3) * 2;
      write_rows<kHalf>(task, kQueryRows ? X::kGradQ : X::kGradK, walk.batch, walk.head, row, rows, column, grad_x,
                        {p.scale, p.scale}, p.head_dim);
      if constexpr (!kQueryRows)
        write_rows<kHalf>(task, X::kGradV, walk.batch, walk.head, row, rows, column, grad_y, {1.0f, 1.0f}, p.value_dim);
    }
  };
};

template <class Programs>
using AttentionBackward = AttentionBackwardTiles<Programs, false>;
template <class Programs>
using AttentionBackwardQuery = AttentionBackwardTiles<Programs, true>;

}  // namespace ark::device
