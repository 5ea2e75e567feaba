// The exchanges of a CUDA process group: what moves data and reduces nothing, as a list of parts per peer.
#include "base/check.h"
#include "bindings/distributed/cuda/group.h"
#include "bindings/distributed/support/tensor_args.h"

namespace ark::bindings {
namespace {

abi::ExchangePart part(const void* source, void* destination, uint64_t send_bytes, uint64_t receive_bytes) {
  return {static_cast<const unsigned char*>(source), static_cast<unsigned char*>(destination), send_bytes,
          receive_bytes};
}

}  // namespace

CudaGroup::WorkPtr CudaGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  check_root(opts.rootRank, size_, "broadcast");
  const at::Tensor& tensor = single_written(tensors, "broadcast");
  if (!usable(tensor.device())) return nullptr;
  return submit(
      {.type = c10d::OpType::BROADCAST, .results = tensors, .async = opts.asyncOp, .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        Staged staged(tensor);
        const int root = static_cast<int>(opts.rootRank);
        std::vector<abi::ExchangePart> parts(size_, part(nullptr, nullptr, 0, 0));
        if (rank_ == root) {
          for (int r = 0; r < size_; ++r)
            if (r != root) parts[r] = part(staged.ptr(), nullptr, staged.bytes(), 0);
        } else {
          parts[root] = part(nullptr, staged.ptr(), 0, staged.bytes());
        }
        collectives.exchange(comm::ExchangeKind::kBroadcast, parts, root, staged.bytes(), call,
                             {staged.ptr(), staged.bytes(), 0});
        if (rank_ != root) staged.finish();
      },
      tensor.device());
}

void CudaGroup::gather_parts(Collectives& collectives, const at::Tensor& input, const Tensors& outputs,
                             const Call& call) {
  Staged in(input);
  std::vector<Staged> out;
  std::vector<abi::ExchangePart> parts;
  bool even = true;
  for (const at::Tensor& t : outputs) {
    out.emplace_back(t);
    even = even && t.nbytes() == input.nbytes();
    parts.push_back(part(in.ptr(), out.back().ptr(), in.bytes(), out.back().bytes()));
  }
  collectives.exchange(comm::ExchangeKind::kAllGather, parts, -1, even ? in.bytes() : 0, call);
  for (Staged& s : out) s.finish();
}

CudaGroup::WorkPtr CudaGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& opts) {
  if (inputs.empty() || !usable(inputs[0].device())) return nullptr;
  TORCH_CHECK(outputs.size() == inputs.size(), "ark process group, all_gather: expected ", inputs.size(),
              " lists of outputs, got ", outputs.size());
  Tensors results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dense(inputs[i], "all_gather");
    check_gathered(outputs[i], size_, inputs[i]);
    TORCH_CHECK(outputs[i][rank_].nbytes() == inputs[i].nbytes(), "ark process group, all_gather: expected ",
                inputs[i].nbytes(), " bytes for this rank's own part, got ", outputs[i][rank_].nbytes());
    results.insert(results.end(), outputs[i].begin(), outputs[i].end());
  }
  return submit(
      {.type = c10d::OpType::ALLGATHER,
       .results = results,
       .inputs = inputs,
       .async = opts.asyncOp,
       .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        for (size_t i = 0; i < inputs.size(); ++i) gather_parts(collectives, inputs[i], outputs[i], call);
      },
      inputs[0].device());
}

CudaGroup::WorkPtr CudaGroup::allgather_into(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  if (inputs.empty() || !usable(inputs[0].device())) return nullptr;
  TORCH_CHECK(outputs.size() == inputs.size(),
              "ark process group, all_gather_into_tensor: expected as many outputs as "
              "inputs, got ",
              outputs.size(), " and ", inputs.size());
  check_device(outputs, inputs[0], "all_gather_into_tensor");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_gathered_into(outputs[i], inputs[i], size_);
  }
  return submit(
      {.type = c10d::OpType::_ALLGATHER_BASE,
       .results = outputs,
       .inputs = inputs,
       .async = opts.asyncOp,
       .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        for (size_t i = 0; i < inputs.size(); ++i) {
          Staged in(inputs[i]), out(outputs[i]);
          std::vector<abi::ExchangePart> parts;
          for (int r = 0; r < size_; ++r)
            parts.push_back(part(in.ptr(), static_cast<char*>(out.ptr()) + r * in.bytes(), in.bytes(), in.bytes()));
          collectives.exchange(comm::ExchangeKind::kAllGather, parts, -1, in.bytes(), call,
                               {out.ptr(), out.bytes(), rank_ * in.bytes()});
          out.finish();
        }
      },
      inputs[0].device());
}

CudaGroup::WorkPtr CudaGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  check_root(opts.rootRank, size_, "gather");
  const at::Tensor& input = single(inputs, "gather");
  const bool is_root = rank_ == opts.rootRank;
  TORCH_CHECK(outputs.size() == (is_root ? 1u : 0u), "ark process group, gather: expected ",
              is_root ? "one list" : "no list", " of outputs on rank ", rank_, ", got ", outputs.size());
  if (is_root) {
    check_parts(outputs[0], size_, input, "gather");
    for (const at::Tensor& part : outputs[0]) check_written(part, "gather");
  }
  if (!usable(input.device())) return nullptr;
  return submit(
      {.type = c10d::OpType::GATHER,
       .results = is_root ? outputs[0] : Tensors{},
       .inputs = inputs,
       .async = opts.asyncOp,
       .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        Staged in(input);
        const int root = static_cast<int>(opts.rootRank);
        std::vector<abi::ExchangePart> parts(size_, part(nullptr, nullptr, 0, 0));
        std::vector<Staged> out;
        if (is_root)
          for (const at::Tensor& t : outputs[0]) out.emplace_back(t);
        for (size_t r = 0; r < out.size(); ++r) parts[r] = part(nullptr, out[r].ptr(), 0, out[r].bytes());
        parts[root].source = static_cast<const unsigned char*>(in.ptr());
        parts[root].send_bytes = in.bytes();
        collectives.exchange(comm::ExchangeKind::kGather, parts, root, in.bytes(), call);
        for (Staged& s : out) s.finish();
      },
      input.device());
}

