// Numbers of the operands that a task has by its kind, shared by host and device. The operands of its programs follow
// them, or are all there is. What each holds and its dimensions: device/abi/abi.h at the parameters of the family, and
// the table of kinds (plan/kinds.h).
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

/// kMatmulTile, kMatmulFloat, kMatmulSimple. kOwn and kB2 only where MatmulTileParams::own_rows and ::gated say so.
struct MatmulOperand {
  enum : i32 { kA, kB, kCount, kOwn = kCount, kB2 = kCount };
};

/// kAttentionForward and kAttentionSimple have those up to kRange, kAttentionDecode all; kPosition only where its keys
/// are a cache.
struct AttentionOperand {
  enum : i32 { kQ, kK, kV, kOut, kLogSumExp, kMask, kRange, kPartsOut, kPartsMaxSum, kPosition, kCount };
};

/// kAttentionBackward and kAttentionBackwardQuery.
struct AttentionGradOperand {
  enum : i32 { kQ, kK, kV, kGradOut, kLogSumExp, kDelta, kMask, kRange, kGradQ, kGradK, kGradV, kCount };
};

/// kAttentionBackwardRows.
struct AttentionDeltaOperand {
  enum : i32 { kGradOut, kOut, kDelta, kCount };
};

/// kMaskRange.
struct MaskRangeOperand {
  enum : i32 { kMask, kRange, kCount };
};

/// kScatterSum.
struct ScatterSumOperand {
  enum : i32 { kIndex, kSource, kOut, kCount };
};

/// kRowSelect. Sums and states of the op before, and those for the op behind; what makes distances of values, and they;
/// a share of what is found, and the cut that it asks for.
struct RowSelectOperand {
  enum : i32 { kDistance, kBound, kOut, kSumsBefore, kStateBefore, kSums, kState, kTops, kMade, kShare, kCut, kCount };
};

/// kRowDraw. Lists and masses of the op before, and those for the op behind.
struct RowDrawOperand {
  enum : i32 { kValues, kNoise, kShare, kToken, kBest, kListsBefore, kLists, kMassesBefore, kMasses, kCount };
};

/// Of Opcode::kLoadParts, counted from the instruction's operand. kSizes has no slot: its strides are the numbers.
struct PartsOperand {
  enum : i32 { kValues, kMaxSum, kRange, kSizes, kPosition, kCount };
};
/// Where kSizes (but for the last) and kPosition (the last) hold their numbers.
struct PartsNumber {
  enum : i32 { kParts, kRows, kValueDim, kPositionsPerPart, kKeys, kKvHeads, kQueries = 5 };
};

/// Queries per entry of a mask range, and values of an entry: first visible key, one past the last, and the interval
/// of keys whose scores the mask leaves as they are.
inline constexpr i32 kRangeBlock = 128;
inline constexpr i32 kRangeValues = 4;

}  // namespace ark::abi
