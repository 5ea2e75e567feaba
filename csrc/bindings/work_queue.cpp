#include "bindings/work_queue.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/InferenceMode.h>

namespace ark::bindings {

ArkWork::ArkWork(int rank, c10d::OpType type, uint64_t sequence, std::vector<at::Tensor> results)
    : c10d::Work(rank, type),
      results_(std::move(results)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))),
      sequence_(sequence) {}

void ArkWork::complete(std::exception_ptr error) {
  // The future first: who waits for the Work may look at the future at once.
  if (error)
    future_->setError(error);
  else
    future_->markCompleted(c10::IValue(results_));
  finish(error);
}

void complete_with(const c10::intrusive_ptr<ArkWork>& work, const std::vector<c10::intrusive_ptr<c10d::Work>>& parts) {
  struct Countdown {
    std::mutex mutex;
    size_t left;
    std::exception_ptr error;
  };
  auto countdown = std::make_shared<Countdown>();
  countdown->left = parts.size();
  if (parts.empty()) return work->complete(nullptr);
  for (const auto& part : parts)
    part->getFuture()->addCallback([countdown, work](c10::ivalue::Future& future) {
      {
        std::lock_guard lock(countdown->mutex);
        if (future.hasError() && !countdown->error) countdown->error = future.exception_ptr();
        if (--countdown->left > 0) return;
      }
      work->complete(countdown->error);
    });
}

WorkQueue::WorkQueue() : thread_([this] { run(); }) {}

WorkQueue::~WorkQueue() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WorkQueue::push(c10::intrusive_ptr<ArkWork> work, std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.emplace_back(std::move(work), std::move(job));
  }
  changed_.notify_one();
}

bool WorkQueue::drain(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline, [this] { return jobs_.empty() && !running_; });
}

void WorkQueue::cancel(std::exception_ptr error) {
  decltype(jobs_) cancelled;
  {
    std::lock_guard lock(mutex_);
    cancelled.swap(jobs_);
  }
  for (auto& [work, job] : cancelled) work->complete(error);
}

void WorkQueue::run() {
  c10::InferenceMode no_autograd(false);
  while (true) {
    std::unique_lock lock(mutex_);
    running_ = false;
    if (jobs_.empty()) idle_.notify_all();
    changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    auto [work, job] = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    job = nullptr;  // release tensors before anyone is told
    work->complete(error);
  }
}

}  // namespace ark::bindings
