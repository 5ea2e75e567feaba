#include "bindings/work_queue.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/InferenceMode.h>

#include "bindings/profiling_title.h"

namespace ark::bindings {

namespace {

thread_local WorkQueue* own_queue = nullptr;
thread_local bool ends_receive = false;  // `complete` of a receive is under way on this thread

bool receives(c10d::OpType type) { return type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE; }

}  // namespace

ArkWork::ArkWork(int rank, c10d::OpType type, uint64_t sequence, std::vector<at::Tensor> results)
    : c10d::Work(rank, type, profiling_title(type), results),
      results_(std::move(results)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))),
      sequence_(sequence) {}

void ArkWork::complete(std::exception_ptr error) {
  // The future first: who waits for the Work may look at the future at once.
  const bool outer = std::exchange(ends_receive, receives(opType_));
  if (error)
    future_->setError(error);
  else
    future_->markCompleted(c10::IValue(results_));
  ends_receive = outer;
  finish(error);
}

bool ArkWork::wait(std::chrono::milliseconds timeout) {
  TORCH_CHECK(!ends_receive || !receives(opType_) || isCompleted(), "ark process group, rank ", rank_, ": ",
              c10d::opTypeToString(opType_), " number ", sequence_,
              " is waited for in a callback of another receive, on the thread that would take it");
  if (own_queue) own_queue->run_until(*this);
  if (timeout != kNoTimeout) {
    std::unique_lock lock(mutex_);
    TORCH_CHECK(cv_.wait_for(lock, timeout, [this] { return completed_; }), "ark process group, rank ", rank_, ": ",
                c10d::opTypeToString(opType_), " number ", sequence_, " did not end within ", timeout.count(), " ms");
  }
  return c10d::Work::wait(kNoTimeout);
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

/// The first of the queue; its tensors are released before anyone is told, and nothing of it under the lock.
void WorkQueue::run_job(std::unique_lock<std::mutex>& lock) {
  auto [work, job] = std::move(jobs_.front());
  jobs_.pop_front();
  lock.unlock();
  std::exception_ptr error;
  try {
    job();
  } catch (...) {
    error = std::current_exception();
  }
  job = nullptr;
  work->complete(error);
  work.reset();
  lock.lock();
}

void WorkQueue::run_until(c10d::Work& work) {
  std::unique_lock lock(mutex_);
  while (!jobs_.empty() && !work.isCompleted()) run_job(lock);
}

void WorkQueue::run() {
  own_queue = this;
  c10::InferenceMode no_autograd(false);
  std::unique_lock lock(mutex_);
  while (true) {
    running_ = false;
    if (jobs_.empty()) idle_.notify_all();
    changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    running_ = true;
    run_job(lock);
  }
}

}  // namespace ark::bindings
