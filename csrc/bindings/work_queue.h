// Runs jobs in order on a thread of its own; every job is a c10d Work with a future.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ark::bindings {

/// One operation of a process group. Completes with the tensors that it wrote, or with the exception of the job.
class ArkWork : public c10d::Work {
 public:
  ArkWork(int rank, c10d::OpType type, uint64_t sequence, std::vector<at::Tensor> results);
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  std::vector<at::Tensor> result() override { return results_; }
  int sourceRank() const override { return source_; }
  void set_source(int rank) { source_ = rank; }
  void complete(std::exception_ptr error);

 private:
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  uint64_t sequence_;
  int source_ = -1;
};

class WorkQueue {
 public:
  WorkQueue();
  /// Finishes what is queued, then ends the thread.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  void push(c10::intrusive_ptr<ArkWork> work, std::function<void()> job);

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<c10::intrusive_ptr<ArkWork>, std::function<void()>>> jobs_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace ark::bindings
