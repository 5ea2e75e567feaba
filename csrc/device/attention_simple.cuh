// kAttentionSimple: attention forward of any type, size and stride on the CUDA cores. A tile is one query row of one
// head; a warp takes a row: scores of 32 keys at a time (a key per lane), an online softmax, then the columns of V over
// the lanes.
#pragma once
#include "device/attention_common.cuh"
#include "device/matmul_simple.cuh"

namespace ark::device {

template <class Programs>
struct AttentionSimple {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    const bool wide = task.record->params.attention.dtype == kTypeF64;
    for (int i = consumer.warp(); i < task.count; i += kConsumerWarps) {
      const Row row(task, task.first + i);
      for (int column = 0; column < task.record->params.attention.value_dim; column += kColumns) {
        if (wide)
          row.template run<double>(column);
        else
          row.template run<float>(column);
      }
    }
  }

 private:
  static constexpr int kOut = 3, kLogSumExp = 4, kMask = 5, kRange = 6;
  static constexpr int kPerLane = 4, kColumns = 32 * kPerLane;  // columns of V per walk over the keys

  struct Row {
    const Task& task;
    const abi::AttentionParams& p;
    int batch, head, query, lane;

    ARK_DEVICE Row(const Task& t, int tile) : task(t), p(t.record->params.attention), lane(thread_index() & 31) {
      const abi::OpRecord& r = *t.record;
      query = tile % r.grid[2];
      head = tile / r.grid[2] % r.grid[1];
      batch = tile / r.grid[2] / r.grid[1];
    }

    /// Columns [column, column + kColumns) of the row's output; with the first ones, its logsumexp.
    template <class T>
    ARK_DEVICE void run(int column) const {
      const KeyRange range = mask_range(task, kRange, batch, head, query / 128);
      const int begin = range.begin / 32 * 32, end = min(causal_end(p, query), range.end);
      T max = -infinity<T>(), sum = 0, out[kPerLane] = {};
      for (int key0 = begin; key0 < end; key0 += 32) {
        T score = score_of<T>(key0 + lane, end), highest = score;
        for (int m = 16; m > 0; m >>= 1) highest = fmax(highest, __shfl_xor_sync(~0u, highest, m));
        if (highest == -infinity<T>() && !__any_sync(~0u, score != score)) continue;  // fmax passes over NaN
        highest = fmax(highest, max);
        const T correction = ::exp(max - highest), weight = ::exp(score - highest);
        max = highest;
        T total = weight;
        for (int m = 16; m > 0; m >>= 1) total += __shfl_xor_sync(~0u, total, m);
        sum = sum * correction + total;
        add_values<T>(key0, end, column, weight, correction, out);
      }
      write<T>(column, max, sum, out);
    }

   private:
    template <class T>
    static ARK_DEVICE T infinity() {
      return static_cast<T>(-negative_infinity());
    }
    ARK_DEVICE int kv_head() const { return head / (p.heads / p.kv_heads); }

    template <class T>
    ARK_DEVICE T score_of(int key, int end) const {
      if (key >= end) return -infinity<T>();
      const abi::Operand &q = task.operand(0), &k = task.operand(1);
      const i64 at_q = batch * q.stride[0] + head * q.stride[1] + query * q.stride[2];
      const i64 at_k = batch * k.stride[0] + kv_head() * k.stride[1] + key * k.stride[2];
      T score = 0;
#pragma unroll 4
      for (int d = 0; d < p.head_dim; ++d)
        score += load_as<T>(q, at_q + d * q.stride[3]) * load_as<T>(k, at_k + d * k.stride[3]);
      score *= static_cast<T>(p.scale);
      if (p.mask_kind == 0) return score;
      const abi::Operand& m = task.operand(kMask);
      const i64 at = batch * m.stride[0] + head * m.stride[1] + query * m.stride[2] + key * m.stride[3];
      if (p.mask_kind == 1)
        return load_element(reinterpret_cast<const unsigned char*>(m.offset) + at) != 0 ? score : -infinity<T>();
      if (m.dtype == kTypeF64) return score + static_cast<T>(load_as<double>(m, at));
      return score + static_cast<T>(load_as<float>(m, at));
    }

    template <class T>
    ARK_DEVICE void add_values(int key0, int end, int column, T weight, T correction, T (&out)[kPerLane]) const {
      const abi::Operand& v = task.operand(2);
      const i64 at = batch * v.stride[0] + kv_head() * v.stride[1];
#pragma unroll
      for (int c = 0; c < kPerLane; ++c) out[c] *= correction;
#pragma unroll 2
      for (int j = 0; j < min(32, end - key0); ++j) {
        const T w = __shfl_sync(~0u, weight, j);
#pragma unroll
        for (int c = 0; c < kPerLane; ++c) {
          const int d = column + c * 32 + lane;
          if (d < p.value_dim) out[c] += w * load_as<T>(v, at + (key0 + j) * v.stride[2] + d * v.stride[3]);
        }
      }
    }

    template <class T>
    ARK_DEVICE void write(int column, T max, T sum, const T (&out)[kPerLane]) const {
      const abi::Operand& o = task.operand(kOut);
      const T inverse = sum == 0 ? 0 : 1 / sum;  // a query that sees no key gets zeros and -inf; NaN stays
#pragma unroll
      for (int c = 0; c < kPerLane; ++c) {
        const int d = column + c * 32 + lane;
        if (d >= p.value_dim) continue;
        const i64 at = batch * o.stride[0] + head * o.stride[1] + query * o.stride[2] + d * o.stride[3];
        store_as(o, at, out[c] * inverse);
      }
      if (column == 0 && lane == 0 && task.has(kLogSumExp)) {
        const abi::Operand& l = task.operand(kLogSumExp);
        store_as(l, batch * l.stride[0] + head * l.stride[1] + query * l.stride[2],
                 sum == 0 ? -infinity<T>() : max + ::log(sum));
      }
    }
    template <class T>
    static ARK_DEVICE void store_as(const abi::Operand& o, i64 at, T value) {
      if (o.dtype == kTypeF64)
        store_element(reinterpret_cast<double*>(o.offset) + at, static_cast<double>(value));
      else if (o.dtype == kTypeF32)
        store_element(reinterpret_cast<float*>(o.offset) + at, static_cast<float>(value));
      else if (o.dtype == kTypeF16)
        store_element(reinterpret_cast<f16*>(o.offset) + at, narrow<f16>(static_cast<float>(value)));
      else
        store_element(reinterpret_cast<bf16*>(o.offset) + at, narrow<bf16>(static_cast<float>(value)));
    }
  };
};

}  // namespace ark::device
