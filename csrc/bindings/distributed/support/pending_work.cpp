#include "bindings/distributed/support/pending_work.h"

#include <utility>

namespace ark::bindings {

void Launcher::launch() {
  std::lock_guard lock(mutex_);
  if (launch_) launch_();
}

void Launcher::close() {
  std::lock_guard lock(mutex_);
  launch_ = nullptr;
}

void PendingWork::launched(WorkPtr work) {
  std::lock_guard lock(mutex_);
  work_ = std::move(work);
}

void PendingWork::fail(const std::exception_ptr& error) {
  if (!work()) finish(error);
}

PendingWork::WorkPtr PendingWork::work() const {
  std::lock_guard lock(mutex_);
  return work_;
}

PendingWork::WorkPtr PendingWork::need() {
  if (WorkPtr own = work()) return own;
  if (!exception()) launcher_->launch();
  std::lock_guard lock(mutex_);
  if (exception_) std::rethrow_exception(exception_);
  TORCH_CHECK(work_, "ark process group, rank ", rank_, ": the ", opType_ == c10d::OpType::SEND ? "send" : "recv",
              " of a batch is waited for, whose group has been destroyed");
  return work_;
}

uint64_t PendingWork::getSequencenumber() const {
  const WorkPtr own = work();
  return own ? own->getSequencenumber() : c10d::Work::getSequencenumber();
}

bool PendingWork::isCompleted() {
  const WorkPtr own = work();
  return own ? own->isCompleted() : c10d::Work::isCompleted();
}

bool PendingWork::isSuccess() const {
  const WorkPtr own = work();
  return own ? own->isSuccess() : c10d::Work::isSuccess();
}

std::exception_ptr PendingWork::exception() const {
  const WorkPtr own = work();
  return own ? own->exception() : c10d::Work::exception();
}

}  // namespace ark::bindings
