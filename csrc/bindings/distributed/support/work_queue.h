// Runs jobs in order on a thread of its own; every job is a c10d Work with a future.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "comm/deadline.h"

namespace ark::bindings {

/// One operation of a process group. Completes with the tensors that it wrote, or with the exception of the job; its
/// future first, then the Work, then callbacks of the future (completions.h).
class ArkWork : public c10d::Work {
 public:
  ArkWork(int rank, c10d::OpType type, uint64_t sequence, std::vector<at::Tensor> results);
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  std::vector<at::Tensor> result() override { return results_; }
  int sourceRank() const override { return source_; }
  void set_source(int rank) { source_ = rank; }
  /// Of a message: somebody who waits, or asks for the future, gives it `limit` from then on.
  void set_clock(comm::Deadline clock, std::chrono::milliseconds limit) {
    clocks_.emplace_back(std::move(clock), limit);
  }
  void complete(std::exception_ptr error);

 private:
  friend void complete_with(const c10::intrusive_ptr<ArkWork>&, const std::vector<c10::intrusive_ptr<c10d::Work>>&);
  c10::intrusive_ptr<c10::ivalue::Future> take_future();
  void start_clocks() const;
  void end_future(const std::exception_ptr& error);
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::mutex future_mutex_;
  bool future_taken_ = false;  // somebody has it, who may have callbacks
  uint64_t sequence_;
  int source_ = -1;
  std::vector<std::pair<comm::Deadline, std::chrono::milliseconds>> clocks_;  // of this message, or of a batch's
};

/// Completes `work` when all parts have ended: with the first error, if any. Who waits for it waits for their messages.
void complete_with(const c10::intrusive_ptr<ArkWork>& work, const std::vector<c10::intrusive_ptr<c10d::Work>>& parts);

class WorkQueue {
 public:
  WorkQueue();
  /// Finishes what is queued, then ends the thread.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  void push(c10::intrusive_ptr<ArkWork> work, std::function<void()> job);
  /// Whether all jobs have ended; waits for them until `deadline`.
  bool drain(std::chrono::steady_clock::time_point deadline);
  /// Ends the jobs that have not begun with `error`.
  void cancel(std::exception_ptr error);

 private:
  using Job = std::pair<c10::intrusive_ptr<ArkWork>, std::function<void()>>;
  void run();
  void run_first(std::unique_lock<std::mutex>& lock);
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<Job> jobs_;
  bool closing_ = false, running_ = false;
  std::thread thread_;
};

}  // namespace ark::bindings
