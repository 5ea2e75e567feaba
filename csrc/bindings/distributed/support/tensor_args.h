// Arguments of the process group: what torch passes, checked and in the terms of csrc/comm. Errors are torch's own
// (RuntimeError) and name the operation, what was expected and what came.
#pragma once
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "comm/reduce.h"

namespace ark::bindings {

DType reducible_type(at::ScalarType type);
/// What stands for a type where ranks compare what they move: the DType, numbers above them for others of torch.
int wire_type(at::ScalarType type);
/// As reducible_type, for an operation that has to be defined for the type.
DType reducible_type(at::ScalarType type, const c10d::ReduceOp& op);
comm::Reduction reduction(const c10d::ReduceOp& op);
void check_dense(const at::Tensor& tensor, const char* operation);
/// Of a tensor that the call writes: dense, and no two elements in one place, as those of an expanded tensor are.
void check_written(const at::Tensor& tensor, const char* operation);
/// All of `tensors` on the device of `like`.
void check_device(const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* operation);
/// The only tensor of a list; one that the call writes.
const at::Tensor& single(const std::vector<at::Tensor>& tensors, const char* operation);
const at::Tensor& single_written(const std::vector<at::Tensor>& tensors, const char* operation);
void check_root(int64_t root, int size, const char* operation);
/// A tensor to reduce: complex numbers are pairs of real ones (sums and averages only).
at::Tensor as_real(const at::Tensor& tensor, const c10d::ReduceOp& op);

/// What is added up: the tensor, times the factor of a sum that has one (PREMUL_SUM).
at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op);
/// `inputs`, and the factor if that is a tensor.
std::vector<at::Tensor> with_factor(std::vector<at::Tensor> inputs, const c10d::ReduceOp& op);

/// Copies what a call writes: no part of autograd, and tensors of inference mode too, whatever the thread's mode is.
void overwrite(const at::Tensor& to, const at::Tensor& from);

/// Contiguous storage to work on; written back by `finish` when it is a copy.
struct Staged {
  at::Tensor user, data;
  explicit Staged(at::Tensor tensor) : user(std::move(tensor)), data(user.is_contiguous() ? user : user.contiguous()) {}
  void* ptr() const { return data.data_ptr(); }
  size_t bytes() const { return data.nbytes(); }
  void premultiply(const c10d::ReduceOp& op) { data = premultiplied(data, op); }
  void release() { user = data = at::Tensor(); }
  void finish() const {
    if (!data.is_same(user)) overwrite(user, data);
  }
};

at::Tensor flat(const std::vector<at::Tensor>& parts);
void unflatten(const at::Tensor& joined, const std::vector<at::Tensor>& parts);
/// As many parts as ranks, each like `like`, on its device.
void check_parts(const std::vector<at::Tensor>& parts, int size, const at::Tensor& like, const char* operation);
/// The same, of any sizes; all of them written.
void check_gathered(const std::vector<at::Tensor>& parts, int size, const at::Tensor& input);
/// Output and input of all_gather_into_tensor.
void check_gathered_into(const at::Tensor& output, const at::Tensor& input, int size);
/// Dense tensors of the type of `like`, on its device.
void check_alike(const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* operation);
/// A list for every rank, and this rank's part as large as the output.
void check_scattered(const std::vector<at::Tensor>& parts, int rank, int size, const at::Tensor& output);
/// Bytes to or from every rank of an all-to-all.
std::vector<uint64_t> split_bytes(const std::vector<int64_t>& splits, const at::Tensor& tensor, int size,
                                  const char* which);

}  // namespace ark::bindings
