// What the verifier knows of each kind of task: what it does with its operands, which bytes its tiles touch, which
// coordinates its tiles cut, what a record of it must fulfil. Read from records and the names of operands
// (device/abi/roles.h) alone, apart from the planner's table (plan/kinds.h), so that a mistake in either shows.
#pragma once
#include <optional>
#include <vector>

#include "plan/operand_uses.h"
#include "planner/verify/emitter.h"
#include "planner/verify/record_check.h"
#include "planner/verify/tile_block.h"

namespace ark::planner {

using plan::OperandUse;

/// A block of tiles and an operand of their op.
struct Region {
  const plan::Op& op;
  const std::vector<Program>& programs;
  int operand;
  const OperandUse& use;
  const TileBlock& tiles;
  const abi::Operand& x() const { return op.operands[static_cast<size_t>(operand)]; }
};

/// `count` elements, `stride` apart.
struct Dim {
  int64_t count, stride;
};
using Dims = std::vector<Dim>;

struct Reading {
  /// Marks the operands that are read and written.
  void (*uses)(const plan::Op& op, const std::vector<Program>& programs, std::vector<OperandUse>& uses);
  /// The boxes of a region.
  void (*region)(const Region& region, BoxEmitter& emitter);
  /// The coordinates that an operand's elements belong to, cut by the tiles into parts that do not meet; none: they
  /// may meet, or it is not known. No region, as no tile is asked for: `tiles` is the whole grid.
  std::optional<Dims> (*coordinates)(const Region& region);
  /// Throws where the record does not say what a task of its kind needs.
  void (*record)(const RecordCheck& check);
  /// Throws where tiles [first, first + count) cannot be one item; null: any can.
  void (*item)(const RecordCheck& check, int64_t first, int64_t count) = nullptr;
};

/// Throws InternalError for a kind that the verifier does not know.
const Reading& reading_of(abi::TaskKind kind);

/// Calls emit(first, last) for the runs of consecutive tiles that make up a block.
template <class Emit>
void tile_runs(const abi::OpRecord& r, const TileBlock& c, const Emit& emit) {
  const bool whole2 = c.count[2] == r.grid[abi::GridAxis::kInner],
             whole1 = whole2 && c.count[1] == r.grid[abi::GridAxis::kMiddle];
  const int64_t runs0 = whole1 ? 1 : c.count[0], runs1 = whole2 ? 1 : c.count[1];
  for (int64_t i = 0; i < runs0; ++i)
    for (int64_t k = 0; k < runs1; ++k) {
      const int64_t c0 = c.first[0] + i, c1 = c.first[1] + k;
      const int64_t last0 = whole1 ? c.last(0) : c0, last1 = whole2 ? c.last(1) : c1;
      emit((c0 * r.grid[abi::GridAxis::kMiddle] + c1) * r.grid[abi::GridAxis::kInner] + c.first[2],
           (last0 * r.grid[abi::GridAxis::kMiddle] + last1) * r.grid[abi::GridAxis::kInner] + c.last(2));
    }
}

}  // namespace ark::planner
