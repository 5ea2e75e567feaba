// kAttentionForward, kAttentionSimple, kAttentionDecode: softmax(scale * q k^T + mask) v for a block of queries.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/unsupported.h"
#include "targets/host/program/attention_parts.h"
#include "targets/host/tasks/attention.h"

namespace ark::targets::host {
namespace {

using abi::TaskKind;

constexpr int kFewQueries = 4;  // below, packing panels costs more than the products

using X = abi::AttentionOperand;

template <class T>
class AttentionTask : public Task {
 public:
  explicit AttentionTask(const plan::Op& op) : op_(op), x_{&op_.record.params.attention, &op_} {
    const bool few = params().queries <= kFewQueries;
    product_ = few ? gemm_few_rows<T> : gemm<T>;
  }

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    for (int64_t tile = first; tile < first + count; ++tile) {
      const auto [c] = tile_coordinates(op_.record, tile);
      if (kind() == TaskKind::kAttentionDecode) {
        run_part(env, c[0], c[1], c[2]);
      } else {
        const int64_t begin = c[2] * params().tile_q,
                      queries = std::min<int64_t>(params().tile_q, params().queries - begin);
        if (queries > 0) attend(env, {c[0], c[1], begin, queries, 0, params().keys});
      }
    }
    return true;
  }

  double cost_ns() const override {
    return 0.1 * double(params().batch) * params().heads * params().queries * params().keys *
           (params().head_dim + params().value_dim);
  }

 private:
  TaskKind kind() const { return op_.record.kind; }
  const abi::AttentionParams& params() const { return op_.record.params.attention; }

  /// Weighted sum of values: out[i] = sum_j scores[i][j] v[key_begin + j], in kOutput.
  T* weigh_values(const TileEnvironment& env, const QueryBlock& block, const T* scores) const {
    const Kernels& kernels = *env.kernels;
    const int64_t keys = block.key_end - block.key_begin;
    T* out = env.scratch->get<T>(Scratch::kOutput,
                                 gemm_rows<T>(kernels, block.count) * gemm_row_length<T>(kernels, params().value_dim));
    const MatrixView weights{scores, sizeof(T) == 8 ? DType::kF64 : DType::kF32, gemm_row_length<T>(kernels, keys), 1};
    const MatrixView values = x_.matrix(env, X::kV, block.batch, block.head / x_.group(), block.key_begin);
    product_(kernels, *env.scratch, weights, values, block.count, params().value_dim, keys, out);
    return out;
  }

  T* scores_of(const TileEnvironment& env, const QueryBlock& block) const {
    const int64_t row_length = gemm_row_length<T>(*env.kernels, block.key_end - block.key_begin);
    T* scores = env.scratch->get<T>(Scratch::kScores, gemm_rows<T>(*env.kernels, block.count) * row_length);
    attention_scores<T>(env, x_, X::kMask, block, product_, scores);
    return scores;
  }

  void store_row(const TileEnvironment& env, T* row, T scale, const QueryBlock& block, int64_t i) const {
    for (int64_t d = 0; d < params().value_dim; ++d) row[d] *= scale;
    store_values<T>(env, x_.address(env, X::kOut, block.batch, block.head, block.first + i), x_.dtype(X::kOut),
                    op_.operands[X::kOut].stride[3], row, params().value_dim);
  }

  void store_log_sum(const TileEnvironment& env, const RowSoftmax<T>& softmax, const QueryBlock& block,
                     int64_t i) const {
    if (!x_.present(X::kLogSumExp)) return;
    const T value = softmax.sum > 0 ? softmax.maximum + std::log(softmax.sum) : softmax.maximum;
    store_values<T>(env, x_.address(env, X::kLogSumExp, block.batch, block.head, block.first + i),
                    x_.dtype(X::kLogSumExp), 1, &value, 1);
  }

