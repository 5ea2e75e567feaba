#include "bindings/distributed/support/tensor_args.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace ark::bindings {

namespace {

std::optional<DType> real_type(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return DType::kBool;
    case at::kByte:
      return DType::kU8;
    case at::kChar:
      return DType::kI8;
    case at::kShort:
      return DType::kI16;
    case at::kInt:
      return DType::kI32;
    case at::kLong:
      return DType::kI64;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kFloat:
      return DType::kF32;
    case at::kDouble:
      return DType::kF64;
    default:
      return {};
  }
}

/// Of PREMUL_SUM, null for other operations.
const c10d::NCCLPreMulSumSupplement* factor_of(const c10d::ReduceOp& op) {
  if (op != c10d::ReduceOp::PREMUL_SUM) return nullptr;
  TORCH_CHECK(op.supplement_, "ark process group: a sum with a factor has none");
  return static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
}

}  // namespace

DType reducible_type(at::ScalarType type) {
  const std::optional<DType> real = real_type(type);
  TORCH_CHECK(real, "ark process group: expected a real or boolean type to reduce, got ", type);
  return *real;
}

int wire_type(at::ScalarType type) {
  static constexpr at::ScalarType kOthers[] = {at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn,
                                               at::kFloat8_e5m2};
  if (const std::optional<DType> real = real_type(type)) return static_cast<int>(*real);
  return kNumDTypes + static_cast<int>(std::find(std::begin(kOthers), std::end(kOthers), type) - std::begin(kOthers));
}

DType reducible_type(at::ScalarType type, const c10d::ReduceOp& op) {
  const DType reducible = reducible_type(type);
  const bool bits = op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR || op == c10d::ReduceOp::BXOR;
  TORCH_CHECK(!bits || c10::isIntegralType(type, true),
              "ark process group: bit operations are for integers and bool, got ", type);
  TORCH_CHECK(op != c10d::ReduceOp::AVG || type != at::kBool,
              "ark process group: expected a number type for an average, got ", type);
  TORCH_CHECK(!factor_of(op) || c10::isFloatingType(type),
              "ark process group: expected a floating-point type for a sum with a factor, got ", type);
  reduction(op);  // throws for operations of others
  return reducible;
}

comm::Reduction reduction(const c10d::ReduceOp& op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return comm::Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return comm::Reduction::kAverage;
    case c10d::ReduceOp::PRODUCT:
      return comm::Reduction::kProduct;
    case c10d::ReduceOp::MIN:
      return comm::Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return comm::Reduction::kMax;
    case c10d::ReduceOp::BAND:
      return comm::Reduction::kBitAnd;
    case c10d::ReduceOp::BOR:
      return comm::Reduction::kBitOr;
    case c10d::ReduceOp::BXOR:
      return comm::Reduction::kBitXor;
    default:
      TORCH_CHECK(false, "ark process group: expected sum, avg, product, min, max or a bit operation, got reduce op ",
                  static_cast<int>(op.op_));
  }
}

void check_dense(const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK(tensor.layout() == at::kStrided, "ark process group, ", operation,
              ": expected a dense tensor, got layout ", tensor.layout());
}

void check_written(const at::Tensor& tensor, const char* operation) {
  check_dense(tensor, operation);
  TORCH_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "ark process group, ", operation,
              ": expected a tensor to write whose elements each have a place of their own, got sizes ", tensor.sizes(),
              " and strides ", tensor.strides());
}

void check_device(const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* operation) {
  for (const at::Tensor& t : tensors)
    TORCH_CHECK(t.device() == like.device(), "ark process group, ", operation, ": expected all tensors on ",
                like.device(), ", got one on ", t.device());
}

const at::Tensor& single(const std::vector<at::Tensor>& tensors, const char* operation) {
  TORCH_CHECK(tensors.size() == 1, "ark process group, ", operation, ": expected one tensor, got ", tensors.size());
  check_dense(tensors[0], operation);
  return tensors[0];
}

const at::Tensor& single_written(const std::vector<at::Tensor>& tensors, const char* operation) {
  check_written(single(tensors, operation), operation);
  return tensors[0];
}

void check_root(int64_t root, int size, const char* operation) {
  TORCH_CHECK(root >= 0 && root < size, "ark process group, ", operation, ": expected a rank in [0, ", size, "), got ",
              root);
}

at::Tensor as_real(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (!tensor.is_complex()) return tensor;
  TORCH_CHECK(op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG || op == c10d::ReduceOp::PREMUL_SUM,
              "ark process group: all_reduce does not support ", static_cast<int>(op.op_),
              " on complex tensors: expected sum or avg");
  return at::view_as_real(tensor);
}

at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto* factor = factor_of(op);
  if (!factor) return tensor;
  at::NoGradGuard no_autograd;
  TORCH_CHECK(!factor->tensor_factor.defined() || !factor->tensor_factor.is_complex(),
              "ark process group: expected a real factor of a sum, got ", factor->tensor_factor.scalar_type());
  if (factor->tensor_factor.defined()) return at::mul(tensor, factor->tensor_factor.reshape({}));
  return at::mul(tensor, factor->double_factor);
}

