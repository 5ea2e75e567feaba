#include <ATen/Functions.h>

#include "bindings/distributed/process_group.h"
#include "bindings/distributed/support/tensor_args.h"

namespace ark::bindings {

namespace {

/// The ranks compare the types of what they move. `operation`: what the user called, where that is done by another.
comm::HostCollectives::Call typed(comm::HostCollectives::Call call, const at::Tensor& tensor,
                                  const char* operation = "") {
  call.element = c10::toString(tensor.scalar_type());
  call.operation = operation;
  return call;
}

}  // namespace

ProcessGroupArk::WorkPtr ProcessGroupArk::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Attempt attempt(*this, "broadcast");
  if (on_cuda(tensors, "broadcast")) {
    return on_gpu(
        "broadcast", [&](CudaGroup& g) { return g.broadcast(tensors, opts); },
        [&](c10d::Backend& b) { return b.broadcast(tensors, opts); });
  }
  check_root(opts.rootRank, getSize(), "broadcast");
  at::Tensor tensor = single_written(tensors, "broadcast");
  return submit(c10d::OpType::BROADCAST, tensors, opts.timeout,
                [this, tensor, root = static_cast<int>(opts.rootRank)](const Call& call) {
                  Staged staged(tensor);
                  collectives_->broadcast(staged.ptr(), staged.bytes(), root, typed(call, tensor));
                  staged.finish();
                });
}

/// parts[r] = rank r's input. Sizes may differ over ranks: then every rank sends its tensor to all and expects what
/// `parts` say.
void ProcessGroupArk::gather_parts(const at::Tensor& input, const Tensors& parts, const Call& call) {
  Staged staged(input);
  bool even = true;
  int64_t total = 0;
  std::vector<uint64_t> from;
  for (const at::Tensor& part : parts) {
    even = even && part.numel() == input.numel();
    total += part.numel();
    from.push_back(part.nbytes());
  }
  at::Tensor joined = at::empty({total}, input.options());
  if (even) {
    collectives_->all_gather(staged.ptr(), joined.data_ptr(), staged.bytes(), typed(call, input));
  } else {
    at::Tensor sent = flat(Tensors(parts.size(), staged.data));
    collectives_->all_to_all(sent.data_ptr(), std::vector<uint64_t>(parts.size(), staged.bytes()), joined.data_ptr(),
                             from, typed(call, input, "all_gather"));
  }
  unflatten(joined, parts);
}

