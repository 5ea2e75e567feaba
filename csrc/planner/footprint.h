// Which elements of a storage a tile may touch through one operand, as an interval that is affine in the tile's grid
// coordinates. Intervals are hulls: they cover everything that the tile touches and may cover more (a block of columns
// covers its whole rows). Dependences and counters are derived from these; planner/verify/regions.h, which the verifier
// uses, is exact and written independently.
#pragma once
#include <cstdint>
#include <vector>

#include "planner/fuse/fused.h"

namespace ark::planner {

/// Tile c touches elements [base + sum c[i] * step[i], ... + extent) of the storage, clipped to [first, last].
struct Footprint {
  int64_t base = 0;
  int64_t step[3] = {0, 0, 0};
  int64_t extent = 1;
  int64_t first = 0, last = 0;  // hull of all tiles
  /// Nonzero for a paired few-row matmul: the interval is exact only in blocks of so many elements (a unit's two
  /// columns lie pair distance apart), so counters must not be finer than this.
  int64_t granule = 0;
};

/// `access[operand]` must not be kParameters and the operand must have a storage. The grid must be set.
Footprint footprint(const plan::Op& op, const std::vector<Program>& programs, int operand, const Storage& storage);

/// True when no element can be touched through both (conservative: false means "perhaps"). Operands of the same
/// storage.
bool disjoint(const plan::Op& a, int operand_a, const plan::Op& b, int operand_b, const std::vector<Program>& programs,
              const Storage& storage);

/// True when values decide which elements are touched: indexed operands, the parts of an attention.
bool is_indirect(const plan::Op& op, const std::vector<Program>& programs, int operand);

}  // namespace ark::planner
