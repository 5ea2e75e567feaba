// kAttentionForward: one tile = 128 queries of one head, each consumer warpgroup 64 of them, against the keys in blocks
// of 128. The next block's scores are computed by the tensor cores while the softmax of this one's and its product with
// V run.
//
// Page sequence: Q (held, tall), then per visible key block K (tall) and V (wide). Which blocks a tile has follows from
// sizes and causality; blocks outside the mask's range (kMaskRange) are walked as empty pages.
#pragma once
#include "device/attention/online_softmax.cuh"

namespace ark::device {

struct QueryTile {
  int batch, head, block, row;  // row: first query
  ARK_DEVICE explicit QueryTile(const abi::Coordinates& at) {
    batch = at.outer, head = at.middle, block = at.inner;
    row = block * 128;
  }
};

template <class Programs>
struct AttentionForward {
  static ARK_DEVICE void load_immutable(Loader& loader, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    for (int i = 0; i < task.count; ++i) {
      const QueryTile at(task.coordinates(i));
      loader.skip(static_cast<int>(TilePages(loader.slot, head_pages(p), stream_pages(p, at)).total));
    }
  }

  static ARK_DEVICE void load_dependent(Loader& loader, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    const int parts = head_pages(p);
    wait_tensor_maps(loader);
    prefetch_tensor_maps(loader, p.map, 3);
    for (int i = 0; i < task.count && loader.ok; ++i) {
      const QueryTile at(task.coordinates(i));
      loader.wait_at_once(task, task.first + i);
      const KeyRange range = mask_range(task, X::kRange, at.batch, at.head, at.block);
      const int kv_head = at.head / (p.heads / p.kv_heads);
      const TilePages pages(loader.slot, parts, stream_pages(p, at));
      load_tile_pages(loader, pages, [&](int page, u32 shared, u32 barrier) {
        if (page < parts) {
          load_tall_page(shared, tensor_map(loader.worker, p.map[0]), barrier, page * 64, at.row, at.head, at.batch);
          return true;
        }
        page -= parts;
        const int key = page / (2 * parts) * 128, part = page % (2 * parts);
        if (key >= range.end || key + 128 <= range.begin) return false;
        if (part < parts)
          load_tall_page(shared, tensor_map(loader.worker, p.map[1]), barrier, part * 64, key, kv_head, at.batch);
        else if (parts == 1)
          load_tall_page(shared, tensor_map(loader.worker, p.map[2]), barrier, 0, key, kv_head, at.batch);
        else
          load_wide_page(shared, tensor_map(loader.worker, p.map[2]), barrier, key + (part - 2) * 64, kv_head,
                         at.batch);
        return true;
      });
    }
  }

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    for (int i = 0; i < task.count; ++i) {
      const QueryTile at(task.coordinates(i));
      with_attention_variant<Programs>(task.record->params.attention, [&]<int kHeadDim, bool kHalf>() {
        Tile<kHeadDim, kHalf>(consumer, task, at).run();
      });
      if (i + 1 < task.count) consumer.arrive(task, 1);
    }
  }

 private:
  using X = abi::AttentionOperand;

  static ARK_DEVICE int key_blocks(const abi::AttentionParams& p, const QueryTile& at) {
    return (causal_end(p, min(at.row + 127, p.queries - 1)) + 127) / 128;
  }
  static ARK_DEVICE int stream_pages(const abi::AttentionParams& p, const QueryTile& at) {
    return key_blocks(p, at) * 2 * head_pages(p);
  }

  template <int kHeadDim, bool kHalf>
  struct Tile {
    static constexpr int kParts = kHeadDim / 64;

    Consumer& consumer;
    const Task& task;
    const abi::AttentionParams& p;
    QueryTile at;
    int blocks;  // of keys
    PageCursor pages;
    BlockRange range;  // read after the first page, which carries the acquire of the tile's waits
    int row;           // this thread's first query row; the other is row + 8
    float out[kHeadDim / 2];
    float max[2], sum[2];  // of rows row and row + 8: in base-2 units; sums of this thread's columns only

    ARK_DEVICE Tile(Consumer& c, const Task& t, const QueryTile& tile)
        : consumer(c),
          task(t),
          p(t.record->params.attention),
          at(tile),
          blocks(key_blocks(p, tile)),
          pages(c, kParts, blocks * 2 * kParts),
          range(p, mask_range(t, X::kRange, tile.batch, tile.head, tile.block)),
          row(tile.row + c.group() * 64 + (c.warp() & 3) * 16 + (c.lane() >> 2)) {}

