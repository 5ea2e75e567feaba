#include <ATen/Functions.h>

#include "bindings/process_group.h"
#include "bindings/tensor_args.h"

namespace ark::bindings {

ProcessGroupArk::WorkPtr ProcessGroupArk::send(Tensors& tensors, int destination, int tag) {
  if (on_cuda(tensors, "send")) {
    return on_gpu(
        "send", [&](CudaGroup& g) { return g.send(tensors, destination); },
        [&](c10d::Backend& b) { return b.send(tensors, destination, tag); });
  }
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
  if (on_cuda(tensors, "recv")) {
    return on_gpu(
        "recv", [&](CudaGroup& g) { return g.recv(tensors, source); },
        [&](c10d::Backend& b) { return b.recv(tensors, source, tag); });
  }
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
  if (on_cuda(tensors, "recv")) {
    return on_gpu(
        "recv", [&](CudaGroup&) { return WorkPtr(); }, [&](c10d::Backend& b) { return b.recvAnysource(tensors, tag); });
  }
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

}  // namespace ark::bindings
