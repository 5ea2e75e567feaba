// Which keys a tile of kAttentionDecode reads: those that come through the ring (of a cache the rows below the
// position; else all that sizes and causality leave; the fetch warp has worked out which for all roles of the item) and
// the rows of a cache from the position on, by the mask's range.
#pragma once
#include "device/abi/variants.h"
#include "device/loop/cache_position.cuh"
#include "device/program/support.cuh"

namespace ark::device {

using DecodeOperand = abi::AttentionOperand;

/// Keys and values of so many positions share a page: of heads of 64, 128 and 256 columns it is full. A group's warps
/// take 8 positions each, or 16 of small heads; with over 128 columns two warps share them (decode_warp.cuh).
ARK_DEVICE constexpr int positions_per_page(int dim) { return dim <= 64 ? 64 : dim <= 128 ? 32 : 16; }

/// Parameters of which the kernel knows what does not occur in it.
template <class Programs>
struct DecodeParams {
  const abi::AttentionParams& p;

  ARK_DEVICE explicit DecodeParams(const Task& task) : p(task.record->params.attention) {}
  /// Whether keys are a cache, most of which is read ahead of the wait.
  ARK_DEVICE bool cached() const { return Programs::kDecodeCache && (!Programs::kDecodePlain || p.fresh_operand >= 0); }
  /// Whether two tiles of an item are done at once, a warpgroup each (AttentionParams::tiles_at_once). Loaders and
  /// consumers ask this and nothing else, as both count pages by it.
  ARK_DEVICE bool paired() const {
    return Programs::kDecodePairs && p.tiles_at_once > 1 && p.parts == 1 && p.head_dim <= abi::kMostPairedDim &&
           cached();
  }
  ARK_DEVICE bool causal() const { return Programs::kDecodeCausal && p.causal != 0; }
  ARK_DEVICE int queries() const { return Programs::kDecodeQueries ? p.queries : 1; }
  /// Head of the group, of a row (head of the group, query).
  ARK_DEVICE int head_of(int row) const { return queries() == 1 ? row : small_divide(row, queries()); }
};

/// The keys of one tile that come through the ring: [old_begin, old_end).
struct DecodeKeys {
  int part;
  int position;  // of all parts the keys below it come through the ring: of a cache ahead of the wait, else after it
  int parts_used;
  int old_begin, old_end;

  ARK_DEVICE DecodeKeys(const Task& task, int number) : part(number) {
    position = task.slot->keys.position;
    parts_used = task.slot->keys.parts_used;
    const int length = task.slot->keys.part_length;
    old_begin = min(position, part * length);
    old_end = part < parts_used ? min(position, old_begin + length) : old_begin;
  }
  ARK_DEVICE int count() const { return old_end - old_begin; }
  ARK_DEVICE bool used() const { return part < parts_used; }
};

/// What the mask's table (kMaskRange) says about the query heads of one kv head together.
struct DecodeRange {
  int low = 0, high;                       // keys outside of [low, high) are seen by none
  int neutral_begin = 0, neutral_end = 0;  // of these keys the mask leaves the scores as they are

  ARK_DEVICE DecodeRange(const Task& task, int batch, int kv_head, int group) {
    const abi::AttentionParams& p = task.record->params.attention;
    high = p.keys;
    if (p.mask_kind == abi::MaskKind::kNone) neutral_end = p.keys;
    if (!task.has(DecodeOperand::kRange)) return;
    const abi::Operand& o = task.operand(DecodeOperand::kRange);
    const int step = static_cast<i32>(o.stride[1]), heads = step == 0 ? 1 : group;
    const int* row = task.address<int>(DecodeOperand::kRange) + i64{batch} * static_cast<i32>(o.stride[0]) +
                     i64{kv_head * group} * step;
    low = neutral_end = p.keys;
    high = 0;
    int h = 0;
#pragma unroll 1
    do {
      // four values side by side, at a multiple of their bytes
      const Raw<16> raw = load_global<16>(row);
      const int begin = static_cast<int>(raw.w[0]), end = static_cast<int>(raw.w[1]);
      neutral_begin = max(neutral_begin, static_cast<int>(raw.w[2]));
      neutral_end = min(neutral_end, static_cast<int>(raw.w[3]));
      if (begin < end) {
        low = min(low, begin);
        high = max(high, end);
      }
      row += step;
    } while (++h < heads);
    high = min(high, p.keys);
  }
  /// Whether any query sees one of `count` keys; of those that none sees not even the values may be looked at where
  /// they were not loaded (DecodeLoader).
  ARK_DEVICE bool sees(int first, int count) const { return first < high && first + count > low; }
  ARK_DEVICE bool neutral(int first, int count) const { return neutral_begin <= first && first + count <= neutral_end; }
};

/// Keys that do not come through the ring: those of a cache from the position on (last used part).
struct DirectKeys {
  int begin, end;

  template <class Params>
  ARK_DEVICE DirectKeys(const Params& of, const DecodeKeys& keys, const DecodeRange& range)
      : begin(keys.position), end(begin) {
    if (!of.cached() || keys.part != keys.parts_used - 1) return;
    end = of.causal() ? min(range.high, of.queries() + of.p.causal_offset) : range.high;
  }
  ARK_DEVICE int count() const { return end - begin; }
};

}  // namespace ark::device