  void attend(const TileEnvironment& env, QueryBlock block) const {
    clip_keys(env, x_, X::kRange, block);
    const int64_t keys = block.key_end - block.key_begin, row_length = gemm_row_length<T>(*env.kernels, keys);
    const int64_t out_length = gemm_row_length<T>(*env.kernels, params().value_dim);
    T* scores = scores_of(env, block);
    T* sums = env.scratch->get<T>(Scratch::kSums, block.count);
    for (int64_t i = 0; i < block.count; ++i) {
      const RowSoftmax<T> softmax = exponentiate<T>(*env.kernels, scores + i * row_length, keys);
      store_log_sum(env, softmax, block, i);
      sums[i] = softmax.sum;
    }
    T* out = weigh_values(env, block, scores);
    for (int64_t i = 0; i < block.count; ++i)
      store_row(env, out + i * out_length, sums[i] == 0 ? T(0) : T(1) / sums[i], block, i);
  }

  /// The keys of one part; causality is applied within it.
  QueryBlock part_of(const TileEnvironment& env, int64_t batch, int64_t head, int64_t part) const {
    QueryBlock block{batch, head, 0, params().queries, 0, params().keys};
    clip_to_range(env, x_, X::kRange, block);
    const KeyRange keys =
        keys_of_part({block.key_begin, block.key_end}, part, params().parts, params().positions_per_part);
    block.key_begin = keys.begin;
    block.key_end = keys.end;
    clip_to_causal(x_, block);
    return block;
  }

  void run_part(const TileEnvironment& env, int64_t batch, int64_t kv_head, int64_t part) const {
    for (int64_t h = 0; h < x_.group(); ++h) {
      const int64_t head = kv_head * x_.group() + h;
      if (!x_.present(X::kPartsOut)) {
        attend(env, {batch, head, 0, params().queries, 0, params().keys});
        continue;
      }
      const QueryBlock block = part_of(env, batch, head, part);
      const int64_t keys = block.key_end - block.key_begin, row_length = gemm_row_length<T>(*env.kernels, keys);
      T* scores = scores_of(env, block);
      for (int64_t i = 0; i < block.count; ++i) {
        const RowSoftmax<T> softmax = exponentiate<T>(*env.kernels, scores + i * row_length, keys);
        store_max_sum(env, softmax, batch, kv_head, part, h * params().queries + i);
      }
      const T* out = weigh_values(env, block, scores);
      for (int64_t i = 0; i < block.count; ++i)
        store_values<T>(env, x_.address(env, X::kPartsOut, batch, kv_head, part, h * params().queries + i),
                        x_.dtype(X::kPartsOut), op_.operands[X::kPartsOut].stride[4],
                        out + i * gemm_row_length<T>(*env.kernels, params().value_dim), params().value_dim);
    }
  }

  void store_max_sum(const TileEnvironment& env, const RowSoftmax<T>& softmax, int64_t batch, int64_t kv_head,
                     int64_t part, int64_t row) const {
    const T pair[2] = {softmax.maximum * T(1.4426950408889634),
                       softmax.sum};  // as Opcode::kLoadParts wants them: base 2
    store_values<T>(env, x_.address(env, X::kPartsMaxSum, batch, kv_head, part, row, 0), x_.dtype(X::kPartsMaxSum),
                    op_.operands[X::kPartsMaxSum].stride[4], pair, 2);
  }

  plan::Op op_;
  AttentionOperands x_;
  Product<T> product_ = nullptr;
};

}  // namespace

std::unique_ptr<Task> make_attention_forward_task(const plan::Op& op) {
  check(op.operands.size() >= 4, "op '", op.name, "': attention with ", op.operands.size(), " operands");
  const abi::AttentionParams& p = op.record.params.attention;
  check(p.kv_heads > 0 && p.heads % p.kv_heads == 0, "op '", op.name, "': ", p.heads, " heads over ", p.kv_heads,
        " kv heads");
  const auto q = static_cast<DType>(op.operands[X::kQ].dtype);
  check_node(is_float(q), op.node, "op '", op.name, "': attention of ", name(q));
  check_node(reg_type(q) == reg_type(static_cast<DType>(op.operands[X::kK].dtype)) &&
                 reg_type(q) == reg_type(static_cast<DType>(op.operands[X::kV].dtype)),
             op.node, "op '", op.name, "': q, k and v are computed in different types");
  if (q == DType::kF64) return std::make_unique<AttentionTask<double>>(op);
  return std::make_unique<AttentionTask<float>>(op);
}

}  // namespace ark::targets::host
