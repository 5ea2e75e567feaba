// Which rows a group of threads works on at once.
#pragma once
#include "device/abi/row_vectors.h"
#include "device/program/row_group.cuh"

namespace ark::device {

/// Rows first, first + groups, ... of an item, kRows of them. Groups of one warp take as many turns, since they reduce
/// by shuffles of whole warps: a row beyond the last is the last once more, read and computed but not stored.
template <class P>
struct RowPlaces {
  static constexpr int kRows = P::kRows;
  static constexpr bool kAllExist = P::kThreads >= 32 && kRows == 1;

  i32 row[kRows][P::kDims];  // coordinates of their first elements
  i32 count = 0;             // of the rows, that exist
  i32 begin[kRows];          // P::kEdges: elements before the first vector; 0 where rows are aligned

  ARK_DEVICE bool exists(int r) const { return kAllExist || r < count; }

  /// `first`: this group's; `groups` work beside each other on rows below `end`.
  ARK_DEVICE void start(const ProgramContext& c, i64 first, i64 end, int groups) {
    if constexpr (!kAllExist) count = abi::rows_before(first, end, groups, kRows);
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      const i64 number = first + r.value * groups;
#pragma unroll
      for (int d = 0; d < P::kDims; ++d) row[r.value][d] = 0;
      unflatten<0, P::kDims - P::kReduceDims>(*c.task.record, kAllExist ? number : min(number, end - 1), row[r.value]);
      if constexpr (P::kEdges && P::kChunks > 0) begin[r.value] = P::head(c, row[r.value]);
    });
  }
};

}  // namespace ark::device
