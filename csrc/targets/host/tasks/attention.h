// What the attention tasks share: addresses of the operands, scores of a block of queries, softmax.
#pragma once
#include <cstdint>

#include "device/abi/roles.h"
#include "targets/host/tasks/gemm.h"
#include "targets/host/tasks/task.h"

namespace ark::targets::host {

/// Queries [first, first + count) of one query head against keys [key_begin, key_end) of its kv head.
struct QueryBlock {
  int64_t batch = 0, head = 0, first = 0, count = 0;
  int64_t key_begin = 0, key_end = 0;
};

/// The operands of an attention op at one launch. Absent operands have slot kNoSlot.
struct AttentionOperands {
  const abi::AttentionParams* params = nullptr;
  const plan::Op* op = nullptr;

  bool present(int operand) const {
    return operand >= 0 && operand < static_cast<int>(op->operands.size()) &&
           op->operands[operand].slot != abi::kNoSlot;
  }
  DType dtype(int operand) const { return static_cast<DType>(op->operands[operand].dtype); }
  int64_t group() const { return params->heads / params->kv_heads; }
  void* address(const TileEnvironment& env, int operand, int64_t i, int64_t j, int64_t k = 0, int64_t l = 0,
                int64_t m = 0) const;
  /// The last two dimensions (s, d) or (t, d) of operand for one batch and head, from row `row` on.
  MatrixView matrix(const TileEnvironment& env, int operand, int64_t batch, int64_t head, int64_t row) const;
};

/// Keys that a block of queries can see at all: the mask's range (an operand number), causality, both.
void clip_to_range(const TileEnvironment& env, const AttentionOperands& x, int range_operand, QueryBlock& block);
void clip_to_causal(const AttentionOperands& x, QueryBlock& block);
void clip_keys(const TileEnvironment& env, const AttentionOperands& x, int range_operand, QueryBlock& block);

/// scores[i][j] = scale * q[i] . k[j] + mask, -inf where key key_begin + j is hidden from query first + i. q: operand
/// 0, k: operand 1. Rows are gemm_row_length(keys) long.
template <class T>
using Product = void (*)(const Kernels&, Scratch&, const MatrixView&, const MatrixView&, int64_t, int64_t, int64_t, T*);
template <class T>
void attention_scores(const TileEnvironment& env, const AttentionOperands& x, int mask_operand, const QueryBlock& block,
                      Product<T> product, T* scores);

/// memory[i * stride] = values[i] and back, through a conversion where the storage type is computed in another type
/// than T.
template <class T>
void store_values(const TileEnvironment& env, void* memory, DType dtype, int64_t stride, const T* values, int64_t n);
template <class T>
void load_values(const TileEnvironment& env, const void* memory, DType dtype, int64_t stride, T* values, int64_t n);

/// scores[i] -> exp(scores[i] - maximum), returns their sum; a row without visible keys gives zeros, sum 0, maximum
/// -inf.
template <class T>
struct RowSoftmax {
  T maximum, sum;
};
template <class T>
RowSoftmax<T> exponentiate(const Kernels& kernels, T* scores, int64_t n);

std::unique_ptr<Task> make_attention_forward_task(const plan::Op& op);
std::unique_ptr<Task> make_attention_backward_task(const plan::Op& op);

}  // namespace ark::targets::host
