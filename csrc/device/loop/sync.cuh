// Waiting in the loop. Every wait of the kernel goes through Waiter, on behalf of its worker (device/wait/poll.cuh);
// the first one that fails says what it waited for. After a failure every wait returns at once, so that all roles walk
// out by themselves.
#pragma once
#include "device/abi/launch.h"
#include "device/ptx/ptx.cuh"
#include "device/wait/poll.cuh"

namespace ark::device {

using abi::WaitName;

// 1: what a wait does when it has to wait for long is a function of its own. There are dozens of waits, each a third of
// a kilobyte longer with it, and code that runs once a layer comes out of the L2. Not beside wgmma, which tolerates no
// calls.
#ifndef ARK_CALLED_WAITS
#define ARK_CALLED_WAITS 0
#endif

// Ranks of the plan; more than 1: it has exchanges, whose counters other ranks count on.
#ifndef ARK_RANKS
#define ARK_RANKS 1
#endif
inline constexpr int kRanks = ARK_RANKS;

// Groups of ranks that the plan has exchanges in; more than 1: ARK_RANKS is the number of the largest.
#ifndef ARK_GROUPS
#define ARK_GROUPS 1
#endif
inline constexpr int kGroups = ARK_GROUPS;
static_assert(kGroups == 1 || kRanks > 1);

/// What a launch says of the groups, where there are several.
template <int kNumber>
struct GroupTable {
  abi::GroupLaunch of[kNumber];
  ARK_DEVICE const abi::GroupLaunch& group(u32 number) const { return of[number]; }
  ARK_DEVICE abi::GroupLaunch& group(u32 number) { return of[number]; }
};
/// Nothing, and never asked.
template <>
struct GroupTable<1> {
  ARK_DEVICE abi::GroupLaunch& group(u32) { return *reinterpret_cast<abi::GroupLaunch*>(this); }
  ARK_DEVICE const abi::GroupLaunch& group(u32) const { return *reinterpret_cast<const abi::GroupLaunch*>(this); }
};

/// Shared between all roles of a CTA (in shared memory). The first wait of the CTA that fails describes itself here;
/// the CTA tells the others, and the host, when its roles have left (finish_worker). The groups stand here since their
/// abort words are looked at.
struct Failure : GroupTable<kGroups> {
  u32 set;    // every wait looks at it
  u32 first;  // somebody has filled in the rest
  abi::Fault<WaitName> fault;
};

static_assert(kGroups > 1 || sizeof(Failure) == 28);

/// Whether a rank of one of several groups has given up, as far as this rank has been told.
ARK_DEVICE bool any_gave_up(const Failure& failure) {
  u32 words = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) words |= load_relaxed_system(&failure.group(g).state->abort);
  return words != 0;
}

// 1: the kernel of a loop, whose launches may have several iterations (border.cuh).
#ifndef ARK_LOOP
#define ARK_LOOP 0
#endif
inline constexpr bool kLoop = ARK_LOOP != 0;

// Deadlines that a wait may take. What is late is to be told by the wait for it, so those that it holds up are patient:
// a worker with nothing to do waits at the border for a whole iteration, its roles for their next item or page.
// Among ranks a wait for another one comes first, then those for own tiles, then those inside a worker. Not beside
// wgmma: those kernels have no register left for a second deadline (training_backward_groups spilled 44 bytes).
inline constexpr int kTilePatience = kRanks > 1 && ARK_CALLED_WAITS != 0 ? abi::kOwnPatience : 1;
inline constexpr int kBorderPatience = 8, kBarrierPatience = kLoop ? 2 * kBorderPatience : 2 * kTilePatience;

struct Waiter {
  using Name = WaitName;
  abi::RunState* state;
  Failure* failure;
  u64 deadline_ns;

  ARK_DEVICE bool failed() const { return *static_cast<volatile u32*>(&failure->set) != 0; }

  ARK_DEVICE void fail(const abi::Fault<WaitName>& fault) const {
    if (atomicExch(&failure->first, 1u) == 0) failure->fault = fault;
    *static_cast<volatile u32*>(&failure->set) = 1;
  }
  /// In this worker, or in another of this rank or of any.
  ARK_DEVICE bool aborted() const {
    if (failed()) return true;
    if ((kRanks > 1 ? load_relaxed_system(&state->abort) : load_relaxed(&state->abort)) == 0) return false;
    *static_cast<volatile u32*>(&failure->set) = 1;
    return true;
  }
  /// Not so: their words are its own.
  ARK_DEVICE bool hears(const abi::Fault<WaitName>&) const { return false; }

  ARK_DEVICE u64 look(u64 start, const WaitName& name, u32 expected, u32 seen, int patience) const;
  template <class Ready, class Seen>
  ARK_DEVICE bool spin(Ready ready, Seen seen, const WaitName& name, u32 expected, int patience) const {
    return poll<64>(*this, ready, seen, name, expected, patience);
  }

  /// The phase of `parity` of a barrier in shared memory.
  ARK_DEVICE bool wait_barrier(u64* barrier, u32 parity, const WaitName& name) const {
    return spin([&] { return mbarrier_try_wait(barrier, parity); }, [] { return 0u; }, name, parity, kBarrierPatience);
  }

  /// acquire.gpu: a counter in global memory has reached `target`, compared so that both may wrap.
  ARK_DEVICE bool wait_counter(const u32* counter, u32 target, const WaitName& name) const {
    u32 seen = 0;
    return spin(
        [&] {
          seen = load_acquire(counter);
          return reached(seen, target);
        },
        [&] { return seen; }, name, target, kTilePatience);
  }
  /// The same for a counter on which a rank, the own one or another, counts what it has sent: acquire.sys.
  ARK_DEVICE bool wait_rank_counter(const u32* counter, u32 target, const WaitName& name, bool own) const {
    u32 seen = 0;
    return spin(
        [&] {
          seen = load_acquire_system(counter);
          return reached(seen, target);
        },
        [&] { return seen; }, name, target, own ? kTilePatience : 1);
  }
};

/// look_up as a function.
__device__ __noinline__ u64 look_up_called(Waiter waiter, u64 start, WaitName name, u32 expected, u32 seen,
                                           int patience) {
  return look_up(waiter, start, waiter.deadline_ns * patience, {name, expected, seen});
}

ARK_DEVICE u64 Waiter::look(u64 start, const WaitName& name, u32 expected, u32 seen, int patience) const {
  if constexpr (ARK_CALLED_WAITS != 0)
    return look_up_called(*this, start, name, expected, seen, patience);
  else
    return look_up(*this, start, deadline_ns * patience, {name, expected, seen});
}

/// Of several groups all are heard: for the reporter, which waits for its worker's consumers as long as these wait for
/// ranks. Other roles look at group 0's word alone, and hear of the rest from here: there are dozens of other waits.
struct Listener : Waiter {
  ARK_DEVICE bool aborted() const {
    if (Waiter::aborted()) return true;
    if (kGroups == 1 || !any_gave_up(*failure)) return false;
    *static_cast<volatile u32*>(&failure->set) = 1;
    return true;
  }
  ARK_DEVICE u64 look(u64 start, const WaitName& name, u32 expected, u32 seen, int patience) const {
    if constexpr (kGroups == 1) return Waiter::look(start, name, expected, seen, patience);
    return look_up(*this, start, deadline_ns * patience, {name, expected, seen});
  }
  template <class Ready, class Seen>
  ARK_DEVICE bool spin(Ready ready, Seen seen, const WaitName& name, u32 expected, int patience) const {
    return poll<64>(*this, ready, seen, name, expected, patience);
  }
};

}  // namespace ark::device
