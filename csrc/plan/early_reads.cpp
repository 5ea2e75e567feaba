#include "plan/early_reads.h"

#include <algorithm>

#include "device/abi/roles.h"
#include "plan/kinds.h"

namespace ark::plan {
namespace {

bool is_decode(const abi::OpRecord& record) { return record.kind == abi::TaskKind::kAttentionDecode; }

/// Whether the record says something that the bits should.
bool says_early(const abi::OpRecord& record) {
  const Family family = kind_of(record).family;
  const abi::MatmulTileParams& p = record.params.matmul;
  return (family == Family::kRows && record.params.rows.weights_immutable != 0) ||
         (family == Family::kMatmul && (p.a_immutable != 0 || p.b_immutable != 0)) ||
         (is_decode(record) && record.params.attention.fresh_operand >= 0);
}

void clear_early_params(abi::OpRecord& record) {
  const Family family = kind_of(record).family;
  if (family == Family::kRows) record.params.rows.weights_immutable = 0;
  if (family == Family::kMatmul) record.params.matmul.a_immutable = record.params.matmul.b_immutable = 0;
  if (is_decode(record)) record.params.attention.fresh_operand = -1;
}

void take_bits(const Plan& plan, Op& op) {
  using X = abi::AttentionOperand;
  for (size_t i = 0; i < std::min(op.operands.size(), kEarlyOperands); ++i) {
    const uint32_t slot = op.operands[i].slot;
    if (slot < plan.buffers.size() && plan.buffers[slot].immutable) op.early |= 1u << i;
  }
  if (is_decode(op.record) && op.record.params.attention.fresh_operand >= 0)
    op.early |= 1u << X::kK | 1u << X::kV | 1u << X::kPosition;
}

}  // namespace

bool has_early_weights(const Op& op) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  for (int s = 0; s < p.num_segments; ++s) {
    if (!is_early(op, static_cast<size_t>(p.segment[s].weight))) return false;
    if (p.gated && !is_early(op, static_cast<size_t>(p.segment[s].weight2))) return false;
  }
  return true;
}

bool has_early_cache(const Op& op) {
  using X = abi::AttentionOperand;
  return is_decode(op.record) && is_early(op, X::kPosition) && is_early(op, X::kK) && is_early(op, X::kV);
}

void set_early_params(const Op& op, abi::OpRecord& record) {
  using X = abi::MatmulOperand;
  const Family family = kind_of(record).family;
  if (family == Family::kRows) record.params.rows.weights_immutable = has_early_weights(op);
  if (family == Family::kMatmul) {
    record.params.matmul.a_immutable = is_early(op, X::kA);
    record.params.matmul.b_immutable = is_early(op, X::kB) && (!abi::is_gated_tile(record) || is_early(op, X::kB2));
  }
  if (is_decode(record))
    record.params.attention.fresh_operand = has_early_cache(op) ? abi::i32{abi::AttentionOperand::kPosition} : -1;
}

void take_early_from_records(Plan& plan) {
  if (std::none_of(plan.ops.begin(), plan.ops.end(), [](const Op& op) { return says_early(op.record); })) return;
  for (Op& op : plan.ops) {
    take_bits(plan, op);
    clear_early_params(op.record);
  }
}

}  // namespace ark::plan
