// kMaskRange: what a mask does to a block of queries, found once for all layers and heads that share it. Four values:
// the first and one past the last key that any query of the block sees, so that attention loads nothing else (a block
// that sees nothing gets 0, 0); then an interval of keys where the mask changes no score of the block (visible to every
// query, nothing added): attention reads the mask outside of it only. Of causal masks that leaves the diagonal, of
// padding its edges. It is whole groups of keys, except where a mask of one row (decode) leaves the scores of all the
// keys that are seen: then it is these. Tile = (batch, head, query block).
#pragma once
#include "device/abi/variants.h"
#include "device/loop/tensor_map.cuh"  // numbers of dtypes
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct MaskRange {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    const int dtype = task.record->params.mask_range.dtype;
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t) {
      switch (dtype) {
        case kTypeF16:
          run<f16, kTypeF16>(consumer, task, t);
          break;
        case kTypeBF16:
          run<bf16, kTypeBF16>(consumer, task, t);
          break;
        case kTypeF32:
          run<float, kTypeF32>(consumer, task, t);
          break;
        case kTypeF64:
          run<double, kTypeF64>(consumer, task, t);
          break;
        default:
          run<boolean, kTypeBool>(consumer, task, t);
      }
    }
  }

 private:
  /// Of types that no mask of this kernel has there is no code.
  template <class S, int kType>
  static ARK_DEVICE void run(const Consumer& consumer, const Task& task, int tile) {
    if constexpr ((Programs::kMaskTypes & abi::type_bit(kType)) != 0) Tile<S>(consumer, task, tile).run();
  }
  // Whether an element lets its key through. Additive masks hide a key by the lowest finite value of their type as well
  // as by -infinity (Hugging Face does the former).
  static ARK_DEVICE bool visible(boolean x) { return x.bits != 0; }
  static ARK_DEVICE bool visible(f16 x) { return widen(x) > -65500.0f; }
  static ARK_DEVICE bool visible(bf16 x) { return widen(x) > -3.3e38f; }
  static ARK_DEVICE bool visible(float x) { return x > -3.4e38f; }
  static ARK_DEVICE bool visible(double x) { return x > -1.7e308; }
  /// Whether it leaves its score as it is.
  static ARK_DEVICE bool neutral(boolean x) { return x.bits != 0; }
  template <class S>
  static ARK_DEVICE bool neutral(S x) {
    return widen(x) == 0;
  }

  /// Bit i: element i lets its key through, or leaves its score as it is. Shorter code than a test of each element.
  struct Bits {
    u32 visible = 0, neutral = 0;

    template <class S, int V>
    explicit ARK_DEVICE Bits(const Vec<S, V>& x) {
      ARK_EACH {
        visible |= static_cast<u32>(MaskRange::visible(x.v[i])) << i;
        neutral |= static_cast<u32>(MaskRange::neutral(x.v[i])) << i;
      }
    }
    explicit ARK_DEVICE Bits(const Vec<boolean, 16>& x) {
      u32 words[4];
      __builtin_memcpy(words, &x, 16);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const u32 low = (words[w] & 0x7f7f7f7fu) + 0x7f7f7f7fu;  // a byte's upper bit: some of its lower ones is set
        const u32 flags = (low | words[w]) >> 7 & 0x01010101u;   // one per byte
        visible |= flags * 0x10204080u >> 28 << w * 4;           // the four of them side by side
      }
      neutral = visible;
    }
  };

  template <class S>
  struct Tile {
    using X = abi::MaskRangeOperand;
    static constexpr int V = 16 / sizeof(S), kUnroll = 8;
    static constexpr int kFlags = 2048;  // of blocks of keys, in scratch behind the partial results

    const Consumer& consumer;
    const abi::MaskRangeParams& p;
    const abi::Operand& mask;
    const abi::Operand& out;
    const S* origin;
    int* to;
    int rows, block;  // distinct rows of the mask; keys per flag: a power of two, 64 where the flags suffice
    int low, high = 0;
    int kept = 0;  // of one row: how many keys' scores stay as they are

    ARK_DEVICE Tile(const Consumer& c, const Task& task, int tile)
        : consumer(c),
          p(task.record->params.mask_range),
          mask(task.operand(X::kMask)),
          out(task.operand(X::kRange)),
          block(64),
          low(p.keys) {
      const abi::OpRecord& r = *task.record;
      const abi::Coordinates at = abi::coordinates_of(r, tile);
      origin = task.address<S>(X::kMask) + at.outer * mask.stride[0] + at.middle * mask.stride[1] +
               static_cast<i64>(at.inner) * p.block * mask.stride[2];
      to = task.address<int>(X::kRange) + at.outer * out.stride[0] + at.middle * out.stride[1] +
           at.inner * out.stride[2];
      rows = mask.stride[2] == 0 ? 1 : min(p.block, p.queries - at.inner * p.block);
      while (static_cast<i64>(block) * kFlags < p.keys) block *= 2;
    }

    ARK_DEVICE void run() {
      unsigned char* flags = consumer.scratch() + 256;
      const int blocks = (p.keys + block - 1) / block;
      for (int i = consumer.thread(); i < blocks; i += kConsumerThreads) flags[i] = 0;
      consumer.sync();
      const bool together = mask.stride[3] == 1 && p.keys % V == 0 && mask.stride[2] % V == 0 &&
                            (reinterpret_cast<unsigned long long>(origin) & 15) == 0;
      if (!together)
        scan<1, kUnroll>(flags);
      else if (rows > 1)
        scan<V, kUnroll>(flags);
      else
        scan<V, 1>(flags);  // a mask of one row, as in decode: code that runs once is short
      finish(flags, blocks);
    }

   private:
    /// Every thread a vector of keys (for all V of which one flag stands), kRows rows of it in flight.
    template <int kTogether, int kRows>
    ARK_DEVICE void scan(unsigned char* flags) {
      const int vectors = p.keys / kTogether;
      const int lanes = min(vectors, kConsumerThreads), groups = kConsumerThreads / lanes;
      const int group = consumer.thread() / lanes;
      if (group < groups) {
#pragma unroll 1
        for (int v = consumer.thread() % lanes; v < vectors; v += lanes) {
          constexpr u32 kAll = (1u << kTogether) - 1;
          u32 seen = 0, plain = kAll;
#pragma unroll 1
          for (int row = group; row < rows; row += kRows * groups) {
            Vec<S, kTogether> x[kRows];
#pragma unroll
            for (int u = 0; u < kRows; ++u)
              load_vector(origin + min(row + u * groups, rows - 1) * mask.stride[2] + v * kTogether * mask.stride[3],
                          x[u]);
#pragma unroll
            for (int u = 0; u < kRows; ++u) {
              const Bits bits(x[u]);
              seen |= bits.visible;
              plain &= bits.neutral;
              if (u == 0) kept += __popc(bits.neutral);
            }
          }
          if (seen != 0) {
            low = min(low, v * kTogether + __ffs(seen) - 1);
            high = max(high, v * kTogether + 32 - __clz(seen));
          }
          if (plain != kAll) flags[v * kTogether / block] = 1;
        }
      }
      low = __reduce_min_sync(~0u, low);
      high = __reduce_max_sync(~0u, high);
      kept = __reduce_add_sync(~0u, kept);
    }

    ARK_DEVICE void finish(const unsigned char* flags, int blocks) {
      int* parts = reinterpret_cast<int*>(consumer.scratch());
      if (consumer.lane() == 0) {
        parts[consumer.warp()] = low;
        parts[kConsumerWarps + consumer.warp()] = high;
        parts[2 * kConsumerWarps + consumer.warp()] = kept;
      }
      consumer.sync();
      if (consumer.thread() == 0) {
#pragma unroll
        for (int w = 1; w < kConsumerWarps; ++w) {
          low = min(low, parts[w]);
          high = max(high, parts[kConsumerWarps + w]);
          kept += parts[2 * kConsumerWarps + w];
        }
        store_element(to, low < high ? low : 0);
        store_element(to + out.stride[3], low < high ? high : 0);
        int begin = low, end = high;
        if (rows > 1 || low >= high || kept != high - low) longest_run(flags, blocks, begin, end);
        store_element(to + 2 * out.stride[3], begin);
        store_element(to + 3 * out.stride[3], end);
      }
      consumer.sync();
    }
    /// The keys of the longest run of blocks without a flag.
    ARK_DEVICE void longest_run(const unsigned char* flags, int blocks, int& begin, int& end) const {
      int first = 0, length = 0;
#pragma unroll 1
      for (int i = 0, run = 0; i < blocks; ++i) {
        if (flags[i] != 0) run = i + 1;
        if (i + 1 - run > length) first = run, length = i + 1 - run;
      }
      begin = first * block;
      end = min((first + length) * block, p.keys);
    }
  };
};

}  // namespace ark::device
