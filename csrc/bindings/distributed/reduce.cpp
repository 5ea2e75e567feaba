#include <ATen/Functions.h>

#include "bindings/distributed/process_group.h"
#include "bindings/distributed/support/tensor_args.h"

namespace ark::bindings {

namespace {

/// The ranks compare whether what they add up has a factor.
comm::HostCollectives::Call for_op(comm::HostCollectives::Call call, const c10d::ReduceOp& op) {
  if (op == c10d::ReduceOp::PREMUL_SUM) call.element = "with a factor";
  return call;
}

}  // namespace

ProcessGroupArk::WorkPtr ProcessGroupArk::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Attempt attempt(*this, "all_reduce");
  if (on_cuda(tensors, "all_reduce")) {
    return on_gpu(
        "all_reduce", [&](CudaGroup& g) { return g.allreduce(tensors, opts.reduceOp, opts.asyncOp, opts.timeout); },
        [&](c10d::Backend& b) { return b.allreduce(tensors, opts); });
  }
  if (tensors.size() == 1 && tensors[0].layout() != at::kStrided)
    return on_gloo("all_reduce of sparse tensors", c10d::OpType::_ALLREDUCE_SPARSE, tensors, opts.timeout,
                   [tensors, opts](c10d::Backend& b) mutable { return b.allreduce(tensors, opts); });
  at::Tensor tensor = as_real(single_written(tensors, "all_reduce"), opts.reduceOp);
  DType type = reducible_type(tensor.scalar_type(), opts.reduceOp);
  return submit(c10d::OpType::ALLREDUCE, tensors, opts.timeout,
                [this, tensor, type, op = opts.reduceOp](const Call& call) {
                  Staged staged(tensor);
                  staged.premultiply(op);
                  collectives_->all_reduce(staged.ptr(), tensor.numel(), type, reduction(op), for_op(call, op));
                  staged.finish();
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::allreduce_coalesced(Tensors& tensors,
                                                              const c10d::AllreduceCoalescedOptions& opts) {
  Attempt attempt(*this, "all_reduce_coalesced");
  if (on_cuda(tensors, "all_reduce_coalesced")) {
    return on_gpu(
        "all_reduce_coalesced",
        [&](CudaGroup& g) { return g.allreduce(tensors, opts.reduceOp, opts.asyncOp, opts.timeout); },
        [&](c10d::Backend& b) { return b.allreduce_coalesced(tensors, opts); });
  }
  TORCH_CHECK(!tensors.empty(), "ark process group, all_reduce_coalesced: expected at least one tensor");
  Tensors parts;
  for (const at::Tensor& t : tensors) {
    check_written(t, "all_reduce_coalesced");
    TORCH_CHECK(t.scalar_type() == tensors[0].scalar_type(),
                "ark process group, all_reduce_coalesced: expected one type, got ", tensors[0].scalar_type(), " and ",
                t.scalar_type());
    parts.push_back(as_real(t, opts.reduceOp));
  }
  DType type = reducible_type(parts[0].scalar_type(), opts.reduceOp);
  return submit(c10d::OpType::ALLREDUCE_COALESCED, tensors, opts.timeout,
                [this, parts, type, op = opts.reduceOp](const Call& call) {
                  at::Tensor joined = premultiplied(flat(parts), op);
                  collectives_->all_reduce(joined.data_ptr(), joined.numel(), type, reduction(op), for_op(call, op));
                  unflatten(joined, parts);
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Attempt attempt(*this, "reduce");
  if (on_cuda(tensors, "reduce")) {
    return on_gpu(
        "reduce", [&](CudaGroup& g) { return g.reduce(tensors, opts); },
        [&](c10d::Backend& b) { return b.reduce(tensors, opts); });
  }
  check_root(opts.rootRank, getSize(), "reduce");
  at::Tensor tensor = as_real(single_written(tensors, "reduce"), opts.reduceOp);
  DType type = reducible_type(tensor.scalar_type(), opts.reduceOp);
  auto root = static_cast<int>(opts.rootRank);
  return submit(c10d::OpType::REDUCE, tensors, opts.timeout,
                [this, tensor, type, root, op = opts.reduceOp](const Call& call) {
                  Staged staged(tensor);
                  staged.premultiply(op);
                  collectives_->reduce(staged.ptr(), tensor.numel(), type, reduction(op), root, for_op(call, op));
                  if (getRank() == root) staged.finish();
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                         const c10d::ReduceScatterOptions& opts) {
  Attempt attempt(*this, "reduce_scatter");
  if (on_cuda(outputs, "reduce_scatter")) {
    return on_gpu(
        "reduce_scatter", [&](CudaGroup& g) { return g.reduce_scatter(outputs, inputs, opts); },
        [&](c10d::Backend& b) { return b.reduce_scatter(outputs, inputs, opts); });
  }
  at::Tensor output = single_written(outputs, "reduce_scatter");
  TORCH_CHECK(inputs.size() == 1, "ark process group, reduce_scatter: expected one list of inputs, got ",
              inputs.size());
  Tensors parts = inputs[0];
  check_scattered(parts, getRank(), getSize(), output);
  output = as_real(output, opts.reduceOp);
  for (at::Tensor& part : parts) part = as_real(part, opts.reduceOp);
  DType type = reducible_type(output.scalar_type(), opts.reduceOp);
  bool even = true;
  for (const at::Tensor& part : parts) even = even && part.numel() == output.numel();
  return submit(c10d::OpType::REDUCE_SCATTER, outputs, opts.timeout,
                [this, output, parts, type, even, op = opts.reduceOp](const Call& call) {
                  at::Tensor joined = premultiplied(flat(parts), op);
                  if (even) {
                    Staged out(output);
                    collectives_->reduce_scatter(joined.data_ptr(), out.ptr(), output.numel(), type, reduction(op),
                                                 for_op(call, op));
                    return out.finish();
                  }
                  Call uneven = for_op(call, op);
                  uneven.operation = "reduce_scatter";
                  collectives_->all_reduce(joined.data_ptr(), joined.numel(), type, reduction(op), uneven);
                  int64_t before = 0;
                  for (int r = 0; r < getRank(); ++r) before += parts[r].numel();
                  unflatten(joined.narrow(0, before, output.numel()), {output});
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                               const c10d::ReduceScatterOptions& opts) {
  Attempt attempt(*this, "reduce_scatter_tensor");
  if (on_cuda({input, output}, "reduce_scatter_tensor")) {
    Tensors outs{output}, ins{input};
    return on_gpu(
        "reduce_scatter_tensor", [&](CudaGroup& g) { return g.reduce_scatter_from(outs, ins, opts); },
        [&](c10d::Backend& b) { return b._reduce_scatter_base(output, input, opts); });
  }
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupArk::WorkPtr ProcessGroupArk::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::ReduceScatterOptions& opts) {
  Attempt attempt(*this, "reduce_scatter_tensor_coalesced");
  if (on_cuda(inputs, "reduce_scatter_tensor_coalesced")) {
    return on_gpu(
        "reduce_scatter_tensor_coalesced", [&](CudaGroup& g) { return g.reduce_scatter_from(outputs, inputs, opts); },
        [&](c10d::Backend& b) { return b.reduce_scatter_tensor_coalesced(outputs, inputs, opts); });
  }
  TORCH_CHECK(outputs.size() == inputs.size() && !inputs.empty(),
              "ark process group, reduce_scatter_tensor: expected as many outputs as inputs, got ", outputs.size(),
              " and ", inputs.size());
  check_device(outputs, inputs[0], "reduce_scatter_tensor");
  Tensors from, to;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dense(inputs[i], "reduce_scatter_tensor");
    check_written(outputs[i], "reduce_scatter_tensor");
    TORCH_CHECK(
        inputs[i].numel() == outputs[i].numel() * getSize() && inputs[i].scalar_type() == outputs[i].scalar_type(),
        "ark process group, reduce_scatter_tensor: expected an input of ", outputs[i].numel() * getSize(),
        " elements of ", outputs[i].scalar_type(), ", got ", inputs[i].numel(), " of ", inputs[i].scalar_type());
    from.push_back(as_real(inputs[i], opts.reduceOp));
    to.push_back(as_real(outputs[i], opts.reduceOp));
    reducible_type(from[i].scalar_type(), opts.reduceOp);
  }
  return submit(c10d::OpType::_REDUCE_SCATTER_BASE, outputs, opts.timeout,
                [this, inputs = from, outputs = to, op = opts.reduceOp](const Call& call) {
                  for (size_t i = 0; i < inputs.size(); ++i) {
                    Staged in(inputs[i]), out(outputs[i]);
                    in.premultiply(op);
                    collectives_->reduce_scatter(in.ptr(), out.ptr(), out.data.numel(),
                                                 reducible_type(out.data.scalar_type()), reduction(op),
                                                 for_op(call, op));
                    out.finish();
                  }
                });
}

}  // namespace ark::bindings
