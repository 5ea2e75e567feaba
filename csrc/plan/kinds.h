// The table of task kinds: what planner, codegen, targets and texts have to know of a kind, said once. How to add one:
// docs/ARCHITECTURE.md. The verifier does not read it: it has words of its own (planner/verify/kinds).
#pragma once
#include <span>
#include <string>

#include "base/check.h"
#include "device/abi/roles.h"
#include "ir/program.h"

namespace ark::plan {

/// Kinds whose records hold the same parameters: X(family, member of abi::Params, its type). The switches over families
/// are made of it (plan/params.h, plan/json.cpp, targets/host/tasks/task.cpp).
#define ARK_FAMILIES(X)                         \
  X(kProgram, program, ProgramParams)           \
  X(kRows, rows, MatmulRowsParams)              \
  X(kMatmul, matmul, MatmulTileParams)          \
  X(kAttention, attention, AttentionParams)     \
  X(kMaskRange, mask_range, MaskRangeParams)    \
  X(kScatterSum, scatter_sum, ScatterSumParams) \
  X(kRowSelect, row_select, RowSelectParams)    \
  X(kRowDraw, row_draw, RowDrawParams)

#define ARK_FAMILY(family, member, Params) family,
enum class Family : uint8_t { ARK_FAMILIES(ARK_FAMILY) };
#undef ARK_FAMILY

/// How the kernel's body reaches a kind's consumers.
enum class Reach : uint8_t {
  kInline,          // part of the body
  kCall,            // a function of its own (device/loop/outline.cuh)
  kCallPerProgram,  // a function per program
  kPerForm,         // a case per form of few-row products, called where one op has it
};

/// What a dimension of an operand, or a coordinate of a grid, counts. Sizes and tiles: planner/extents.h.
enum class Axis : uint8_t {
  kNone,  // ends a list
  kBatch,
  kM,
  kN,
  kK,
  kUnit,
  kHead,
  kKvHead,
  kHeadPart,  // kv heads, each with the query heads that share it in parts
  kQuery,
  kKey,
  kHeadDim,
  kValueDim,
  kRangeBlock,
  kRangeValue,
  kPart,
  kPartRow,
  kMaxSum,
  kAllParts,
  kSelectWord,
  kSelectState,
  kSelectTop,
  kDrawListWord,
  kDrawMassWord,
  kOne,
};

/// What an op does with an operand.
enum class Access : uint8_t { kRead, kWrite, kReadWrite, kParameters /* numbers, no memory */ };

/// An operand that a task has by its kind.
struct Role {
  int number;  // device/abi/roles.h
  const char* name;
  Access access = Access::kRead;
  Axis axes[5] = {};
  bool mapped = false;  // read by a tensor map
};

/// Tiles per work item.
enum class Items : uint8_t {
  kOne,         // others wait for the results
  kPerWorker,   // as few items as give every worker one
  kSmallTiles,  // three items per worker: small tiles share the cost of an item
  kByBytes,     // a share of the bytes per worker
};
/// In which order tiles are visited.
enum class Order : uint8_t { kInLine, kQueryBlocks, kGroupsOfM };
/// What computes.
enum class Engine : uint8_t { kCudaCores, kFloat, kTensorCores };

/// What one tile takes, the others running beside it: a time of its own (first loads, last stores, report), its bytes
/// and its arithmetic at a share of a worker's part of the machine. Measured on an H200: decode of Llama-3.2-1B and
/// training of BERT-Large, docs/notes. Rows, attention of any type and products in tiles know better by their
/// sizes (planner/cost.cpp).
struct Rates {
  double seconds = 0.1e-6, bytes = 0.3, flops = 0.3;
};

struct Kind {
  abi::TaskKind kind;
  const char* type;    // the enumerator without its k, the device's struct; in snake case the printed name
  const char* header;  // device/<header>.cuh
  Family family;
  Reach reach = Reach::kInline;
  bool loads = false;                             // has loaders: pages of the ring
  ProgramKind program = ProgramKind::kPointwise;  // of the record's program (families kProgram, kMatmul)
  Axis grid[3] = {};                              // what the coordinates cut; none: the flattened domain
  std::span<const Role> roles = {};
  Items items = Items::kSmallTiles;
  Order order = Order::kInLine;
  Engine engine = Engine::kCudaCores;
  Rates rates = {};
};

// clang-format off
namespace roles {
using enum Axis;
using enum Access;
using A = abi::AttentionOperand;
using G = abi::AttentionGradOperand;
using D = abi::AttentionDeltaOperand;

inline constexpr Role kMatmul[] = {
    {abi::MatmulOperand::kA, "a", kRead, {kBatch, kM, kK}, true},
    {abi::MatmulOperand::kB, "b", kRead, {kBatch, kK, kN}, true},
};
inline constexpr Role kMatmulSimple[] = {
    {abi::MatmulOperand::kA, "a", kRead, {kBatch, kM, kK}},
    {abi::MatmulOperand::kB, "b", kRead, {kBatch, kK, kN}},
};
inline constexpr Role kDecode[] = {
    {A::kQ, "q", kRead, {kBatch, kHead, kQuery, kHeadDim}},
    {A::kK, "k", kRead, {kBatch, kKvHead, kKey, kHeadDim}},
    {A::kV, "v", kRead, {kBatch, kKvHead, kKey, kValueDim}},
    {A::kOut, "out", kWrite, {kBatch, kHead, kQuery, kValueDim}},
    {A::kLogSumExp, "logsumexp", kWrite, {kBatch, kHead, kQuery}},
    {A::kMask, "mask", kRead, {kBatch, kHead, kQuery, kKey}},
    {A::kRange, "range", kRead, {kBatch, kHead, kOne, kRangeValue}},
    {A::kPartsOut, "parts_out", kWrite, {kBatch, kKvHead, kPart, kPartRow, kValueDim}},
    {A::kPartsMaxSum, "parts_max_sum", kWrite, {kBatch, kKvHead, kPart, kPartRow, kMaxSum}},
    {A::kPosition, "position", kRead, {kOne}},
};
inline constexpr Role kForward[] = {
    {A::kQ, "q", kRead, {kBatch, kHead, kQuery, kHeadDim}, true},
    {A::kK, "k", kRead, {kBatch, kKvHead, kKey, kHeadDim}, true},
    {A::kV, "v", kRead, {kBatch, kKvHead, kKey, kValueDim}, true},
    {A::kOut, "out", kWrite, {kBatch, kHead, kQuery, kValueDim}},
    {A::kLogSumExp, "logsumexp", kWrite, {kBatch, kHead, kQuery}},
    {A::kMask, "mask", kRead, {kBatch, kHead, kQuery, kKey}},
    {A::kRange, "range", kRead, {kBatch, kHead, kRangeBlock, kRangeValue}},
};
inline constexpr Role kSimple[] = {
    {A::kQ, "q", kRead, {kBatch, kHead, kQuery, kHeadDim}},
    {A::kK, "k", kRead, {kBatch, kKvHead, kKey, kHeadDim}},
    {A::kV, "v", kRead, {kBatch, kKvHead, kKey, kValueDim}},
    kForward[A::kOut], kForward[A::kLogSumExp], kForward[A::kMask], kForward[A::kRange],
};
inline constexpr Role kDelta[] = {
    {D::kGradOut, "grad_out", kRead, {kBatch, kHead, kQuery, kValueDim}},
    {D::kOut, "out", kRead, {kBatch, kHead, kQuery, kValueDim}},
    {D::kDelta, "delta", kWrite, {kBatch, kHead, kQuery}},
};
inline constexpr Role kGrad[] = {
    {G::kQ, "q", kRead, {kBatch, kHead, kQuery, kHeadDim}, true},
    {G::kK, "k", kRead, {kBatch, kKvHead, kKey, kHeadDim}, true},
    {G::kV, "v", kRead, {kBatch, kKvHead, kKey, kValueDim}, true},
    {G::kGradOut, "grad_out", kRead, {kBatch, kHead, kQuery, kValueDim}, true},
    {G::kLogSumExp, "logsumexp", kRead, {kBatch, kHead, kQuery}},
    {G::kDelta, "delta", kRead, {kBatch, kHead, kQuery}},
    {G::kMask, "mask", kRead, {kBatch, kHead, kQuery, kKey}},
    {G::kRange, "range", kRead, {kBatch, kHead, kRangeBlock, kRangeValue}},
    {G::kGradQ, "grad_q", kWrite, {kBatch, kHead, kQuery, kHeadDim}},
    {G::kGradK, "grad_k", kWrite, {kBatch, kHeadPart, kKey, kHeadDim}},
    {G::kGradV, "grad_v", kWrite, {kBatch, kHeadPart, kKey, kValueDim}},
};
inline constexpr Role kMaskRange[] = {
    {abi::MaskRangeOperand::kMask, "mask", kRead, {kBatch, kHead, kQuery, kKey}},
    {abi::MaskRangeOperand::kRange, "range", kWrite, {kBatch, kHead, kRangeBlock, kRangeValue}},
};
inline constexpr Role kScatterSum[] = {
    {abi::ScatterSumOperand::kIndex, "index", kRead, {kK}},
    {abi::ScatterSumOperand::kSource, "source", kRead, {kK, kN}},
    {abi::ScatterSumOperand::kOut, "out", kWrite, {kM, kN}},
};
inline constexpr Role kRowSelect[] = {
    {abi::RowSelectOperand::kDistance, "distance", kRead, {kM, kN}},
    {abi::RowSelectOperand::kBound, "bound", kRead, {kM}},
    {abi::RowSelectOperand::kOut, "out", kWrite, {kM}},
    {abi::RowSelectOperand::kSumsBefore, "sums_before", kRead, {kM, kAllParts, kSelectWord}},
    {abi::RowSelectOperand::kStateBefore, "state_before", kRead, {kM, kPart, kSelectState}},
    {abi::RowSelectOperand::kSums, "sums", kWrite, {kM, kPart, kSelectWord}},
    {abi::RowSelectOperand::kState, "state", kWrite, {kM, kPart, kSelectState}},
    {abi::RowSelectOperand::kTops, "tops", kRead, {kM, kSelectTop}},
    {abi::RowSelectOperand::kMade, "made", kWrite, {kM, kN}},
    {abi::RowSelectOperand::kShare, "share", kRead, {kM}},
    {abi::RowSelectOperand::kCut, "cut", kWrite, {kM}},
};
inline constexpr Role kRowDraw[] = {
    {abi::RowDrawOperand::kValues, "values", kRead, {kM, kN}},
    {abi::RowDrawOperand::kNoise, "noise", kRead, {kM, kN}},
    {abi::RowDrawOperand::kShare, "share", kRead, {kM}},
    {abi::RowDrawOperand::kToken, "token", kWrite, {kM}},
    {abi::RowDrawOperand::kBest, "best", kWrite, {kM}},
    {abi::RowDrawOperand::kListsBefore, "lists_before", kRead, {kM, kAllParts, kDrawListWord}},
    {abi::RowDrawOperand::kLists, "lists", kWrite, {kM, kPart, kDrawListWord}},
    {abi::RowDrawOperand::kMassesBefore, "masses_before", kRead, {kM, kAllParts, kDrawMassWord}},
    {abi::RowDrawOperand::kMasses, "masses", kWrite, {kM, kPart, kDrawMassWord}},
};
}  // namespace roles

inline constexpr Kind kKinds[] = {
    {.kind = abi::TaskKind::kPointwise, .type = "Pointwise", .header = "program/pointwise", .family = Family::kProgram,
     .reach = Reach::kCallPerProgram, .program = ProgramKind::kPointwise, .rates = {0.6e-6, 0.9, 0.5}},
    {.kind = abi::TaskKind::kRow, .type = "Row", .header = "program/row", .family = Family::kProgram,
     .reach = Reach::kCallPerProgram, .program = ProgramKind::kRow, .rates = {2.5e-6, 0.95, 0.5}},
    {.kind = abi::TaskKind::kColumn, .type = "Column", .header = "program/column", .family = Family::kProgram,
     .reach = Reach::kCallPerProgram, .program = ProgramKind::kColumn, .rates = {3.5e-6, 0.9, 0.5}},
    {.kind = abi::TaskKind::kMatmulRows, .type = "MatmulRows", .header = "matmul/few_rows", .family = Family::kRows,
     .reach = Reach::kPerForm, .loads = true, .grid = {Axis::kUnit, Axis::kOne, Axis::kOne}, .items = Items::kByBytes,
     .engine = Engine::kTensorCores, .rates = {0.1e-6, 1.0, 0.5}},
    {.kind = abi::TaskKind::kMatmulTile, .type = "MatmulTile", .header = "matmul/tile", .family = Family::kMatmul,
     .loads = true, .program = ProgramKind::kEpilogue, .grid = {Axis::kBatch, Axis::kM, Axis::kN},
     .roles = roles::kMatmul, .items = Items::kOne, .order = Order::kGroupsOfM, .engine = Engine::kTensorCores,
     .rates = {0.1e-6, 0.61, 0.3}},  // bytes: weights of 8192 x 2048, 24 to 64 rows (sweep_loaders_few_rows.json)
    {.kind = abi::TaskKind::kMatmulFloat, .type = "MatmulFloat", .header = "matmul/float", .family = Family::kMatmul,
     .reach = Reach::kCallPerProgram, .loads = true, .program = ProgramKind::kEpilogue,
     .grid = {Axis::kBatch, Axis::kM, Axis::kN}, .roles = roles::kMatmul, .items = Items::kOne,
     .order = Order::kGroupsOfM, .engine = Engine::kFloat, .rates = {3e-6, 0.3, 0.3}},
    {.kind = abi::TaskKind::kMatmulSimple, .type = "MatmulSimple", .header = "matmul/simple", .family = Family::kMatmul,
     .reach = Reach::kCallPerProgram, .program = ProgramKind::kEpilogue, .grid = {Axis::kBatch, Axis::kM, Axis::kN},
     .roles = roles::kMatmulSimple, .rates = {3e-6, 0.3, 0.3}},
    {.kind = abi::TaskKind::kAttentionDecode, .type = "AttentionDecode", .header = "attention/decode",
     .family = Family::kAttention, .loads = true, .grid = {Axis::kBatch, Axis::kHeadPart, Axis::kPart},
     .roles = roles::kDecode, .items = Items::kOne, .engine = Engine::kTensorCores, .rates = {0.1e-6, 0.28, 0.3}},
    {.kind = abi::TaskKind::kAttentionForward, .type = "AttentionForward", .header = "attention/forward",
     .family = Family::kAttention, .loads = true, .grid = {Axis::kBatch, Axis::kHead, Axis::kQuery},
     .roles = roles::kForward, .items = Items::kOne, .order = Order::kQueryBlocks, .engine = Engine::kTensorCores,
     .rates = {0.1e-6, 0.3, 0.25}},
    {.kind = abi::TaskKind::kAttentionBackwardRows, .type = "AttentionBackwardRows", .header = "attention/backward",
     .family = Family::kAttention, .reach = Reach::kCall, .grid = {Axis::kBatch, Axis::kHead, Axis::kQuery},
     .roles = roles::kDelta, .items = Items::kPerWorker, .rates = {0.1e-6, 0.26, 0.5}},
    {.kind = abi::TaskKind::kAttentionBackward, .type = "AttentionBackward", .header = "attention/backward",
     .family = Family::kAttention, .loads = true, .grid = {Axis::kBatch, Axis::kHeadPart, Axis::kKey},
     .roles = roles::kGrad, .items = Items::kOne, .engine = Engine::kTensorCores, .rates = {0.1e-6, 0.3, 0.28}},
    {.kind = abi::TaskKind::kAttentionBackwardQuery, .type = "AttentionBackwardQuery", .header = "attention/backward",
     .family = Family::kAttention, .loads = true, .grid = {Axis::kBatch, Axis::kHead, Axis::kQuery},
     .roles = roles::kGrad, .items = Items::kOne, .order = Order::kQueryBlocks, .engine = Engine::kTensorCores,
     .rates = {0.1e-6, 0.3, 0.27}},
    {.kind = abi::TaskKind::kAttentionSimple, .type = "AttentionSimple", .header = "attention/simple",
     .family = Family::kAttention, .reach = Reach::kCall, .loads = true,
     .grid = {Axis::kBatch, Axis::kHead, Axis::kQuery}, .roles = roles::kSimple, .items = Items::kOne,
     .order = Order::kQueryBlocks, .rates = {3e-6, 0.3, 0.6}},
    {.kind = abi::TaskKind::kMaskRange, .type = "MaskRange", .header = "attention/mask_range",
     .family = Family::kMaskRange, .reach = Reach::kCall, .grid = {Axis::kBatch, Axis::kHead, Axis::kQuery},
     .roles = roles::kMaskRange},
    {.kind = abi::TaskKind::kScatterSum, .type = "ScatterSum", .header = "program/scatter_sum",
     .family = Family::kScatterSum, .reach = Reach::kCall, .grid = {Axis::kM, Axis::kN, Axis::kOne},
     .roles = roles::kScatterSum, .rates = {3e-6, 0.9, 0.5}},
    {.kind = abi::TaskKind::kRowSelect, .type = "RowSelect", .header = "program/row_select",
     .family = Family::kRowSelect, .reach = Reach::kCall, .grid = {Axis::kM, Axis::kPart, Axis::kOne},
     .roles = roles::kRowSelect, .items = Items::kOne, .rates = {1.5e-6, 0.9, 0.03}},
    {.kind = abi::TaskKind::kRowDraw, .type = "RowDraw", .header = "program/row_draw",
     .family = Family::kRowDraw, .reach = Reach::kCall, .grid = {Axis::kM, Axis::kPart, Axis::kOne},
     .roles = roles::kRowDraw, .items = Items::kOne, .rates = {1.5e-6, 0.9, 0.03}},
};
// clang-format on

/// Row i is kind i, role j of a row is number j.
consteval bool in_order() {
  int row = 0;
  for (const Kind& kind : kKinds) {
    if (static_cast<int>(kind.kind) != row++) return false;
    for (size_t i = 0; i < kind.roles.size(); ++i)
      if (kind.roles[i].number != static_cast<int>(i)) return false;
  }
  return row == static_cast<int>(abi::TaskKind::kCount);
}
static_assert(in_order(), "a row of kKinds, or a role of a row, stands in another place than its number says");

inline const Kind& kind_of(abi::TaskKind kind) {
  check(kind >= abi::TaskKind{} && kind < abi::TaskKind::kCount, "task kind ", static_cast<int>(kind), " of ",
        static_cast<int>(abi::TaskKind::kCount));
  return kKinds[static_cast<size_t>(kind)];
}
inline const Kind& kind_of(const abi::OpRecord& record) { return kind_of(record.kind); }

/// Whether the kernel's body holds no code of the kind: its registers are its own, and kernels may have it or not.
inline bool is_called(const Kind& kind) { return kind.reach == Reach::kCall || kind.reach == Reach::kCallPerProgram; }

}  // namespace ark::plan
