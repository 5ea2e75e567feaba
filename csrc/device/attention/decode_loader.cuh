// The loaders of kAttentionDecode: keys and values page by page; those of a cache below the position ahead of every
// wait, those that are no cache after the tile's waits. Both know how many pages there are without waiting. Pages of
// two tiles that are done at once alternate; of an odd number of tiles the last one comes twice.
#pragma once
#include "device/attention/decode_keys.cuh"

namespace ark::device {

/// a / b, of which neither is extreme: the value of divide_approx without its scaling, two instructions.
ARK_DEVICE float ordinary_divide(float a, float b) { return a * reciprocal_approx(b); }
/// small_divide by it.
ARK_DEVICE int tile_divide(int a, int b) {
  return static_cast<int>(ordinary_divide(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
}

template <class Programs>
struct DecodeLoader {
  static ARK_DEVICE void load_cache(Loader& loader, const Task& task) {
    const int end = task.first + task.count;
    if constexpr (Programs::kDecodePairs)
      if (DecodeParams<Programs>(task).paired()) {
#pragma unroll 1
        for (int t = task.first; t < end; t += 2) load_pair(loader, task, t, min(t + 1, end - 1));
        return;
      }
#pragma unroll 1
    for (int t = task.first; t < end; ++t) load_tile<false>(loader, task, t);
  }
  static ARK_DEVICE void load_after_waits(Loader& loader, const Task& task) {
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count && loader.ok; ++t) {
      loader.wait_for(task, t, 1);
      load_tile<true>(loader, task, t);
    }
  }
  /// The other loader's pages.
  static ARK_DEVICE void skip(Loader& loader, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    const int per_page = per_page_of(p);
    int pages = 0, end = task.first + task.count;
    if (DecodeParams<Programs>(task).paired()) end += task.count & 1;  // they all are of part 0
#pragma unroll 1
    for (int t = task.first; t < end; ++t)
      pages +=
          static_cast<u32>(DecodeKeys(task, Head(task, t).part).count() + per_page - 1) / static_cast<u32>(per_page);
    loader.skip(pages);
  }

 private:
  static ARK_DEVICE int per_page_of(const abi::AttentionParams& p) {
    constexpr bool kFull =
        (Programs::kDecodeDims & ~(abi::decode_dim_bit(64) | abi::decode_dim_bit(128) | abi::decode_dim_bit(256))) == 0;
    return kFull ? tile_divide(kPageBytes / 4, p.head_dim) : positions_per_page(p.head_dim);
  }

  /// Of a cache nothing is read again in this launch.
  template <bool kAfterWaits>
  static ARK_DEVICE void copy(Loader& loader, u32 to, const unsigned char* from, int bytes) {
    if constexpr (kAfterWaits)
      bulk_load(to, from, bytes, loader.barrier());
    else
      bulk_load(to, from, bytes, loader.barrier(), policy_evict_first());
  }

  struct Head {
    int batch, kv_head, part;
    ARK_DEVICE Head(const Task& task, int tile) {
      const int parts = task.record->grid[abi::GridAxis::kPart], heads = task.record->grid[abi::GridAxis::kHead];
      const int rest = tile_divide(tile, parts);
      part = tile - rest * parts;
      batch = tile_divide(rest, heads);
      kv_head = rest - batch * heads;
    }
    ARK_DEVICE i64 offset(const abi::Operand& o) const { return batch * o.stride[0] + kv_head * o.stride[1]; }
  };

  /// kAfterWaits: no cache; only pages of which the mask's range shows something.
  template <bool kAfterWaits>
  static ARK_DEVICE void load_tile(Loader& loader, const Task& task, int tile) {
    const abi::AttentionParams& p = task.record->params.attention;
    const Head head(task, tile);
    const DecodeKeys keys(task, head.part);
    int low = 0, high = p.keys;
    if constexpr (kAfterWaits) {
      const DecodeRange range(task, head.batch, head.kv_head, tile_divide(p.heads, p.kv_heads));
      low = range.low;
      high = range.high;
    }
    const int per_page = per_page_of(p);
    const i64 head_k = head.offset(task.operand(DecodeOperand::kK)),
              head_v = head.offset(task.operand(DecodeOperand::kV));
#pragma unroll 1
    for (int first = keys.old_begin; first < keys.old_end; first += per_page) {
      if (!load_page<kAfterWaits>(loader, task, head_k, head_v, first, min(per_page, keys.old_end - first), low, high))
        return;
    }
  }
  /// Of a cache in whole, page by page of both in turn. (What follows from a tile's number is worked out for each page:
  /// loaders have few registers.)
  static ARK_DEVICE void load_pair(Loader& loader, const Task& task, int tile, int other) {
    const DecodeKeys keys(task, 0);
    const int per_page = per_page_of(task.record->params.attention);
#pragma unroll 1
    for (int n = 0;; ++n) {
      const int first = keys.old_begin + (n >> 1) * per_page;
      if (first >= keys.old_end) return;
      const Head head(task, (n & 1) == 0 ? tile : other);
      if (!load_page<false>(loader, task, head.offset(task.operand(DecodeOperand::kK)),
                            head.offset(task.operand(DecodeOperand::kV)), first, min(per_page, keys.old_end - first), 0,
                            0))
        return;
    }
  }

  /// `rows` keys and values from number `first` on, of the head at these elements; false: not any more. kAfterWaits:
  /// nothing where all of the page lies outside of [low, high).
  template <bool kAfterWaits>
  static ARK_DEVICE bool load_page(Loader& loader, const Task& task, i64 head_k, i64 head_v, int first, int rows,
                                   int low, int high) {
    const abi::AttentionParams& p = task.record->params.attention;
    const int row_bytes = p.head_dim * 2;
    const abi::Operand &k = task.operand(DecodeOperand::kK), &v = task.operand(DecodeOperand::kV);
    const bool dense = k.stride[2] == p.head_dim && v.stride[2] == p.head_dim;
    const u32 page = loader.acquire();
    if (!loader.ok) return false;
    loader.throttle();
    if (kAfterWaits && (first >= high || first + per_page_of(p) <= low)) {
      if (loader.lane() == 0) mbarrier_arrive(loader.barrier());
      loader.advance();
      return true;
    }
    if (loader.lane() == 0) mbarrier_arrive_expect(loader.barrier(), 2 * rows * row_bytes);
    __syncwarp();
    const unsigned char* from_k = task.address<unsigned char>(DecodeOperand::kK) + (head_k + first * k.stride[2]) * 2;
    const unsigned char* from_v = task.address<unsigned char>(DecodeOperand::kV) + (head_v + first * v.stride[2]) * 2;
    if (dense) {
      if (loader.lane() == 0) {
        copy<kAfterWaits>(loader, page, from_k, rows * row_bytes);
        copy<kAfterWaits>(loader, page + kPageBytes / 2, from_v, rows * row_bytes);
      }
    } else {
#pragma unroll 1
      for (int r = loader.lane(); r < rows; r += 32) {
        copy<kAfterWaits>(loader, page + r * row_bytes, from_k + r * k.stride[2] * 2, row_bytes);
        copy<kAfterWaits>(loader, page + kPageBytes / 2 + r * row_bytes, from_v + r * v.stride[2] * 2, row_bytes);
      }
    }
    __syncwarp();
    loader.advance();
    return true;
  }
};

}  // namespace ark::device
