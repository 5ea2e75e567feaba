// Waiting on the host for what another process or thread writes into memory.
#pragma once
#include <chrono>
#include <thread>

namespace ark::comm {

/// What a loop does after each poll that said no: it spins a little, then gives the core away (ranks may outnumber
/// cores), then sleeps.
class Backoff {
 public:
  /// Something has come.
  void reset() { polls_ = 0; }
  /// `check()` is called now and then: it looks at what costs more than a poll (the clock, processes), and throws where
  /// the wait has to end.
  template <class Check>
  void pause(Check&& check) {
    if (++polls_ < kSpins) return;
    if ((polls_ - kSpins) % kPollsBetweenChecks == 0) check();  // at once where it no longer spins
    if (polls_ < kPollsAwake)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kSleep);
  }

 private:
  static constexpr unsigned kSpins = 200, kPollsAwake = 2000, kPollsBetweenChecks = 64;
  static constexpr std::chrono::microseconds kSleep{50};
  unsigned polls_ = 0;
};

/// Polls until `ready()`; ends otherwise only by what `check()` throws.
template <class Ready, class Check>
void wait_until(Ready&& ready, Check&& check) {
  for (Backoff backoff; !ready();) backoff.pause(check);
}

}  // namespace ark::comm
