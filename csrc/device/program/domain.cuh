// Coordinates of a program's iteration domain.
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

/// n / r.size[d] of the domain of a program.
ARK_DEVICE i64 divide_by_size(const abi::OpRecord& r, int d, i64 n) {
  return n >> 31 == 0 ? r.params.program.by[d].divide(static_cast<u32>(n)) : n / r.size[d];
}

/// Coordinates of flattened index e over dimensions [kFirst, kLast) of the domain of a program.
template <int kFirst, int kLast, int kDims>
ARK_DEVICE void unflatten(const abi::OpRecord& r, i64 e, i32 (&x)[kDims]) {
  if (e >> 31 == 0) {
    u32 rest = static_cast<u32>(e);
#pragma unroll
    for (int d = kLast - 1; d > kFirst; --d) {
      const u32 next = r.params.program.by[d].divide(rest);
      x[d] = rest - next * static_cast<u32>(r.size[d]);
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
