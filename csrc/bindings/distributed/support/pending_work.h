// The Work of a message that is launched when its batch ends, or when somebody waits for it before.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace ark::bindings {

/// Launches what a group holds, while the group is there.
class Launcher {
 public:
  explicit Launcher(std::function<void()> launch) : launch_(std::move(launch)) {}
  void launch();
  void close();

 private:
  std::mutex mutex_;
  std::function<void()> launch_;
};

class PendingWork : public c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  PendingWork(int rank, c10d::OpType type, std::vector<at::Tensor> results, std::shared_ptr<Launcher> launcher)
      : c10d::Work(rank, type), results_(std::move(results)), launcher_(std::move(launcher)) {}
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
  uint64_t getSequencenumber() const override;

 private:
  WorkPtr work() const;
  /// Launches what is held, if this is: its batch may be one that an exception has left open. Throws what has kept it
  /// from being launched.
  WorkPtr need();

  std::vector<at::Tensor> results_;
  std::shared_ptr<Launcher> launcher_;
  WorkPtr work_;
};

}  // namespace ark::bindings
