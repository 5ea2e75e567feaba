#include "targets/host/program/attention_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "device/abi/roles.h"

namespace ark::targets::host {
namespace {

template <class T>
const T* address(const abi::Operand& operand, void* const* slots) {
  return static_cast<const T*>(slots[operand.slot]) + operand.offset;
}

/// The factors of one row's parts: exp2(m[p] - M) / sum l[p] exp2(m[p] - M); zeros when nothing was seen.
void part_weights(const float* max_sum, int64_t used, int64_t part_stride, std::vector<float>& weights) {
  weights.assign(used, 0.0f);
  float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t p = 0; p < used; ++p) {
    const float m = max_sum[p * part_stride];
    maximum = (m > maximum || m != m) ? m : maximum;
  }
  if (maximum == -std::numeric_limits<float>::infinity()) return;
  for (int64_t p = 0; p < used; ++p) {
    weights[p] = std::exp2(max_sum[p * part_stride] - maximum);
    sum += max_sum[p * part_stride + 1] * weights[p];
  }
  for (float& weight : weights) weight = sum == 0 ? 0.0f : weight / sum;
}

}  // namespace

int64_t parts_used(KeyRange visible, int64_t parts, int64_t positions_per_part) {
  const int64_t step = std::max<int64_t>(1, positions_per_part),
                keys = std::max<int64_t>(0, visible.end - visible.begin);
  return std::clamp<int64_t>((keys + step - 1) / step, 1, std::max<int64_t>(1, parts));
}

KeyRange keys_of_part(KeyRange visible, int64_t part, int64_t parts, int64_t positions_per_part) {
  const int64_t used = parts_used(visible, parts, positions_per_part);
  const int64_t keys = std::max<int64_t>(0, visible.end - visible.begin), size = (keys + used - 1) / used;
  const int64_t begin = std::min(part * size, keys), end = part < used ? std::min(begin + size, keys) : begin;
  return {visible.begin + begin, visible.begin + end};
}

void load_parts(std::span<const abi::Operand> operands, void* const* slots, const int64_t* row, const int64_t* column,
                int64_t n, float* out) {
  using P = abi::PartsOperand;
  using N = abi::PartsNumber;
  const abi::i64* numbers = operands[P::kSizes].stride;
  const int64_t parts = numbers[N::kParts], rows = numbers[N::kRows], value_dim = numbers[N::kValueDim],
                positions_per_part = numbers[N::kPositionsPerPart], keys = numbers[N::kKeys],
                kv_heads = numbers[N::kKvHeads];
  const float *sums = address<float>(operands[P::kValues], slots),
              *max_sum = address<float>(operands[P::kMaxSum], slots);
  std::vector<float> weights;
  int64_t seen = -1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t head = row[i] / rows, first = head * parts * rows + row[i] % rows;
    if (row[i] != seen) {
      KeyRange visible{0, keys};
      if (operands[P::kRange].slot != abi::kNoSlot) {
        const auto* pair =
            address<int32_t>(operands[P::kRange], slots) + head / kv_heads * operands[P::kRange].stride[0];
        visible = {pair[0], pair[1]};
      }
      part_weights(max_sum + first * 2, parts_used(visible, parts, positions_per_part), rows * 2, weights);
      seen = row[i];
    }
    float total = 0;
    for (size_t p = 0; p < weights.size(); ++p)
      if (weights[p] != 0) total += weights[p] * sums[(first + static_cast<int64_t>(p) * rows) * value_dim + column[i]];
    out[i] = total;
  }
}

}  // namespace ark::targets::host
