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

void WorkQueue::run() {
  c10::InferenceMode no_autograd(false);
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    auto [work, job] = std::move(jobs_.front());
    jobs_.pop_front();
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
