// Tensors in registered memory.
#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "bindings/distributed/cuda/group.h"

namespace ark::bindings {

at::Tensor CudaGroup::empty(at::IntArrayRef sizes, at::ScalarType dtype, c10::Device device) {
  TORCH_CHECK(usable(device), "ark process group ", name_, ", empty: no memory that all ranks map",
              unusable_.empty() ? std::string() : ": " + unusable_);
  const size_t bytes = c10::multiply_integers(sizes) * c10::elementSize(dtype);
  auto window = collectives_->make_window(std::max<size_t>(bytes, 1), comm::Clock::now() + timeout_.load());
  const int number = window->number();
  std::weak_ptr<Collectives> group = collectives_;
  auto* data = reinterpret_cast<void*>(window->own());
  return at::for_blob(data, sizes)
      .deleter([group, window, number](void*) mutable {
        if (auto collectives = group.lock()) collectives->drop_window(number);
        window.reset();
      })
      .options(at::TensorOptions().dtype(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

int CudaGroup::register_tensor(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cuda() && tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense(),
              "ark process group, register: expected a dense CUDA tensor, got ", tensor.layout(), " on ",
              tensor.device());
  TORCH_CHECK(tensor.nbytes() > 0, "ark process group, register: the tensor has no elements");
  TORCH_CHECK(usable(tensor.device()), "ark process group ", name_, ", register: no memory that all ranks map",
              unusable_.empty() ? std::string() : ": " + unusable_);
  auto window = collectives_->register_window(tensor.data_ptr(), tensor.nbytes(), comm::Clock::now() + timeout_.load());
  std::lock_guard lock(mutex_);
  registered_.emplace(window->number(), tensor);
  return window->number();
}

void CudaGroup::deregister(int number) {
  at::Tensor kept;  // goes after its window
  std::lock_guard lock(mutex_);
  auto found = registered_.find(number);
  TORCH_CHECK(found != registered_.end(), "ark process group ", name_, ", deregister: no registration ", number);
  kept = std::move(found->second);
  registered_.erase(found);
  collectives_->drop_window(number);
}

}  // namespace ark::bindings
