// Bytes that begin within a word.
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

/// Words from byte `shift` on, which is below 4 * kMost.
template <int kMost, int kIn, int kOut>
ARK_DEVICE void shift_words(u32 (&words)[kIn], u32 shift, u32 (&out)[kOut]) {
  static_assert(kIn >= kOut + kMost);
#pragma unroll
  for (int step = kMost / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i + step < kIn; ++i) words[i] = (shift & (4 * step)) != 0 ? words[i + step] : words[i];
  }
#pragma unroll
  for (int i = 0; i < kOut; ++i) out[i] = __funnelshift_r(words[i], words[i + 1], 8 * (shift & 3));
}

}  // namespace ark::device
