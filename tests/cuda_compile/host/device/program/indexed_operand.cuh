// Rows on the host reach no operand by indices.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

template <int V, int kIndices, class S, int kDims>
void store_irregular(const ProgramContext& c, int number, const i32 (&x)[kDims], const i64 (&a)[V], const i64 (&b)[V],
                     const bool (&predicate)[V], const Vec<S, V>& in);

}  // namespace ark::device