    ARK_DEVICE void run() {
      consumer.stamp(2);
      max[0] = max[1] = negative_infinity();
      sum[0] = sum[1] = 0.0f;
      int block = 0;
#pragma unroll 1
      for (; block < blocks && !loaded(block); ++block) pass_block();
      if (block < blocks) {
        block = run_loaded(block);
      } else {
#pragma unroll
        for (int i = 0; i < kHeadDim / 2; ++i) out[i] = 0.0f;
      }
#pragma unroll 1
      for (; block < blocks; ++block) pass_block();
      pages.finish();
      consumer.stamp(5);
      write();
    }

   private:
    /// Blocks from the first loaded one to the last; returns the one after it. While a block's softmax runs, the tensor
    /// cores compute the product of the one before with V; the next block's scores follow.
    ARK_DEVICE int run_loaded(int block) {
      float s[64];
      u32 fragment[8][4];
      u32 keys[kParts], values[kParts] = {};
      bool output_pending = false;
      // Defined before the first product: values put into them later serialise all wgmmas (C7515).
#pragma unroll
      for (int i = 0; i < 64; ++i) s[i] = 0.0f;
      wgmma_keep(s);
      wgmma_keep(out);
      const Turns turns(consumer.group());
      take(keys);
      turns.wait();
      start_scores(s, keys);
      turns.pass();
      consumer.stamp(3);
      wgmma_commit();  // an empty group in the place of the output's
      while (true) {
        wgmma_wait<1>();
        wgmma_keep(s);
        release(keys);
        float correction[2];
        softmax(s, block, correction);
        wgmma_wait<0>();
        wgmma_keep(out);
        if (output_pending) {
          release(values);
          rescale(correction);
        }
        to_fragments<kHalf>(s, fragment);
        take(values);
        ++block;
        if (block == blocks || !loaded(block)) break;
        consumer.stamp(4);
        take(keys);
        turns.wait();
        start_scores(s, keys);
        start_output(fragment, values, output_pending);
        turns.pass();
        output_pending = true;
      }
      turns.wait();
      start_output(fragment, values, output_pending);
      turns.finish();
      wgmma_wait<0>();
      wgmma_keep(out);
      release(values);
      return block;
    }

    ARK_DEVICE bool loaded(int block) const { return range.seen.contains(block); }
    ARK_DEVICE bool masked(int block) const {
      return p.mask_kind != abi::MaskKind::kNone && !range.neutral.contains(block);
    }
    ARK_DEVICE void release(const u32 (&numbers)[kParts]) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) consumer.release_page(numbers[i]);
    }
    ARK_DEVICE void pass_block() {
#pragma unroll 1
      for (int i = 0; i < 2 * kParts; ++i) consumer.release_page(pages.take());
    }

    ARK_DEVICE void take(u32 (&numbers)[kParts]) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) numbers[i] = pages.take();
    }

    /// s = Q K^T of a key block, committed.
    ARK_DEVICE void start_scores(float (&s)[64], const u32 (&keys)[kParts]) {
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const u64 q = k_major_descriptor(pages.held_address(i) + consumer.group() * kBlockBytes);
        const u64 k = k_major_descriptor(pages.address(keys[i]));
#pragma unroll
        for (int j = 0; j < 4; ++j)
          wgmma_ss<128, kHalf, false, false>(s, q + j * kKMajorStep, k + j * kKMajorStep, i + j > 0);
      }
      wgmma_commit();
    }
    /// out = P V, or += where it holds a sum (`further`), committed.
    ARK_DEVICE void start_output(u32 (&fragment)[8][4], const u32 (&values)[kParts], bool further) {
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        // A page holds 128 / kParts keys: tall where a head has one page, else wide.
        const u64 v = mn_major_descriptor(pages.address(values[j / (8 / kParts)]));
        wgmma_rs<kHeadDim, kHalf, true>(out, fragment[j], v + j % (8 / kParts) * kMnMajorStep, further || j > 0);
      }
      wgmma_commit();
    }

    /// Scores -> weights relative to the new maximum; `correction` brings older sums and outputs to it.
    ARK_DEVICE void softmax(float (&s)[64], int block, float (&correction)[2]) {
      const int key0 = block * 128;
      const bool by_mask = masked(block), scaled = scores_scaled(p, by_mask);
      if (scaled || block_has_edge(p, at.row + consumer.group() * 64, key0, 128))
        ScoreMask<true, 64>(task, row, key0 + (consumer.lane() & 3) * 2, by_mask)
            .apply(s, X::kMask, at.batch, at.head, consumer);
      online_softmax(s, scaled ? 1.0f : p.scale * kLog2E, max, sum, correction);
    }
    ARK_DEVICE void rescale(const float (&correction)[2]) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) out[i] *= correction[i >> 1 & 1];
    }

    ARK_DEVICE void write() {
      write_queries<kHalf>(task, at.batch, at.head, row, (consumer.lane() & 3) * 2, out, max, sum, p.value_dim);
    }
  };
};

}  // namespace ark::device
