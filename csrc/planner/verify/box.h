// Boxes of strided runs of bytes, and whether two of them meet.
#pragma once
#include <cstdint>

namespace ark::planner {

/// The bytes begin + sum i[d] * stride[d] + [0, width) for all 0 <= i[d] < count[d]. Normalised: strides positive and
/// descending, no count of 1, no dimension that continues the one inside it.
struct Box {
  static constexpr int kMaxBoxDims = 8;
  struct Dim {
    int64_t count, stride;
  };
  int64_t begin = 0, width = 0;
  int num_dims = 0;
  Dim dims[kMaxBoxDims];

  /// One past the last byte.
  int64_t end() const;
};

enum class Overlap : uint8_t { kNo, kYes, kUnknown /* the hulls meet and the strides do not compare */ };
Overlap overlap(const Box& a, const Box& b);

}  // namespace ark::planner
