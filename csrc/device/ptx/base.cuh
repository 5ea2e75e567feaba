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

}  // namespace ark::device
