// Attention forward of 16-bit heads of up to 256 dimensions, in steps of 8, by the tensor cores at warp level. A tile
// is 128 queries of one head, each consumer warp 16 of them; keys and values come in blocks, the next one while this
// one is worked on. All of it lies in the ring: queries, two blocks of keys, two of values, lines of odd numbers of 16
// bytes (eight of them below each other are in different banks).
#pragma once
#include "device/attention/online_softmax.cuh"
#include "device/attention/staged_rows.cuh"

namespace ark::device {

/// kParts: columns of the output, in sixteens.
template <int kParts, bool kHalf>
struct AttentionMma {
  static constexpr int kQueries = abi::kMmaQueries, kMostDim = 256;
  static constexpr int kKeys = kParts <= 8 ? 64 : 32;  // the sums of 256 columns leave few registers
  static constexpr int kValuePitch = (kParts * 2 | 1) * 16, kMostPitch = (kMostDim / 8 | 1) * 16;
  using X = abi::AttentionOperand;
  static constexpr MmaType kType = kHalf ? MmaType::kF16 : MmaType::kBF16;
  static_assert(kQueries == kConsumerWarps * 16 &&
                kQueries * kMostPitch + 2 * kKeys * (kMostPitch + kValuePitch) <= kPages * kPageBytes);

  Consumer& consumer;
  const Task& task;
  const abi::AttentionParams& p;
  int batch, head, first_row, row;  // of the tile; of this warp
  int pitch;                        // of queries and keys
  KeyRange range;
  u32 queries, keys, values;  // addresses
  float out[kParts * 8], max[2], sum[2];

  ARK_DEVICE AttentionMma(Consumer& c, const Task& t, int tile)
      : consumer(c), task(t), p(t.record->params.attention), range{} {
    const abi::OpRecord& r = *t.record;
    const abi::Coordinates at = abi::coordinates_of(r, tile);
    batch = at.outer, head = at.middle, first_row = at.inner * kQueries;
    row = first_row + consumer.warp() * 16;
    pitch = (dim_steps() * 2 | 1) * 16;
    range = mask_range(t, X::kRange, batch, head, first_row / abi::kRangeBlock);
    queries = shared_address(consumer.worker.shared.ring);
    keys = queries + kQueries * pitch;
    values = keys + 2 * kKeys * pitch;
  }

  ARK_DEVICE void run() {
    max[0] = max[1] = negative_infinity();
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kParts * 8; ++i) out[i] = 0.0f;
    const int last_row = min(first_row + kQueries, p.queries) - 1;
    const int first = range.begin / kKeys, end = (min(causal_end(p, last_row), range.end) + kKeys - 1) / kKeys;
    consumer.sync();  // the tile before has been read
    copy_rows(HeadRows(task.operand(X::kQ), batch, head, p.queries, p.head_dim),
              {first_row, 0, kQueries, dim_steps() * 2, queries, pitch}, consumer.thread(), kConsumerThreads);
    copy_async_commit();
    if (first < end) load(first, first & 1);
    for (int block = first; block < end; ++block) {
      copy_async_wait<0>();
      consumer.sync();  // everybody's copies have landed, and the block before has been read
      if (block + 1 < end) load(block + 1, (block + 1) & 1);
      if (row < p.queries && block * kKeys < causal_end(p, row + 15)) attend(block);
    }
    copy_async_wait<0>();
    write_queries<kHalf>(task, batch, head, row + (consumer.lane() >> 2), (consumer.lane() & 3) * 2, out, max, sum,
                         p.value_dim);
  }

 private:
  ARK_DEVICE int dim_steps() const { return (p.head_dim + 15) / 16; }

  /// Keys and values of a block, as one group of copies.
  ARK_DEVICE void load(int block, int slot) const {
    const int kv_head = head / (p.heads / p.kv_heads), key = block * kKeys;
    copy_rows(HeadRows(task.operand(X::kK), batch, kv_head, p.keys, p.head_dim),
              {key, 0, kKeys, dim_steps() * 2, keys + slot * kKeys * pitch, pitch}, consumer.thread(),
              kConsumerThreads);
    copy_rows(HeadRows(task.operand(X::kV), batch, kv_head, p.keys, p.value_dim),
              {key, 0, kKeys, kParts * 2, values + slot * kKeys * kValuePitch, kValuePitch}, consumer.thread(),
              kConsumerThreads);
    copy_async_commit();
  }

  ARK_DEVICE void attend(int block) {
    const int key = block * kKeys, slot = block & 1;
    const bool masked = range.masked(p, key, kKeys), scaled = scores_scaled(p, masked);
    float s[kKeys / 2], correction[2];
    u32 fragment[kKeys / 16][4];
    multiply_keys(s, keys + slot * kKeys * pitch);
    if (scaled || block_has_edge(p, row, key, kKeys))
      ScoreMask<true, kKeys / 2>(task, row + (consumer.lane() >> 2), key + (consumer.lane() & 3) * 2, masked)
          .apply(s, X::kMask, batch, head, consumer);
    online_softmax(s, scaled ? 1.0f : p.scale * kLog2E, max, sum, correction);
#pragma unroll
    for (int i = 0; i < kParts * 8; ++i) out[i] *= correction[i >> 1 & 1];
    to_fragments<kHalf>(s, fragment);
    add_values(fragment, values + slot * kKeys * kValuePitch);
  }

  template <int kCount>
  static ARK_DEVICE void multiply(float (&sums)[kCount], int tile, const u32 (&a)[4], const u32 (&b)[4]) {
    mma_16x8x16<kType>(reinterpret_cast<float(&)[4]>(sums[tile * 4]), a, b[0], b[1]);
    mma_16x8x16<kType>(reinterpret_cast<float(&)[4]>(sums[tile * 4 + 4]), a, b[2], b[3]);
  }

  /// s = Q K^T.
  ARK_DEVICE void multiply_keys(float (&s)[kKeys / 2], u32 block) const {
    const int lane = consumer.lane(), line = lane & 7, upper = lane >> 4, middle = lane >> 3 & 1;
    u32 q = queries + (consumer.warp() * 16 + middle * 8 + line) * pitch + upper * 16;
    u32 k = block + (upper * 8 + line) * pitch + middle * 16;
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) s[i] = 0.0f;
    const int steps = dim_steps();
#pragma unroll 2
    for (int step = 0; step < steps; ++step, q += 32, k += 32) {
      u32 a[4], b[4];
      ldmatrix_x4(a, q);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        ldmatrix_x4(b, k + n * 16 * pitch);
        multiply(s, n * 2, a, b);
      }
    }
  }
  /// out += P V.
  ARK_DEVICE void add_values(const u32 (&weights)[kKeys / 16][4], u32 block) {
    const int lane = consumer.lane();
    const u32 v = block + (lane & 15) * kValuePitch + (lane >> 4) * 16;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        u32 b[4];
        ldmatrix_x4_transposed(b, v + k * 16 * kValuePitch + n * 32);
        multiply(out, n * 2, weights[k], b);
      }
  }
};

}  // namespace ark::device
