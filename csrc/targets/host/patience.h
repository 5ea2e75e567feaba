// How long a thread has seen nothing happen, look by look. Time between two looks counts in part only: a process that
// was stopped, or a machine that was, has waited for nobody.
#pragma once
#include <algorithm>
#include <cstdint>

namespace ark::targets::host {

class Patience {
 public:
  static constexpr uint64_t kLongestLook = 20'000'000;  // ns

  /// Nobody is at work, and the last one ended at `progress`: for longer than `deadline` now? All in ns.
  bool ends(uint64_t now, uint64_t progress, uint64_t deadline) {
    if (progress != progress_) *this = Patience(progress, now);
    waited_ += std::min(now - last_, kLongestLook);
    last_ = now;
    return waited_ > deadline;
  }
  /// Somebody is at work.
  void renew() { *this = Patience(); }

  Patience() = default;

 private:
  Patience(uint64_t progress, uint64_t now) : progress_(progress), last_(now) {}

  uint64_t progress_ = 0, last_ = 0, waited_ = 0;
};

}  // namespace ark::targets::host
