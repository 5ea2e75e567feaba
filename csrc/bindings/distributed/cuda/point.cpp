// Sends and receives on GPUs.
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "bindings/distributed/cuda/group.h"
#include "bindings/distributed/support/tensor_args.h"
#include "comm/message_rounds.h"

namespace ark::bindings {

namespace {

/// After what the current stream of the device holds.
c10::Event current_end(c10::Device device) {
  c10::Event end(c10::DeviceType::CUDA);
  end.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return end;
}

}  // namespace

/// Not held in a batch: it waits for no other rank.
CudaGroup::WorkPtr CudaGroup::message_to_self(c10d::OpType type, const at::Tensor& from, const at::Tensor& to) {
  if (!usable(to.device(), true)) return nullptr;
  std::lock_guard lock(mutex_);
  const int key = 2 * rank_;
  c10::DeviceGuard guard(to.device());
  c10::Event begin = current_end(to.device());
  c10::Stream stream = own_stream(key);
  begin.block(stream);
  Plan plan{.type = type, .results = {to}, .inputs = {from}};
  return submit_on(stream, plan, [&](Collectives&, const Call&) { overwrite(to, from); }, true, points_[key]++);
}

/// Of the message that is called next.
uint64_t CudaGroup::next_number(int key) const {
  const auto launched = points_.find(key);
  const auto held = std::count_if(held_.begin(), held_.end(), [&](const Message& m) { return m.key() == key; });
  return (launched == points_.end() ? 0 : launched->second) + static_cast<uint64_t>(held);
}

CudaGroup::WorkPtr CudaGroup::point(int peer, bool sends, const at::Tensor& tensor, Body body) {
  std::lock_guard lock(mutex_);
  try {
    collectives_->reach(peer, comm::Clock::now() + timeout_.load(),
                        cat(sends ? "send" : "receive", " number ", next_number(2 * peer + (sends ? 1 : 0))));
  } catch (const UnsupportedError& error) {
    give_up(error.what());
    return nullptr;
  }
  c10::DeviceGuard guard(tensor.device());
  Message message{peer, sends, tensor, current_end(tensor.device()), std::move(body)};
  return holds_ == std::this_thread::get_id() ? hold(std::move(message)) : launch(message);
}

CudaGroup::WorkPtr CudaGroup::launch(const Message& message) {
  c10::DeviceGuard guard(message.tensor.device());
  c10::Stream stream = own_stream(message.key());
  message.begin.block(stream);
  Plan plan{.type = message.type(), .results = {message.tensor}};
  return submit_on(stream, plan, message.body, true, points_[message.key()]++);
}

CudaGroup::WorkPtr CudaGroup::hold(Message message) {
  message.work = c10::make_intrusive<PendingWork>(rank_, message.type(), Tensors{message.tensor}, launcher_);
  held_.push_back(std::move(message));
  return held_.back().work;
}

void CudaGroup::hold_messages() {
  std::lock_guard lock(mutex_);
  holds_ = std::this_thread::get_id();
}

void CudaGroup::launch_messages() {
  launch_held();
  std::lock_guard lock(mutex_);
  holds_ = {};
}

void CudaGroup::launch_held() {
  std::lock_guard lock(mutex_);
  const std::vector<Message> held = std::exchange(held_, {});
  std::vector<comm::BatchMessage> messages;
  for (const Message& m : held) messages.push_back({m.peer, m.sends});
  c10::InferenceMode any_tensor;  // no part of autograd: torch's dispatcher is not around this call
  try {
    for (const size_t i : comm::launch_order(messages, rank_, size_)) held[i].work->launched(launch(held[i]));
  } catch (...) {
    for (const Message& m : held) m.work->fail(std::current_exception());
    throw;
  }
}

void CudaGroup::drop_messages(const std::exception_ptr& error) {
  std::lock_guard lock(mutex_);
  drop_held(error);
}

/// Those that have been launched go on.
void CudaGroup::drop_held(const std::exception_ptr& error) {
  holds_ = {};
  for (const Message& m : std::exchange(held_, {})) m.work->fail(error);
}

CudaGroup::WorkPtr CudaGroup::send(Tensors& tensors, int destination) {
  check_root(destination, size_, "send");
  const at::Tensor tensor = single(tensors, "send");
  if (!usable(tensor.device(), true)) return nullptr;
  return point(destination, true, tensor, [tensor, destination](Collectives& collectives, const Call& call) {
    at::Tensor data = tensor.contiguous();
    collectives.send(data.data_ptr(), data.nbytes(), destination, call);
  });
}

CudaGroup::WorkPtr CudaGroup::recv(Tensors& tensors, int source) {
  check_root(source, size_, "recv");
  const at::Tensor tensor = single_written(tensors, "recv");
  if (!usable(tensor.device(), true)) return nullptr;
  return point(source, false, tensor, [tensor, source](Collectives& collectives, const Call& call) {
    Staged out(tensor);
    collectives.receive(out.ptr(), out.bytes(), source, call);
    out.finish();
  });
}

}  // namespace ark::bindings
