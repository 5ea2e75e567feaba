// kAttentionBackwardRows, kAttentionBackward, kAttentionBackwardQuery: p = exp(scores - logsumexp),
// ds = p * (dout v^T - delta) * scale, dv = p^T dout, dk = ds^T q, dq = ds k; every sum in a fixed order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/unsupported.h"
#include "targets/host/tasks/attention.h"

namespace ark::targets::host {
namespace {

using abi::TaskKind;

using X = abi::AttentionGradOperand;
using D = abi::AttentionDeltaOperand;
constexpr int64_t kQueryBlock = 128;  // queries taken at once by a key block

template <class T>
class BackwardTask : public Task {
 public:
  explicit BackwardTask(const plan::Op& op) : op_(op), x_{&op_.record.params.attention, &op_} {}

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    for (int64_t tile = first; tile < first + count; ++tile) {
      const auto [c] = tile_coordinates(op_.record, tile);
      const TaskKind kind = op_.record.kind;
      check(kind == TaskKind::kAttentionBackwardRows || kind == TaskKind::kAttentionBackward ||
                kind == TaskKind::kAttentionBackwardQuery,
            "op '", op_.name, "' is no attention backward");
      if (kind == TaskKind::kAttentionBackwardRows)
        run_delta(env, c[0], c[1], c[2]);
      else if (kind == TaskKind::kAttentionBackward)
        run_keys(env, c[0], c[1], c[2]);
      else
        run_queries(env, c[0], c[1], c[2]);
    }
    return true;
  }

  double cost_ns() const override {
    const double rows = double(params().batch) * params().heads * params().queries;
    return op_.record.kind == TaskKind::kAttentionBackwardRows
               ? rows * params().value_dim
               : 0.3 * rows * params().keys * (params().head_dim + params().value_dim);
  }

 private:
  static constexpr DType kSumType = sizeof(T) == 8 ? DType::kF64 : DType::kF32;
  const abi::AttentionParams& params() const { return op_.record.params.attention; }
  int64_t row_length(const TileEnvironment& env, int64_t n) const { return gemm_row_length<T>(*env.kernels, n); }

  T* matrix(const TileEnvironment& env, Scratch::Buffer buffer, int64_t rows, int64_t columns) const {
    return env.scratch->get<T>(buffer, gemm_rows<T>(*env.kernels, rows) * row_length(env, columns));
  }

  void load(const TileEnvironment& env, int operand, int64_t batch, int64_t head, int64_t row, int64_t n, T* to) const {
    const abi::Operand& x = op_.operands[operand];
    load_values<T>(env, x_.address(env, operand, batch, head, row), x_.dtype(operand), x.stride[2], to, n);
  }

  void run_delta(const TileEnvironment& env, int64_t batch, int64_t head, int64_t c2) const {
    const int64_t first = c2 * params().tile_q, count = std::min<int64_t>(params().tile_q, params().queries - first),
                  d = params().value_dim;
    T* gradient = env.scratch->get<T>(Scratch::kGradient, d);
    T* out = env.scratch->get<T>(Scratch::kOutput, d);
    for (int64_t i = 0; i < count; ++i) {
      const abi::Operand &g = op_.operands[D::kGradOut], &o = op_.operands[D::kOut];
      load_values<T>(env, x_.address(env, D::kGradOut, batch, head, first + i), x_.dtype(D::kGradOut), g.stride[3],
                     gradient, d);
      load_values<T>(env, x_.address(env, D::kOut, batch, head, first + i), x_.dtype(D::kOut), o.stride[3], out, d);
      const T delta = matrix_kernels<T>(*env.kernels).dot(gradient, out, d);
      store_values<T>(env, x_.address(env, D::kDelta, batch, head, first + i), x_.dtype(D::kDelta), 1, &delta, 1);
    }
  }

  /// p and ds of a block, in kScores and kGradient, [queries][keys].
  struct Gradients {
    T* p;
    T* ds;
  };
  Gradients gradients(const TileEnvironment& env, const QueryBlock& block) const {
    const int64_t keys = block.key_end - block.key_begin, length = row_length(env, keys);
    T* p = matrix(env, Scratch::kScores, block.count, keys);
    T* ds = matrix(env, Scratch::kGradient, block.count, keys);
    T* sums = env.scratch->get<T>(Scratch::kSums, 2 * block.count);
    T* delta = sums + block.count;
    attention_scores<T>(env, x_, X::kMask, block, gemm<T>, p);
    const MatrixView gradient = x_.matrix(env, X::kGradOut, block.batch, block.head, block.first);
    const MatrixView v = x_.matrix(env, X::kV, block.batch, block.head / x_.group(), block.key_begin);
    gemm<T>(*env.kernels, *env.scratch, gradient, {v.data, v.dtype, v.column_stride, v.row_stride}, block.count, keys,
            params().value_dim, ds);
    load(env, X::kLogSumExp, block.batch, block.head, block.first, block.count, sums);
    load(env, X::kDelta, block.batch, block.head, block.first, block.count, delta);
    for (int64_t i = 0; i < block.count; ++i) {
      T *row = p + i * length, *slope = ds + i * length;
      const bool hidden = sums[i] == -std::numeric_limits<T>::infinity();  // no key was visible: the output is constant
      for (int64_t j = 0; j < keys; ++j) {
        row[j] = hidden ? T(0) : std::exp(row[j] - sums[i]);
        slope[j] = row[j] * (slope[j] - delta[i]) * static_cast<T>(params().scale);
      }
    }
    return {p, ds};
  }