CudaGroup::WorkPtr CudaGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ScatterOptions& opts) {
  check_root(opts.rootRank, size_, "scatter");
  const at::Tensor& output = single_written(outputs, "scatter");
  const bool is_root = rank_ == opts.rootRank;
  TORCH_CHECK(inputs.size() == (is_root ? 1u : 0u), "ark process group, scatter: expected ",
              is_root ? "one list" : "no list", " of inputs on rank ", rank_, ", got ", inputs.size());
  if (is_root) check_parts(inputs[0], size_, output, "scatter");
  if (!usable(output.device())) return nullptr;
  return submit(
      {.type = c10d::OpType::SCATTER,
       .results = outputs,
       .inputs = is_root ? inputs[0] : Tensors{},
       .async = opts.asyncOp,
       .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        Staged out(output);
        const int root = static_cast<int>(opts.rootRank);
        std::vector<abi::ExchangePart> parts(size_, part(nullptr, nullptr, 0, 0));
        std::vector<Staged> in;
        if (is_root)
          for (const at::Tensor& t : inputs[0]) in.emplace_back(t);
        for (size_t r = 0; r < in.size(); ++r) parts[r] = part(in[r].ptr(), nullptr, in[r].bytes(), 0);
        parts[root].destination = static_cast<unsigned char*>(out.ptr());
        parts[root].receive_bytes = out.bytes();
        collectives.exchange(comm::ExchangeKind::kScatter, parts, root, out.bytes(), call);
        out.finish();
      },
      output.device());
}

CudaGroup::WorkPtr CudaGroup::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  check_written(output, "all_to_all");
  TORCH_CHECK(input.scalar_type() == output.scalar_type(), "ark process group, all_to_all: expected an output of ",
              input.scalar_type(), ", got ", output.scalar_type());
  auto to = split_bytes(input_splits, input, size_, "input"),
       from = split_bytes(output_splits, output, size_, "output");
  TORCH_CHECK(to[rank_] == from[rank_], "ark process group, all_to_all: rank ", rank_, " sends ", to[rank_],
              " bytes to itself and expects ", from[rank_]);
  if (!usable(output.device())) return nullptr;
  // Splits that are even here need not be so on other ranks.
  const uint64_t same = input_splits.empty() && output_splits.empty() ? input.nbytes() : 0;
  return submit(
      {.type = c10d::OpType::ALLTOALL_BASE,
       .results = {output},
       .inputs = {input},
       .async = opts.asyncOp,
       .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        Staged in(input), out(output);
        std::vector<abi::ExchangePart> parts;
        uint64_t sent = 0, got = 0;
        for (int r = 0; r < size_; ++r) {
          parts.push_back(
              part(static_cast<char*>(in.ptr()) + sent, static_cast<char*>(out.ptr()) + got, to[r], from[r]));
          sent += to[r];
          got += from[r];
        }
        Collectives::Output whole{};
        if (same) whole = {out.ptr(), out.bytes(), rank_ * (out.bytes() / size_)};
        collectives.exchange(comm::ExchangeKind::kAllToAll, parts, -1, same, call, whole);
        out.finish();
      },
      output.device());
}

CudaGroup::WorkPtr CudaGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  TORCH_CHECK(static_cast<int>(inputs.size()) == size_ && static_cast<int>(outputs.size()) == size_,
              "ark process group, all_to_all: expected ", size_, " inputs and outputs, got ", inputs.size(), " and ",
              outputs.size());
  check_alike(inputs, inputs[0], "all_to_all");
  check_alike(outputs, inputs[0], "all_to_all");
  for (const at::Tensor& t : outputs) check_written(t, "all_to_all");
  TORCH_CHECK(inputs[rank_].nbytes() == outputs[rank_].nbytes(), "ark process group, all_to_all: rank ", rank_,
              " sends ", inputs[rank_].nbytes(), " bytes to itself and expects ", outputs[rank_].nbytes());
  if (!usable(inputs[0].device())) return nullptr;
  return submit(
      {.type = c10d::OpType::ALLTOALL,
       .results = outputs,
       .inputs = inputs,
       .async = opts.asyncOp,
       .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        std::vector<Staged> in, out;
        std::vector<abi::ExchangePart> parts;
        for (int r = 0; r < size_; ++r) {
          in.emplace_back(inputs[r]);
          out.emplace_back(outputs[r]);
          parts.push_back(part(in[r].ptr(), out[r].ptr(), in[r].bytes(), out[r].bytes()));
        }
        collectives.exchange(comm::ExchangeKind::kAllToAll, parts, -1, 0, call);
        for (Staged& s : out) s.finish();
      },
      inputs[0].device());
}

}  // namespace ark::bindings
