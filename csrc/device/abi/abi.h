// The plan as the loop kernel reads it: plain structs shared by the planner, the host target and the device code.
// Compiled by the host compiler and by NVRTC: no standard headers here.
//
// A plan is a blob of op records, a list of work items per worker, a table of slots (addresses, given anew at every
// launch) and a run state in device memory (epoch, counters). Workers walk their lists in order. A tile waits for the
// counters of the tiles that it reads, runs, and adds 1 to its own counters.
//
// Attention's backward is three kinds, every one deterministic and without any shared accumulation:
// kAttentionBackwardRows (delta), kAttentionBackward (dk, dv of a key block, summed over the query heads of the group)
// and kAttentionBackwardQuery (dq of a query block, by computing the scores again). What each needs of operands, grids
// and maps stands at AttentionParams.
#pragma once

#include "device/abi/divisor.h"
#include "device/abi/row_draw.h"

#ifdef __CUDACC__
#define ARK_HOST_DEVICE __host__ __device__
#else
#define ARK_HOST_DEVICE
#endif

namespace ark::abi {

using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// Element types: ark::DType (plan/pack.cpp compares).
inline constexpr i32 kTypeBool = 0, kTypeU8 = 1, kTypeI8 = 2, kTypeI16 = 3, kTypeI32 = 4, kTypeI64 = 5, kTypeF16 = 6,
                     kTypeBF16 = 7, kTypeF32 = 8, kTypeF64 = 9;

inline constexpr int kMaxDims = 6;
inline constexpr int kMaxWaits = 6;
inline constexpr int kMaxArrivals = 2;
inline constexpr int kMaxSegments = 3;
inline constexpr int kMaxRecordBytes = 2048;
// kMatmulRows of 16 bits, of fp32: rows of the activation
inline constexpr int kMostFewRows = 16, kMostFewFloatRows = 8;
// kMatmulRows: weight rows (units * lanes) of an item whose sums wait in shared memory
inline constexpr int kMaxRowsPerItem = 128;
// kMatmulRows: a page of short rows is not filled: sums are kept for all rows of a page, whether the item has them
// or not
inline constexpr int kMaxRowsPerPage = kMaxRowsPerItem / 2;
// kMatmulRows of 16 bits with several rows of the activation (device/matmul/few_rows_strips.cuh): strips of 16 weight
// rows, in pages of 4 rows by 2048 of k, or 8 by 1024 where rows are that short.
inline constexpr int kStripRows = 16, kStripPageElements = 8192;
#ifdef __CUDACC__
#define ARK_ABI_BOTH __host__ __device__
#else
#define ARK_ABI_BOTH
#endif
ARK_ABI_BOTH constexpr int strip_page_rows(int k) { return k <= 1024 ? 8 : 4; }
/// Of k, elements of a page, and pages that follow each other along a row.
ARK_ABI_BOTH constexpr int strip_page_k(int k) { return kStripPageElements / strip_page_rows(k); }
ARK_ABI_BOTH constexpr int strip_slices(int k) { return k <= 1024 ? 1 : (k + 2047) / 2048; }
/// From row to row of a page in shared memory: a multiple of 128 bytes. Rows of one slice lie as they may in memory.
ARK_ABI_BOTH constexpr int strip_row_bytes(int k) {
  return 2 * (strip_slices(k) == 1 && k % 64 == 0 ? k : strip_page_k(k));
}
/// Ranges of k that an item walks one after the other: a thread keeps 128 registers of the activation.
ARK_ABI_BOTH constexpr int strip_windows(int m, int k) {
  const int registers = strip_page_k(k) / 64 * ((m + 7) / 8);  // of a slice
  return (strip_slices(k) * registers + 127) / 128;
}
// The same with weights [k][n] (device/matmul/few_rows_columns.cuh): strips of 8, 16, 32 or 64 columns of a lane, in
// pages of these columns by so many k that they are full. Slices of k have kColumnSliceK, whatever the width. Of one
// row the activation lies in shared memory as a whole.
inline constexpr int kLeastColumns = 8, kMostColumns = 64, kColumnSliceK = 512, kColumnBoxK = 256,
                     kMostColumnsOneRowK = 11264;
inline constexpr int kMostWindows = 4;  // of k, in all few-row products: each is code of its own
ARK_ABI_BOTH constexpr int column_page_k(int columns) { return kStripPageElements / columns; }
ARK_ABI_BOTH constexpr int column_pages(int k, int columns) {
  return (k + column_page_k(columns) - 1) / column_page_k(columns);
}
ARK_ABI_BOTH constexpr int column_slices(int k) { return (k + kColumnSliceK - 1) / kColumnSliceK; }
ARK_ABI_BOTH constexpr int column_windows(int m, int k) {
  return m == 1 ? 1 : (column_slices(k) * (kColumnSliceK / 64) * ((m + 7) / 8) + 127) / 128;
}
/// The widest strip whose sums fit beside the rest of the scratch memory: of one lane or of each of two.
ARK_ABI_BOTH constexpr int most_columns(int m, int lanes) { return (m == 1 ? kMostColumns : m <= 8 ? 32 : 16) / lanes; }
/// Byte of k `row`, columns [8 chunk, 8 chunk + 8), in a page: lines are swizzled as TMA does it by the box's width.
ARK_ABI_BOTH constexpr int column_byte(int columns, int row, int chunk) {
  const int byte = row * columns * 2;
  return byte + ((chunk ^ (byte >> 7 & (columns / 8 - 1))) << 4);
}
inline constexpr u32 kNoSlot = 0xffffffffu;    // Operand::slot of an operand that is not there
inline constexpr u32 kFlagSlot = 0xfffffffeu;  // Operand::slot: flagged words (planner/flag_words.h); offset counts
                                               // words behind LaunchHeader::counters, then it is their address
// In Operand::slot and TensorMapPatch::slot, beside the number: a box of an exchange, and of which of the plan's
// groups. Odd launches have boxes of their own, `box_bytes` of the group behind the slot's address.
inline constexpr u32 kBoxSlot = 0x80000000u;
inline constexpr int kBoxGroupShift = 16;
inline constexpr u32 kSlotNumber = (1u << kBoxGroupShift) - 1;
inline constexpr int kMostPlanRanks = 8;   // of a group of a plan with exchanges
inline constexpr int kMostPlanGroups = 8;  // of a plan
// In Wait::counter and Arrive::counter with a rank stride, as the kernel reads them, and in what a wait for them says:
// the group stands above the counter's number, which counts from the group's first one (plan/as_run.h).
inline constexpr int kCounterGroupShift = 28;
inline constexpr u32 kCounterNumber = (1u << kCounterGroupShift) - 1;
inline constexpr int kCounterStride = 32;  // u32 words between counters: one 128-byte line each

/// What a tile does. A generated kernel contains the kinds (and programs) that its plan needs, nothing else.
enum class TaskKind : i32 {
  kPointwise,  // program over `tile` consecutive elements of the flattened domain
  kRow,        // row program; tile = a block of rows
  kColumn,     // column program; tile = (split of the reduced range, block of kept columns); partial sums if splits > 1
  kMatmulRows,        // few rows (m <= kMostFewRows): weights stream through the ring; tile = a unit (a column of the
                      // output or a pair)
  kMatmulTile,        // tensor cores, wgmma + TMA; tile = (batch, m block, n block)
  kMatmulFloat,       // fp32, CUDA cores, TMA; tile = (batch, m block, n block)
  kMatmulSimple,      // any type, stride and size, on the CUDA cores; tile = (batch, m block, n block)
  kAttentionDecode,   // few queries against a cache; tile = (batch, kv head, part)
  kAttentionForward,  // tile = (batch, head, query block)
  kAttentionBackwardRows,   // delta = rowsum(dout * out); tile = (batch, head, query block)
  kAttentionBackward,       // dk, dv for a key block; tile = (batch, kv head, key block)
  kAttentionBackwardQuery,  // dq for a query block; tile = (batch, head, query block)
  kAttentionSimple,         // any type, size and stride, forward; tile = (batch, head, query block)
  kMaskRange,               // first and one past last visible key per (batch, head, query block); tile = a query block
  kScatterSum,              // rows summed by index; tile = (block of rows, block of columns)
  kRowSelect,               // how far the nearest of a row go; tile = (row, part of it)
  kRowDraw,                 // what is drawn from the nearest of a row; tile = (row, part of it)
  kCount,
};

/// A strided tensor. Address of element x = slots[slot] + (offset + sum x[d] * stride[d]) * size_bytes(dtype).
/// With `index_operand` >= 0 the operand entry of that number holds, in stride[0..1], the strides (elements) of the
/// index registers of the instruction (Instr::a/b of a Load, b/c of a Store), in stride[2..3] the extents they must lie
/// in (negative indices count from the end; out of range: the read gives NaN or 0, the write is dropped, the error word
/// is set), in stride[4..5] numbers of the program (planner/tile/share_programs.h).
struct Operand {
  u32 slot;
  short dtype;  // ark::DType
  /// Elements of the innermost dimension that may be moved at once (1, 2, 4, 8): contiguous, and aligned at multiples;
  /// in a pointwise domain of rows that no vector divides, where the others that have one are.
  signed char vector;
  signed char index_operand;
  i64 offset;
  i64 stride[kMaxDims];
};
static_assert(sizeof(Operand) == 64);

/// Before a tile with grid coordinates c (c[0] slowest) runs: rows [r, r + extent) with r = base + sum c[i] * coef[i],
/// clipped to [0, limit), fall on counters counter + row / div; each must have reached its target for this run.
/// Every counter's target is `target`, the last one's (row limit - 1) is `last_target`. With `rank_stride` the wait is
/// for an exchange between ranks: rank r counts on counters that lie r * rank_stride behind, and those of all ranks
/// must have reached their targets.
struct Wait {
  u32 counter;
  i32 base, coef[3], extent, div, limit;
  u32 target, last_target;
  i32 role;         // WaitRole: who has to wait
  i32 rank_stride;  // 0: counters of this rank alone
};
static_assert(sizeof(Wait) == 48);

/// kAll: everything but what is read before the waits (plan/early_reads.h). kFresh: only what the task reads of rows
/// appended in this launch (KV cache). kSource: a wait for an exchange of a product with own rows
/// (MatmulTileParams::own_rows): a tile of batch b waits for the counters of rank b alone, and one of the own rank's
/// batch not at all.
/// kFresh is no second word for early bits: these say of a use what needs no wait, it says of a wait that nothing but
/// the rest of that use needs it. Without it a wait for appended rows would count as one that all of the task's uses
/// stand behind, which tiles that read no such rows do not keep: who follows them may not rely on it.
enum class WaitRole : i32 { kAll, kFresh, kSource };

/// After the tile: add 1 to each counter that its rows fall on (same map as Wait).
struct Arrive {
  u32 counter;
  i32 base, coef[3], extent, div, limit;
};
static_assert(sizeof(Arrive) == 32);

/// kMatmulRows: columns of the output that share a weight and an epilogue (q, k and v are three segments of one op).
struct Segment {
  i32 first_unit, num_units;
  i32 column;                  // output column (of this segment's own output domain) of first_unit, normally 0
  i32 weight, weight2;         // operands (dims n, k); weight2: of gated ones, else weight again
  i32 program, first_operand;  // epilogue
  i32 pad;
};

struct MatmulRowsParams {
  i32 m, k, num_units, num_segments;
  i32 lanes;                       // output columns per unit: 1 or 2
  i32 pair_distance;               // lanes 2, not gated: unit u = columns ((u / p) * 2p + u % p) and + p
  i32 gated;                       // lanes 2: unit u = column u of weight and of weight2 (Root 0 and 1)
  i32 prologue, prologue_operand;  // program that yields the activation (m, k); its first operand
  i32 weights_immutable;           // may be loaded ahead of every wait; set by plan::run_op, as are the like below
  i32 dtype;                       // ark::DType of weights and activation (bf16 or f16: tensor cores; else CUDA cores)
  i32 form;     // which of the kernel's forms of few-row products this is (plan/few_rows_form.h); set by plan::run_op
  i32 columns;  // weights [k][n] (16 bits): columns of a strip and lane, a width of column_page_k; else 0
  i32 map[2 * kMaxSegments];  // columns: tensor maps of the segments' weights, gated: then of their second weights
  Segment segment[kMaxSegments];
};

/// Small tiles of kMatmulTile: rows and columns, k of a step, and of a block of k.
inline constexpr int kSmallTile = 64, kSmallTileK = 128, kSmallTileBlock = 64;

/// kMatmulTile, kMatmulFloat, kMatmulSimple: c[b, m, n] = sum_k a[b, m, k] * b[b, k, n]; operands 0 (a: dims b, m, k)
/// and 1 (b: dims b, k, n). kMatmulTile: bf16 or f16, tile_m 128, tile_n 128 or 256, tile_k 64, or small tiles of 64 x
/// 64, tile_k 128. Tensor maps of rank 3, innermost first: (k, rows, batch) with box (64, 128, 1) for a k-major
/// operand, (rows, k, batch) with box (64, 64, 1) for the other; rows are m of a, n of b. Of small tiles, whose k is
/// whole blocks of 64: (64, rows, block, batch) with box (64, 64, 2, 1), and (rows, k, batch) with box (64, 128, 1).
/// TMA wants addresses and strides of 16 bytes' alignment (else kMatmulSimple). pair_distance divides 64 (a pair lies
/// in one block of 128 columns), of small tiles 32. kMatmulFloat: f32, tile_m and tile_n 64 or 128, tile_k 32, boxes
/// (32, 64, 1) and (64, 32, 1). kMatmulSimple: tile_m 64, tile_n 64, no maps. Of both, pair_distance divides 32.
/// Grid: (batch, m blocks, n blocks).
/// With own_rows (kMatmulTile of several ranks) batch b of a is what rank b has sent. The own rank's batch is read
/// where that rank has it: operand 2 (dims b, m, k; its stride along b is 0), through map_own. Lists give batches as
/// distances from the own rank (turned_tile).
/// Gated (small tiles alone, without own rows and pairs): the sums of a with a second weight as well, operand 2 (as b,
/// through the map behind map_b), are the epilogue's Root 1. Boxes of both weights have 64 k then,
/// (64, 64, 1, 1) and (64, 64, 1).
struct MatmulTileParams {
  i32 batch, m, n, k;
  i32 tile_m, tile_n, tile_k;
  i32 map_a, map_b;            // tensor maps (not kMatmulSimple)
  i32 map_own;                 // right behind them: all three are made ready at once (tile.cuh)
  i32 a_k_major, b_k_major;    // 1: k is the contiguous dimension
  i32 b_immutable;             // B may be loaded ahead of every wait
  i32 program, first_operand;  // epilogue
  i32 pair_distance;
  i32 dtype;
  i32 a_immutable;
  i32 own_rows;
  i32 gated;
};

/// tile_q of kAttentionSimple. kMmaQueries: bf16 or f16 on the tensor cores, head_dim and value_dim multiples of 8 up
/// to 256, rows of q, k and v readable by 16 bytes, a mask of at most 4 bytes an element. On the CUDA cores: anything.
inline constexpr i32 kMmaQueries = 128, kTiledQueries = 64, kTiledQueriesF64 = 32;
/// Of forward, backward and backward query.
inline constexpr i32 kMostHeadDim = 128;
/// Of decode.
inline constexpr i32 kLeastDecodeDim = 64, kMostDecodeDim = 256;
constexpr bool is_decode_dim(i64 dim) { return dim % 16 == 0 && dim >= kLeastDecodeDim && dim <= kMostDecodeDim; }

/// What a mask does to a score: hides it where it is false, or is added.
struct MaskKind {
  enum : i32 { kNone, kBool, kAdded };
};

/// Attention. Operands in order: decode and forward: q, k, v, out, logsumexp (slot kNoSlot: none), mask, range; decode
/// adds parts_out f32 [batch, kv head, part, group * queries, dv] and parts_ml f32 [.., 2] when parts > 1. Backward and
/// backward query: q, k, v, dout, logsumexp, delta, mask, range, dq, dk, dv: the first writes dk and dv, the second dq;
/// what is not written or absent has slot kNoSlot. Backward rows: dout, out, delta (f32, dims b, h, s). dims of q, out,
/// dout, dq: b, h, s, d; of k, v, dk, dv: b, g, t, d; of logsumexp, delta: b, h, s; of mask: b, h, s, t (stride 0 where
/// it broadcasts); range i32: b, h, query block of 128, 4. Forward, backward and backward query (tensor cores): bf16 or
/// f16, head_dim == value_dim, a multiple of 8 up to kMostHeadDim, tile_q = tile_k = 128; tensor maps of rank 4,
/// innermost first, (d, s or t, head, batch), box (64, 64, 1, 1), in the order q, k, v, dout (forward: the first
/// three). Grids: forward, backward rows, backward query (batch, heads, ceil(queries / 128)); backward (batch,
/// kv_heads * head_parts, ceil(keys / 128)), dk and dv with as many heads (g) as the grid. Simple: any type, size and
/// stride, grid (batch, heads, ceil(queries / tile_q)), see kMmaQueries.
struct AttentionParams {
  i32 batch, heads, kv_heads, queries, keys, head_dim, value_dim;
  i32 causal;              // query s sees keys <= s + (keys - queries) .. see causal_offset
  i32 causal_offset;       // visible: key <= query + causal_offset
  i32 mask_kind;           // MaskKind
  i32 parts;               // decode: at most so many parts per kv head
  i32 positions_per_part;  // decode: parts used = clamp(ceil(visible / positions_per_part), 1, parts)
  i32 fresh_operand;  // decode: AttentionOperand::kPosition, the i64 scalar below which no op before writes rows of the
                      // cache, or -1. Follows from the early bits, which a record has not; set by plan::run_op
  i32 tile_q, tile_k;
  i32 map[8];  // tensor maps of q, k, v, dout, ...
  i32 dtype;
  float scale;
  i32 head_parts;     // backward: the query heads of a kv head in so many parts, with a dk and a dv each; 0: as 1
  i32 tiles_at_once;  // decode: 2: of an item's tiles two are done side by side, one by each warpgroup; else one by all
};

/// kMaskRange: operand 0 mask (dims b, h, s, t), operand 1 out i32 [b, h, query blocks, 4]: first visible key, one past
/// the last; [third, fourth): keys whose scores the mask leaves as they are for the whole block, it is not read there.
struct MaskRangeParams {
  i32 batch, heads, queries, keys, block, mask_kind /* MaskKind */, dtype, pad;
};

/// kScatterSum: out[r, c] = the sum of source[t, c] over all t < terms with index[t] == r; an index out of [0, rows),
/// or `without`, adds nothing. Operands index (dims t), source (t, c), out (r, c). A tile is tile_rows rows, a power of
/// two, of lanes * vector columns. dtype: of source and out, a floating-point type; summed in f32, f64 in f64.
struct ScatterSumParams {
  i32 rows, columns, terms;
  i32 tile_rows;
  i32 lanes;   // threads along a row: kScatterLanes of them, or kScatterFewLanes
  i32 vector;  // elements that a thread moves at once: 1, or those of 16 bytes
  i32 dtype, index_dtype;
  i64 without;
};
inline constexpr i32 kScatterLanes = 32, kScatterFewLanes = 8, kScatterMostRows = 256,
                     kScatterMostTerms = 2048;  // of a list

/// kRowSelect: out[r] as ir::OpKind::kRowSelect says, found a digit a round. An element's digit is its bin; only those
/// count whose higher bits have been found. Op `round` chooses the digit of the round before and counts its own; op
/// kSelectLast has one tile a row, chooses the digit before the last one and finds that one by itself: from the marks
/// of the bin, or in the elements of the parts that have some there. With `parts` 1 a single op does it all, a tile is
/// a row. `part`: elements of a part, a multiple of 4; the last one may be shorter. `vector`: elements that a thread
/// moves at once, 1 or 4. by_mass 1: the bound is f32, a share; 0: i64, a number of elements.
/// Operands distance f32 (dims r, n), bound (r), out i64 (r), and between ops: sums i32 (r, part, kSelectWords), of
/// groups of 32 bins (as f32), then of the bins, then (round kSelectLast - 1) the bins' marks, which of the lower bits
/// are 1 in some of their elements and, kSelectMarkBits above, which are 0; state i64 (r, part, kSelectState): the bits
/// found, and as bits of f64 what is outside of them (elements before, or mass behind), and the limit. With `tops`
/// above 0, which round 0 of several parts may have, the row's top is the largest of so many maxima (f32, dims r, top;
/// a NaN is larger than all), `distance` holds values, and top - value goes to `made` (f32, dims r, n).
/// With `listed` 1, which elements counted in parts with tops may have, there are rounds 0 and kSelectLast only, both
/// with the bound, and no state; sums are i32 (r, part, kSelectListWords): how many elements of the part may be asked
/// for, as near as the bound's of the best ones (and kSelectAllNear, where that is whatever is not farthest), then how
/// many steps away they are. One tile a row finds the answer among them; where they are too many or too few, in the
/// row. Round kSelectLast may have a share (f32, r) and a cut (i64, r) beside, what a select by mass finds among the
/// elements that are no farther than the answer; what is kSelectFarthest away has no mass there.
/// Masses count in units of 2^-kSelectMassBits, relative to the low end of the bin (round 0; a group of bins: of its
/// first) or of the bits found (later), at least one unit; what is kSelectMassless away has none.
struct RowSelectParams {
  i32 rows, size;
  i32 vector, by_mass;
  i32 round, parts, part, tops;
  i32 listed;
};
inline constexpr i32 kSelectBits = 28, kSelectFarthest = (1 << kSelectBits) - 16;  // steps; the most that f32 holds
inline constexpr float kSelectSteps = 4194304.0f;                                  // to a distance of 1
inline constexpr i32 kSelectMost = 1 << 22;                                        // elements of a row
inline constexpr i32 kSelectRounds = 3, kSelectLast = kSelectRounds - 1, kSelectMarkBits = 8;
inline constexpr i32 kSelectGroups = 32, kSelectBins = 1024, kSelectState = 3,
                     kSelectWords = kSelectGroups + 2 * kSelectBins;
inline constexpr i32 kSelectMostParts = 1024;
inline constexpr i32 kSelectListWords = 64, kSelectLeastTops = 64, kSelectMostTops = 256;  // of selects with lists
inline constexpr u32 kSelectAllNear = 1u << 31;
inline constexpr i32 kSelectMassBits = 16, kSelectMostPart = 1 << 15;  // a part's mass: at most 2^31 units
inline constexpr float kSelectMassless = 88.0f;
/// The lowest bit of a round's digit: 10, 10 and 8 bits. Of round -1: kSelectBits.
ARK_ABI_BOTH constexpr int select_shift(int round) {
  return round + 1 < kSelectRounds ? kSelectBits - 10 * (round + 1) : 0;
}

/// kPointwise, kRow, kColumn. From `whole` on: what follows from the rest of the record, so that no item works it out
/// again; set by plan::run_op (plan/pointwise_form.h).
struct ProgramParams {
  i32 program, first_operand;
  i32 num_dims, reduce_dims;
  i64 tile;      // pointwise: elements; row: rows; column: kept columns
  i64 split;     // column: reduced elements per split
  i64 num_rows;  // row: product of the outer dims; column: kept elements
  i64 row_size;  // product of the reduced dims
  // Pointwise. Not 0: vectors of so many elements at multiples of their length lie within a row and an item, and
  // whatever the program accesses by coordinates alone is aligned there and contiguous, or (bits of `scalars`, by the
  // program's numbers) the same along the last dimension. What is left over at the end of the domain lies in no vector.
  i32 whole;
  u32 scalars;
  i32 elements;          // of the domain; 0: these, or a tile, are more than kMostWhole
  i32 masked;            // not 0: `whole` holds of what is accessed under predicates too, and none of that is a scalar
  Divisor by[kMaxDims];  // division by the sizes of the domain
};
inline constexpr i64 kMostWhole = 1ll << 30;

union Params {
  ProgramParams program;
  MatmulRowsParams rows;
  MatmulTileParams matmul;
  AttentionParams attention;
  MaskRangeParams mask_range;
  ScatterSumParams scatter_sum;
  RowSelectParams row_select;
  RowDrawParams row_draw;
  i32 words[64];
};

/// OpRecord::background: to the boxes of all ranks; of all but the own rank, whose box nothing reads there.
inline constexpr i32 kToAll = 1, kToOthers = 2;

/// Coordinates of a grid, slowest first (coordinates_of). Of products: batch, block of rows, block of columns; of
/// attention: batch, head, block (decode: part). What they count of other kinds says the table (plan/kinds.h).
struct GridAxis {
  enum : i32 {
    kOuter,
    kMiddle,
    kInner,
    kBatch = kOuter,
    kRowBlock = kMiddle,
    kHead = kMiddle,
    kColumnBlock = kInner,
    kBlock = kInner,
    kPart = kInner
  };
};

/// Header of an op record; `num_operands` Operands follow it. Records start at multiples of 64 bytes.
struct OpRecord {
  TaskKind kind;
  i32 op;            // number of the op in the plan
  i32 record_bytes;  // header and operands
  i32 num_operands;
  i32 grid[3];  // tiles along each coordinate (GridAxis)
  i32 num_waits, num_arrivals;
  i32 background;  // not 0: copies that go on beside the workers' tiles (device/loop/background.cuh), kToAll, kToOthers
  i32 pad[2];
  i64 size[kMaxDims];  // the iteration domain
  Params params;
  Wait wait[kMaxWaits];
  Arrive arrive[kMaxArrivals];
  /// Parallel to `arrive`. Not 0: the op writes boxes of an exchange (plan/plan.h) and arrives on every rank, rank r's
  /// tiles on the counters that lie r * arrive_rank_stride behind.
  i32 arrive_rank_stride[kMaxArrivals];
  i32 tail[16 - kMaxArrivals];
};
static_assert(sizeof(OpRecord) == 768);

/// Where a tile lies in its op's grid: tile = (outer * middles + middle) * inners + inner.
struct Coordinates {
  i32 outer, middle, inner;
};
ARK_ABI_BOTH constexpr Coordinates coordinates_of(const OpRecord& r, i32 tile) {
  const i32 rest = tile / r.grid[GridAxis::kInner];
  return {rest / r.grid[GridAxis::kMiddle], rest % r.grid[GridAxis::kMiddle], tile % r.grid[GridAxis::kInner]};
}
/// Tiles that share their outer coordinate.
ARK_ABI_BOTH constexpr i32 tiles_of_outer(const OpRecord& r) {
  return r.grid[GridAxis::kMiddle] * r.grid[GridAxis::kInner];
}
/// The first row of a wait or an arrival, of a tile (Wait).
template <class Map>
ARK_ABI_BOTH constexpr i32 row_of(const Map& map, const Coordinates& at) {
  return map.base + at.outer * map.coef[GridAxis::kOuter] + at.middle * map.coef[GridAxis::kMiddle] +
         at.inner * map.coef[GridAxis::kInner];
}

/// Of a product, whether its record says that the own rank's rows are read elsewhere.
ARK_ABI_BOTH inline bool has_own_rows(const OpRecord& r) {
  return r.kind == TaskKind::kMatmulTile && r.params.matmul.own_rows != 0;
}
/// Of a product, whether it is of two weights.
ARK_ABI_BOTH inline bool is_gated_tile(const OpRecord& r) {
  return r.kind == TaskKind::kMatmulTile && r.params.matmul.gated != 0;
}
/// MatmulTileParams::own_rows of an item of the own batch, as the fetch warp hands it out: map_a and map_own have
/// changed places.
inline constexpr i32 kTheseOwnRows = 2;
/// The tile that rank `rank` runs for tile `tile` of a list: where the op has own rows, lists count batches from that
/// rank on. So all ranks have the same lists, and each begins with what it has.
ARK_ABI_BOTH inline i32 turned_tile(const OpRecord& r, i32 tile, i32 rank) {
  if (!has_own_rows(r)) return tile;
  const i32 of_batch = tiles_of_outer(r), all = r.grid[GridAxis::kBatch] * of_batch, turned = tile + rank * of_batch;
  return turned < all ? turned : turned - all;
}

/// `count` consecutive tiles of one op. The list of a worker ends with record == kEnd.
struct WorkItem {
  i32 record;  // byte offset / 64 of the op record in the blob
  i32 first, count;
  i32 op;
};
static_assert(sizeof(WorkItem) == 16);
inline constexpr i32 kEnd = -1;

/// A tensor map to be patched with the address of a slot before use (CUtensorMap is opaque, 128 bytes).
struct TensorMapPatch {
  u32 slot;
  u32 map;
  i64 offset_bytes;
};
/// What a tensor map was patched with last, and in which launch (from 1 on; 0: never). Zeroed with the run state.
struct PatchedMap {
  u64 address;
  u32 launch;
  u32 pad;
};
static_assert(sizeof(PatchedMap) == 16);

/// Device (or host target) memory that belongs to one run of a plan at a time. Zeroed once. `epoch` counts finished
/// launches: a counter's target in the current launch is (epoch + 1) * target, compared so that it may wrap. A launch
/// of n iterations (plan::Loop) counts as n.
struct RunState {
  u32 epoch;
  u32 workers_done;
  u32 abort;        // set by the first wait that passes its deadline; everyone leaves. abort_about who set it
  u32 maps_ready;   // workers whose tensor maps are those of this launch (grows; target: the launch's number from 1
                    // on, times workers)
  u32 index_error;  // op + 1 of the task that met an index out of range first, and what it met
  u32 launches;     // of a kernel of loops: launches that have ended (an epoch is an iteration there)
  i64 index_value, index_limit;
  u32 maps_launch;  // the last one that patched a tensor map with another address
  u32 pad[21];
  // u32 counters[num_counters * kCounterStride] follow
};
static_assert(sizeof(RunState) == 128);

/// A timestamp record: one per item and role when tracing.
struct TraceRecord {
  i32 op, first, count, worker;
  u64 begin, wait_end, load_end, end;  // global timer, ns
  u32 stamp[16];                       // cycles of the SM at the item's steps (Consumer::stamp); 0: not passed
};

}  // namespace ark::abi
