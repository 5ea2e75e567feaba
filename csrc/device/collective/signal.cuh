// Waiting for peers, on behalf of a rank of a group (device/wait/poll.cuh): every wait looks at the abort words of its
// own rank and of the peers; the first one that gives up says why and tells everybody.
#pragma once
#include "device/abi/collective.h"
#include "device/ptx/ptx.cuh"
#include "device/wait/poll.cuh"
#include "device/wait/report.cuh"

namespace ark::device {

using abi::CollectiveKind;
using abi::CollectiveParams;
using abi::CollectiveWait;
using abi::Ring;
using abi::SignalName;

/// Marks the group as failed: the waits of all ranks end, and they hear who it was about. The first caller fills in the
/// error record.
ARK_DEVICE void fail_group(const CollectiveParams& p, const SignalName& name, u32 expected, u32 seen, u64 peer_call = 0,
                           u64 own_call = 0) {
  if (atomic_exchange_relaxed(&p.state->abort, 1) != 0) return;
  publish(p.error, 1, [&](abi::CollectiveError& e) {
    e.fault = {name, expected, seen};
    e.own_call = own_call ? own_call : p.call;
    e.peer_call = peer_call;
    e.epoch = p.state->epoch;
    e.sequence = p.sequence;
  });
  const u32 about =
      name.wait == CollectiveWait::kPeerAbort ? seen : abi::abort_about(name.peer < 0 ? p.rank : name.peer);
#pragma unroll 1
  for (int r = 0; r < p.world; r++)
    if (r != p.rank && p.base[r])  // a pair that talks alone has mapped nobody else
      store_relaxed_system(reinterpret_cast<u32*>(p.base[r] + p.layout.aborts) + p.rank, about);
}

/// A rank of a group, as the party of its waits.
struct GroupRank {
  using Name = SignalName;
  const CollectiveParams& p;

  ARK_DEVICE bool aborted() const { return load_relaxed(&p.state->abort) != 0; }
  ARK_DEVICE bool hears(abi::Fault<SignalName>& fault) const {
    const u32* aborts = reinterpret_cast<const u32*>(p.base[p.rank] + p.layout.aborts);
#pragma unroll 1
    for (int r = 0; r < p.world; r++)
      if (const u32 about = load_relaxed_system(aborts + r); about != 0) {
        fault = {{CollectiveWait::kPeerAbort, r}, 0, about};
        return true;
      }
    return false;
  }
  ARK_DEVICE void fail(const abi::Fault<SignalName>& fault) const {
    fail_group(p, fault.name, fault.expected, fault.seen);
  }
  ARK_DEVICE u64 look(u64 start, const SignalName& name, u32 expected, u32 seen, int patience) const {
    return look_up(*this, start, p.deadline_ns * patience, {name, expected, seen});
  }
};

inline constexpr u32 kPeerPolls = 128;
/// Of waits for the own CTAs and their warps.
using abi::kOwnPatience;
using PeerPatience = Patience<kPeerPolls>;
/// Polls until `ready()`; false when the wait has to end unfulfilled.
template <class Ready, class Seen>
ARK_DEVICE bool wait_for_peer(const CollectiveParams& p, const SignalName& name, u32 expected, Ready ready, Seen seen,
                              int patience = 1) {
  return poll<kPeerPolls>(GroupRank{p}, ready, seen, name, expected, patience);
}

/// Flags of the rings. They count messages, only grow, and may wrap.
struct RingFlags {
  const CollectiveParams& p;
  Ring ring;
  int worker;

