#include "comm/step_channel.h"

#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "comm/backoff.h"

namespace ark::comm {
namespace {

constexpr size_t kControlBytes = (sizeof(ControlBlock) + 4095) / 4096 * 4096;

// Of ControlBlock::failed. Threads of a rank may fail at a time: one of them writes the text.
enum : uint64_t { kSound = 0, kFailed = 1, kFailing = 2 };

/// A process that is gone, or dead and not yet reaped by its parent.
bool process_gone(pid_t pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
  std::ifstream stat(cat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(stat, text)) return false;
  size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() &&
         (text[name_end + 2] == 'Z' || text[name_end + 2] == 'X');
}

CallCounts counts(const ControlBlock& control) {
  const uint64_t gpu = control.gpu_calls.value.load(std::memory_order_acquire);
  return {control.host_calls.value.load(std::memory_order_acquire), gpu};
}

void check_group(const GroupInfo& group) {
  check<UserError>(group.world >= 1 && group.world <= kMaxHostRanks, "a group on a host has 1 to ", kMaxHostRanks,
                   " ranks, got ", group.world);
  check<UserError>(group.rank >= 0 && group.rank < group.world, "rank ", group.rank, " is not in [0, ", group.world,
                   ")");
}

}  // namespace

size_t StepChannel::arena_bytes(const ChannelOptions& options, int world) {
  return kControlBytes + 2 * options.buffer_bytes + static_cast<size_t>(world) * 2 * options.box_bytes;
}

StepChannel::StepChannel(Store& store, const GroupInfo& group, const ChannelOptions& options,
                         Clock::time_point deadline)
    : StepChannel(
          (check_group(group), std::make_unique<HostArena>(store, group, arena_bytes(options, group.world), deadline)),
          group, options) {}

StepChannel::StepChannel(std::unique_ptr<HostArena> arena, const GroupInfo& group, const ChannelOptions& options)
    : group_((check_group(group), group)), options_(options), arena_(std::move(arena)), step_(options.first_step) {
  // The segment is zeroed; a peer may look at the counters before this rank has started them, and then waits a little
  // longer.
  ControlBlock& own = control(rank());
  own.pid.value.store(static_cast<uint64_t>(::getpid()), std::memory_order_relaxed);
  uint64_t random = 0;
  check<DeviceError>(getrandom(&random, sizeof random, 0) == sizeof random, "getrandom failed");
  own.nonce.value.store(random | 1, std::memory_order_release);
  for (int peer = 0; peer < world(); ++peer) {
    own.sent[peer].value.store(options.first_step, std::memory_order_relaxed);
    own.received[peer].value.store(options.first_step, std::memory_order_relaxed);
  }
  own.consumed.value.store(options.first_step, std::memory_order_release);
  own.published.value.store(options.first_step, std::memory_order_release);
}

ControlBlock& StepChannel::control(int rank) const { return *reinterpret_cast<ControlBlock*>(arena_->data(rank)); }

std::byte* StepChannel::buffer(int rank, uint64_t step) const {
  return arena_->data(rank) + kControlBytes + (step & 1) * options_.buffer_bytes;
}

std::byte* StepChannel::box(int from, int to, uint64_t piece) const {
  size_t index = static_cast<size_t>(to) * 2 + (piece & 1);
  return arena_->data(from) + kControlBytes + 2 * options_.buffer_bytes + index * options_.box_bytes;
}

std::string StepChannel::failure(int peer) const {
  if (control(peer).failed.value.load(std::memory_order_acquire) != kFailed) return {};
  return control(peer).failure[0] ? control(peer).failure : "without saying why";
}

void StepChannel::check_failures(const Scope& scope) const {
  for (int peer = 0; peer < world(); ++peer)
    if (const std::string why = failure(peer); !why.empty())
      throw DeviceError(cat(scope.what, ": rank ", peer, " failed: ", why));
}

void StepChannel::check_peer(const Scope& scope, int peer) const {
  check_failures(scope);
  const std::string why = absence(peer);
  check<DeviceError>(why.empty(), scope.what, ": rank ", peer, " ", why);
}

CallCounts StepChannel::note_call(bool on_gpu) {
  ControlBlock& own = control(rank());
  CallCounts before{own.host_calls.value.load(std::memory_order_relaxed),
                    own.gpu_calls.value.load(std::memory_order_relaxed)};
  (on_gpu ? own.gpu_calls : own.host_calls).value.fetch_add(1, std::memory_order_release);
  return before;
}

/// A peer may be ahead: what tells is that it has called more on its GPU than this rank, and not this on the host.
void StepChannel::check_sides(const Scope& scope) const {
  if (!scope.before) return;
  for (int peer = 0; peer < world(); ++peer) {
    const uint64_t gpu = control(peer).gpu_calls.value.load(std::memory_order_acquire);  // first: both only grow
    const uint64_t host = control(peer).host_calls.value.load(std::memory_order_acquire);
    if (peer != rank() && gpu > scope.before->gpu && host <= scope.before->host)
      throw UserError(cat("ranks of group ", name(), " disagree: rank ", rank(), " calls ", scope.what,
                          " on the host, rank ", peer, " calls a collective on its GPU"));
  }
}

uint64_t StepChannel::refusals(int rank, uint64_t number) const {
  const Notice& notice = control(rank).notice;
  if (notice.refused_call.load(std::memory_order_acquire) != number + 1) return 0;
  return notice.times_refused.load(std::memory_order_relaxed);
}

CallCounts StepChannel::calls() const { return counts(control(rank())); }

bool StepChannel::note_refusal(const std::string& why) {
  ControlBlock& own = control(rank());
  const uint64_t number = counts(own).all();
  const uint64_t times = refusals(rank(), number) + 1;
  std::strncpy(own.refusal, why.c_str(), sizeof own.refusal - 1);
  own.notice.times_refused.store(times, std::memory_order_relaxed);
  own.notice.refused_call.store(number + 1, std::memory_order_release);
  for (int peer = 0; peer < world(); ++peer)
    if (peer != rank() && counts(control(peer)).all() > number && refusals(peer, number) < times) return true;
  return false;
}

int StepChannel::refused_by(const CallCounts& before) const {
  const uint64_t number = before.all(), own = refusals(rank(), number);
  for (int peer = 0; peer < world(); ++peer)
    if (peer != rank() && refusals(peer, number) > own && counts(control(peer)).all() == number) return peer;
  return -1;
}

int StepChannel::left_by() const {
  for (int peer = 0; peer < world(); ++peer)
    if (control(peer).notice.left.load(std::memory_order_acquire)) return peer;
  return -1;
}

uint64_t StepChannel::nonce(Clock::time_point deadline) const {
  uint64_t value = 0;
  wait_until([&] { return (value = control(0).nonce.value.load(std::memory_order_acquire)) != 0; },
             [&] {
               check<DeviceError>(Clock::now() < deadline, "group ", name(),
                                  ": rank 0 did not start within the time-out");
             });
  return value;
}

std::string StepChannel::absence(int peer) const {
  if (has_left(peer)) return "has destroyed the group";
  auto pid = static_cast<pid_t>(control(peer).pid.value.load(std::memory_order_relaxed));
  return pid && process_gone(pid) ? cat("(process ", pid, ") has died") : std::string();
}

void StepChannel::check_wait(const Scope& scope, const std::string& who, const char* what) const {
  check_failures(scope);
  check_sides(scope);
  if (int other = scope.before ? refused_by(*scope.before) : -1; other >= 0)
    throw UserError(cat(scope.what, " on rank ", rank(), ": rank ", other,
                        " refused its call of the same number: ", refusal(other)));
  if (cancelled_.load(std::memory_order_acquire))
    throw CancelledError(cat(scope.what, " on rank ", rank(), ": the group was destroyed"));
  if (scope.deadline.passed())
    throw DeviceError(cat(scope.what, " on rank ", rank(), ": ", who, " did not ", what, " within the time-out"));
}

void StepChannel::check_message(const Scope& scope, int peer) const {
  if (peer < 0) return check_message_from_any(scope);
  check_wait(scope, cat("rank ", peer), "send");
  const std::string why = absence(peer);
  check<DeviceError>(why.empty() || arrived_piece(peer), scope.what, " on rank ", rank(), ": rank ", peer, " ", why);
}

/// Goes on while one of them may still send; the text of its time-out says which ones may not.
void StepChannel::check_message_from_any(const Scope& scope) const {
  bool possible = false;
  std::string gone;
  for (int other = 0; other < world(); ++other) {
    if (other == rank()) continue;
    const std::string why = absence(other);
    possible = possible || why.empty() || arrived_piece(other);
    if (!why.empty()) gone += cat(gone.empty() ? " (rank " : ", rank ", other, " ", why);
  }
  check_wait(scope, cat("the other ranks", gone, gone.empty() ? "" : ")"), "send");
  check<DeviceError>(possible, scope.what, " on rank ", rank(), ": all other ranks have died or destroyed the group");
}

void StepChannel::wait(const Counter& counter, uint64_t target, int peer, const char* what, const Scope& scope) {
  auto reached = [&] { return static_cast<int64_t>(counter.value.load(std::memory_order_acquire) - target) >= 0; };
  await(peer, what, scope, reached, [] {});
}

std::byte* StepChannel::begin_step(const Scope& scope) {
  check_failures(scope);
  for (int peer = 0; peer < world(); ++peer)
    if (peer != rank() && step_ - options_.first_step >= 2)
      wait(control(peer).consumed, step_ - 1, peer, "finish reading an earlier step", scope);
  return buffer(rank(), step_);
}

void StepChannel::publish_step() { control(rank()).published.value.store(step_ + 1, std::memory_order_release); }

const std::byte* StepChannel::peer_step(int peer, const Scope& scope) {
  if (peer != rank()) wait(control(peer).published, step_ + 1, peer, "arrive", scope);
  return buffer(peer, step_);
}

void StepChannel::finish_step() {
  ++step_;
  control(rank()).consumed.value.store(step_, std::memory_order_release);
}

std::byte* StepChannel::begin_send(int peer, const Scope& scope) {
  check_failures(scope);
  uint64_t piece = control(rank()).sent[peer].value.load(std::memory_order_relaxed);
  if (piece - options_.first_step >= 2)
    wait(control(peer).received[rank()], piece - 1, peer, "receive it or what was sent before it", scope);
  return box(rank(), peer, piece);
}

void StepChannel::publish_send(int peer) { control(rank()).sent[peer].value.fetch_add(1, std::memory_order_release); }

const std::byte* StepChannel::arrived_piece(int peer) const {
  const uint64_t piece = control(rank()).received[peer].value.load(std::memory_order_relaxed);
  const uint64_t sent = control(peer).sent[rank()].value.load(std::memory_order_acquire);
  return static_cast<int64_t>(sent - (piece + 1)) >= 0 ? box(peer, rank(), piece) : nullptr;
}

void StepChannel::finish_receive(int peer) {
  control(rank()).received[peer].value.fetch_add(1, std::memory_order_release);
}

void StepChannel::fail(const std::string& message) {
  ControlBlock& own = control(rank());
  uint64_t sound = kSound;
  if (!own.failed.value.compare_exchange_strong(sound, kFailing, std::memory_order_relaxed)) return;
  std::strncpy(own.failure, message.c_str(), sizeof own.failure - 1);
  own.failed.value.store(kFailed, std::memory_order_release);
}

}  // namespace ark::comm
