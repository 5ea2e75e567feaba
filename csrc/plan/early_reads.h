// What may be read before the waits of an op, use by use: Op::early, bit i for operand i, written by one pass
// (planner/early_reads.h) and proved by the verifier (planner/verify/early.cpp). The fields of a record that tell the
// kernel so (MatmulRowsParams::weights_immutable, MatmulTileParams::a_immutable and b_immutable,
// AttentionParams::fresh_operand) say nothing in a plan: run_op sets them from the bits.
//
// Of kAttentionDecode with a position (AttentionOperand::kPosition) the bits of keys and values are for the rows below
// the position; the rows from there on are read behind the waits.
#pragma once
#include "plan/plan.h"

namespace ark::plan {

inline constexpr size_t kEarlyOperands = 32;

inline bool is_early(const Op& op, size_t operand) {
  return operand < kEarlyOperands && (op.early >> operand & 1) != 0;
}
/// Of a few-row product: all of its weights.
bool has_early_weights(const Op& op);
/// Of decode attention: its keys are a cache, whose rows below the position stream ahead of the waits.
bool has_early_cache(const Op& op);

/// Sets the record's fields that follow from the op's bits.
void set_early_params(const Op& op, abi::OpRecord& record);

/// Plans that were saved before there were bits say it in their records and buffers: moves it into the bits.
void take_early_from_records(Plan& plan);

}  // namespace ark::plan
