#include "bindings/process_group.h"

#include "base/check.h"

namespace ark::bindings {
namespace {

using comm::Reduction;

/// c10d's store behind the interface of csrc/comm.
class C10dStore : public comm::Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::string get(const std::string& key, comm::Clock::time_point deadline) override {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - comm::Clock::now());
    store_->wait({key}, std::max(left, std::chrono::milliseconds(1)));
    std::vector<uint8_t> bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

DType reducible_type(at::ScalarType type) {
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
      TORCH_CHECK(false, "ark process group: expected a real or boolean type to reduce, got ", type);
  }
}

Reduction reduction(const c10d::ReduceOp& op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return Reduction::kAverage;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    case c10d::ReduceOp::BAND:
      return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR:
      return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR:
      return Reduction::kBitXor;
    default:
      TORCH_CHECK(false, "ark process group: expected sum, avg, product, min, max or a bit operation, got reduce op ",
                  static_cast<int>(op.op_));
  }
}

void check_dense(const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK(tensor.layout() == at::kStrided, "ark process group, ", operation,
              ": expected a dense tensor, got layout ", tensor.layout());
}

const at::Tensor& single(const std::vector<at::Tensor>& tensors, const char* operation) {
  TORCH_CHECK(tensors.size() == 1, "ark process group, ", operation, ": expected one tensor, got ", tensors.size());
  check_dense(tensors[0], operation);
  return tensors[0];
}

void check_root(int64_t root, int size, const char* operation) {
  TORCH_CHECK(root >= 0 && root < size, "ark process group, ", operation, ": expected a root in [0, ", size, "), got ",
              root);
}

/// A tensor to reduce: complex numbers are pairs of real ones (sums and averages only).
at::Tensor as_real(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (!tensor.is_complex()) return tensor;
  TORCH_CHECK(op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG, "ark process group: all_reduce does not support ",
              static_cast<int>(op.op_), " on complex tensors: expected sum or avg");
  return at::view_as_real(tensor);
}

/// Contiguous storage to work on; written back by `finish` when it is a copy.
struct Staged {
  at::Tensor user, data;
  explicit Staged(at::Tensor tensor) : user(std::move(tensor)), data(user.is_contiguous() ? user : user.contiguous()) {}
  void* ptr() const { return data.data_ptr(); }
  size_t bytes() const { return data.nbytes(); }
  void finish() const {
    if (!data.is_same(user)) {
      at::NoGradGuard no_grad;
      user.copy_(data);
    }
  }
};

at::Tensor flat(const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& part : parts) pieces.push_back(part.reshape(-1));
  return at::cat(pieces);
}

void unflatten(const at::Tensor& joined, const std::vector<at::Tensor>& parts) {
  at::NoGradGuard no_grad;
  int64_t at = 0;
  for (const at::Tensor& part : parts) {
    part.copy_(joined.narrow(0, at, part.numel()).view(part.sizes()));
    at += part.numel();
  }
}

void check_parts(const std::vector<at::Tensor>& parts, int size, const at::Tensor& like, const char* operation) {
  TORCH_CHECK(static_cast<int>(parts.size()) == size, "ark process group, ", operation, ": expected ", size,
              " tensors, got ", parts.size());
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
  for (const at::Tensor& part : parts) {
    check_dense(part, "all_gather");
    TORCH_CHECK(part.scalar_type() == input.scalar_type(), "ark process group, all_gather: expected outputs of ",
                input.scalar_type(), ", got ", part.scalar_type());
  }
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
    sum += s;
    bytes.push_back(static_cast<uint64_t>(s) * row_bytes);
  }
  TORCH_CHECK(sum == rows, "ark process group, all_to_all: expected ", which, " splits that sum to ", rows, ", got ",
              sum);
  return bytes;
}

}  // namespace

