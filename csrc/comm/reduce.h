// Element-wise reduction over the ranks' copies of a range, in rank order: the same bits on every rank and in every
// run.
#pragma once
#include <cstddef>
#include <span>
#include <string_view>

#include "base/types.h"

namespace ark::comm {

enum class Reduction : uint8_t { kSum, kProduct, kMin, kMax, kAverage, kBitAnd, kBitOr, kBitXor };
std::string_view name(Reduction op);

/// dst[i] = op over sources of source[i]. bf16 and f16 accumulate in f32; kAverage divides by the number of sources
/// (integers truncate). bool: sum and max are or, product and min are and. dst may be one of the sources. Throws
/// UnsupportedError for bit operations on floats and for the average of bool.
void reduce(void* dst, std::span<const void* const> sources, size_t count, DType dtype, Reduction op);

}  // namespace ark::comm
