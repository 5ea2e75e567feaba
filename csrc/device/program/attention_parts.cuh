// What programs read of an attention that kAttentionDecode left in parts.
#pragma once
#include "device/loop/cache_position.cuh"
#include "device/program/operand.cuh"

namespace ark::device {

/// Which of the parts there are: of a cache those that its position asks for (cache_parts), the first in any case.
struct UsedParts {
  int parts, filled = 1, each = 0;  // keys of a part

  ARK_DEVICE UsedParts(const abi::Operand& sizes, const abi::Operand& scalar)
      : parts(static_cast<int>(sizes.stride[abi::PartsNumber::kParts])) {
    using N = abi::PartsNumber;
    if (scalar.slot == abi::kNoSlot) return;
    filled =
        cache_position(scalar, static_cast<int>(sizes.stride[N::kKeys])) + static_cast<int>(scalar.stride[N::kQueries]);
    each = max(1, static_cast<int>(sizes.stride[N::kPositionsPerPart]));
  }
  ARK_DEVICE bool has(int part) const { return part == 0 || (part < parts && part * each < filled); }
};

/// Opcode::kLoadParts for V elements. Parts beyond those that are used are not written; of those that are, some may
/// have seen no key (m = -infinity, l = 0). kRowElements: the vector begins at a multiple of V, and its row and column
/// are the quotient and the remainder of its place by that; 0: anything.
template <int V, int kRowElements>
ARK_DEVICE void load_parts(const ProgramContext& c, int number, const i64 (&row)[V], const i64 (&column)[V],
                           float (&out)[V]) {
  using P = abi::PartsOperand;
  using N = abi::PartsNumber;
  const abi::Operand& parameters = c.operand(number + P::kSizes);
  const int parts = static_cast<int>(parameters.stride[N::kParts]),
            rows = static_cast<int>(parameters.stride[N::kRows]),
            dim = static_cast<int>(parameters.stride[N::kValueDim]);
  const UsedParts used(parameters, c.operand(number + P::kPosition));  // kEach parts are asked for before it is known
  const float* values = reinterpret_cast<const float*>(c.operand(number + P::kValues).offset);
  const float* max_sum = reinterpret_cast<const float*>(c.operand(number + P::kMaxSum).offset);
  constexpr bool kTogether = kRowElements != 0 && kRowElements % V == 0 && V > 1 && V <= 8;
  bool together = V > 1 && V <= 8 && (kTogether || (column[0] & 3) == 0);
  if constexpr (!kTogether) ARK_EACH together = together && row[i] == row[0] && column[i] == column[0] + i;
  constexpr int kEach = 4;  // parts in flight
  ARK_EACH out[i] = 0;
#pragma unroll 1
  for (int first = 0; first < (together ? 1 : V); ++first) {
    int this_row = static_cast<int>(row[0]), this_column = static_cast<int>(column[0]);
    if constexpr (!kTogether) ARK_EACH if (i == first) {
        this_row = static_cast<int>(row[i]);
        this_column = static_cast<int>(column[i]);
      }
    const int group = small_divide(this_row, rows), in_group = this_row - group * rows;
    const float* ml = max_sum + (static_cast<i64>(group) * parts * rows + in_group) * 2;
    const float* o = values + (static_cast<i64>(group) * parts * rows + in_group) * dim + this_column;
    float m = -op::infinity(), l = 0, sum[V] = {};
    ARK_EACH sum[i] = 0;
#pragma unroll 1
    for (int part = 0;;) {
      Vec<float, 2> pair[kEach];
      Vec<float, V> value[kEach];
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const int p = min(part + k, parts - 1);
        load_vector(ml + p * rows * 2, pair[k]);
        if (together)
          load_vector(o + static_cast<i64>(p) * rows * dim, value[k]);
        else
          value[k].v[0] = load_element(o + static_cast<i64>(p) * rows * dim);
      }
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (!used.has(part + k) || pair[k].v[1] == 0.0f) continue;  // a part that saw nothing holds no values either
        const float top = fmaxf(m, pair[k].v[0]), old = exp2_approx(m - top), add = exp2_approx(pair[k].v[0] - top);
        m = top;
        l = l * old + pair[k].v[1] * add;
        if (together) {
          ARK_EACH sum[i] = sum[i] * old + value[k].v[i] * add;
        } else {
          sum[0] = sum[0] * old + value[k].v[0] * add;
        }
      }
      part += kEach;
      if (!used.has(part)) break;
    }
    const float scale = l == 0.0f ? 0.0f : divide_approx(1.0f, l);
    if (together) {
      ARK_EACH out[i] = sum[i] * scale;
    } else {
      ARK_EACH if (i == first) out[i] = sum[0] * scale;
    }
  }
}

}  // namespace ark::device
