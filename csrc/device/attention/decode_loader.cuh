// The loaders of kAttentionDecode: keys and values page by page; those of a cache below the position ahead of every
// wait, those that are no cache after the tile's waits. Both know how many pages there are without waiting. Pages of two
// tiles that are done at once alternate; of an odd number of tiles the last one comes twice.
#pragma once
#include "device/attention/decode_keys.cuh"

namespace ark::device {

template <class Programs>
struct DecodeLoader {
  static ARK_DEVICE void load_cache(Loader& loader, const Task& task) {
    const int end = task.first + task.count;
    if constexpr (Programs::kDecodePairs)
      if (DecodeParams<Programs>(task).paired()) {
#pragma unroll 1
        for (int t = task.first; t < end; t += 2) load_tiles<false, 2>(loader, task, {t, min(t + 1, end - 1)});
        return;
      }
#pragma unroll 1
    for (int t = task.first; t < end; ++t) load_tiles<false, 1>(loader, task, {t});
  }
  static ARK_DEVICE void load_after_waits(Loader& loader, const Task& task) {
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count && loader.ok; ++t) {
      loader.wait_for(task, t, 1);
      load_tiles<true, 1>(loader, task, {t});
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
      pages += (DecodeKeys(task, t % task.record->grid[abi::GridAxis::kPart]).count() + per_page - 1) / per_page;
    loader.skip(pages);
  }

 private:
  static ARK_DEVICE int per_page_of(const abi::AttentionParams& p) {
    constexpr bool kFull =
        (Programs::kDecodeDims & ~(abi::decode_dim_bit(64) | abi::decode_dim_bit(128) | abi::decode_dim_bit(256))) == 0;
    return kFull ? small_divide(kPageBytes / 4, p.head_dim) : positions_per_page(p.head_dim);
  }

  /// Of a cache nothing is read again in this launch.
  template <bool kAfterWaits>
  static ARK_DEVICE void copy(Loader& loader, u32 to, const unsigned char* from, int bytes) {
    if constexpr (kAfterWaits)
      bulk_load(to, from, bytes, loader.barrier());
    else
      bulk_load(to, from, bytes, loader.barrier(), policy_evict_first());
  }

  /// kAfterWaits: no cache; only pages of which the mask's range shows something. Several tiles have as many pages.
  template <bool kAfterWaits, int kTiles>
  static ARK_DEVICE void load_tiles(Loader& loader, const Task& task, const int (&tile)[kTiles]) {
    static_assert(kTiles == 1 || !kAfterWaits);
    const abi::AttentionParams& p = task.record->params.attention;
    const int parts = task.record->grid[abi::GridAxis::kPart], heads = task.record->grid[abi::GridAxis::kHead];
    const DecodeKeys keys(task, tile[0] - small_divide(tile[0], parts) * parts);
    const int per_page = per_page_of(p), row_bytes = p.head_dim * 2;
    const abi::Operand &k = task.operand(DecodeOperand::kK), &v = task.operand(DecodeOperand::kV);
    const unsigned char *head_k[kTiles], *head_v[kTiles];
    int low = 0, high = p.keys;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int rest = small_divide(tile[i], parts), batch = small_divide(rest, heads), kv_head = rest - batch * heads;
      if constexpr (kAfterWaits) {
        const DecodeRange range(task, batch, kv_head, small_divide(p.heads, p.kv_heads));
        low = range.low;
        high = range.high;
      }
      head_k[i] = task.address<unsigned char>(DecodeOperand::kK) + (batch * k.stride[0] + kv_head * k.stride[1]) * 2;
      head_v[i] = task.address<unsigned char>(DecodeOperand::kV) + (batch * v.stride[0] + kv_head * v.stride[1]) * 2;
    }
    const bool dense = k.stride[2] == p.head_dim && v.stride[2] == p.head_dim;
#pragma unroll 1
    for (int first = keys.old_begin; first < keys.old_end; first += per_page)
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int rows = min(per_page, keys.old_end - first);
        const u32 page = loader.acquire();
        if (!loader.ok) return;
        loader.throttle();
        if (kAfterWaits && (first >= high || first + per_page <= low)) {
          if (loader.lane() == 0) mbarrier_arrive(loader.barrier());
          loader.advance();
          continue;
        }
        if (loader.lane() == 0) mbarrier_arrive_expect(loader.barrier(), 2 * rows * row_bytes);
        __syncwarp();
        const unsigned char *from_k = head_k[i] + first * k.stride[2] * 2,
                            *from_v = head_v[i] + first * v.stride[2] * 2;
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
      }
  }
};

}  // namespace ark::device
