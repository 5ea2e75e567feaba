// Messages of a rank to itself: allowed within a batch (batch_isend_irecv), as in NCCL, where the other half follows.
#include "bindings/process_group.h"
#include "bindings/tensor_args.h"

namespace ark::bindings {

/// The copy takes place, on the current stream, when the second half of a message is called.
ProcessGroupArk::WorkPtr ProcessGroupArk::message_to_self(c10d::OpType type, const at::Tensor& tensor, int tag) {
  const bool sends = type == c10d::OpType::SEND;
  TORCH_CHECK(coalescing_, "ark process group, ", sends ? "send" : "recv", ": rank ", getRank(), " cannot ",
              sends ? "send to" : "receive from", " itself but within a batch (batch_isend_irecv) that has both");
  auto work = c10::make_intrusive<ArkWork>(getRank(), type, uint64_t{0}, Tensors{tensor});
  auto other =
      std::find_if(to_self_.begin(), to_self_.end(), [&](const ToSelf& m) { return m.sends != sends && m.tag == tag; });
  if (other == to_self_.end()) {
    to_self_.push_back({sends, tag, tensor, work});
    return work;
  }
  const at::Tensor &from = sends ? tensor : other->tensor, &to = sends ? other->tensor : tensor;
  TORCH_CHECK(from.scalar_type() == to.scalar_type() && from.numel() == to.numel(), "ark process group, rank ",
              getRank(), " sends ", from.numel(), " elements of ", from.scalar_type(), " to itself and receives ",
              to.numel(), " of ", to.scalar_type());
  at::Tensor target = to;
  target.copy_(from.reshape(to.sizes()));
  other->work->complete(nullptr);
  work->complete(nullptr);
  to_self_.erase(other);
  return work;
}

void ProcessGroupArk::end_messages_to_self() {
  const auto left = std::exchange(to_self_, {});
  TORCH_CHECK(left.empty(), "ark process group: rank ", getRank(), left[0].sends ? " sends to" : " receives from",
              " itself in a batch that has not the other half (tag ", left[0].tag, ")");
}

}  // namespace ark::bindings
