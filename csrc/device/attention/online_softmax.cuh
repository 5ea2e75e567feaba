// The softmax of the forward kinds on the tensor cores, block of keys by block of keys, and the rows that come of it.
// Scores and sums lie in accumulator layout: a thread has columns of two rows, element i is of row i >> 1 & 1.
#pragma once
#include "device/attention/common.cuh"

namespace ark::device {

/// Scores (times `factor` in base-2 units, -inf: not seen) become weights against the new maximum; `correction` brings
/// older sums and outputs to it. `sum` is of this thread's columns only.
template <int kCount>
ARK_DEVICE void online_softmax(float (&s)[kCount], float factor, float (&max)[2], float (&sum)[2],
                               float (&correction)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float highest = negative_infinity();
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) highest = fmaxf(highest, fmaxf(s[j * 4 + h * 2], s[j * 4 + h * 2 + 1]));
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
    const float before = max[h];
    max[h] = fmaxf(before, highest * factor);
    const float base = max[h] == negative_infinity() ? 0.0f : max[h];
    correction[h] = exp2_approx(before - base);
    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float weight = exp2_approx(fmaf(s[j * 4 + h * 2 + e], factor, -base));
        s[j * 4 + h * 2 + e] = weight;
        total += weight;
      }
    sum[h] = sum[h] * correction[h] + total;
  }
}

/// Output (operand 3) and logsumexp (operand 4) of this thread's queries `row` and row + 8, where they exist; `columns`
/// of the output exist.
template <bool kHalf, int kCount>
ARK_DEVICE void write_queries(const Task& task, int batch, int head, int row, int column, const float (&out)[kCount],
                              const float (&max)[2], const float (&sum)[2], int columns = kCount * 2) {
  using X = abi::AttentionOperand;
  float total[2], inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] = sum[h];
    total[h] += __shfl_xor_sync(~0u, total[h], 1);
    total[h] += __shfl_xor_sync(~0u, total[h], 2);
    // The outputs of a query that sees no key are zeros as they are; its logsumexp is -inf. NaN stays, or the backward
    // pass would take it for such a query.
    inverse[h] = total[h] == 0.0f ? 1.0f : ordinary_inverse(total[h]);
  }
  const int queries = task.record->params.attention.queries;
  write_rows<kHalf>(task, X::kOut, batch, head, row, queries, column, out, inverse, columns);
  if (!task.has(X::kLogSumExp) || column != 0) return;
  const abi::Operand& o = task.operand(X::kLogSumExp);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int query = row + h * 8;
    if (query >= queries) return;
    float* l = task.address<float>(X::kLogSumExp) + element_offset(o, {batch, head, query});
    store_element(l, total[h] == 0.0f ? negative_infinity() : (max[h] + log2_fast(total[h])) * kLn2);
  }
}

}  // namespace ark::device