  MatrixView transposed(const TileEnvironment& env, const T* x, int64_t columns) const {
    return {x, kSumType, 1, row_length(env, columns)};
  }

  void add(T* total, const T* x, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) total[i] += x[i];
  }

  void store(const TileEnvironment& env, int operand, const T* rows, int64_t count, int64_t columns, int64_t batch,
             int64_t head, int64_t first) const {
    if (!x_.present(operand)) return;
    for (int64_t i = 0; i < count; ++i)
      store_values<T>(env, x_.address(env, operand, batch, head, first + i), x_.dtype(operand),
                      op_.operands[operand].stride[3], rows + i * row_length(env, columns), columns);
  }

  /// `head`: a part of the query heads that share a kv head; dk and dv have a head for each.
  void run_keys(const TileEnvironment& env, int64_t batch, int64_t head, int64_t c2) const {
    const int64_t heads = x_.group() / std::max(1, params().head_parts);
    const int64_t begin = c2 * params().tile_k, end = std::min<int64_t>(begin + params().tile_k, params().keys),
                  keys = end - begin;
    const int64_t size_k = gemm_rows<T>(*env.kernels, keys) * row_length(env, params().head_dim);
    const int64_t size_v = gemm_rows<T>(*env.kernels, keys) * row_length(env, params().value_dim);
    T* dk = env.scratch->get<T>(Scratch::kKeys, size_k);
    T* dv = env.scratch->get<T>(Scratch::kValues, size_v);
    T* part = env.scratch->get<T>(Scratch::kOutput, std::max(size_k, size_v));
    std::fill_n(dk, size_k, T(0));
    std::fill_n(dv, size_v, T(0));
    for (int64_t h = head * heads; h < (head + 1) * heads; ++h)
      for (int64_t s = 0; s < params().queries; s += kQueryBlock) {
        const QueryBlock block{batch, h, s, std::min<int64_t>(kQueryBlock, params().queries - s), begin, end};
        QueryBlock seen = block;
        clip_keys(env, x_, X::kRange, seen);
        if (seen.key_begin >= seen.key_end) continue;
        const Gradients g = gradients(env, block);
        const MatrixView gradient = x_.matrix(env, X::kGradOut, batch, h, s), q = x_.matrix(env, X::kQ, batch, h, s);
        gemm<T>(*env.kernels, *env.scratch, transposed(env, g.p, keys), gradient, keys, params().value_dim, block.count,
                part);
        add(dv, part, size_v);
        gemm<T>(*env.kernels, *env.scratch, transposed(env, g.ds, keys), q, keys, params().head_dim, block.count, part);
        add(dk, part, size_k);
      }
    store(env, X::kGradK, dk, keys, params().head_dim, batch, head, begin);
    store(env, X::kGradV, dv, keys, params().value_dim, batch, head, begin);
  }

  void run_queries(const TileEnvironment& env, int64_t batch, int64_t head, int64_t c2) const {
    QueryBlock block{batch,
                     head,
                     c2 * params().tile_q,
                     std::min<int64_t>(params().tile_q, params().queries - c2 * params().tile_q),
                     0,
                     params().keys};
    if (block.count <= 0) return;
    clip_keys(env, x_, X::kRange, block);
    const int64_t keys = block.key_end - block.key_begin;
    const Gradients g = gradients(env, block);
    T* dq = matrix(env, Scratch::kOutput, block.count, params().head_dim);
    const MatrixView slopes{g.ds, kSumType, row_length(env, keys), 1};
    gemm<T>(*env.kernels, *env.scratch, slopes, x_.matrix(env, X::kK, batch, head / x_.group(), block.key_begin),
            block.count, params().head_dim, keys, dq);
    store(env, X::kGradQ, dq, block.count, params().head_dim, batch, head, block.first);
  }

  plan::Op op_;
  AttentionOperands x_;
};

}  // namespace

std::unique_ptr<Task> make_attention_backward_task(const plan::Op& op) {
  const size_t expected = op.record.kind == TaskKind::kAttentionBackwardRows ? int{D::kCount} : int{X::kCount};
  check(op.operands.size() >= expected, "op '", op.name, "': attention backward with ", op.operands.size(),
        " operands of ", expected);
  const abi::AttentionParams& p = op.record.params.attention;
  check(p.kv_heads > 0 && p.heads % p.kv_heads == 0, "op '", op.name, "': ", p.heads, " heads over ", p.kv_heads,
        " kv heads");
  check(p.tile_q > 0 && p.tile_k > 0, "op '", op.name, "': tiles of ", p.tile_q, " queries and ", p.tile_k, " keys");
  const auto q = static_cast<DType>(op.operands[0].dtype);
  check_node(is_float(q), op.node, "op '", op.name, "': attention of ", name(q));
  const int num_factors = op.record.kind == TaskKind::kAttentionBackwardRows ? 0 : X::kGradOut + 1;
  for (int operand = 0; operand < num_factors; ++operand)
    check_node(reg_type(static_cast<DType>(op.operands[operand].dtype)) == reg_type(q), op.node, "op '", op.name,
               "': q, k, v and the gradient are computed in different types");
  if (q == DType::kF64) return std::make_unique<BackwardTask<double>>(op);
  return std::make_unique<BackwardTask<float>>(op);
}

}  // namespace ark::targets::host
