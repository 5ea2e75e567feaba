#include <ATen/Functions.h>

#include "bindings/distributed/process_group.h"
#include "bindings/distributed/support/tensor_args.h"

namespace ark::bindings {

ProcessGroupArk::WorkPtr ProcessGroupArk::send(Tensors& tensors, int destination, int tag) {
  auto own_turn = turn("send");
  const BatchGuard guard(*this);
  const bool cuda = on_cuda(tensors, "send");
  if (destination == getRank()) return message_to_self(c10d::OpType::SEND, single(tensors, "send"), tag);
  if (cuda) {
    return on_gpu(
        "send", [&](CudaGroup& g) { return g.send(tensors, destination); },
        [&](c10d::Backend& b) { return b.send(tensors, destination, tag); }, false);
  }
  check_root(destination, getSize(), "send");
  // Copied now where it is not contiguous; the memory itself belongs to the caller until wait().
  at::Tensor data = single(tensors, "send").contiguous();
  return enqueue(queue(send_queues_[destination]), c10d::OpType::SEND, sent_[destination]++, tensors,
                 c10d::kUnsetTimeout, [this, data, destination, tag](const Call& call) {
                   collectives_->send(data.data_ptr(), data.nbytes(), destination, tag, call);
                 });
}

/// From comm::Inbox::kAnyRank or a rank.
ProcessGroupArk::WorkPtr ProcessGroupArk::receive(at::Tensor tensor, int source, int tag) {
  const bool any = source == comm::Inbox::kAnyRank;
  auto out = std::make_shared<Staged>(tensor);
  auto work = c10::make_intrusive<ArkWork>(getRank(), any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
                                           received_[source]++, Tensors{std::move(tensor)});
  const auto clock = comm::Deadline::none_yet();
  work->set_clock(clock, timeout_.load());
  if (!inbox_) inbox_ = std::make_unique<comm::Inbox>(*channel_);
  inbox_->post({.data = out->ptr(),
                .bytes = out->bytes(),
                .from = source,
                .tag = tag,
                .sequence = work->getSequencenumber(),
                .deadline = clock,
                .done = [this, work, out](int from, std::exception_ptr error) {
                  try {
                    if (error) std::rethrow_exception(error);
                    out->finish();
                    work->set_source(from);
                  } catch (const comm::CancelledError&) {
                  } catch (const std::exception& reason) {
                    channel_->fail(reason.what());  // the peers raise too
                    error = std::current_exception();
                  }
                  out->release();
                  work->complete(error);
                }});
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::recv(Tensors& tensors, int source, int tag) {
  auto own_turn = turn("recv");
  const BatchGuard guard(*this);
  const bool cuda = on_cuda(tensors, "recv");
  if (source == getRank()) return message_to_self(c10d::OpType::RECV, single_written(tensors, "recv"), tag);
  if (cuda) {
    return on_gpu(
        "recv", [&](CudaGroup& g) { return g.recv(tensors, source); },
        [&](c10d::Backend& b) { return b.recv(tensors, source, tag); }, false);
  }
  check_root(source, getSize(), "recv");
  return receive(single_written(tensors, "recv"), source, tag);
}

ProcessGroupArk::WorkPtr ProcessGroupArk::recvAnysource(Tensors& tensors, int tag) {
  auto own_turn = turn("recv");
  const BatchGuard guard(*this);
  if (on_cuda(tensors, "recv")) {
    return on_gpu(
        "recv", [&](CudaGroup&) { return WorkPtr(); }, [&](c10d::Backend& b) { return b.recvAnysource(tensors, tag); },
        false);
  }
  return receive(single_written(tensors, "recv"), comm::Inbox::kAnyRank, tag);
}

}  // namespace ark::bindings
