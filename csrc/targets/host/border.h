// The end of an iteration: a worker that has ended its list waits until all have, and who comes last says whether there
// is another iteration. It orders what the end of a launch orders.
//
// Memory order: arrivals are acquire and release, so who comes last has seen all stores of the iteration, the stop flag
// among them; it opens the next one with release, which every worker reads with acquire before its first tile.
#pragma once
#include <atomic>
#include <cstdint>

#include "plan/plan.h"
#include "targets/target.h"

namespace ark::targets::host {

class Border {
 public:
  /// `workers`: those with a list. `go`: the stop flag's two elements, or null.
  Border(const plan::Loop& loop, int workers, const Iterations* iterations, const uint8_t* go)
      : arrivals_(loop.arrivals > 0 ? loop.arrivals : workers), most_(iterations ? iterations->most : 1), go_(go) {
    if (workers == 0) end(most_);
    if (!goes_on(0)) end(0);
  }

  /// The iteration that runs.
  int64_t open() const { return open_.load(std::memory_order_acquire); }
  /// No further tile is to run, and that many iterations have.
  bool ended() const { return done() >= 0; }
  int64_t done() const { return done_.load(std::memory_order_acquire); }

  /// A worker has ended its list.
  void arrive() {
    const int64_t arrived = arrived_.fetch_add(1, std::memory_order_acq_rel) + 1;
    if (arrived % arrivals_ != 0) return;
    const int64_t iteration = arrived / arrivals_;
    goes_on(iteration) ? open_.store(iteration, std::memory_order_release) : end(iteration);
  }
  /// The iteration that runs is the last one. Who says so in a tile has said it before its worker arrives.
  void stop() { stopped_.store(true, std::memory_order_release); }

  int64_t arrivals() const { return arrivals_; }
  int64_t arrived() const { return arrived_.load(std::memory_order_relaxed) - open() * arrivals_; }

 private:
  bool goes_on(int64_t iteration) const {
    return iteration < most_ && !stopped_.load(std::memory_order_acquire) && (!go_ || go_[iteration > 0] != 0);
  }
  void end(int64_t iterations) { done_.store(iterations, std::memory_order_release); }

  const int64_t arrivals_, most_;
  const uint8_t* const go_;
  std::atomic<int64_t> arrived_{0}, open_{0}, done_{-1};
  std::atomic<bool> stopped_{false};
};

}  // namespace ark::targets::host
