#include "planner/verify/kinds/kinds.h"

#include "base/check.h"

namespace ark::planner {

extern const Reading kReadProgram, kReadFewRows, kReadMatmul, kReadAttention, kReadDecode, kReadMaskRange,
    kReadScatterSum, kReadRowSelect, kReadRowDraw;

const Reading& reading_of(abi::TaskKind kind) {
  using enum abi::TaskKind;
  switch (kind) {
    case kPointwise:
    case kRow:
    case kColumn:
      return kReadProgram;
    case kMatmulRows:
      return kReadFewRows;
    case kMatmulTile:
    case kMatmulFloat:
    case kMatmulSimple:
      return kReadMatmul;
    case kAttentionDecode:
      return kReadDecode;
    case kAttentionForward:
    case kAttentionBackwardRows:
    case kAttentionBackward:
    case kAttentionBackwardQuery:
    case kAttentionSimple:
      return kReadAttention;
    case kMaskRange:
      return kReadMaskRange;
    case kScatterSum:
      return kReadScatterSum;
    case kRowSelect:
      return kReadRowSelect;
    case kRowDraw:
      return kReadRowDraw;
    case kCount:
      break;
  }
  throw InternalError(cat("the verifier does not know task kind ", static_cast<int>(kind)));
}

}  // namespace ark::planner