ProcessGroupArk::WorkPtr ProcessGroupArk::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& opts) {
  Attempt attempt(*this, "all_gather");
  if (on_cuda(inputs, "all_gather")) {
    return on_gpu(
        "all_gather", [&](CudaGroup& g) { return g.allgather(outputs, inputs, opts); },
        [&](c10d::Backend& b) { return b.allgather(outputs, inputs, opts); });
  }
  const at::Tensor& input = single(inputs, "all_gather");
  TORCH_CHECK(outputs.size() == 1, "ark process group, all_gather: expected one list of outputs, got ", outputs.size());
  check_gathered(outputs[0], getSize(), input);
  return submit(c10d::OpType::ALLGATHER, outputs[0], opts.timeout,
                [this, input, parts = outputs[0]](const Call& call) { gather_parts(input, parts, call); });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions& opts) {
  Attempt attempt(*this, "all_gather_coalesced");
  for (const Tensors& of_rank : outputs)
    TORCH_CHECK(of_rank.size() == inputs.size(), "ark process group, all_gather_coalesced: expected ", inputs.size(),
                " tensors from every rank, got ", of_rank.size());
  if (on_cuda(inputs, "all_gather_coalesced")) {
    std::vector<Tensors> by_input(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      for (const Tensors& of_rank : outputs) by_input[i].push_back(of_rank[i]);
    return on_gpu(
        "all_gather_coalesced", [&](CudaGroup& g) { return g.allgather(by_input, inputs, opts); },
        [&](c10d::Backend& b) { return b.allgather_coalesced(outputs, inputs, opts); });
  }
  // Unlike all_gather: outputs[r][i] gets rank r's inputs[i].
  TORCH_CHECK(static_cast<int>(outputs.size()) == getSize(),
              "ark process group, all_gather_coalesced: expected outputs of ", getSize(), " ranks, got ",
              outputs.size());
  std::vector<Tensors> by_input(inputs.size());
  Tensors results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dense(inputs[i], "all_gather_coalesced");
    for (const Tensors& of_rank : outputs) {
      by_input[i].push_back(of_rank[i]);
      results.push_back(of_rank[i]);
    }
    check_gathered(by_input[i], getSize(), inputs[i]);
  }
  return submit(c10d::OpType::ALLGATHER_COALESCED, results, opts.timeout, [this, inputs, by_input](const Call& call) {
    for (size_t i = 0; i < inputs.size(); ++i) gather_parts(inputs[i], by_input[i], call);
  });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::AllgatherOptions& opts) {
  Attempt attempt(*this, "all_gather_into_tensor");
  if (on_cuda({input, output}, "all_gather_into_tensor")) {
    Tensors outs{output}, ins{input};
    return on_gpu(
        "all_gather_into_tensor", [&](CudaGroup& g) { return g.allgather_into(outs, ins, opts); },
        [&](c10d::Backend& b) { return b._allgather_base(output, input, opts); });
  }
  check_gathered_into(output, input, getSize());
  return submit(c10d::OpType::_ALLGATHER_BASE, {output}, opts.timeout, [this, input, output](const Call& call) {
    Staged in(input), out(output);
    collectives_->all_gather(in.ptr(), out.ptr(), in.bytes(), typed(call, input));
    out.finish();
  });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::AllgatherOptions& opts) {
  Attempt attempt(*this, "all_gather_into_tensor_coalesced");
  if (on_cuda(inputs, "all_gather_into_tensor_coalesced")) {
    return on_gpu(
        "all_gather_into_tensor_coalesced", [&](CudaGroup& g) { return g.allgather_into(outputs, inputs, opts); },
        [&](c10d::Backend& b) { return b.allgather_into_tensor_coalesced(outputs, inputs, opts); });
  }
  TORCH_CHECK(outputs.size() == inputs.size() && !inputs.empty(),
              "ark process group, all_gather_into_tensor_coalesced: expected as many outputs as inputs, got ",
              outputs.size(), " and ", inputs.size());
  check_device(outputs, inputs[0], "all_gather_into_tensor_coalesced");
  for (size_t i = 0; i < inputs.size(); ++i) check_gathered_into(outputs[i], inputs[i], getSize());
  return submit(c10d::OpType::COALESCED, outputs, opts.timeout, [this, inputs, outputs](const Call& call) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      Staged in(inputs[i]), out(outputs[i]);
      collectives_->all_gather(in.ptr(), out.ptr(), in.bytes(), typed(call, inputs[i]));
      out.finish();
    }
  });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& opts) {
  Attempt attempt(*this, "gather");
  if (on_cuda(inputs, "gather")) {
    return on_gpu(
        "gather", [&](CudaGroup& g) { return g.gather(outputs, inputs, opts); },
        [&](c10d::Backend& b) { return b.gather(outputs, inputs, opts); });
  }
  check_root(opts.rootRank, getSize(), "gather");
  at::Tensor input = single(inputs, "gather");
  const bool is_root = getRank() == opts.rootRank;
  TORCH_CHECK(outputs.size() == (is_root ? 1u : 0u), "ark process group, gather: expected ",
              is_root ? "one list" : "no list", " of outputs on rank ", getRank(), ", got ", outputs.size());
  Tensors parts = is_root ? outputs[0] : Tensors{};
  if (is_root) check_parts(parts, getSize(), input, "gather");
  for (const at::Tensor& part : parts) check_written(part, "gather");
  return submit(c10d::OpType::GATHER, parts, opts.timeout,
                [this, input, parts, root = static_cast<int>(opts.rootRank)](const Call& call) {
                  Staged in(input);
                  at::Tensor joined = at::empty({static_cast<int64_t>(parts.size()) * input.numel()}, input.options());
                  collectives_->gather(in.ptr(), joined.data_ptr(), in.bytes(), root, typed(call, input));
                  unflatten(joined, parts);
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& opts) {
  Attempt attempt(*this, "scatter");
  if (on_cuda(outputs, "scatter")) {
    return on_gpu(
        "scatter", [&](CudaGroup& g) { return g.scatter(outputs, inputs, opts); },
        [&](c10d::Backend& b) { return b.scatter(outputs, inputs, opts); });
  }
  check_root(opts.rootRank, getSize(), "scatter");
  at::Tensor output = single_written(outputs, "scatter");
  const bool is_root = getRank() == opts.rootRank;
  TORCH_CHECK(inputs.size() == (is_root ? 1u : 0u), "ark process group, scatter: expected ",
              is_root ? "one list" : "no list", " of inputs on rank ", getRank(), ", got ", inputs.size());
  Tensors parts = is_root ? inputs[0] : Tensors{};
  if (is_root) check_parts(parts, getSize(), output, "scatter");
  return submit(c10d::OpType::SCATTER, outputs, opts.timeout,
                [this, output, parts, root = static_cast<int>(opts.rootRank)](const Call& call) {
                  Staged out(output);
                  at::Tensor joined = parts.empty() ? at::empty({0}, output.options()) : flat(parts);
                  collectives_->scatter(joined.data_ptr(), out.ptr(), out.bytes(), root, typed(call, output));
                  out.finish();
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                        std::vector<int64_t>& output_splits,
                                                        std::vector<int64_t>& input_splits,
                                                        const c10d::AllToAllOptions& opts) {
  Attempt attempt(*this, "all_to_all_single");
  if (on_cuda({input, output}, "all_to_all_single")) {
    return on_gpu(
        "all_to_all_single",
        [&](CudaGroup& g) { return g.alltoall_base(output, input, output_splits, input_splits, opts); },
        [&](c10d::Backend& b) { return b.alltoall_base(output, input, output_splits, input_splits, opts); });
  }
  check_written(output, "all_to_all");
  TORCH_CHECK(input.scalar_type() == output.scalar_type(), "ark process group, all_to_all: expected an output of ",
              input.scalar_type(), ", got ", output.scalar_type());
  auto to = split_bytes(input_splits, input, getSize(), "input"),
       from = split_bytes(output_splits, output, getSize(), "output");
  return submit(c10d::OpType::ALLTOALL_BASE, {output}, opts.timeout, [this, input, output, to, from](const Call& call) {
    Staged in(input), out(output);
    collectives_->all_to_all(in.ptr(), to, out.ptr(), from, typed(call, input));
    out.finish();
  });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& opts) {
  Attempt attempt(*this, "all_to_all");
  if (on_cuda(inputs, "all_to_all")) {
    return on_gpu(
        "all_to_all", [&](CudaGroup& g) { return g.alltoall(outputs, inputs, opts); },
        [&](c10d::Backend& b) { return b.alltoall(outputs, inputs, opts); });
  }
  TORCH_CHECK(static_cast<int>(inputs.size()) == getSize() && static_cast<int>(outputs.size()) == getSize(),
              "ark process group, all_to_all: expected ", getSize(), " inputs and outputs, got ", inputs.size(),
              " and ", outputs.size());
  check_alike(inputs, inputs[0], "all_to_all");
  check_alike(outputs, inputs[0], "all_to_all");
  for (const at::Tensor& t : outputs) check_written(t, "all_to_all");
  std::vector<uint64_t> to, from;
  int64_t total = 0;
  for (const at::Tensor& t : inputs) to.push_back(t.nbytes());
  for (const at::Tensor& t : outputs) {
    from.push_back(t.nbytes());
    total += t.numel();
  }
  return submit(c10d::OpType::ALLTOALL, outputs, opts.timeout,
                [this, inputs, outputs, to, from, total](const Call& call) {
                  at::Tensor sent = flat(inputs), got = at::empty({total}, outputs[0].options());
                  collectives_->all_to_all(sent.data_ptr(), to, got.data_ptr(), from, typed(call, inputs[0]));
                  unflatten(got, outputs);
                });
}

}  // namespace ark::bindings
