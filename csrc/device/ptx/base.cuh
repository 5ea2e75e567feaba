// What every file of inline assembly and everything above it shares.
#pragma once
#include "device/abi/abi.h"

namespace ark::device {

using abi::i32;
using abi::i64;
using abi::kTypeBF16, abi::kTypeBool, abi::kTypeF16, abi::kTypeF32, abi::kTypeF64, abi::kTypeI64, abi::kTypeI8;
using abi::u32;
using abi::u64;

#define ARK_DEVICE __device__ __forceinline__

/// Size of an element type (values of ark::DType).
ARK_DEVICE int element_bytes(int dtype) { return static_cast<int>(0x8422842111ull >> (4 * dtype) & 15); }
/// Its logarithm: elements by a shift, since a division by a number that is not known takes a hundred cycles and more.
ARK_DEVICE int element_shift(int dtype) { return static_cast<int>(0x3211321000ull >> (4 * dtype) & 15); }
/// Elements of a vector of V that one access moves: as many must be contiguous and aligned.
template <int V>
ARK_DEVICE int moved_at_once(int dtype) {
  const int most = 16 >> element_shift(dtype);
  return V < most ? V : most;
}

}  // namespace ark::device
