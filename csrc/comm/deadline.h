// When a wait ends.
#pragma once
#include <atomic>
#include <memory>

#include "comm/store.h"

namespace ark::comm {

/// A moment; or, of a message that may have been asked for long before anybody needs it, none until somebody waits.
/// Copies share it.
class Deadline {
 public:
  Deadline(Clock::time_point moment = {}) : moment_(moment) {}
  static Deadline none_yet() {
    Deadline deadline(Clock::time_point::max());
    deadline.later_ = std::make_shared<std::atomic<Clock::rep>>(deadline.moment_.time_since_epoch().count());
    return deadline;
  }
  /// Of one that is none yet; the first call counts.
  void start(Clock::time_point moment) const {
    Clock::rep none = Clock::time_point::max().time_since_epoch().count();
    if (later_) later_->compare_exchange_strong(none, moment.time_since_epoch().count());
  }
  bool passed() const { return Clock::now() > (later_ ? Clock::time_point(Clock::duration(later_->load())) : moment_); }

 private:
  Clock::time_point moment_;
  std::shared_ptr<std::atomic<Clock::rep>> later_;
};

}  // namespace ark::comm