  ARK_DEVICE u64 offset(int from) const {
    return ((static_cast<u64>(ring) * abi::kMaxRingWorkers + worker) * abi::kMaxRanks + from) * abi::kFlagBytes;
  }
  /// In the segment of `owner`: messages that `from` has put into the ring.
  ARK_DEVICE u32* arrived(int owner, int from) const {
    return reinterpret_cast<u32*>(p.base[owner] + p.layout.arrived + offset(from));
  }
  /// In the segment of `owner`: messages that `from` has taken out.
  ARK_DEVICE u32* credit(int owner, int from) const {
    return reinterpret_cast<u32*>(p.base[owner] + p.layout.credits + offset(from));
  }
  /// In the segment of `owner`: where message `sequence` of `from` lies.
  ARK_DEVICE unsigned char* slot(int owner, int from, u32 sequence) const {
    const u64 begin = static_cast<u64>(abi::slots_before(ring)) * abi::kMaxRingWorkers * p.world;
    const u64 pair = static_cast<u64>(worker) * p.world + from;
    const u64 index = begin + pair * abi::ring_slots(ring) + sequence % abi::ring_slots(ring);
    return p.base[owner] + p.layout.rings + index * abi::kMessageBytes;
  }
};

/// Epochs skip the values of cleared memory; their parity alternates.
ARK_DEVICE u32 next_epoch(u32 epoch) { return epoch == 0xfffffffdu ? 2u : epoch + 1; }

/// Which worker a CTA is, by one thread; at least p.workers: none. Every second SM asks a little later, and a launch
/// has a few CTAs to spare: two on a pair of SMs share its bandwidth and end later than the others, if there is room
/// elsewhere.
ARK_DEVICE int take_seat(const CollectiveParams& p) {
  constexpr u64 kLaterNs = 2000;  // about what the CTAs of a launch begin apart
  if (gridDim.x == static_cast<u32>(p.workers)) return static_cast<int>(blockIdx.x);
  if (sm_index() % 2 == 1) let_pass(kLaterNs);
  const u32 seat = atomic_add_acq_rel(&p.state->seats, 1);
  if (seat == gridDim.x - 1) store_relaxed(&p.state->seats, 0);
  return static_cast<int>(seat);
}

/// A packet of a value and two tags.
ARK_DEVICE void store_tagged(unsigned char* packet, u64 value, u32 tag, u32 other_tag) {
  const u32 words[4] = {static_cast<u32>(value), tag, static_cast<u32>(value >> 32), other_tag};
  store_packet(packet, words);
}
/// Until rank `from` has stored one with these tags; false when it does not.
ARK_DEVICE bool wait_tagged(const CollectiveParams& p, const unsigned char* packet, int from, u32 tag, u32 other_tag,
                            u64& value) {
  u32 w[4];
  const auto ready = [&] {
    load_packet(w, packet);
    return w[1] == tag && w[3] == other_tag;
  };
  const bool came = wait_for_peer(p, {CollectiveWait::kCall, from}, tag, ready, [&] { return w[1]; });
  value = static_cast<u64>(w[2]) << 32 | w[0];
  return came;
}

/// The call packets: tells every peer what this launch does, before the CTA's barrier...
ARK_DEVICE void announce_call(const CollectiveParams& p, int worker, u32 epoch, int lane) {
  if (worker != 0 || lane >= p.world || lane == p.rank) return;
  store_tagged(p.base[lane] + p.layout.calls + ((epoch & 1) * abi::kMaxRanks + p.rank) * 16, p.call, epoch, epoch);
}

/// Whether one rank tells with its call how large all pairs are, and the other one tells of each pair apart.
ARK_DEVICE bool mixes(const CollectiveParams& p, u64 theirs) {
  return p.mixes_pairs && abi::alike_but_count(theirs, p.call) &&
         (abi::count_of_call(theirs) == 0 || abi::count_of_call(p.call) == 0);
}

/// Worker 0, one warp: hears of the peers' calls. Returns that of rank `lane`, 0 where there is none to go on with.
template <bool kMixes = false>
ARK_DEVICE u64 hear_calls(const CollectiveParams& p, u32 epoch, int lane) {
  if (lane >= p.world || lane == p.rank) return 0;
  const unsigned char* slot = p.base[p.rank] + p.layout.calls + ((epoch & 1) * abi::kMaxRanks + lane) * 16;
  u64 theirs;
  if (!wait_tagged(p, slot, lane, epoch, epoch, theirs)) return 0;
  if (theirs == p.call || (kMixes && mixes(p, theirs))) return theirs;
  fail_group(p, {CollectiveWait::kMismatch, lane}, 0, 0, theirs);
  return 0;
}

/// ... and hears of theirs. The last worker that comes here (every thread of a CTA has read the epoch before) moves the
/// epoch on.
template <bool kMixes = false>
ARK_DEVICE u64 finish_call(const CollectiveParams& p, int worker, u32 epoch, int lane) {
  if (lane == 0 && atomic_add_acq_rel(&p.state->entered, 1) == static_cast<u32>(p.workers) - 1) {
    store_relaxed(&p.state->entered, 0);
    store_relaxed(&p.state->epoch, next_epoch(epoch));
  }
  return worker == 0 ? hear_calls<kMixes>(p, epoch, lane) : 0;
}

/// The same where CTA 0 does nothing else: the others only say that all their threads have read the epoch.
ARK_DEVICE void count_in(const CollectiveParams& p) { red_release_add(&p.state->entered, 1); }
ARK_DEVICE void finish_call_alone(const CollectiveParams& p, u32 epoch, int lane) {
  hear_calls(p, epoch, lane);
  if (lane != 0) return;
  const u32 all = gridDim.x - 1;
  u32 seen = 0;
  const auto entered = [&] { return (seen = load_acquire(&p.state->entered)) == all; };
  if (!wait_for_peer(p, {CollectiveWait::kCall, p.rank}, all, entered, [&] { return seen; }, kOwnPatience)) return;
  store_relaxed(&p.state->entered, 0);
  store_relaxed(&p.state->epoch, next_epoch(epoch));
}

/// What a rank tells another besides its call: two packets. On registered memory, the places of its tensors.
ARK_DEVICE unsigned char* place_packet(const CollectiveParams& p, int owner, int from, u32 epoch, int which) {
  return p.base[owner] + p.layout.places + (((epoch & 1) * abi::kMaxRanks + from) * 2 + which) * 16;
}

/// An exchange whose pairs may differ: announces the call, and to every peer what goes to it and what is expected of
/// it...
ARK_DEVICE void announce_exchange(const CollectiveParams& p, int worker, u32 epoch, int lane) {
  announce_call(p, worker, epoch, lane);
  if (!p.compares_pairs || worker != 0 || lane >= p.world || lane == p.rank) return;
  store_tagged(place_packet(p, lane, p.rank, epoch, 0), p.parts[lane].send_bytes, epoch, epoch);
  store_tagged(place_packet(p, lane, p.rank, epoch, 1), p.parts[lane].receive_bytes, epoch, epoch);
}

/// ... and compares with what they say: of this pair, or with the call of all of them.
ARK_DEVICE void finish_exchange(const CollectiveParams& p, int worker, u32 epoch, int lane) {
  const u64 call = finish_call<true>(p, worker, epoch, lane);
  if (call == 0 || (!p.compares_pairs && call == p.call)) return;
  for (int i = 0; i < 2; i++) {
    const u64 own = i == 0 ? p.parts[lane].receive_bytes : p.parts[lane].send_bytes;
    u64 theirs = abi::count_of_call(call) / p.world;
    if (theirs == 0 &&  // it tells apart
        !wait_tagged(p, place_packet(p, p.rank, lane, epoch, i), lane, epoch, epoch, theirs))
      return;
    if (theirs != own)
      fail_group(p, {i == 0 ? CollectiveWait::kSent : CollectiveWait::kExpected, lane}, 0, 0,
                 abi::call_with_count(p.call, theirs), abi::call_with_count(p.call, own));
  }
}

/// The size of the send or receive whose first message has this number.
struct PointSize {
  const CollectiveParams& p;
  u32 number;
  u64 bytes;
  bool speaks;  // one thread of the launch; of nothing there is no message, and nothing to say
  u32 w[4];