std::vector<at::Tensor> with_factor(std::vector<at::Tensor> inputs, const c10d::ReduceOp& op) {
  if (const auto* factor = factor_of(op); factor && factor->tensor_factor.defined())
    inputs.push_back(factor->tensor_factor);
  return inputs;
}

void overwrite(const at::Tensor& to, const at::Tensor& from) {
  c10::InferenceMode any_tensor;
  at::Tensor target = to;
  target.copy_(from.reshape(to.sizes()));
}

at::Tensor flat(const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& part : parts) pieces.push_back(part.reshape(-1));
  return at::cat(pieces);
}

void unflatten(const at::Tensor& joined, const std::vector<at::Tensor>& parts) {
  int64_t at = 0;
  for (const at::Tensor& part : parts) {
    overwrite(part, joined.narrow(0, at, part.numel()));
    at += part.numel();
  }
}

void check_parts(const std::vector<at::Tensor>& parts, int size, const at::Tensor& like, const char* operation) {
  TORCH_CHECK(static_cast<int>(parts.size()) == size, "ark process group, ", operation, ": expected ", size,
              " tensors, got ", parts.size());
  check_device(parts, like, operation);
  for (const at::Tensor& part : parts) {
    check_dense(part, operation);
    TORCH_CHECK(part.numel() == like.numel() && part.scalar_type() == like.scalar_type(), "ark process group, ",
                operation, ": expected ", like.numel(), " elements of ", like.scalar_type(), " from every rank, got ",
                part.numel(), " of ", part.scalar_type());
  }
}

void check_gathered(const std::vector<at::Tensor>& parts, int size, const at::Tensor& input) {
  TORCH_CHECK(static_cast<int>(parts.size()) == size, "ark process group, all_gather: expected ", size,
              " outputs, got ", parts.size());
  check_device(parts, input, "all_gather");
  for (const at::Tensor& part : parts) {
    check_written(part, "all_gather");
    TORCH_CHECK(part.scalar_type() == input.scalar_type(), "ark process group, all_gather: expected outputs of ",
                input.scalar_type(), ", got ", part.scalar_type());
  }
}

void check_gathered_into(const at::Tensor& output, const at::Tensor& input, int size) {
  check_dense(input, "all_gather_into_tensor");
  check_written(output, "all_gather_into_tensor");
  TORCH_CHECK(output.numel() == input.numel() * size && output.scalar_type() == input.scalar_type(),
              "ark process group, all_gather_into_tensor: expected an output of ", input.numel() * size,
              " elements of ", input.scalar_type(), ", got ", output.numel(), " of ", output.scalar_type());
}

void check_alike(const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* operation) {
  check_device(tensors, like, operation);
  for (const at::Tensor& t : tensors) {
    check_dense(t, operation);
    TORCH_CHECK(t.scalar_type() == like.scalar_type(), "ark process group, ", operation, ": expected all tensors of ",
                like.scalar_type(), ", got one of ", t.scalar_type());
  }
}

void check_scattered(const std::vector<at::Tensor>& parts, int rank, int size, const at::Tensor& output) {
  TORCH_CHECK(static_cast<int>(parts.size()) == size, "ark process group, reduce_scatter: expected ", size,
              " inputs, got ", parts.size());
  check_alike(parts, output, "reduce_scatter");
  TORCH_CHECK(parts[rank].numel() == output.numel(), "ark process group, reduce_scatter: expected ", output.numel(),
              " elements for this rank, got ", parts[rank].numel());
}

std::vector<uint64_t> split_bytes(const std::vector<int64_t>& splits, const at::Tensor& tensor, int size,
                                  const char* which) {
  const int64_t rows = tensor.dim() ? tensor.size(0) : 1;
  const int64_t row_bytes = rows ? static_cast<int64_t>(tensor.nbytes()) / rows : 0;
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, "ark process group, all_to_all: expected the first dimension of the ", which,
                " to be a multiple of ", size, ", got ", rows);
    return std::vector<uint64_t>(size, rows / size * row_bytes);
  }
  TORCH_CHECK(static_cast<int>(splits.size()) == size, "ark process group, all_to_all: expected ", size, " ", which,
              " splits, got ", splits.size());
  int64_t sum = 0;
  std::vector<uint64_t> bytes;
  for (int64_t s : splits) {
    TORCH_CHECK(s >= 0 && s <= rows, "ark process group, all_to_all: expected ", which, " splits of 0 to ", rows,
                ", got ", s);
    sum += s;
    bytes.push_back(static_cast<uint64_t>(s) * row_bytes);
  }
  TORCH_CHECK(sum == rows, "ark process group, all_to_all: expected ", which, " splits that sum to ", rows, ", got ",
              sum);
  return bytes;
}

}  // namespace ark::bindings
