// kMaskRange: the first and one past the last key that any query of a block may see, so that attention loads nothing
// else. Tile = (batch, head, query block). A block that sees nothing gets (0, 0); where the mask changes no score of
// the block (every key visible to every query, nothing added) the first key is -1 and attention does not read the mask.
#pragma once
#include "device/program_support.cuh"

namespace ark::device {

template <class Programs>
struct MaskRange {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for(task, task.first, task.count);
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t) run_tile(consumer, task, t);
  }

  /// Whether an element of the mask lets a key through: true, or any additive value above -infinity's neighbourhood.
  static ARK_DEVICE bool visible(const unsigned char* mask, i64 at, int dtype) {
    // Additive masks hide a key by the lowest finite value of their type as well as by -infinity (Hugging Face does the
    // former).
    switch (dtype) {
      case 7:  // bf16
        return widen(load_element(reinterpret_cast<const bf16*>(mask) + at)) > -3.3e38f;
      case 6:  // f16
        return widen(load_element(reinterpret_cast<const f16*>(mask) + at)) > -65500.0f;
      case 8:  // f32
        return load_element(reinterpret_cast<const float*>(mask) + at) > -3.4e38f;
      case 9:  // f64
        return load_element(reinterpret_cast<const double*>(mask) + at) > -1.7e308;
      default:
        return load_element(mask + at) != 0;
    }
  }

 private:
  /// Whether an element leaves its score as it is.
  static ARK_DEVICE bool adds_nothing(const unsigned char* mask, i64 at, int dtype) {
    switch (dtype) {
      case 6:
      case 7:
        return (load_element(reinterpret_cast<const unsigned short*>(mask) + at) & 0x7fff) == 0;
      case 8:
        return load_element(reinterpret_cast<const float*>(mask) + at) == 0.0f;
      case 9:
        return load_element(reinterpret_cast<const double*>(mask) + at) == 0.0;
      default:
        return load_element(mask + at) != 0;
    }
  }

  static ARK_DEVICE void run_tile(Consumer& consumer, const Task& task, int tile) {
    const abi::OpRecord& r = *task.record;
    const abi::MaskRangeParams& p = r.params.mask_range;
    const int c2 = tile % r.grid[2], c1 = tile / r.grid[2] % r.grid[1], c0 = tile / r.grid[2] / r.grid[1];
    const abi::Operand& mask = task.operand(0);
    const unsigned char* base = task.address<unsigned char>(0);
    const int first_query = c2 * p.block, queries = min(p.block, p.queries - first_query);
    int low = p.keys, high = 0;
    // Decode attention, which has few queries, takes the range as bounds.
    bool neutral = p.queries > 16;
    const i64 corner = c0 * mask.stride[0] + c1 * mask.stride[1] + first_query * mask.stride[2];
    // a mask that is the same for all queries is read once
    const int distinct = mask.stride[2] == 0 ? 1 : queries;
    const i64 total = static_cast<i64>(distinct) * p.keys;
#pragma unroll 1
    for (i64 e = consumer.thread(); e < total; e += kConsumerThreads) {
      const int key = static_cast<int>(e % p.keys);
      const i64 at = corner + e / p.keys * mask.stride[2] + key * mask.stride[3];
      neutral = neutral && adds_nothing(base, at, p.dtype);
      if (visible(base, at, p.dtype)) {
        low = min(low, key);
        high = max(high, key + 1);
      }
    }
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    neutral = __all_sync(~0u, neutral);
    int* parts = reinterpret_cast<int*>(consumer.scratch());
    if (consumer.lane() == 0) {
      parts[consumer.warp()] = low;
      parts[kConsumerWarps + consumer.warp()] = high;
      parts[2 * kConsumerWarps + consumer.warp()] = neutral;
    }
    consumer.sync();
    if (consumer.thread() == 0) {
#pragma unroll
      for (int w = 1; w < kConsumerWarps; ++w) {
        low = min(low, parts[w]);
        high = max(high, parts[kConsumerWarps + w]);
        neutral = neutral && parts[2 * kConsumerWarps + w] != 0;
      }
      const abi::Operand& out = task.operand(1);
      int* to = task.address<int>(1) + c0 * out.stride[0] + c1 * out.stride[1] + c2 * out.stride[2];
      store_element(to, neutral ? -1 : low < high ? low : 0);
      store_element(to + out.stride[3], low < high ? high : 0);
    }
    consumer.sync();
  }
};

}  // namespace ark::device
