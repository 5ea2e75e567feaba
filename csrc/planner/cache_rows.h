// Rows of a cache, and from which on an op stores: what the keys of a launch are that stood there before it.
#pragma once
#include <optional>
#include <vector>

#include "plan/plan.h"

namespace ark::planner {

/// A number in memory.
struct Scalar {
  uint32_t slot;
  int64_t offset;
  friend bool operator==(const Scalar&, const Scalar&) = default;
};

/// Element e of the buffer lies in row (e - offset) % span / stride, where (e - offset) % stride < width; with span 0
/// in row (e - offset) / stride.
struct CacheRows {
  int64_t offset, stride, span;
};

/// Rows of the keys or values of decode attention. None: its heads and batches do not lie apart.
std::optional<CacheRows> cache_rows(const plan::Op& attention, size_t operand);

/// Every store of the op through the operand goes to rows counted up from this scalar, an i64, or the scalar is
/// negative. None: not known.
std::optional<Scalar> stored_from(const plan::Op& op, const std::vector<Program>& programs, size_t operand,
                                  const CacheRows& rows);

}  // namespace ark::planner