  ARK_DEVICE PointSize(const CollectiveParams& params, bool sends, bool thread)
      : p(params),
        number((sends ? params.state->sent : params.state->received)[static_cast<int>(Ring::kPoint)][0][params.peer]),
        bytes(sends ? params.parts[params.peer].send_bytes : params.parts[params.peer].receive_bytes),
        speaks(thread && blockIdx.x == 0 && bytes > 0) {}

  ARK_DEVICE unsigned char* box(int owner, int from) const {
    return p.base[owner] + p.layout.points + (from * abi::kPointBoxes + number % abi::kPointBoxes) * 16;
  }
  ARK_DEVICE void announce() const {
    if (speaks) store_tagged(box(p.peer, p.rank), bytes, number, ~number);
  }
  /// A receiver compares before it takes the first message: early() looks for the first time.
  ARK_DEVICE void early() {
    if (speaks) load_packet(w, box(p.rank, p.peer));
  }
  ARK_DEVICE void compare() {
    if (!speaks) return;
    u64 theirs = static_cast<u64>(w[2]) << 32 | w[0];
    if ((w[1] != number || w[3] != ~number) && !wait_tagged(p, box(p.rank, p.peer), p.peer, number, ~number, theirs))
      return;
    if (theirs != bytes)
      fail_group(p, {CollectiveWait::kSent, p.peer}, 0, 0, abi::call_with_count(p.call, theirs), p.call);
  }
};

}  // namespace ark::device