ProcessGroupArk::ProcessGroupArk(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                 std::chrono::milliseconds timeout, std::string name,
                                 c10::intrusive_ptr<c10d::Backend> cuda_backend, uint64_t first_step)
    : c10d::Backend(rank, size), name_(std::move(name)), timeout_(timeout), cuda_backend_(std::move(cuda_backend)) {
  C10dStore meeting(std::move(store));
  comm::ChannelOptions options;
  options.first_step = first_step;
  channel_ = std::make_unique<comm::StepChannel>(meeting, comm::GroupInfo{rank, size, name_}, options,
                                                 comm::Clock::now() + timeout);
  collectives_ = std::make_unique<comm::HostCollectives>(*channel_);
}

ProcessGroupArk::~ProcessGroupArk() { shutdown(); }

void ProcessGroupArk::abort() { channel_->fail("the group was aborted"); }

void ProcessGroupArk::shutdown() {
  collective_queue_.reset();
  any_queue_.reset();
  send_queues_.clear();
  receive_queues_.clear();
}

WorkQueue& ProcessGroupArk::queue(std::unique_ptr<WorkQueue>& slot) {
  if (!slot) slot = std::make_unique<WorkQueue>();
  return *slot;
}

bool ProcessGroupArk::on_cuda(const Tensors& tensors, const char* operation) const {
  if (tensors.empty()) return false;
  for (const at::Tensor& t : tensors)
    TORCH_CHECK(t.device().type() == tensors[0].device().type(), "ark process group, ", operation,
                ": expected all tensors on one kind of device, got ", tensors[0].device(), " and ", t.device());
  if (tensors[0].is_cuda()) return true;
  TORCH_CHECK(tensors[0].is_cpu(), "ark process group, ", operation, ": expected a CPU or CUDA tensor, got ",
              tensors[0].device());
  return false;
}

c10d::Backend& ProcessGroupArk::delegate(const char* operation) {
  TORCH_CHECK(cuda_backend_, "ark process group, ", operation,
              ": CUDA tensors need NCCL, which this torch does not have");
  if (coalescing_ && !coalescing_cuda_) {
    cuda_backend_->startCoalescing();
    coalescing_cuda_ = true;
  }
  std::lock_guard lock(mutex_);
  ++delegated_[operation];
  return *cuda_backend_;
}

