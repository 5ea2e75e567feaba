#include "targets/host/tasks/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ark::targets::host {
void* AttentionOperands::address(const TileEnvironment& env, int operand, int64_t i, int64_t j, int64_t k, int64_t l,
                                 int64_t m) const {
  const abi::Operand& x = op->operands[operand];
  const int64_t offset =
      x.offset + i * x.stride[0] + j * x.stride[1] + k * x.stride[2] + l * x.stride[3] + m * x.stride[4];
  return static_cast<std::byte*>(env.slots[x.slot]) + offset * size_bytes(dtype(operand));
}

MatrixView AttentionOperands::matrix(const TileEnvironment& env, int operand, int64_t batch, int64_t head,
                                     int64_t row) const {
  const abi::Operand& x = op->operands[operand];
  return {address(env, operand, batch, head, row), dtype(operand), x.stride[2], x.stride[3]};
}

void clip_to_range(const TileEnvironment& env, const AttentionOperands& x, int range_operand, QueryBlock& block) {
  if (!x.present(range_operand)) return;
  int64_t begin = block.key_end, end = block.key_begin;
  for (int64_t b = block.first / abi::kRangeBlock; b * abi::kRangeBlock < block.first + block.count; ++b) {
    begin = std::min<int64_t>(
        begin, *static_cast<const int32_t*>(x.address(env, range_operand, block.batch, block.head, b, 0)));
    end = std::max<int64_t>(end,
                            *static_cast<const int32_t*>(x.address(env, range_operand, block.batch, block.head, b, 1)));
  }
  block.key_begin = std::max(block.key_begin, begin);
  block.key_end = std::max(block.key_begin, std::min(block.key_end, end));
}

void clip_to_causal(const AttentionOperands& x, QueryBlock& block) {
  if (!x.params->causal) return;
  block.key_end = std::min(block.key_end, block.first + block.count + x.params->causal_offset);
  block.key_end = std::max(block.key_end, block.key_begin);
}

void clip_keys(const TileEnvironment& env, const AttentionOperands& x, int range_operand, QueryBlock& block) {
  clip_to_range(env, x, range_operand, block);
  clip_to_causal(x, block);
}

template <class T>
void attention_scores(const TileEnvironment& env, const AttentionOperands& x, int mask_operand, const QueryBlock& block,
                      Product<T> product, T* scores) {
  const abi::AttentionParams& p = *x.params;
  const int64_t keys = block.key_end - block.key_begin, row_length = gemm_row_length<T>(*env.kernels, keys);
  const MatrixView q = x.matrix(env, 0, block.batch, block.head, block.first);
  const MatrixView k = x.matrix(env, 1, block.batch, block.head / x.group(), block.key_begin);
  product(*env.kernels, *env.scratch, q, {k.data, k.dtype, k.column_stride, k.row_stride}, block.count, keys,
          p.head_dim, scores);
  const T hidden = -std::numeric_limits<T>::infinity(), scale = static_cast<T>(p.scale);
  void* mask = env.scratch->get(Scratch::kMask, keys * sizeof(double));
  const bool masked = p.mask_kind != abi::MaskKind::kNone && x.present(mask_operand);
  for (int64_t i = 0; i < block.count; ++i) {
    T* row = scores + i * row_length;
    for (int64_t j = 0; j < keys; ++j) row[j] *= scale;
    if (masked) {
      const DType type = x.dtype(mask_operand);
      env.kernels->load[static_cast<int>(type)](
          mask, x.address(env, mask_operand, block.batch, block.head, block.first + i, block.key_begin),
          x.op->operands[mask_operand].stride[3], keys);
      if (p.mask_kind == abi::MaskKind::kBool) {
        const auto* visible = static_cast<const uint8_t*>(mask);
        for (int64_t j = 0; j < keys; ++j) row[j] = visible[j] ? row[j] : hidden;
      } else if (type == DType::kF64) {
        for (int64_t j = 0; j < keys; ++j) row[j] += static_cast<T>(static_cast<const double*>(mask)[j]);
      } else {
        for (int64_t j = 0; j < keys; ++j) row[j] += static_cast<T>(static_cast<const float*>(mask)[j]);
      }
    }
    if (!p.causal) continue;
    const int64_t visible = std::clamp<int64_t>(block.first + i + p.causal_offset + 1 - block.key_begin, 0, keys);
    std::fill(row + visible, row + keys, hidden);
  }
}

template <class T>
void store_values(const TileEnvironment& env, void* memory, DType dtype, int64_t stride, const T* values, int64_t n) {
  constexpr RegType kType = sizeof(T) == 8 ? RegType::kF64 : RegType::kF32;
  const void* source = values;
  if (reg_type(dtype) != kType) {
    void* converted = env.scratch->get(Scratch::kConvert, n * sizeof(double));
    env.kernels->convert(kType, reg_type(dtype))(converted, values, n);
    source = converted;
  }
  env.kernels->store[static_cast<int>(dtype)](memory, source, stride, n);
}

template <class T>
void load_values(const TileEnvironment& env, const void* memory, DType dtype, int64_t stride, T* values, int64_t n) {
  constexpr RegType kType = sizeof(T) == 8 ? RegType::kF64 : RegType::kF32;
  if (reg_type(dtype) == kType) return env.kernels->load[static_cast<int>(dtype)](values, memory, stride, n);
  void* raw = env.scratch->get(Scratch::kConvert, n * sizeof(double));
  env.kernels->load[static_cast<int>(dtype)](raw, memory, stride, n);
  env.kernels->convert(reg_type(dtype), kType)(values, raw, n);
}

template <>
RowSoftmax<float> exponentiate(const Kernels& kernels, float* scores, int64_t n) {
  const float maximum = kernels.row_max(scores, n);
  if (maximum == -std::numeric_limits<float>::infinity()) {
    std::fill_n(scores, n, 0.0f);
    return {maximum, 0.0f};
  }
  return {maximum, kernels.exp_sum(scores, maximum, n)};
}

template <>
RowSoftmax<double> exponentiate(const Kernels&, double* scores, int64_t n) {
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t j = 0; j < n; ++j) maximum = (scores[j] > maximum || scores[j] != scores[j]) ? scores[j] : maximum;
  for (int64_t j = 0; j < n; ++j) {
    scores[j] = maximum == -std::numeric_limits<double>::infinity() ? 0 : std::exp(scores[j] - maximum);
    sum += scores[j];
  }
  return {maximum, sum};
}

template void attention_scores(const TileEnvironment&, const AttentionOperands&, int, const QueryBlock&, Product<float>,
                               float*);
template void attention_scores(const TileEnvironment&, const AttentionOperands&, int, const QueryBlock&,
                               Product<double>, double*);
template void store_values(const TileEnvironment&, void*, DType, int64_t, const float*, int64_t);
template void store_values(const TileEnvironment&, void*, DType, int64_t, const double*, int64_t);
template void load_values(const TileEnvironment&, const void*, DType, int64_t, float*, int64_t);
template void load_values(const TileEnvironment&, const void*, DType, int64_t, double*, int64_t);

std::unique_ptr<Task> make_attention_task(const plan::Plan&, const plan::Op& op, const Kernels&) {
  using enum abi::TaskKind;
  const abi::TaskKind kind = op.record.kind;
  const bool backward = kind == kAttentionBackwardRows || kind == kAttentionBackward || kind == kAttentionBackwardQuery;
  return backward ? make_attention_backward_task(op) : make_attention_forward_task(op);
}

}  // namespace ark::targets::host
