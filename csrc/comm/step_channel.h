// The protocol between the ranks of a host: steps over two buffers.
//
// Every rank owns two buffers, used in turn by the parity of the step, and two counters that only grow. In step s a
// rank writes what the others need into its buffer s % 2 and releases `published = s + 1`; a reader acquires that,
// reads, and releases `consumed = s + 1`. A buffer is written again only when every peer has consumed the step two
// before: two buffers need no barrier at the end of a step. All ranks take the same number of steps for the same
// collective, which the descriptor that comes with the first step makes sure of.
//
// Every wait ends: at the deadline, when a peer has reported a failure, or when a peer's process is gone. The first
// failure is written into the rank's control block, so that all peers raise too; afterwards the channel refuses further
// steps.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "comm/backoff.h"
#include "comm/deadline.h"
#include "comm/host_arena.h"

namespace ark::comm {

inline constexpr int kMaxHostRanks = 32;

/// This rank gave the group up while an operation was under way. Not a failure that the peers have to hear of.
struct CancelledError : DeviceError {
  using DeviceError::DeviceError;
};

/// Alone in its pair of cache lines.
struct alignas(128) Counter {
  std::atomic<uint64_t> value;
};

/// Collectives that a rank has called so far, by where they run.
struct CallCounts {
  uint64_t host = 0, gpu = 0;
  uint64_t all() const { return host + gpu; }
};

/// What a rank says of the collective that it is in, compared over the ranks before any data is used.
struct Descriptor {
  uint64_t sequence;
  int32_t kind, dtype, reduction, root;
  uint64_t count;         // elements (bytes where there is no type)
  uint64_t stream_bytes;  // length of what this rank will publish
  char element[24];       // as the caller names the type, where there is no dtype; may be empty
  char operation[24];     // what the caller was asked for, where that is another kind; for texts, not compared
  // Uneven exchanges: bytes for each rank, and expected from each.
  uint64_t bytes_to[kMaxHostRanks], bytes_from[kMaxHostRanks];
};

/// What a rank tells its peers besides its steps; rarely written, so looking costs little.
struct alignas(128) Notice {
  std::atomic<uint64_t> left;           // the rank has destroyed the group
  std::atomic<uint64_t> refused_call;   // number + 1 of the last call that the rank refused by itself
  std::atomic<uint64_t> times_refused;  // how many it refused of that number
};

/// What a rank says before a launch of a plan whose exchanges peers may do by calls of the group instead, or otherwise
/// sized (meeting.cpp). All are digests. Its reader sees it whole when `place` is what it looks for.
struct LaunchNote {
  uint64_t plan = 0;       // of all that the plan says; compared by nobody, names the launch's memory
  uint64_t interface = 0;  // the same on all ranks
  uint64_t to[kMaxHostRanks] = {}, from[kMaxHostRanks] = {};  // what this rank sends each, expects of each
};
struct alignas(128) Announcement {
  std::atomic<uint64_t> place;  // + 1; 0: none
  LaunchNote note;
};

struct ControlBlock {
  Counter launches;               // that all ranks have announced and made
  Announcement announcements[2];  // taken in turn
  Counter published, consumed, failed, pid;
  Counter host_calls, gpu_calls;  // CallCounts
  Counter nonce;                  // random, not zero: names this group among all of its name
  Notice notice;
  char failure[768], refusal[384];
  Descriptor descriptor[2];         // by parity of the step
  Counter sent[kMaxHostRanks];      // point to point: pieces sent to each rank (sender's block)
  Counter received[kMaxHostRanks];  // pieces received from each rank (receiver's block)
};

/// In front of the bytes of every piece of point-to-point data.
struct PieceHeader {
  uint64_t message_bytes;
  int64_t tag;
};

struct ChannelOptions {
  size_t buffer_bytes = 1 << 20;  // of each of the two collective buffers
  size_t box_bytes = 256 << 10;   // of each of the two point-to-point buffers per destination
  uint64_t first_step = 0;        // tests start the counters close to a wrap
};

class StepChannel {
 public:
  /// Collective.
  StepChannel(Store& store, const GroupInfo& group, const ChannelOptions& options, Clock::time_point deadline);

  /// Over an arena that exists already; arena_bytes says how large its segments have to be (zeroed).
  StepChannel(std::unique_ptr<HostArena> arena, const GroupInfo& group, const ChannelOptions& options);
  static size_t arena_bytes(const ChannelOptions& options, int world);

  int rank() const { return group_.rank; }
  int world() const { return group_.world; }
  const std::string& name() const { return group_.name; }
  const ChannelOptions& options() const { return options_; }

  /// What a wait is for, and until when; becomes the text of the exception.
  struct Scope {
    std::string what;  // "all_reduce number 17 of group g"
    Deadline deadline;
    std::optional<CallCounts> before = {};  // what this rank had called before it
  };

  /// This rank calls a collective, on the host or on its GPU (which does not come here otherwise); what it had called
  /// before. A rank that waits on the host for one whose call is on the GPU notices by these counts.
  CallCounts note_call(bool on_gpu);
  /// This rank refuses the collective that it would call next (its arguments are wrong). Peers that wait for it, or
  /// call it later, raise at once, unless they have refused as many of that number. True if a peer has called it.
  bool note_refusal(const std::string& why);
  /// A peer that has refused the call that this rank makes after `before`, or that has left; negative: none.
  int refused_by(const CallCounts& before) const;
  int left_by() const;
  /// How many calls of a number a rank has refused.
  uint64_t refusals(int rank, uint64_t number) const;
  std::string refusal(int peer) const { return control(peer).refusal; }
  CallCounts calls() const;

