// Coordinates of a program's iteration domain.
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

/// n / r.size[d] of the domain of a program.
ARK_DEVICE i64 divide_by_size(const abi::OpRecord& r, int d, i64 n) {
  return n >> 31 == 0 ? r.params.program.by[d].divide(static_cast<u32>(n)) : n / r.size[d];
}

/// The elements of a pointwise item whose record says how many the domain has (ProgramParams::elements).
struct NearRange {
  u32 begin;
  i32 count;

  ARK_DEVICE NearRange(const abi::ProgramParams& p, i32 first, i32 tiles) {
    const u32 tile = static_cast<u32>(p.tile), all = static_cast<u32>(p.elements);
    begin = static_cast<u32>(first) * tile;
    const u32 most = static_cast<u32>(tiles) * tile;
    count = static_cast<i32>(all - begin < most ? all - begin : most);
  }
};

/// Coordinates of flattened index e < 2^31 over dimensions [kFirst, kLast) of the domain of a program.
template <int kFirst, int kLast, int kDims>
ARK_DEVICE void unflatten_near(const abi::OpRecord& r, u32 e, i32 (&x)[kDims]) {
#pragma unroll
  for (int d = kLast - 1; d > kFirst; --d) {
    const u32 next = r.params.program.by[d].divide(e);
    x[d] = static_cast<i32>(e - next * static_cast<u32>(r.size[d]));
    e = next;
  }
  if constexpr (kLast > kFirst) x[kFirst] = static_cast<i32>(e);
}
/// Of any index.
template <int kFirst, int kLast, int kDims>
ARK_DEVICE void unflatten(const abi::OpRecord& r, i64 e, i32 (&x)[kDims]) {
  if (e >> 31 == 0) return unflatten_near<kFirst, kLast>(r, static_cast<u32>(e), x);
#pragma unroll
  for (int d = kLast - 1; d > kFirst; --d) {
    x[d] = e % r.size[d];
    e /= r.size[d];
  }
  if constexpr (kLast > kFirst) x[kFirst] = e;
}

}  // namespace ark::device
