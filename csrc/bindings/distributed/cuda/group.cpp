#include "bindings/distributed/cuda/group.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "bindings/distributed/support/tensor_args.h"

namespace ark::bindings {
namespace {

// Key of the stream of asynchronous collectives; those of messages are not negative.
constexpr int kAsyncStream = -1;

bool reducible(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op == c10d::ReduceOp::UNUSED) return false;
  const bool factor = op == c10d::ReduceOp::PREMUL_SUM;
  if (tensor.is_complex()) return op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG || factor;
  switch (tensor.scalar_type()) {
    case at::kBool:
      return op != c10d::ReduceOp::AVG && !factor;
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return !factor;
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return op != c10d::ReduceOp::BAND && op != c10d::ReduceOp::BOR && op != c10d::ReduceOp::BXOR;
    default:
      return false;
  }
}

comm::CudaCollectives::Call for_op(comm::CudaCollectives::Call call, const c10d::ReduceOp& op) {
  call.factor = op == c10d::ReduceOp::PREMUL_SUM;
  return call;
}

}  // namespace

CudaGroup::CudaGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string name,
                     std::chrono::milliseconds timeout, const GroupSetup& setup)
    : store_(std::make_unique<C10dStore>(std::move(store))),
      rank_(rank),
      size_(size),
      name_(std::move(name)),
      timeout_(timeout),
      setup_(setup),
      launcher_(std::make_shared<Launcher>([this] { launch_held(); })) {
  if (size > abi::kMaxRanks) unusable_ = cat("it has more than ", abi::kMaxRanks, " ranks");
}

CudaGroup::~CudaGroup() { launcher_->close(); }

void CudaGroup::set_host_side(HostSide host) {
  host_ = std::move(host);
  store_->watch(host_.check);
}

void CudaGroup::give_up(const std::string& why) {
  unusable_ = why;
  log::warn("process group ", name_, ": CUDA tensors go to NCCL: ", why);
}

bool CudaGroup::usable(c10::Device device, bool pair) {
  std::lock_guard lock(creation_mutex_);
  if (!unusable_.empty() && !(pair && collectives_)) return false;
  if (!collectives_) {
    const comm::GroupInfo group{rank_, size_, name_};
    try {
      check<UnsupportedError>(setup_.refuse_cuda.empty(), setup_.refuse_cuda);
      collectives_ =
          std::make_shared<Collectives>(*store_, group, device.index(), setup_.toolchain, setup_.cuda_options);
    } catch (const UnsupportedError& error) {
      Collectives::refuse(*store_, group, error.what());
      give_up(error.what());
      return false;
    }
  }
  TORCH_CHECK(collectives_->device() == device.index(), "ark process group ", name_,
              ": its memory is on cuda:", collectives_->device(), " (where the first tensor was), got a tensor on ",
              device);
  return true;
}

std::chrono::milliseconds CudaGroup::own_timeout(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout || asked.count() <= 0 ? timeout_.load() : asked;
}

bool CudaGroup::connected(std::chrono::milliseconds timeout, uint64_t number) {
  try {
    collectives_->connect(comm::Clock::now() + own_timeout(timeout), number);
    return true;
  } catch (const UnsupportedError& error) {
    give_up(error.what());
    return false;
  }
}

c10::Stream CudaGroup::own_stream(int key) {
  if (auto found = streams_.find(key); found != streams_.end()) return found->second;
  cuda::Stream raw = setup_.streams->take(collectives_->device());
  c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(collectives_->device()));
  c10::Stream stream(c10::Stream::UNSAFE, device, static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(raw)));
  return streams_.emplace(key, stream).first->second;
}

/// Collectives of a group run one after the other, whatever their streams; those of a graph by its own edges.
void CudaGroup::follow(c10::Stream stream) {
  const bool captured = is_capturing(stream);
  std::optional<c10::Stream>& last = captured ? last_captured_ : last_;
  if (last && *last != stream && is_capturing(*last) == captured) {
    c10::Event end(c10::DeviceType::CUDA);
    end.record(*last);
    end.block(stream);
  }
  last = stream;
}

CudaGroup::WorkPtr CudaGroup::submit(Plan plan, const Body& body, c10::Device device) {
  std::lock_guard lock(mutex_);
  const uint64_t number = host_.number();
  if (!connected(plan.timeout, number)) return nullptr;
  c10::DeviceGuard guard(device);
  c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  c10::Stream stream = plan.async ? own_stream(kAsyncStream) : current;
  if (plan.async) {
    // The fork first: a captured group stream has to belong to the capture before it follows anything.
    c10::Event begin(c10::DeviceType::CUDA);
    begin.record(current);
    begin.block(stream);
  }
  follow(stream);
  return submit_on(stream, plan, body, plan.async, number);
}

