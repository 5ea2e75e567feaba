// Coordinates of a program's iteration domain.
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

/// Coordinates of flattened index e over dimensions [kFirst, kLast) of the domain.
template <int kFirst, int kLast, int kDims>
ARK_DEVICE void unflatten(const abi::OpRecord& r, i64 e, i32 (&x)[kDims]) {
  if (e >> 31 == 0) {
    u32 rest = static_cast<u32>(e);
#pragma unroll
    for (int d = kLast - 1; d > kFirst; --d) {
      const u32 size = static_cast<u32>(r.size[d]), next = rest / size;
      x[d] = rest - next * size;
      rest = next;
    }
    if constexpr (kLast > kFirst) x[kFirst] = rest;
    return;
  }
#pragma unroll
  for (int d = kLast - 1; d > kFirst; --d) {
    x[d] = e % r.size[d];
    e /= r.size[d];
  }
  if constexpr (kLast > kFirst) x[kFirst] = e;
}

}  // namespace ark::device
