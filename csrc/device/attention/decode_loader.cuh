// The loaders of kAttentionDecode: keys and values page by page; those of a cache below the position ahead of every
// wait, those that are no cache after the tile's waits. Both know how many pages there are without waiting.
#pragma once
#include "device/attention/decode_keys.cuh"

namespace ark::device {

template <class Programs>
struct DecodeLoader {
  static ARK_DEVICE void load_cache(Loader& loader, const Task& task) {
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t) load_tile<false>(loader, task, t);
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
    int pages = 0;
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t)
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

  /// kAfterWaits: no cache; only pages of which the mask's range shows something.
  template <bool kAfterWaits>
  static ARK_DEVICE void load_tile(Loader& loader, const Task& task, int tile) {
    const abi::AttentionParams& p = task.record->params.attention;
    const int rest = small_divide(tile, task.record->grid[abi::GridAxis::kPart]),
              c2 = tile - rest * task.record->grid[abi::GridAxis::kPart];
    const int batch = small_divide(rest, task.record->grid[abi::GridAxis::kHead]),
              kv_head = rest - batch * task.record->grid[abi::GridAxis::kHead];
    const DecodeKeys keys(task, c2);
    int low = 0, high = p.keys;
    if constexpr (kAfterWaits) {
      const DecodeRange range(task, batch, kv_head, small_divide(p.heads, p.kv_heads));
      low = range.low;
      high = range.high;
    }
    const int per_page = per_page_of(p), row_bytes = p.head_dim * 2;
    const abi::Operand &k = task.operand(DecodeOperand::kK), &v = task.operand(DecodeOperand::kV);
    const i64 head_k = batch * k.stride[0] + kv_head * k.stride[1],
              head_v = batch * v.stride[0] + kv_head * v.stride[1];
    const bool dense = k.stride[2] == p.head_dim && v.stride[2] == p.head_dim;
#pragma unroll 1
    for (int first = keys.old_begin; first < keys.old_end; first += per_page) {
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
    }
  }
};

}  // namespace ark::device