CudaGroup::WorkPtr CudaGroup::submit_on(c10::Stream stream, Plan& plan, const Body& body, bool fork, uint64_t number) {
  const std::chrono::nanoseconds timeout = own_timeout(plan.timeout);
  const Tensors& moved = plan.results.empty() ? plan.inputs : plan.results;
  Call call{raw_stream(stream), number, static_cast<uint64_t>(timeout.count()),
            moved.empty() ? Collectives::kUntyped : wire_type(moved[0].scalar_type())};
  {
    c10::StreamGuard on(stream);
    body(*collectives_, call);
  }
  if (fork) {
    c10::impl::VirtualGuardImpl impl(stream.device_type());
    for (const Tensors* list : {&plan.results, &plan.inputs})
      for (const at::Tensor& t : *list)
        if (t.is_cuda()) impl.recordDataPtrOnStream(t.storage().data_ptr(), stream);
  }
  return c10::make_intrusive<CudaWork>(rank_, plan.type, number, std::move(plan.results), stream, collectives_,
                                       plan.blocks_host, fork);
}

CudaGroup::WorkPtr CudaGroup::allreduce(Tensors& tensors, const c10d::ReduceOp& op, bool async,
                                        std::chrono::milliseconds timeout) {
  for (const at::Tensor& t : tensors) {
    if (t.layout() != at::kStrided || !reducible(t, op)) return nullptr;
    check_written(t, "all_reduce");
  }
  if (tensors.empty() || !usable(tensors[0].device())) return nullptr;
  return submit(
      {.type = c10d::OpType::ALLREDUCE,
       .results = tensors,
       .inputs = with_factor({}, op),
       .async = async,
       .timeout = timeout},
      [&](Collectives& collectives, const Call& call) {
        for (const at::Tensor& t : tensors) {
          Staged staged(as_real(t, op));
          staged.premultiply(op);
          collectives.all_reduce(staged.ptr(), staged.ptr(), staged.data.numel(),
                                 reducible_type(staged.data.scalar_type()), reduction(op), -1, for_op(call, op));
          staged.finish();
        }
      },
      tensors[0].device());
}

CudaGroup::WorkPtr CudaGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  check_root(opts.rootRank, size_, "reduce");
  const at::Tensor& tensor = single_written(tensors, "reduce");
  if (!reducible(tensor, opts.reduceOp) || !usable(tensor.device())) return nullptr;
  return submit(
      {.type = c10d::OpType::REDUCE,
       .results = tensors,
       .inputs = with_factor({}, opts.reduceOp),
       .async = opts.asyncOp,
       .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        Staged staged(as_real(tensor, opts.reduceOp));
        staged.premultiply(opts.reduceOp);
        collectives.all_reduce(staged.ptr(), staged.ptr(), staged.data.numel(),
                               reducible_type(staged.data.scalar_type()), reduction(opts.reduceOp),
                               static_cast<int>(opts.rootRank), for_op(call, opts.reduceOp));
        if (rank_ == opts.rootRank) staged.finish();
      },
      tensor.device());
}

CudaGroup::WorkPtr CudaGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                             const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = single_written(outputs, "reduce_scatter");
  TORCH_CHECK(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_,
              "ark process group, reduce_scatter: expected one list of ", size_, " inputs, got ", inputs.size(),
              " lists, the first of ", inputs.empty() ? 0 : inputs[0].size());
  check_scattered(inputs[0], rank_, size_, output);
  if (!reducible(output, opts.reduceOp) || output.is_complex() || !usable(output.device())) return nullptr;
  bool even = true;
  for (const at::Tensor& t : inputs[0]) even = even && t.numel() == output.numel();
  return submit(
      {.type = c10d::OpType::REDUCE_SCATTER,
       .results = outputs,
       .inputs = with_factor(inputs[0], opts.reduceOp),
       .async = opts.asyncOp,
       .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        at::Tensor joined = premultiplied(flat(inputs[0]), opts.reduceOp);
        const DType type = reducible_type(output.scalar_type());
        if (even) {
          Staged out(output);
          collectives.reduce_scatter(joined.data_ptr(), out.ptr(), output.numel(), type, reduction(opts.reduceOp),
                                     for_op(call, opts.reduceOp));
          return out.finish();
        }
        collectives.all_reduce(joined.data_ptr(), joined.data_ptr(), joined.numel(), type, reduction(opts.reduceOp), -1,
                               for_op(call, opts.reduceOp));
        int64_t before = 0;
        for (int r = 0; r < rank_; ++r) before += inputs[0][r].numel();
        unflatten(joined.narrow(0, before, output.numel()), {output});
      },
      output.device());
}

