// Ends futures that somebody holds, off the threads that do the work: a callback may wait for anything that a group has
// still to do, a collective, a receive or the future of either.
#pragma once
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace ark::bindings {

/// One begins after the other, in the order of `add`, when the one before has ended, or has taken kPatience: it waits,
/// then, for what ends after it.
class Completions {
 public:
  using Completion = std::function<void()>;  // throws nothing
  static constexpr std::chrono::microseconds kPatience{500};

  /// Those of this process. Their threads are never joined: a callback may wait for ever.
  static Completions& own();

  void add(Completion completion);
  /// Waits until all have ended, at most until `deadline`; not within one.
  void drain(std::chrono::steady_clock::time_point deadline);

 private:
  void run();
  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable changed_, ended_;
  std::deque<Completion> waiting_;
  std::chrono::steady_clock::time_point last_begin_;
  int active_ = 0, idle_ = 0;  // threads
};

}  // namespace ark::bindings
