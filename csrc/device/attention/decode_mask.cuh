// The mask of a warp's keys in kAttentionDecode, read as it lies in memory, a page ahead of its use, and only where the
// mask's table does not say that it changes nothing.
#pragma once
#include "device/attention/decode_keys.cuh"

namespace ark::device {

/// kAdded: some masks of the kernel are added to the scores; else all are of one byte.
template <class Warp, bool kAdded>
struct DecodeMask {
  using Values = u32[Warp::kHalves][Warp::kBlocks][2];  // as they lie in memory

  const unsigned char* row[Warp::kHalves];  // at key 0
  int dtype, bytes, stride, last;
  bool additive;

  /// offset[h]: of the lane's query row, in elements.
  ARK_DEVICE DecodeMask(const Task& task, const i64 (&offset)[Warp::kHalves]) {
    const abi::Operand& o = task.operand(DecodeOperand::kMask);
    dtype = o.dtype;
    bytes = kAdded ? element_bytes(dtype) : 1;
    stride = static_cast<i32>(o.stride[3]) * bytes;
    last = task.record->params.attention.keys - 1;
    additive = kAdded && task.record->params.attention.mask_kind == abi::MaskKind::kAdded;
#pragma unroll
    for (int h = 0; h < Warp::kHalves; ++h)
      row[h] = task.address<unsigned char>(DecodeOperand::kMask) + offset[h] * bytes;
  }

  /// Of the warp's keys from `first` on: nothing waits for it here.
  ARK_DEVICE void load(Values& mask, int first) const {
#pragma unroll
    for (int h = 0; h < Warp::kHalves; ++h)
#pragma unroll
      for (int b = 0; b < Warp::kBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const unsigned char* at = row[h] + static_cast<i64>(min(first + Warp::key(b, e), last)) * stride;
          if (bytes == 1)
            mask[h][b][e] = load_global<1>(at).w[0];
          else if (bytes == 2)
            mask[h][b][e] = load_global<2>(at).w[0];
          else
            mask[h][b][e] = load_global<4>(at).w[0];
        }
  }

  /// Adds it to scores in base 2.
  ARK_DEVICE void apply(typename Warp::Scores& s, const Values& mask) const {
#pragma unroll
    for (int h = 0; h < Warp::kHalves; ++h)
#pragma unroll
      for (int b = 0; b < Warp::kBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float added = value(mask[h][b][e]);
          s[h][b][e] = added == -op::infinity() ? added : s[h][b][e] + added;  // scores of hidden keys are anything
        }
  }

 private:
  ARK_DEVICE float value(u32 raw) const {
    constexpr float kLog2E = 1.4426950408889634f;
    if (!additive) return raw != 0 ? 0.0f : -op::infinity();
    if (dtype == abi::kTypeBF16) return __uint_as_float(raw << 16) * kLog2E;
    if (dtype == abi::kTypeF16) return f16_to_float(static_cast<unsigned short>(raw)) * kLog2E;
    return __uint_as_float(raw) * kLog2E;
  }
};

}  // namespace ark::device
