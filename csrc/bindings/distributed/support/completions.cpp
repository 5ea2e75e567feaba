#include "bindings/distributed/support/completions.h"

#include <thread>
#include <utility>

namespace ark::bindings {

namespace {

thread_local bool completes = false;  // this is a thread of Completions

}  // namespace

Completions& Completions::own() {
  static std::mutex mutex;
  static Completions* own = nullptr;
  std::lock_guard lock(mutex);
  if (!own || own->process_ != ::getpid()) own = new Completions;  // a process that was forked off has no threads of it
  return *own;
}

void Completions::add(Completion completion) {
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(completion));
  if (idle_ == 0) {
    ++idle_;
    std::thread([this] { run(); }).detach();
  }
  changed_.notify_one();
}

void Completions::drain(std::chrono::steady_clock::time_point deadline) {
  if (completes) return;
  std::unique_lock lock(mutex_);
  ended_.wait_until(lock, deadline, [this] { return waiting_.empty() && active_ == 0; });
}

void Completions::run() {
  completes = true;
  std::unique_lock lock(mutex_);
  while (true) {  // this thread is one of the idle ones
    changed_.wait(lock, [this] { return !waiting_.empty(); });
    if (active_ > 0 && std::chrono::steady_clock::now() < last_begin_ + kPatience) {
      changed_.wait_until(lock, last_begin_ + kPatience);
      continue;
    }
    Completion completion = std::move(waiting_.front());
    waiting_.pop_front();
    last_begin_ = std::chrono::steady_clock::now();
    ++active_;
    if (--idle_ == 0 && !waiting_.empty()) {
      ++idle_;
      std::thread([this] { run(); }).detach();
    }
    lock.unlock();
    completion();
    completion = nullptr;
    lock.lock();
    --active_;
    ended_.notify_all();
    changed_.notify_one();
    if (idle_ > 0) return;  // one that waits is enough
    ++idle_;
  }
}

}  // namespace ark::bindings
