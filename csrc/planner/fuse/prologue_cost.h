// Prologue or op of its own? A few-row product computes its activation in every worker, which saves a hop between ops;
// of several rows that can take longer than an op whose rows are spread over the workers.
#pragma once
#include <cstdint>

#include "base/types.h"
#include "planner/costs.h"

namespace ark::planner {

/// Tensors that a prologue reads, with an element for each of its own (or of a row).
struct PrologueReads {
  int64_t tensors = 0;
  int64_t bytes = 0;  // of an element of each
  void add(DType dtype, int64_t count = 1) {
    tensors += count;
    bytes += count * size_bytes(dtype);
  }
};

/// What a prologue adds up along its rows: nothing; what the elements wait for; a factor that the epilogue multiplies
/// by, on the same walk; the same of squares, by words of two elements (row_factor.h).
enum class RowReduction : uint8_t { kNone, kBefore, kFactor, kSquares };

/// Seconds that the prologue of [m, k] takes beyond loading an activation that is there.
/// Measured (us, 16-bit tensors): 8 rows of 8192 of four tensors, twice through, 32 (H100; here 39); 8 and 16 rows of
/// 2048 of two, kept in registers, 2.8 and 6 (H200; 3.3 and 6.6). With a factor, 8 rows of 4096 and 16 of 2048 of two
/// take as long as an op of rows and 0.4 longer (5.5 both); of squares a quarter is reckoned. Eight rows are worked on
/// together: sizes that share a kernel have the same ops. One row has another form.
inline double prologue_seconds(const Costs& costs, int64_t m, int64_t k, const PrologueReads& reads,
                               RowReduction reduction) {
  if (m <= 1) return 0;
  // A thread keeps what it has read for the second pass where 112 registers take it (RowsReduction::kKeeps): k / 256
  // times 8 elements of each tensor.
  constexpr int64_t kKeptBytes = 112 * 4 * 32;  // k / 256 * 8 = k / 32
  const bool before = reduction == RowReduction::kBefore;
  const int passes = before && k * reads.bytes > kKeptBytes ? 2 : 1;
  double turns = static_cast<double>(reads.tensors * passes);  // over all elements
  if (before) turns += 1;
  if (reduction == RowReduction::kFactor) turns += 0.5;
  if (reduction == RowReduction::kSquares) turns /= 4;
  const int64_t rows = (m + 7) / 8 * 8;
  return static_cast<double>(rows * k) * turns * costs.prologue_element;
}

}  // namespace ark::planner
