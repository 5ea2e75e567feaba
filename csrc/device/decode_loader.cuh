// The loaders of kAttentionDecode: the keys and values below the position, page by page, ahead of every wait.
#pragma once
#include "device/decode_keys.cuh"

namespace ark::device {

struct DecodeLoader {
  static ARK_DEVICE void load(Loader& loader, const Task& task) {
    if (task.record->params.attention.fresh_operand < 0) return;
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t) load_tile(loader, task, t);
  }
  /// The other loader: the same pages, none of them its own.
  static ARK_DEVICE void skip(Loader& loader, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    if (p.fresh_operand < 0) return;
    const int per_page = positions_per_page(p);
    int pages = 0;
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t)
      pages += (DecodeKeys(task, t % task.record->grid[2]).count() + per_page - 1) / per_page;
    loader.skip(pages);
  }

 private:
  static ARK_DEVICE int positions_per_page(const abi::AttentionParams& p) { return kPageBytes / (4 * p.head_dim); }

  static ARK_DEVICE void load_tile(Loader& loader, const Task& task, int tile) {
    const abi::AttentionParams& p = task.record->params.attention;
    const int c2 = tile % task.record->grid[2], rest = tile / task.record->grid[2];
    const DecodeKeys keys(task, c2);
    const int per_page = positions_per_page(p), row_bytes = p.head_dim * 2;
    const u64 policy = policy_evict_first();
    const abi::Operand &k = task.operand(kDecodeK), &v = task.operand(kDecodeV);
    const i64 head_k = rest / task.record->grid[1] * k.stride[0] + rest % task.record->grid[1] * k.stride[1];
    const i64 head_v = rest / task.record->grid[1] * v.stride[0] + rest % task.record->grid[1] * v.stride[1];
    const bool dense = k.stride[2] == p.head_dim && v.stride[2] == p.head_dim;
#pragma unroll 1
    for (int first = keys.old_begin; first < keys.old_end; first += per_page) {
      const int rows = min(per_page, keys.old_end - first);
      const u32 page = loader.acquire();
      if (!loader.ok) return;
      loader.throttle();
      if (loader.lane() == 0) mbarrier_arrive_expect(loader.barrier(), 2 * rows * row_bytes);
      __syncwarp();
      const unsigned char* from_k = task.address<unsigned char>(kDecodeK) + (head_k + first * k.stride[2]) * 2;
      const unsigned char* from_v = task.address<unsigned char>(kDecodeV) + (head_v + first * v.stride[2]) * 2;
      if (dense) {
        if (loader.lane() == 0) {
          bulk_load(page, from_k, rows * row_bytes, loader.barrier(), policy);
          bulk_load(page + kPageBytes / 2, from_v, rows * row_bytes, loader.barrier(), policy);
        }
      } else {
#pragma unroll 1
        for (int r = loader.lane(); r < rows; r += 32) {
          bulk_load(page + r * row_bytes, from_k + r * k.stride[2] * 2, row_bytes, loader.barrier(), policy);
          bulk_load(page + kPageBytes / 2 + r * row_bytes, from_v + r * v.stride[2] * 2, row_bytes, loader.barrier(),
                    policy);
        }
      }
      __syncwarp();
      loader.advance();
    }
  }
};

}  // namespace ark::device
