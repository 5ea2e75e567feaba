// What goes to NCCL or Gloo.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/log.h"
#include "bindings/distributed/process_group.h"

namespace ark::bindings {

void ProcessGroupArk::count_delegated(const char* operation, const char* to) {
  own_delegated_.add(operation);
  const bool first = !setup_.delegated || setup_.delegated->add(operation);
  if (first) log::warn("process group ", name_, ": ", operation, " goes to ", to, " (logged once)");
}

c10d::Backend& ProcessGroupArk::delegate(const char* operation) {
  if (!nccl_ && setup_.make_nccl)
    nccl_ = setup_.make_nccl(c10::make_intrusive<c10d::PrefixStore>("nccl", store_), getRank(), getSize(), timeout_);
  TORCH_CHECK(nccl_, "ark process group, ", operation, ": CUDA tensors need NCCL, which this torch does not have",
              cuda_ ? cuda_->unusable() : std::string());
  if (coalescing_ && !coalescing_cuda_) {
    nccl_->startCoalescing();
    coalescing_cuda_ = true;
  }
  count_delegated(operation, "NCCL");
  return *nccl_;
}

/// On the thread of the collectives: all ranks meet to make it.
c10d::Backend& ProcessGroupArk::gloo() {
  if (!gloo_)
    gloo_ = setup_.make_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store_), getRank(), getSize(), timeout_);
  return *gloo_;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::on_gloo(const char* operation, c10d::OpType type, const Tensors& tensors,
                                                  std::chrono::milliseconds timeout,
                                                  std::function<WorkPtr(c10d::Backend&)> call) {
  TORCH_CHECK(setup_.make_gloo, "ark process group, ", operation,
              ": this needs Gloo, which this torch does not have (expected dense tensors, got ", tensors[0].layout(),
              ")");
  count_delegated(operation, "Gloo");
  return submit(type, tensors, timeout, [this, call = std::move(call)](const Call&) { call(gloo())->wait(); });
}

}  // namespace ark::bindings