  /// What all ranks announce for the place that comes next in the order of this rank's calls and such launches; all of
  /// them then launch, or none does. `apart` says why none does, and is empty else: a peer calls a collective there,
  /// or has refused to, or what ranks announce does not fit. They then call what the plan would have done, in order:
  /// so a rank that has made no new plan follows those that have. One thread at a time, no call meanwhile.
  struct Meeting {
    std::vector<LaunchNote> of_ranks;
    std::string apart;
  };
  /// Ends with CancelledError when `cancelled`.
  Meeting meet(const LaunchNote& own, const Scope& scope, const std::function<bool()>& cancelled = {});

  /// The same on all ranks, and no other group's. Waits for rank 0.
  uint64_t nonce(Clock::time_point deadline) const;

  /// Ends all waits of this rank with CancelledError.
  void cancel() { cancelled_.store(true, std::memory_order_release); }
  /// This rank does nothing more in the group; peers that wait for it raise.
  void leave() { control(rank()).notice.left.store(1, std::memory_order_release); }

  /// Waits until this step's buffer is free and returns it.
  std::byte* begin_step(const Scope& scope);
  void publish_step();
  /// Waits until `peer` has published the current step; its buffer.
  const std::byte* peer_step(int peer, const Scope& scope);
  void finish_step();

  /// Descriptors live as long as the buffers of their step: written before publish_step, read before finish_step.
  Descriptor& own_descriptor() { return control(rank()).descriptor[step_ & 1]; }
  const Descriptor& peer_descriptor(int peer) const { return control(peer).descriptor[step_ & 1]; }

  // Point to point, one sending thread per pair, one receiving thread (comm/inbox.h).
  std::byte* begin_send(int peer, const Scope& scope);
  void publish_send(int peer);
  /// The next piece of `peer`, null while there is none.
  const std::byte* arrived_piece(int peer) const;
  void finish_receive(int peer);
  /// Throws if nothing can come from `peer` (negative: from anybody) any more, or the deadline has passed.
  void check_message(const Scope& scope, int peer) const;

  /// Why `peer` will not do anything any more ("has destroyed the group"); empty: it may.
  std::string absence(int peer) const;
  bool has_left(int peer) const { return control(peer).notice.left.load(std::memory_order_acquire) != 0; }
  /// What `peer` has failed with; empty: it has not.
  std::string failure(int peer) const;

  /// Records a failure for the peers (the first one wins) and marks the channel broken.
  void fail(const std::string& message);
  /// Throws DeviceError if this rank or a peer has failed.
  void check_failures(const Scope& scope) const;
  /// The same, and if `peer` has died or destroyed the group.
  void check_peer(const Scope& scope, int peer) const;

 private:
  ControlBlock& control(int rank) const;
  const LaunchNote* announced(int peer, uint64_t place) const;
  bool went_on(int peer, uint64_t place) const;
  void await_announcement(int peer, uint64_t place, const Scope& scope, const std::function<bool()>& cancelled);
  std::byte* buffer(int rank, uint64_t step) const;
  std::byte* box(int from, int to, uint64_t piece) const;
  void check_sides(const Scope& scope) const;
  void check_message_from_any(const Scope& scope) const;
  /// Throws if the deadline has passed, a peer has failed or calls something else instead; called by waits now and
  /// then. `who`: "rank 1".
  void check_wait(const Scope& scope, const std::string& who, const char* what) const;
  void wait(const Counter& counter, uint64_t target, int peer, const char* what, const Scope& scope);
  /// Until `ready()`, which `peer` brings about by what it is to do; throws where it will not. `also()` is called with
  /// the other checks.
  template <class Ready, class Also>
  void await(int peer, const char* what, const Scope& scope, Ready&& ready, Also&& also);

  // Checks between two looks at a peer's process. One takes 4 us and more (it reads a file), and a wait whose peer has
  // lost its core ends at its first check or soon after: with a look in each, a launch of four ranks on two cores that
  // met took 350 us instead of 240. A peer that has died is noticed some 30 ms later; one that left, at the next check.
  static constexpr unsigned kChecksBetweenLooks = 4;

  GroupInfo group_;
  ChannelOptions options_;
  std::unique_ptr<HostArena> arena_;
  uint64_t step_;
  uint64_t announced_ = 0, apart_at_ = 0;  // own announcements; the last place (+ 1) where ranks were apart
  std::atomic<bool> cancelled_{false};
};

template <class Ready, class Also>
void StepChannel::await(int peer, const char* what, const Scope& scope, Ready&& ready, Also&& also) {
  unsigned checks = 0;
  wait_until(ready, [&] {
    const bool looks = ++checks % kChecksBetweenLooks == 0;
    const std::string why = looks || has_left(peer) ? absence(peer) : std::string();  // before the last `ready`
    if (!why.empty() && ready()) return;
    also();
    check_wait(scope, cat("rank ", peer), what);
    check<DeviceError>(why.empty(), scope.what, " on rank ", this->rank(), ": rank ", peer, " ", why);
  });
}

}  // namespace ark::comm
