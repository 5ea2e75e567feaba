// The Work of a message that is launched when its batch ends.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace ark::bindings {

class PendingWork : public c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  PendingWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : c10d::Work(rank, type), results_(std::move(results)) {}
  /// From now on this is `work`.
  void launched(WorkPtr work);
  /// If it has not been launched, it never is.
  void fail(const std::exception_ptr& error);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override { return need()->wait(timeout); }
  void synchronize() override { need()->synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return need()->getFuture(); }
  std::vector<at::Tensor> result() override { return results_; }
  uint64_t getSequencenumber() const override { return need()->getSequencenumber(); }

 private:
  WorkPtr work() const;
  /// Throws while the batch has not ended, and if the message has not been launched.
  WorkPtr need() const;

  std::vector<at::Tensor> results_;
  WorkPtr work_;
};

}  // namespace ark::bindings
