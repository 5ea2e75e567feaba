// Collectives on registered memory: which calls can use it, and their launches.
#include <algorithm>

#include "base/check.h"
#include "comm/cuda_collectives.h"

namespace ark::comm {
namespace {

using abi::CollectiveKind;
using cuda::DevicePtr;

constexpr uint64_t kBytesPerWorker = 512 * 16;  // threads and blocks of csrc/device/collective/direct.cuh

DevicePtr address_of(const void* p) { return reinterpret_cast<DevicePtr>(p); }

int workers_of(uint64_t bytes, int limit) {
  return static_cast<int>(std::clamp<uint64_t>((bytes + kBytesPerWorker - 1) / kBytesPerWorker, 1, limit));
}

}  // namespace

std::shared_ptr<Window> CudaCollectives::make_window(size_t bytes, Clock::time_point deadline) {
  const int number = ++num_windows_;
  auto window = std::make_shared<Window>(store_, group_, gpu_, number, bytes, deadline);
  keep_window(window);
  return window;
}

std::shared_ptr<Window> CudaCollectives::register_window(void* own, size_t bytes, Clock::time_point deadline) {
  const int number = ++num_windows_;
  auto window = std::make_shared<Window>(store_, group_, gpu_, number, address_of(own), bytes, deadline);
  keep_window(window);
  return window;
}

void CudaCollectives::keep_window(const std::shared_ptr<Window>& window) {
  std::lock_guard lock(windows_mutex_);
  windows_[window->own()] = window;
}

void CudaCollectives::drop_window(int number) {
  std::shared_ptr<Window> dropped;  // ends outside the lock: waits for the device
  std::lock_guard lock(windows_mutex_);
  for (auto at = windows_.begin(); at != windows_.end(); ++at) {
    if (at->second->number() != number) continue;
    dropped = std::move(at->second);
    windows_.erase(at);
    return;
  }
}

std::shared_ptr<Window> CudaCollectives::window_at(const void* data, uint64_t bytes) const {
  std::lock_guard lock(windows_mutex_);
  auto after = windows_.upper_bound(address_of(data));
  if (after == windows_.begin()) return nullptr;
  const auto& window = std::prev(after)->second;
  return window->contains(address_of(data), bytes) ? window : nullptr;
}

int CudaCollectives::direct_workers() const {
  return forced_workers_ > 0 ? forced_workers_ : tuning_for(group_.world).direct_workers;
}

bool CudaCollectives::takes_direct(uint64_t bytes, const SizeRange& range) const {
  if (forced_ >= 0) return forced_ == static_cast<int>(abi::Algorithm::kDirect);
  return range.has(bytes);
}

bool CudaCollectives::reduce_direct(abi::CollectiveParams& p, uint64_t in_bytes, uint64_t out_bytes, DType dtype,
                                    const Call& call) {
  auto in = window_at(p.in, in_bytes), out = out_bytes ? window_at(p.out, out_bytes) : nullptr;
  if (!in || (out_bytes && !out)) return false;
  p.place_in = abi::pack_place(in->number(), address_of(p.in) - in->own());
  for (int r = 0; r < group_.world; ++r) p.window_in[r] = reinterpret_cast<unsigned char*>(in->base(r));
  if (out) {
    p.place_out = abi::pack_place(out->number(), address_of(p.out) - out->own());
    for (int r = 0; r < group_.world; ++r) p.window_out[r] = reinterpret_cast<unsigned char*>(out->base(r));
  }
  p.algorithm = abi::Algorithm::kDirect;
  p.call |= abi::kDirectCall;
  launch({KernelFamily::kDirectReduce, dtype, group_.world}, workers_of(in_bytes / group_.world, direct_workers()),
         false, p, call);
  return true;
}

bool CudaCollectives::move_direct(abi::CollectiveParams& p, const Output& output, const Call& call) {
  auto out = window_at(output.data, output.bytes);
  if (!out) return false;
  p.place_out = abi::pack_place(out->number(), address_of(output.data) - out->own());
  for (int r = 0; r < group_.world; ++r) p.window_out[r] = reinterpret_cast<unsigned char*>(out->base(r));
  p.push_offset = output.own_part;
  p.algorithm = abi::Algorithm::kDirect;
  p.call |= abi::kDirectCall;
  launch({KernelFamily::kDirectMove, DType::kU8, group_.world},
         workers_of(output.bytes / group_.world, direct_workers()), false, p, call);
  return true;
}

}  // namespace ark::comm
