// Calls that are put together (batch_isend_irecv, _coalescing_manager), and messages of a rank to itself, which are
// allowed there, as in NCCL, because the other half follows.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "bindings/distributed/process_group.h"
#include "bindings/distributed/support/tensor_args.h"

namespace ark::bindings {

void ProcessGroupArk::startCoalescing() {
  auto own_turn = turn("startCoalescing");
  drop_batch();
  coalescing_ = true;
  if (cuda_) cuda_->hold_messages();
}

/// After an exception between start and end, of whose end torch does not tell: what is under way goes on, messages on
/// GPUs that have not been launched never are, and nothing more joins it.
void ProcessGroupArk::drop_batch() {
  if (!std::exchange(coalescing_, false)) return;
  coalesced_.clear();
  coalescing_own_ = false;
  const auto error =
      std::make_exception_ptr(UserError(cat("a batch of group ", name_, " has ended with an exception")));
  for (const ToSelf& half : std::exchange(to_self_, {})) half.work->complete(error);
  if (cuda_) cuda_->drop_messages(error);
  if (!std::exchange(coalescing_cuda_, false)) return;
  try {
    nccl_->endCoalescing();
  } catch (const std::exception& problem) {
    log::warn("process group ", name_, ": NCCL's part of a batch that has ended with an exception: ", problem.what());
  }
}

ProcessGroupArk::BatchGuard::~BatchGuard() {
  if (std::uncaught_exceptions() != exceptions_) group_.drop_batch();
}

ProcessGroupArk::WorkPtr ProcessGroupArk::endCoalescing() {
  auto own_turn = turn("endCoalescing");
  const BatchGuard guard(*this);
  if (cuda_) cuda_->launch_messages();
  coalescing_ = false;
  const auto left = std::exchange(to_self_, {});
  std::string problem;
  if (!left.empty())
    problem = cat("ark process group: rank ", getRank(), left[0].sends ? " sends to" : " receives from",
                  " itself in a batch that has not the other half (tag ", left[0].tag, ")");
  for (const ToSelf& half : left) half.work->complete(std::make_exception_ptr(UserError(problem)));
  WorkPtr work = end_batch();
  TORCH_CHECK(left.empty(), problem);
  return work;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::end_batch() {
  auto parts = std::exchange(coalesced_, {});
  const bool own = std::exchange(coalescing_own_, false), theirs = std::exchange(coalescing_cuda_, false);
  if (theirs && parts.empty()) return nccl_->endCoalescing();
  if (theirs) parts.push_back(nccl_->endCoalescing());
  if (own || theirs) return c10::make_intrusive<CombinedWork>(getRank(), sequence_, std::move(parts));
  Tensors results;
  for (const WorkPtr& part : parts)
    for (const at::Tensor& t : part->result()) results.push_back(t);
  auto work = c10::make_intrusive<ArkWork>(getRank(), c10d::OpType::COALESCED, sequence_, std::move(results));
  complete_with(work, parts);
  return work;
}

/// The copy takes place when the second half of a message is called. Tags of messages on GPUs say nothing, whoever they
/// are between.
ProcessGroupArk::WorkPtr ProcessGroupArk::message_to_self(c10d::OpType type, const at::Tensor& tensor, int tag) {
  const bool sends = type == c10d::OpType::SEND, cuda = tensor.is_cuda();
  TORCH_CHECK(coalescing_, "ark process group, ", sends ? "send" : "recv", ": rank ", getRank(), " cannot ",
              sends ? "send to" : "receive from", " itself but within a batch (batch_isend_irecv) that has both");
  auto other = std::find_if(to_self_.begin(), to_self_.end(), [&](const ToSelf& m) {
    return m.sends != sends && m.tensor.is_cuda() == cuda && (cuda || m.tag == tag);
  });
  if (other == to_self_.end()) {
    to_self_.push_back({sends, tag, tensor, c10::make_intrusive<ArkWork>(getRank(), type, uint64_t{0}, Tensors{})});
    return to_self_.back().work;
  }
  at::Tensor from = sends ? tensor : other->tensor, to = sends ? other->tensor : tensor;
  check_device({from}, to, "send");
  TORCH_CHECK(from.scalar_type() == to.scalar_type() && from.numel() == to.numel(), "ark process group, rank ",
              getRank(), " sends ", from.numel(), " elements of ", from.scalar_type(), " to itself and receives ",
              to.numel(), " of ", to.scalar_type());
  WorkPtr copied = copy_to_self(type, from, to, tag);
  auto first = other->work;  // if the copy has thrown, it ends with the batch
  to_self_.erase(other);
  first->complete(nullptr);
  return copied;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::copy_to_self(c10d::OpType type, const at::Tensor& from, const at::Tensor& to,
                                                       int tag) {
  if (to.is_cuda()) {
    return on_gpu(
        "send", [&](CudaGroup& g) { return g.message_to_self(type, from, to); },
        [&](c10d::Backend& b) {
          Tensors received{to}, sent{from};
          b.recv(received, getRank(), tag);
          return b.send(sent, getRank(), tag);
        },
        false);
  }
  auto work = c10::make_intrusive<ArkWork>(getRank(), type, uint64_t{0}, Tensors{});
  overwrite(to, from);
  work->complete(nullptr);
  return work;
}

}  // namespace ark::bindings
