// Which keys a tile of kAttentionDecode reads: those that come through the ring (of a cache the rows below the
// position, which the fetch warp has read for all roles of the item, TaskSlot::position; else all that sizes and
// causality leave) and the rows of a cache from the position on, by the mask's range.
#pragma once
#include "device/loop/cache_position.cuh"
#include "device/program/support.cuh"

namespace ark::device {

using DecodeOperand = abi::AttentionOperand;

/// The keys of one tile that come through the ring: [old_begin, old_end).
struct DecodeKeys {
  int part;
  int position;  // of all parts the keys below it come through the ring: of a cache ahead of the wait, else after it
  int parts_used;
  int old_begin, old_end;

  ARK_DEVICE DecodeKeys(const Task& task, int number) : part(number) {
    const abi::AttentionParams& p = task.record->params.attention;
    if (p.fresh_operand >= 0) {
      position = task.slot->position;
      parts_used = cache_parts(position, p.queries, p.positions_per_part, p.parts);
    } else {
      position = p.causal ? max(0, min(p.keys, p.queries + p.causal_offset)) : p.keys;
      parts_used = max(1, p.parts);
    }
    const int length = parts_used > 1 ? (position + parts_used - 1) / parts_used : position;
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
    if (p.mask_kind == 0) neutral_end = p.keys;
    if (!task.has(DecodeOperand::kRange)) return;
    const abi::Operand& o = task.operand(DecodeOperand::kRange);
    const int* table = task.address<int>(DecodeOperand::kRange) + batch * o.stride[0];
    low = neutral_end = p.keys;
    high = 0;
    const int heads = o.stride[1] == 0 ? 1 : group;
#pragma unroll 1
    for (int h = 0; h < heads; ++h) {
      const int* row = table + (kv_head * group + h) * o.stride[1];
      const int begin = load_element(row), end = load_element(row + 1), neutral = load_element(row + 2);
      neutral_begin = max(neutral_begin, neutral);
      neutral_end = min(neutral_end, load_element(row + 3));
      if (begin < end) {
        low = min(low, begin);
        high = max(high, end);
      }
    }
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

  ARK_DEVICE DirectKeys(const abi::AttentionParams& p, const DecodeKeys& keys, const DecodeRange& range)
      : begin(keys.position), end(begin) {
    if (p.fresh_operand < 0 || keys.part != keys.parts_used - 1) return;
    end = p.causal ? min(range.high, p.queries + p.causal_offset) : range.high;
  }
  ARK_DEVICE int count() const { return end - begin; }
};

}  // namespace ark::device
