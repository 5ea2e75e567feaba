// The threads of a worker on one thread of the host: each has a stack of its own and goes on until it waits for others.
// Hundreds of real threads that meet at every shuffle take the host ten times as long. Whose turn comes is drawn, in
// each run alike: a meeting left out shows in values where some order of the turns drawn makes it matter.
#pragma once
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

class Threads {
 public:
  /// f(number of the thread), by each of so many.
  template <class F>
  void run(int count, F&& f) {
    body_ = [](void* of_all, int thread) { (*static_cast<F*>(of_all))(thread); };
    argument_ = &f;
    while (static_cast<int>(of_.size()) < count) of_.push_back(std::make_unique<Thread>());
    running_ = count;
    for (int i = 0; i < count; ++i) {
      ucontext_t& context = of_[static_cast<size_t>(i)]->context;
      getcontext(&context);
      context.uc_stack.ss_sp = of_[static_cast<size_t>(i)]->stack.get();
      context.uc_stack.ss_size = kStackBytes;
      context.uc_link = nullptr;
      makecontext(&context, &start, 0);
      ready_.push_back(i);
    }
    own_ = take();
    swapcontext(&caller_, &of(own_));
  }
  int own() const { return own_; }

 private:
  friend class Meeting;
  static constexpr size_t kStackBytes = 256 << 10;
  struct Thread {
    ucontext_t context;
    std::unique_ptr<unsigned char[]> stack{new unsigned char[kStackBytes]};  // what nobody uses takes no memory
  };

  ucontext_t& of(int thread) { return of_[static_cast<size_t>(thread)]->context; }
  int take() {
    if (ready_.empty()) std::printf("%d threads wait for others that have ended\n", running_), std::exit(1);
    std::swap(ready_.front(), ready_[draw() % ready_.size()]);
    const int next = ready_.front();
    ready_.pop_front();
    return next;
  }
  void let_others() {
    const int from = own_;
    own_ = take();
    if (own_ != from) swapcontext(&of(from), &of(own_));
  }
  static void start();
  size_t draw() {  // xorshift, George Marsaglia, 2003
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return static_cast<size_t>(state_);
  }

  unsigned long long state_ = 88172645463325252ull;
  ucontext_t caller_;
  std::vector<std::unique_ptr<Thread>> of_;
  std::deque<int> ready_;
  int own_ = 0, running_ = 0;
  void (*body_)(void*, int) = nullptr;
  void* argument_ = nullptr;
};
inline Threads threads;

inline void Threads::start() {
  threads.body_(threads.argument_, threads.own_);
  if (--threads.running_ == 0) setcontext(&threads.caller_);
  threads.own_ = threads.take();
  setcontext(&threads.of(threads.own_));
}

/// So many threads come here before any goes on.
class Meeting {
 public:
  explicit Meeting(int count) : count_(count) {}
  void arrive_and_wait() {
    waiting_.push_back(threads.own_);
    if (static_cast<int>(waiting_.size()) == count_) {
      threads.ready_.insert(threads.ready_.end(), waiting_.begin(), waiting_.end());
      waiting_.clear();
    }
    threads.let_others();
  }

 private:
  int count_;
  std::vector<int> waiting_;
};
