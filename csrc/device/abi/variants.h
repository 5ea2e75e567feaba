// Variants of main loops as numbers: a record's is made and taken apart here alone. A kernel holds some of them, as
// bits of a mask: codegen/kernel.cpp collects those that plans need, and generated code hands the mask to device code.
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

/// Of the numbers below `count`, those that `has` says, as a mask.
template <class Has>
consteval u32 mask_where(int count, Has has) {
  u32 mask = 0;
  for (int i = 0; i < count; ++i)
    if (has(i)) mask |= 1u << i;
  return mask;
}

/// An element type, in a mask of types.
ARK_ABI_BOTH constexpr u32 type_bit(i32 dtype) { return 1u << dtype; }
/// Decode attention with two tiles at once: heads have at most so many columns. Over 128 two warps share the same keys,
/// a slice of columns each (DecodeWarp::kSlices), and stage the rows of this launch together, while of two tiles at
/// once one warp does so for each; from 160 on the scratch memory has no room for these rows of both tiles either.
inline constexpr int kMostPairedDim = 128;
/// A head size of decode attention, in a mask of them.
ARK_ABI_BOTH constexpr u32 decode_dim_bit(int dim) { return 1u << dim / 16; }

// ---- products in tiles ----

/// Layout: which operands have their rows, not k, contiguous.
inline constexpr int kLayoutShiftA = 1, kNumLayouts = 4;
ARK_ABI_BOTH constexpr int matmul_layout(const MatmulTileParams& p) {
  return (p.a_k_major == 0) << kLayoutShiftA | (p.b_k_major == 0);
}
ARK_ABI_BOTH constexpr bool has_rows_of_a(int variant) { return (variant >> kLayoutShiftA & 1) != 0; }
ARK_ABI_BOTH constexpr bool has_rows_of_b(int variant) { return (variant & 1) != 0; }
inline constexpr u32 kLayoutsRowsA = mask_where(kNumLayouts, [](int layout) { return has_rows_of_a(layout); }),
                     kLayoutsRowsB = mask_where(kNumLayouts, [](int layout) { return has_rows_of_b(layout); });

/// kMatmulTile: above the layout, of large tiles whether they are wide, then whether of f16 (else bf16); small tiles
/// have numbers of their own, above those, and gated ones above these.
inline constexpr int kWideTileShift = 2, kLargeHalfShift = 3, kFirstSmallTile = 16, kSmallHalfShift = 2,
                     kFirstGatedTile = 24, kMatmulVariantEnd = 32;
inline constexpr int kWideTileColumns = 256, kNarrowTileColumns = 128;
ARK_ABI_BOTH constexpr int matmul_variant(const MatmulTileParams& p) {
  const int half = p.dtype == kTypeF16, layout = matmul_layout(p);
  if (p.tile_m == kSmallTile)
    return (p.gated != 0 ? kFirstGatedTile : kFirstSmallTile) | half << kSmallHalfShift | layout;
  return half << kLargeHalfShift | (p.tile_n == kWideTileColumns) << kWideTileShift | layout;
}
/// Of a small tile's page of A: rows that are copied, where its k lies contiguous. A product of fewer rows than a tile
/// has copies those that there are, by eights; the others of the page are whatever was there, and nobody's.
ARK_ABI_BOTH constexpr int small_page_rows(const MatmulTileParams& p) {
  return p.a_k_major != 0 && p.m < kSmallTile ? (p.m + 7) / 8 * 8 : kSmallTile;
}
ARK_ABI_BOTH constexpr bool is_small_variant(int variant) { return variant >= kFirstSmallTile; }
ARK_ABI_BOTH constexpr bool is_gated_variant(int variant) { return variant >= kFirstGatedTile; }
ARK_ABI_BOTH constexpr bool is_wide_variant(int variant) {
  return !is_small_variant(variant) && (variant >> kWideTileShift & 1) != 0;
}
ARK_ABI_BOTH constexpr int half_bit(bool small) { return small ? 1 << kSmallHalfShift : 1 << kLargeHalfShift; }
ARK_ABI_BOTH constexpr bool is_half_variant(int variant) {
  return (variant & half_bit(is_small_variant(variant))) != 0;
}
ARK_ABI_BOTH constexpr int variant_columns(int variant) {
  return is_small_variant(variant) ? kSmallTile : is_wide_variant(variant) ? kWideTileColumns : kNarrowTileColumns;
}
/// The first of the variants that loaders treat alike: those of one type.
ARK_ABI_BOTH constexpr int loader_variant(int variant) { return variant & ~half_bit(is_small_variant(variant)); }
ARK_ABI_BOTH constexpr int loader_variant(const MatmulTileParams& p) {
  return matmul_variant(p) & ~half_bit(p.tile_m == kSmallTile);
}

inline constexpr u32 kSmallVariants = mask_where(kMatmulVariantEnd, [](int v) { return is_small_variant(v); }),
                     kGatedVariants = mask_where(kMatmulVariantEnd, [](int v) { return is_gated_variant(v); }),
                     kLargeVariants = (1u << kFirstSmallTile) - 1,
                     kWideVariants = mask_where(kMatmulVariantEnd, [](int v) { return is_wide_variant(v); }),
                     kNarrowVariants = kLargeVariants & ~kWideVariants;
/// Large tiles whose operands both have k contiguous.
inline constexpr u32 kLargeWithoutRows =
    mask_where(kFirstSmallTile, [](int v) { return !has_rows_of_a(v) && !has_rows_of_b(v); });

/// How the epilogues of kMatmulTile move their vectors. Bits.
enum EpilogueWay : u32 { kWholeVectors = 1, kTwoElements = 2, kSingleElements = 4 };

// ---- attention ----

/// Forward and backward: whether heads have more than kNarrowHead columns, then whether of f16 (else bf16).
inline constexpr int kNarrowHead = 64, kAttentionWideBit = 1, kAttentionHalfBit = 2, kAttentionVariantEnd = 4;
ARK_ABI_BOTH constexpr int attention_variant(const AttentionParams& p) {
  return (p.dtype == kTypeF16 ? kAttentionHalfBit : 0) | (p.head_dim > kNarrowHead ? kAttentionWideBit : 0);
}
ARK_ABI_BOTH constexpr int attention_columns(int variant) {
  return (variant & kAttentionWideBit) != 0 ? kMostHeadDim : kNarrowHead;
}
ARK_ABI_BOTH constexpr bool is_half_attention(int variant) { return (variant & kAttentionHalfBit) != 0; }

/// kAttentionSimple. On the tensor cores: blocks of kMmaFormColumns values, less one, and whether of f16 (else bf16).
/// On the CUDA cores: fp32 of up to kTiledColumns values at once, fp32 of up to twice as many, fp64.
inline constexpr int kMmaFormColumns = 16, kMmaHalfForm = 16, kTiledForm = 32, kTiledWideForm = 33, kTiledF64Form = 34,
                     kSimpleFormEnd = 35, kTiledColumns = 64;
ARK_ABI_BOTH constexpr int simple_attention_form(const AttentionParams& p) {
  if (p.tile_q == kMmaQueries) return (p.dtype == kTypeF16 ? kMmaHalfForm : 0) | (p.value_dim - 1) / kMmaFormColumns;
  return p.dtype == kTypeF64 ? kTiledF64Form : p.value_dim > kTiledColumns ? kTiledWideForm : kTiledForm;
}
ARK_ABI_BOTH constexpr int mma_form_blocks(int form) { return form % kMmaHalfForm + 1; }
ARK_ABI_BOTH constexpr bool is_half_form(int form) { return form >= kMmaHalfForm; }

}  // namespace ark::abi
