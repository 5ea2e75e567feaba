// Passes one open file descriptor from every rank to every other rank of the same host.
//
// Every rank listens on a Unix socket inside a directory that only its user can enter, and publishes path and a random
// token in the store. A peer that connects must run under the same user (SO_PEERCRED) and name the token; it gets the
// descriptor by SCM_RIGHTS. The directory is removed before the function returns, whatever happens.
#pragma once
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "comm/store.h"

namespace ark::comm {

/// An owned file descriptor, closed on destruction.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();

 private:
  int fd_ = -1;
};

/// Returns the peers' descriptors, indexed by rank (own entry invalid). Collective: every rank of the group calls it
/// with the same `tag`. Throws DeviceError naming the rank that did not come before `deadline`.
std::vector<UniqueFd> exchange_fds(Store& store, const GroupInfo& group, const std::string& tag, int fd,
                                   Clock::time_point deadline);

/// Offers one descriptor to the peers for as long as it lives, whenever they come: for ranks that do not arrive
/// together. A thread of its own; strangers are turned away as above.
class FdServer {
 public:
  FdServer(Store& store, const GroupInfo& group, const std::string& tag, UniqueFd fd);
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

 private:
  struct Door;
  std::unique_ptr<Door> door_;
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

/// The descriptor that rank `from` offers under `tag`; waits for the rank until `deadline`.
UniqueFd request_fd(Store& store, const GroupInfo& group, const std::string& tag, int from, Clock::time_point deadline);

}  // namespace ark::comm
