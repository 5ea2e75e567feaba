// Bytes that begin within a word.
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

/// Moves words forward by the steps kStep, kStep / 2, ..., 1 that `shift`, in words, is the sum of. Unrolled by the
/// front end, so that the words are in registers for certain.
template <int kStep, int kIn>
ARK_DEVICE void move_words(u32 (&words)[kIn], u32 shift) {
  if constexpr (kStep > 0) {
#pragma unroll
    for (int i = 0; i < kIn - kStep; ++i) words[i] = (shift & kStep) != 0 ? words[i + kStep] : words[i];
    move_words<kStep / 2>(words, shift);
  }
}

/// A mask of the lowest `count` bytes of a word: none below 1, all from 4 on.
ARK_DEVICE u32 low_bytes(int count) { return __funnelshift_lc(~0u, 0, 8 * max(count, 0)); }

/// Words from byte `shift` on, which is below 4 * kMost.
template <int kMost, int kIn, int kOut>
ARK_DEVICE void shift_words(u32 (&words)[kIn], u32 shift, u32 (&out)[kOut]) {
  static_assert(kIn >= kOut + kMost && (kMost & (kMost - 1)) == 0);
  move_words<kMost / 2>(words, shift / 4);
#pragma unroll
  for (int i = 0; i < kOut; ++i) out[i] = __funnelshift_r(words[i], words[i + 1], 8 * (shift & 3));
}

}  // namespace ark::device
