// CUDA streams of high priority, used by one group after the other: torch may go on naming a stream that its group has
// given back, so none is ever destroyed.
#pragma once
#include <map>
#include <mutex>
#include <vector>

#include "cuda/driver.h"

namespace ark::bindings {

class StreamPool {
 public:
  /// Of the current device, whose number is `device`.
  cuda::Stream take(int device) {
    std::lock_guard lock(mutex_);
    auto& free = free_[device];
    if (free.empty()) return make();
    cuda::Stream stream = free.back();
    free.pop_back();
    return stream;
  }
  /// Nothing is left in the stream.
  void give_back(int device, cuda::Stream stream) {
    std::lock_guard lock(mutex_);
    free_[device].push_back(stream);
  }

 private:
  static cuda::Stream make() {
    constexpr int kHighest = -5;  // clamped to what the device has: communication goes first
    cuda::Stream stream = nullptr;
    cuda::RelaxedCaptureScope relaxed;
    cuda::check_result(cuda::driver().stream_create_with_priority(&stream, cuda::kStreamNonBlocking, kHighest),
                       "cuStreamCreateWithPriority");
    return stream;
  }
  std::mutex mutex_;
  std::map<int, std::vector<cuda::Stream>> free_;
};

}  // namespace ark::bindings
