// Waiting, for the loop and for the collectives: every poll of a word that somebody else writes goes through here, has
// a deadline, and ends when somebody has failed.
//
// A Party is on whose behalf a thread waits: the worker of a launch of the loop (Waiter in loop/sync.cuh), the rank of
// a group (GroupRank in collective/signal.cuh). It offers (look_up needs all of it, the loops `Name` and `look`)
//   Name                  what its waits are called by
//   bool aborted() const  it has failed already; looks at its abort words
//   bool hears(abi::Fault<Name>&) const
//                         others have failed, and it is to say so: `fault` becomes what they said
//   void fail(const abi::Fault<Name>&) const
//                         this wait is the one that fails: says so to all it concerns
//   u64 look(u64 start, const Name&, u32 expected, u32 seen, int patience) const
//                         look_up with its deadline times `patience`, inlined or called
#pragma once
#include "device/abi/wait.h"
#include "device/ptx/ptx.cuh"

namespace ark::device {

inline constexpr u64 kGiveUp = ~0ull;

/// Whether to go on waiting: kGiveUp if not. `start`: what the last call of the same wait returned, 0 at first; the
/// deadline runs from the first call on.
template <class Party>
ARK_DEVICE u64 look_up(const Party& party, u64 start, u64 deadline_ns, abi::Fault<typename Party::Name> fault) {
  if (party.aborted()) return kGiveUp;
  if (!party.hears(fault)) {
    const u64 now = global_time_ns();
    if (start == 0) return now;
    if (now - start <= deadline_ns) return start;
  }
  party.fail(fault);
  return kGiveUp;
}

/// Polls `ready()` until it is true; false when the wait has to end unfulfilled. Every kPolls polls (a power of two) it
/// looks at more than the word; `name` and `seen()` are asked only then. `patience`: deadlines it may take. (No functor
/// for the look: with one, the same code took 28 bytes of spills in the kernel of a decode step.)
template <u32 kPolls, class Party, class Ready, class Seen>
ARK_DEVICE bool poll(const Party& party, Ready ready, Seen seen, const typename Party::Name& name, u32 expected,
                     int patience) {
  u64 start = 0;
#pragma unroll 1
  for (u32 polls = 0;; ++polls) {
    if (ready()) return true;
    if ((polls & (kPolls - 1)) != kPolls - 1) continue;
    start = party.look(start, name, expected, seen(), patience);
    if (start == kGiveUp) return false;
  }
}

/// The same for loops that do more than poll: how long they have got nowhere.
template <u32 kPolls>
struct Patience {
  u32 polls = 0;
  u64 start = 0;

  /// False when the wait has to end unfulfilled. To be called after every poll that said no.
  template <class Party>
  ARK_DEVICE bool again(const Party& party, const typename Party::Name& name, u32 expected, u32 seen,
                        int patience = 1) {
    if ((++polls & (kPolls - 1)) != 0) return true;
    start = party.look(start, name, expected, seen, patience);
    return start != kGiveUp;
  }
};

/// A counter has reached `target`; both may wrap.
ARK_DEVICE bool reached(u32 seen, u32 target) { return static_cast<i32>(seen - target) >= 0; }

/// Does nothing for as long.
ARK_DEVICE void let_pass(u64 ns) {
  const u64 start = global_time_ns();
  while (global_time_ns() - start < ns) {
  }
}

}  // namespace ark::device