std::map<std::string, int64_t> ProcessGroupArk::delegated() const {
  std::lock_guard lock(mutex_);
  return delegated_;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::enqueue(WorkQueue& queue, c10d::OpType type, uint64_t sequence,
                                                  Tensors results, std::chrono::milliseconds timeout, Body body) {
  if (timeout == c10d::kUnsetTimeout || timeout.count() <= 0) timeout = timeout_;
  auto work = c10::make_intrusive<ArkWork>(getRank(), type, sequence, std::move(results));
  queue.push(work, [this, sequence, timeout, body = std::move(body)] {
    try {
      body(Call{sequence, comm::Clock::now() + timeout});
    } catch (const std::exception& error) {
      channel_->fail(error.what());  // the peers raise too
      throw;
    }
  });
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::submit(c10d::OpType type, Tensors results, std::chrono::milliseconds timeout,
                                                 Body body) {
  return enqueue(queue(collective_queue_), type, sequence_++, std::move(results), timeout, std::move(body));
}

void ProcessGroupArk::startCoalescing() {
  coalescing_ = true;
  coalescing_cuda_ = false;
  coalesced_.clear();
}

ProcessGroupArk::WorkPtr ProcessGroupArk::endCoalescing() {
  coalescing_ = false;
  if (coalescing_cuda_) {
    coalescing_cuda_ = false;
    return cuda_backend_->endCoalescing();
  }
  // Collectives run in order: a last empty job ends after them. Point-to-point work has queues of its own and is waited
  // for.
  auto parts = std::exchange(coalesced_, {});
  Tensors results;
  for (const WorkPtr& part : parts)
    for (const at::Tensor& t : part->result()) results.push_back(t);
  auto work = c10::make_intrusive<ArkWork>(getRank(), c10d::OpType::COALESCED, sequence_, std::move(results));
  queue(any_queue_).push(work, [parts] {
    for (const WorkPtr& part : parts) part->wait();
  });
  return work;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  if (on_cuda(tensors, "broadcast")) return delegate("broadcast").broadcast(tensors, opts);
  check_root(opts.rootRank, getSize(), "broadcast");
  at::Tensor tensor = single(tensors, "broadcast");
  return submit(c10d::OpType::BROADCAST, tensors, opts.timeout,
                [this, tensor, root = static_cast<int>(opts.rootRank)](const Call& call) {
                  Staged staged(tensor);
                  collectives_->broadcast(staged.ptr(), staged.bytes(), root, call);
                  staged.finish();
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (on_cuda(tensors, "all_reduce")) return delegate("all_reduce").allreduce(tensors, opts);
  at::Tensor tensor = as_real(single(tensors, "all_reduce"), opts.reduceOp);
  DType type = reducible_type(tensor.scalar_type());
  return submit(c10d::OpType::ALLREDUCE, tensors, opts.timeout,
                [this, tensor, type, op = reduction(opts.reduceOp)](const Call& call) {
                  Staged staged(tensor);
                  collectives_->all_reduce(staged.ptr(), tensor.numel(), type, op, call);
                  staged.finish();
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::allreduce_coalesced(Tensors& tensors,
                                                              const c10d::AllreduceCoalescedOptions& opts) {
  if (on_cuda(tensors, "all_reduce_coalesced"))
    return delegate("all_reduce_coalesced").allreduce_coalesced(tensors, opts);
  TORCH_CHECK(!tensors.empty(), "ark process group, all_reduce_coalesced: expected at least one tensor");
  Tensors parts;
  for (const at::Tensor& t : tensors) {
    check_dense(t, "all_reduce_coalesced");
    TORCH_CHECK(t.scalar_type() == tensors[0].scalar_type(),
                "ark process group, all_reduce_coalesced: expected one type, got ", tensors[0].scalar_type(), " and ",
                t.scalar_type());
    parts.push_back(as_real(t, opts.reduceOp));
  }
  DType type = reducible_type(parts[0].scalar_type());
  return submit(c10d::OpType::ALLREDUCE_COALESCED, tensors, opts.timeout,
                [this, parts, type, op = reduction(opts.reduceOp)](const Call& call) {
                  at::Tensor joined = flat(parts);
                  collectives_->all_reduce(joined.data_ptr(), joined.numel(), type, op, call);
                  unflatten(joined, parts);
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  if (on_cuda(tensors, "reduce")) return delegate("reduce").reduce(tensors, opts);
  check_root(opts.rootRank, getSize(), "reduce");
  at::Tensor tensor = as_real(single(tensors, "reduce"), opts.reduceOp);
  DType type = reducible_type(tensor.scalar_type());
  auto root = static_cast<int>(opts.rootRank);
  return submit(c10d::OpType::REDUCE, tensors, opts.timeout,
                [this, tensor, type, root, op = reduction(opts.reduceOp)](const Call& call) {
                  Staged staged(tensor);
                  collectives_->reduce(staged.ptr(), tensor.numel(), type, op, root, call);
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
    collectives_->all_gather(staged.ptr(), joined.data_ptr(), staged.bytes(), call);
  } else {
    at::Tensor sent = flat(Tensors(parts.size(), staged.data));
    collectives_->all_to_all(sent.data_ptr(), std::vector<uint64_t>(parts.size(), staged.bytes()), joined.data_ptr(),
                             from, call);
  }
  unflatten(joined, parts);
}

ProcessGroupArk::WorkPtr ProcessGroupArk::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& opts) {
  if (on_cuda(inputs, "all_gather")) return delegate("all_gather").allgather(outputs, inputs, opts);
  const at::Tensor& input = single(inputs, "all_gather");
  TORCH_CHECK(outputs.size() == 1, "ark process group, all_gather: expected one list of outputs, got ", outputs.size());
  check_gathered(outputs[0], getSize(), input);
  return submit(c10d::OpType::ALLGATHER, outputs[0], opts.timeout,
                [this, input, parts = outputs[0]](const Call& call) { gather_parts(input, parts, call); });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions& opts) {
  if (on_cuda(inputs, "all_gather_coalesced"))
    return delegate("all_gather_coalesced").allgather_coalesced(outputs, inputs, opts);
  // Unlike all_gather: outputs[r][i] gets rank r's inputs[i].
  TORCH_CHECK(static_cast<int>(outputs.size()) == getSize(),
              "ark process group, all_gather_coalesced: expected outputs of ", getSize(), " ranks, got ",
              outputs.size());
  std::vector<Tensors> by_input(inputs.size());
  Tensors results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dense(inputs[i], "all_gather_coalesced");
    for (const Tensors& of_rank : outputs) {
      TORCH_CHECK(of_rank.size() == inputs.size(), "ark process group, all_gather_coalesced: expected ", inputs.size(),
                  " tensors from every rank, got ", of_rank.size());
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
  if (on_cuda({input, output}, "all_gather_into_tensor"))
    return delegate("all_gather_into_tensor")._allgather_base(output, input, opts);
  check_dense(input, "all_gather_into_tensor");
  TORCH_CHECK(output.numel() == input.numel() * getSize() && output.scalar_type() == input.scalar_type(),
              "ark process group, all_gather_into_tensor: expected an output of ", input.numel() * getSize(),
              " elements of ", input.scalar_type(), ", got ", output.numel(), " of ", output.scalar_type());
  return submit(c10d::OpType::_ALLGATHER_BASE, {output}, opts.timeout, [this, input, output](const Call& call) {
    Staged in(input), out(output);
    collectives_->all_gather(in.ptr(), out.ptr(), in.bytes(), call);
    out.finish();
  });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::AllgatherOptions& opts) {
  if (on_cuda(inputs, "all_gather_into_tensor_coalesced"))
    return delegate("all_gather_into_tensor_coalesced").allgather_into_tensor_coalesced(outputs, inputs, opts);
  TORCH_CHECK(outputs.size() == inputs.size() && !inputs.empty(),
              "ark process group, all_gather_into_tensor_coalesced: expected as many outputs as inputs, got ",
              outputs.size(), " and ", inputs.size());
  return submit(c10d::OpType::COALESCED, outputs, opts.timeout, [this, inputs, outputs](const Call& call) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      Staged in(inputs[i]), out(outputs[i]);
      collectives_->all_gather(in.ptr(), out.ptr(), in.bytes(), call);
      out.finish();
    }
  });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& opts) {
  if (on_cuda(inputs, "gather")) return delegate("gather").gather(outputs, inputs, opts);
  check_root(opts.rootRank, getSize(), "gather");
  at::Tensor input = single(inputs, "gather");
  const bool is_root = getRank() == opts.rootRank;
  TORCH_CHECK(outputs.size() == (is_root ? 1u : 0u), "ark process group, gather: expected ",
              is_root ? "one list" : "no list", " of outputs on rank ", getRank(), ", got ", outputs.size());
  Tensors parts = is_root ? outputs[0] : Tensors{};
  if (is_root) check_parts(parts, getSize(), input, "gather");
  return submit(c10d::OpType::GATHER, parts, opts.timeout,
                [this, input, parts, root = static_cast<int>(opts.rootRank)](const Call& call) {
                  Staged in(input);
                  at::Tensor joined = at::empty({static_cast<int64_t>(parts.size()) * input.numel()}, input.options());
                  collectives_->gather(in.ptr(), joined.data_ptr(), in.bytes(), root, call);
                  unflatten(joined, parts);
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& opts) {
  if (on_cuda(outputs, "scatter")) return delegate("scatter").scatter(outputs, inputs, opts);
  check_root(opts.rootRank, getSize(), "scatter");
  at::Tensor output = single(outputs, "scatter");
  const bool is_root = getRank() == opts.rootRank;
  TORCH_CHECK(inputs.size() == (is_root ? 1u : 0u), "ark process group, scatter: expected ",
              is_root ? "one list" : "no list", " of inputs on rank ", getRank(), ", got ", inputs.size());
  Tensors parts = is_root ? inputs[0] : Tensors{};
  if (is_root) check_parts(parts, getSize(), output, "scatter");
  return submit(c10d::OpType::SCATTER, outputs, opts.timeout,
                [this, output, parts, root = static_cast<int>(opts.rootRank)](const Call& call) {
                  Staged out(output);
                  at::Tensor joined = parts.empty() ? at::empty({0}, output.options()) : flat(parts);
                  collectives_->scatter(joined.data_ptr(), out.ptr(), out.bytes(), root, call);
                  out.finish();
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                         const c10d::ReduceScatterOptions& opts) {
  if (on_cuda(outputs, "reduce_scatter")) return delegate("reduce_scatter").reduce_scatter(outputs, inputs, opts);
  at::Tensor output = single(outputs, "reduce_scatter");
  TORCH_CHECK(inputs.size() == 1, "ark process group, reduce_scatter: expected one list of inputs, got ",
              inputs.size());
  TORCH_CHECK(static_cast<int>(inputs[0].size()) == getSize(), "ark process group, reduce_scatter: expected ",
              getSize(), " inputs, got ", inputs[0].size());
  Tensors parts = inputs[0];
  DType type = reducible_type(output.scalar_type());
  bool even = true;
  for (const at::Tensor& part : parts) even = even && part.numel() == output.numel();
  return submit(c10d::OpType::REDUCE_SCATTER, outputs, opts.timeout,
                [this, output, parts, type, even, op = reduction(opts.reduceOp)](const Call& call) {
                  at::Tensor joined = flat(parts);
                  if (even) {
                    Staged out(output);
                    collectives_->reduce_scatter(joined.data_ptr(), out.ptr(), output.numel(), type, op, call);
                    return out.finish();
                  }
                  collectives_->all_reduce(joined.data_ptr(), joined.numel(), type, op, call);
                  int64_t before = 0;
                  for (int r = 0; r < getRank(); ++r) before += parts[r].numel();
                  unflatten(joined.narrow(0, before, output.numel()), {output});
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                               const c10d::ReduceScatterOptions& opts) {
  if (on_cuda({input, output}, "reduce_scatter_tensor"))
    return delegate("reduce_scatter_tensor")._reduce_scatter_base(output, input, opts);
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupArk::WorkPtr ProcessGroupArk::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::ReduceScatterOptions& opts) {
  if (on_cuda(inputs, "reduce_scatter_tensor_coalesced"))
    return delegate("reduce_scatter_tensor_coalesced").reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  TORCH_CHECK(outputs.size() == inputs.size() && !inputs.empty(),
              "ark process group, reduce_scatter_tensor: expected as many outputs as inputs, got ", outputs.size(),
              " and ", inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dense(inputs[i], "reduce_scatter_tensor");
    reducible_type(inputs[i].scalar_type());
    TORCH_CHECK(
        inputs[i].numel() == outputs[i].numel() * getSize() && inputs[i].scalar_type() == outputs[i].scalar_type(),
        "ark process group, reduce_scatter_tensor: expected an input of ", outputs[i].numel() * getSize(),
        " elements of ", outputs[i].scalar_type(), ", got ", inputs[i].numel(), " of ", inputs[i].scalar_type());
  }
  return submit(c10d::OpType::_REDUCE_SCATTER_BASE, outputs, opts.timeout,
                [this, inputs, outputs, op = reduction(opts.reduceOp)](const Call& call) {
                  for (size_t i = 0; i < inputs.size(); ++i) {
                    Staged in(inputs[i]), out(outputs[i]);
                    collectives_->reduce_scatter(in.ptr(), out.ptr(), out.data.numel(),
                                                 reducible_type(out.data.scalar_type()), op, call);
                    out.finish();
                  }
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                        std::vector<int64_t>& output_splits,
                                                        std::vector<int64_t>& input_splits,
                                                        const c10d::AllToAllOptions& opts) {
  if (on_cuda({input, output}, "all_to_all_single"))
    return delegate("all_to_all_single").alltoall_base(output, input, output_splits, input_splits, opts);
  TORCH_CHECK(input.scalar_type() == output.scalar_type(), "ark process group, all_to_all: expected an output of ",
              input.scalar_type(), ", got ", output.scalar_type());
  auto to = split_bytes(input_splits, input, getSize(), "input"),
       from = split_bytes(output_splits, output, getSize(), "output");
  return submit(c10d::OpType::ALLTOALL_BASE, {output}, opts.timeout, [this, input, output, to, from](const Call& call) {
    Staged in(input), out(output);
    collectives_->all_to_all(in.ptr(), to, out.ptr(), from, call);
    out.finish();
  });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& opts) {
  if (on_cuda(inputs, "all_to_all")) return delegate("all_to_all").alltoall(outputs, inputs, opts);
  TORCH_CHECK(static_cast<int>(inputs.size()) == getSize() && static_cast<int>(outputs.size()) == getSize(),
              "ark process group, all_to_all: expected ", getSize(), " inputs and outputs, got ", inputs.size(),
              " and ", outputs.size());
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
                  collectives_->all_to_all(sent.data_ptr(), to, got.data_ptr(), from, call);
                  unflatten(got, outputs);
                });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::send(Tensors& tensors, int destination, int tag) {
  if (on_cuda(tensors, "send")) return delegate("send").send(tensors, destination, tag);
  check_root(destination, getSize(), "send");
  TORCH_CHECK(destination != getRank(), "ark process group, send: rank ", destination, " cannot send to itself");
  // Copied now where it is not contiguous; the memory itself belongs to the caller until wait().
  at::Tensor data = single(tensors, "send").contiguous();
  return enqueue(queue(send_queues_[destination]), c10d::OpType::SEND, sent_[destination]++, tensors,
                 c10d::kUnsetTimeout, [this, data, destination, tag](const Call& call) {
                   collectives_->send(data.data_ptr(), data.nbytes(), destination, tag, call);
                 });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::recv(Tensors& tensors, int source, int tag) {
  if (on_cuda(tensors, "recv")) return delegate("recv").recv(tensors, source, tag);
  check_root(source, getSize(), "recv");
  TORCH_CHECK(source != getRank(), "ark process group, recv: rank ", source, " cannot receive from itself");
  at::Tensor tensor = single(tensors, "recv");
  return enqueue(queue(receive_queues_[source]), c10d::OpType::RECV, received_[source]++, tensors, c10d::kUnsetTimeout,
                 [this, tensor, source, tag](const Call& call) {
                   Staged out(tensor);
                   collectives_->receive(out.ptr(), out.bytes(), source, tag, call);
                   out.finish();
                 });
}

ProcessGroupArk::WorkPtr ProcessGroupArk::recvAnysource(Tensors& tensors, int tag) {
  if (on_cuda(tensors, "recv")) return delegate("recv").recvAnysource(tensors, tag);
  at::Tensor tensor = single(tensors, "recv");
  auto source = std::make_shared<std::atomic<int>>(-1);
  auto work = c10::make_intrusive<ArkWork>(getRank(), c10d::OpType::RECVANYSOURCE, received_[-1]++, tensors);
  auto timeout = timeout_.load();
  queue(any_queue_).push(work, [this, tensor, tag, timeout, raw = work.get()] {
    try {
      Staged out(tensor);
      raw->set_source(collectives_->receive_any(out.ptr(), out.bytes(), tag,
                                                Call{raw->getSequencenumber(), comm::Clock::now() + timeout}));
      out.finish();
    } catch (const std::exception& error) {
      channel_->fail(error.what());
      throw;
    }
  });
  return work;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::barrier(const c10d::BarrierOptions& opts) {
  if (cuda_backend_ && opts.device && opts.device->is_cuda()) return delegate("barrier").barrier(opts);
  return submit(c10d::OpType::BARRIER, {}, opts.timeout, [this](const Call& call) { collectives_->barrier(call); });
}

}  // namespace ark::bindings
