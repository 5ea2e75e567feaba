// Pass: tile sizes and grids. Fills OpRecord::grid and the tile fields of the parameters, splits long reductions over
// the workers, and describes the tensor maps of the tensor-core kinds.
//
// Grids, slowest coordinate first; a tile's number is t = (outer * middles + middle) * inners + inner:
// - kPointwise: tile t = elements [t * tile, (t + 1) * tile) of the flattened domain; kRow: rows; kColumn: kept
//   elements.
//   The grid is factored along the domain's outer dimensions where tiles do not straddle them (so that waits can follow
//   the rows); only t matters to the task. Split reductions are two ops (split_reductions.h).
// - kMatmulTile, kMatmulFloat, kMatmulSimple: (batch, m block, n block). kMatmulRows: (unit, 1, 1).
// - attention: (batch, head, query block); backward: (batch, kv head, key block); decode: (batch, kv head, part).
//   kMaskRange: (batch, head, query block).
//
// Tensor maps (batch is outermost) of bf16 and f16, with 128-byte swizzle: the innermost box dimension always is 64
// elements = 128 bytes:
// - matmul operand, k contiguous: dims (k, rows, batch), box (64, 128, 1): tile_n / 128 boxes per k step
// - matmul operand, rows contiguous: dims (rows, k, batch), box (64, 64, 1): tile_m / 64 or tile_n / 64 boxes a k step
// - of small tiles one box a k step: dims (64, rows, k / 64, batch), box (64, 64, 2, 1), and (rows, k, batch), box
//   (64, 128, 1)
// - weights [k][n] of few rows (column_strips.h): dims (n, k, 1), box (a strip's columns, k of a page, at most 256, 1),
//   with swizzle of the box's width, of 8 columns without
// - attention: dims (d, seq, head, batch), box (64, 64, 1, 1); map[0..2] = q, k, v; map[3] = dout (backward kinds)
// Of fp32 products:
// - k contiguous: box (32, 64, 1), with 128-byte swizzle: tile_m / 64 or tile_n / 64 boxes a k step
// - rows contiguous: box (64, 32, 1), lines of 256 bytes without swizzle
//
// An operand that TMA cannot address (strides not multiples of 16 bytes, broadcast batch) makes the op kMatmulSimple or
// kAttentionSimple.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

void tile(Draft& draft, const Options& options);

}  // namespace ark::planner
