// Which bytes of a buffer a tile touches through one operand: exact, as boxes of strided runs. This is the meaning of a
// tile number for every task kind, written down once for the verifier (planner/verify/kinds); the planner derives waits
// from its own footprints (planner/footprint.h), so that a mistake in either shows.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/operand_uses.h"
#include "plan/plan.h"

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

using plan::OperandUse;
/// What an op does with its operands, by the verifier's own reading of its kind. Parallel to op.operands; entries that
/// hold parameters, and absent ones, are not used.
std::vector<OperandUse> read_uses(const plan::Op& op, const std::vector<Program>& programs);

/// Appends the boxes that tile `tile` touches through operand `operand`, relative to the slot's address. What is chosen
/// by values is all of the buffer; what a predicate guards is clipped to it.
void tile_region(const plan::Op& op, const std::vector<Program>& programs, int operand, const OperandUse& use,
                 int64_t tile, int64_t buffer_bytes, std::vector<Box>& boxes);

/// The tiles first[i] <= c[i] < first[i] + count[i] of a grid.
struct TileBlock {
  int64_t first[3], count[3];
  int64_t last(int i) const { return first[i] + count[i] - 1; }
  bool empty() const { return count[0] <= 0 || count[1] <= 0 || count[2] <= 0; }
};
inline TileBlock whole_grid(const abi::OpRecord& r) { return {{0, 0, 0}, {r.grid[0], r.grid[1], r.grid[2]}}; }
inline TileBlock block_of_tile(const abi::OpRecord& r, int64_t tile) {
  return {{tile / r.grid[2] / r.grid[1], tile / r.grid[2] % r.grid[1], tile % r.grid[2]}, {1, 1, 1}};
}
/// The same for all tiles of a block; between its tiles' boxes it may hold bytes that none of them touches.
void block_region(const plan::Op& op, const std::vector<Program>& programs, int operand, const OperandUse& use,
                  const TileBlock& block, int64_t buffer_bytes, std::vector<Box>& boxes);

/// Tiles of an op.
inline int64_t tiles_of(const abi::OpRecord& record) { return plan::num_tiles(record); }

}  // namespace ark::planner