CudaGroup::WorkPtr CudaGroup::reduce_scatter_from(Tensors& outputs, Tensors& inputs,
                                                  const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(),
              "ark process group, reduce_scatter_tensor: expected as many outputs as "
              "inputs, got ",
              outputs.size(), " and ", inputs.size());
  if (!inputs.empty()) check_device(outputs, inputs[0], "reduce_scatter_tensor");
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].layout() != at::kStrided || inputs[i].is_complex() || !reducible(inputs[i], opts.reduceOp))
      return nullptr;
    check_written(outputs[i], "reduce_scatter_tensor");
    TORCH_CHECK(inputs[i].numel() == outputs[i].numel() * size_ && inputs[i].scalar_type() == outputs[i].scalar_type(),
                "ark process group, reduce_scatter_tensor: expected an input of ", outputs[i].numel() * size_,
                " elements of ", outputs[i].scalar_type(), ", got ", inputs[i].numel(), " of ",
                inputs[i].scalar_type());
  }
  if (inputs.empty() || !usable(inputs[0].device())) return nullptr;
  return submit(
      {.type = c10d::OpType::_REDUCE_SCATTER_BASE,
       .results = outputs,
       .inputs = with_factor(inputs, opts.reduceOp),
       .async = opts.asyncOp,
       .timeout = opts.timeout},
      [&](Collectives& collectives, const Call& call) {
        for (size_t i = 0; i < inputs.size(); ++i) {
          Staged in(inputs[i]), out(outputs[i]);
          in.premultiply(opts.reduceOp);
          collectives.reduce_scatter(in.ptr(), out.ptr(), out.data.numel(), reducible_type(out.data.scalar_type()),
                                     reduction(opts.reduceOp), for_op(call, opts.reduceOp));
          out.finish();
        }
      },
      inputs[0].device());
}

CudaGroup::WorkPtr CudaGroup::barrier(const c10d::BarrierOptions& opts, c10::Device device) {
  if (!usable(device)) return nullptr;
  return submit(
      {.type = c10d::OpType::BARRIER,
       .results = {},
       .async = opts.asyncOp,
       .timeout = opts.timeout,
       .blocks_host = true},
      [&](Collectives& collectives, const Call& call) { collectives.barrier(call); }, device);
}

std::shared_ptr<CudaGroup::Collectives> CudaGroup::collectives() const {
  std::lock_guard lock(creation_mutex_);
  return collectives_;
}

void CudaGroup::abort() {
  if (auto own = collectives()) own->abort();
  host_.abort_plans();
}

std::unique_lock<std::mutex> CudaGroup::take_turn(int device, void* stream) {
  std::unique_lock lock(mutex_);
  const c10::Device on(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
  c10::DeviceGuard guard(on);
  follow(c10::Stream(c10::Stream::UNSAFE, on, static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(stream))));
  return lock;
}

bool CudaGroup::streams_end(comm::Clock::time_point deadline) {
  std::vector<c10::Stream> streams;
  for (auto& [key, stream] : streams_) streams.push_back(stream);
  if (last_) streams.push_back(*last_);
  for (const c10::Stream& stream : streams) {
    if (is_capturing(stream)) continue;
    c10::Event end(c10::DeviceType::CUDA);
    end.record(stream);
    for (; !has_ended(end); std::this_thread::sleep_for(std::chrono::microseconds(100)))
      if (comm::Clock::now() >= deadline) return false;
  }
  return true;
}

void CudaGroup::shutdown(comm::Clock::time_point deadline) {
  constexpr std::chrono::seconds kAbort(2);  // kernels look at their abort flags every microsecond or so
  launcher_->close();                        // takes mutex_ itself
  std::lock_guard lock(mutex_);
  drop_held(std::make_exception_ptr(DeviceError(cat("group ", name_, " has been destroyed within a batch"))));
  if (!collectives_ && !last_) return;
  const int device = collectives_ ? collectives_->device() : last_->device_index();
  try {
    c10::DeviceGuard guard(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
    bool ended = streams_end(deadline);
    if (!ended) {
      log::warn("process group ", name_, ": destroyed with collectives under way on its GPU, which end now");
      if (collectives_) collectives_->abort();
      host_.abort_plans();
      ended = streams_end(comm::Clock::now() + kAbort);
    }
    for (auto& [key, stream] : streams_)
      if (ended) setup_.streams->give_back(device, raw_stream(stream));
    for (auto& [number, tensor] : registered_)
      if (collectives_) collectives_->drop_window(number);
  } catch (const std::exception& error) {
    log::warn("process group ", name_, " does not shut down: ", error.what());
  }
  streams_.clear();
  last_.reset();
  last_captured_.reset();
  registered_.clear();
  std::lock_guard creation(creation_mutex_);
  collectives_.reset();
  unusable_ = "the group has been destroyed";
}

void CudaGroup::poll() {
  if (auto own = collectives()) own->poll();
}

uint64_t CudaGroup::launches() const {
  auto own = collectives();
  return own ? own->launches() : 0;
}

void CudaGroup::force_algorithm(int algorithm) {
  TORCH_CHECK(collectives_, "ark process group ", name_, ": no CUDA collective has run yet");
  collectives_->force_algorithm(algorithm);
}

}  // namespace ark::bindings
