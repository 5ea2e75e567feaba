// Contiguous bytes from memory through shared memory to memory by the bulk copy engine (TMA), one warp, many messages
// in flight: out of user memory into the rings of the peers, or out of the own rings into user memory.
#pragma once
#include "device/collective/element.cuh"
#include "device/collective/signal.cuh"

namespace ark::device {

/// A piece of user memory that goes to, or comes from, one peer, dealt out to `workers` workers message by message.
struct Segment {
  unsigned char* data;
  u64 size_bytes;
  int workers;

  ARK_DEVICE u64 messages() const { return (size_bytes + abi::kMessageBytes - 1) / abi::kMessageBytes; }
  ARK_DEVICE u64 index(int worker, u32 i) const { return static_cast<u64>(i) * workers + worker; }
  ARK_DEVICE bool has(int worker, u32 i) const { return worker < workers && index(worker, i) < messages(); }
  ARK_DEVICE u32 messages_of(int worker) const {
    const u64 all = messages();
    return worker < workers && static_cast<u64>(worker) < all ? static_cast<u32>((all - 1 - worker) / workers + 1) : 0;
  }
};

struct Message {
  unsigned char* user;
  u32 bytes;
  int peer;
  u32 sequence;  // in the ring

  /// The engine moves multiples of 16 bytes between addresses that are.
  ARK_DEVICE bool whole() const { return (bytes & 15) == 0 && (reinterpret_cast<u64>(user) & 15) == 0; }
  ARK_DEVICE u32 padded() const { return (bytes + 15) & ~15u; }
};

/// Flags of up to kMaxRanks peers as last seen. A warp that does nothing else polls them (0.7 us each time), so that
/// the threads that move data look at shared memory only.
struct Watched {
  u32 seen[abi::kMaxRanks];
};

/// Until the flag of the peer in `name` has reached `target`; `seen`: what it says then.
ARK_DEVICE bool wait_watched(const CollectiveParams& p, const SignalName& name, const Watched& flags, u32 target,
                             u32& seen) {
  return wait_for_peer(
      p, name, target, [&] { return reached(seen = shared_load_acquire(&flags.seen[name.peer]), target); },
      [&] { return seen; });
}

/// What is left to move to or from a peer.
struct PeerQueue {
  unsigned char* next;
  u32 remaining;   // messages
  u32 last_bytes;  // of the last one
  u32 sequence;    // of the next one
  u32 pad;
  u64 stride;  // 0: nothing to or from this peer
};

template <int kStages>
struct MoverShared {
  unsigned char data[kStages][abi::kMessageBytes];
};
inline constexpr int kUntold = 32;  // a power of two; messages that are loading, storing or not told to their peers
/// What a mover keeps beside its data.
template <int kStages>
struct MoverState {
  static_assert(kStages < kUntold);
  u64 loaded[kStages];  // mbarriers
  PeerQueue queues[abi::kMaxRanks];
  Message messages[kUntold];
  Watched flags;
  Watched fenced;   // flags as last seen before a proxy fence: what they stand for needs no other one
  Watched written;  // messages whose bytes have arrived at the peers, as their flags are to count them
};

/// Copies by a whole warp, for pieces that the engine does not take. One side lies in shared memory.
ARK_DEVICE void copy_by_warp(unsigned char* to, const unsigned char* from, u32 bytes, int lane) {
  const bool words = ((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from)) & 3) == 0;
  const u32 num_words = words ? bytes / 4 : 0;
#pragma unroll 8
  for (u32 i = lane; i < num_words; i += 32) reinterpret_cast<u32*>(to)[i] = reinterpret_cast<const u32*>(from)[i];
#pragma unroll 4
  for (u32 i = num_words * 4 + lane; i < bytes; i += 32) to[i] = from[i];
}

/// Polls flags for the threads of the CTA that move data, one lane per flag, until all of them have finished.
ARK_DEVICE void watch_flags(const u32* flag, u32* seen, const u32* finished, u32 roles) {
  while (*static_cast<volatile const u32*>(finished) != roles)
    if (flag) shared_store_release(seen, load_acquire_system(flag));
}

/// Tells a peer how far it may read, one lane per flag, for the threads of the CTA that write there: the fence before a
/// flag takes as long as several messages, which go on meanwhile.
struct FlagRaiser {
  const u32* written = nullptr;  // in shared memory; null: nobody to tell
  u32* flag = nullptr;           // in the peer's segment, what `written` says plus `base`
  u32 base = 0, told = 0;

  /// One whole warp, until all `roles` have finished and the peers know everything.
  ARK_DEVICE void run(const u32* finished, u32 roles) {
    while (true) {
      const bool last = __all_sync(0xffffffffu, shared_load_acquire(finished) == roles);
      const u32 now = written ? shared_load_acquire(written) : told;
      if (__any_sync(0xffffffffu, now != told)) {
        fence_system();
        if (now != told) store_relaxed_system(flag, base + now);
        told = now;
      } else if (last) {
        return;
      }
    }
  }
};

/// Moves all messages of `segments` that are this worker's. One whole warp. kOutgoing: user memory -> rings of the
/// peers; else own rings -> user memory. run() is false when a wait failed.
///
/// A stage is free again when its store has read it, long before the bytes have arrived. Their arrival is waited for
/// several messages later, and a FlagRaiser tells the peer.
///
/// Order: round after round one message to or from each peer that has as many; the senders go round upwards and the
/// receivers downwards, so that all pairs move at the same time, and nobody waits in a circle: what a receiver waits
/// for is never behind anything of a later round.
template <bool kOutgoing, Ring kRing, int kStages, class Segments>
struct Mover {
  static constexpr u32 kReading = 1;                             // stores that may still be reading their stages
  static constexpr u32 kFlying = kRing == Ring::kPoint ? 6 : 2;  // stores under way that have not arrived
  static constexpr u32 kSlots = abi::ring_slots(kRing);
  static_assert(kStages + kFlying < kUntold && kFlying < kSlots);
  const CollectiveParams& p;
  RingFlags flags;
  const Segments& segments;
  MoverShared<kStages>& shared;
  MoverState<kStages>& state;
  // Messages that have been loaded into a stage, stored, whose stage has been read, and that have arrived.
  u32 num_loading = 0, num_storing = 0, num_read = 0, num_written = 0;
  static constexpr int kIdlePolls = 32;  // then the last stores are waited for, though the pipeline drains
  int step = 0, idle = 0;
  bool has_next = false;
  Message following{};
  PeerPatience patience;

  enum Action : int { kDone, kFailed, kSlowLoad, kSlowStore };

  ARK_DEVICE Mover(const CollectiveParams& params, int worker, const Segments& s, MoverShared<kStages>& shared_,
                   MoverState<kStages>& state_)
      : p(params), flags{params, kRing, worker}, segments(s), shared(shared_), state(state_) {}

  /// Before the CTA meets, by one thread.
  ARK_DEVICE static void init(MoverState<kStages>& state) {
    for (int i = 0; i < kStages; i++) mbarrier_init(&state.loaded[i], 1);
  }
  /// Before the CTA meets, by a warp.
  ARK_DEVICE void prepare(int lane) {
    const Segment s = lane < p.world && lane != p.rank ? segments(lane) : Segment{};
    const u32 messages = s.messages_of(flags.worker);
    if (lane >= p.world) return;
    const u32 count = counts()[lane];
    PeerQueue& q = state.queues[lane];
    q.remaining = messages;
    q.sequence = count;
    q.next = s.data + static_cast<u64>(flags.worker) * abi::kMessageBytes;
    q.stride = static_cast<u64>(s.workers) * abi::kMessageBytes;
    if (messages > 0) {
      const u64 last = s.index(flags.worker, messages - 1) * abi::kMessageBytes;
      q.last_bytes = static_cast<u32>(min(static_cast<u64>(abi::kMessageBytes), s.size_bytes - last));
    }
    state.flags.seen[lane] = state.fenced.seen[lane] = count - (kOutgoing ? kSlots : 0);
    state.written.seen[lane] = count;
  }
  /// For lane `lane` of the warp that tells the peers. Before the CTA meets: run() changes the counts.
  ARK_DEVICE FlagRaiser raiser(int lane) const {
    if (lane >= p.world || lane == p.rank) return {};
    return {&state.written.seen[lane], flags.arrived(lane, p.rank), 0, counts()[lane]};
  }
  /// The flag that says when messages to or from `peer` may go on.
  ARK_DEVICE const u32* flag(int peer) const {
    return kOutgoing ? flags.credit(p.rank, peer) : flags.arrived(p.rank, peer);
  }

  ARK_DEVICE u32* counts() const {
    auto& all = kOutgoing ? p.state->sent : p.state->received;
    return all[static_cast<int>(flags.ring)][flags.worker];
  }

  ARK_DEVICE bool run(int lane) {
    if (lane == 0) next();
    while (true) {
      int action = kDone;
      if (lane == 0) action = advance();
      action = __shfl_sync(0xffffffffu, action, 0);
      if (action == kDone) break;
      if (action == kFailed) return false;
      slow_copy(action, lane);
    }
    if (!kOutgoing && lane == 0) bulk_wait<0>();
    __syncwarp();
    // Only of the peers it serves: sends to two peers, or receives from two, may run at the same time.
    if (lane < p.world && state.queues[lane].stride != 0) counts()[lane] = state.queues[lane].sequence;
    return true;
  }

 private:
  ARK_DEVICE void next() {
    has_next = false;
    for (int tried = 1; tried < p.world; ++tried) {
      if (++step >= p.world) step = 1;
      int peer = kOutgoing ? p.rank + step : p.rank - step + p.world;
      if (peer >= p.world) peer -= p.world;
      PeerQueue& q = state.queues[peer];
      if (q.remaining == 0) continue;
      following = {q.next, q.remaining == 1 ? q.last_bytes : static_cast<u32>(abi::kMessageBytes), peer, q.sequence};
      q.next += q.stride;
      --q.remaining;
      ++q.sequence;
      has_next = true;
      return;
    }
  }

  /// Outgoing: the peer's slot is free. Incoming: the message has arrived.
  ARK_DEVICE bool ready(const Message& m) {
    const u32 target = m.sequence + 1 - (kOutgoing ? kSlots : 0);
    u32& fenced = state.fenced.seen[m.peer];
    if (reached(fenced, target)) return true;
    const u32 seen = shared_load_acquire(&state.flags.seen[m.peer]);
    if (!reached(seen, target)) return false;
    fence_proxy_async();
    fenced = seen;
    return true;
  }

  ARK_DEVICE Action advance() {
    while (has_next || num_written != num_loading) {
      bool progress = false;
      if (has_next && num_loading - num_read < kStages && (kOutgoing || ready(following))) {
        progress = true;
        state.messages[num_loading % kUntold] = following;
        if (kOutgoing && !following.whole()) return kSlowLoad;
        load(following, num_loading % kStages);
        loaded();
      }
      if (num_storing != num_loading) {
        const int stage = num_storing % kStages;
        const Message m = state.messages[num_storing % kUntold];
        if ((!kOutgoing || ready(m)) && mbarrier_try_wait(&state.loaded[stage], num_storing / kStages & 1)) {
          progress = true;
          if (!kOutgoing) store_relaxed_system(flags.credit(m.peer, p.rank), m.sequence + 1);
          if (!kOutgoing && !m.whole()) return kSlowStore;
          store(m, stage);
          stored();
        }
      }
      idle = progress ? 0 : idle + 1;
      const bool drained = !has_next && num_storing == num_loading;
      if (progress) {
        patience = PeerPatience();
      } else if (num_storing != num_written && (drained || idle >= kIdlePolls)) {
        bulk_wait<0>();
        num_read = num_storing;
        arrived(num_storing);
        idle = 0;
      } else if (!patience.again(GroupRank{p}, blocked_on(), blocked().sequence + 1,
                                 state.flags.seen[blocked().peer])) {
        return kFailed;
      }
    }
    return kDone;
  }

  ARK_DEVICE Message blocked() const {
    return num_storing != num_loading ? state.messages[num_storing % kUntold] : following;
  }
  ARK_DEVICE SignalName blocked_on() const {
    return {kOutgoing ? CollectiveWait::kCredit : CollectiveWait::kArrival, blocked().peer};
  }

  ARK_DEVICE void load(const Message& m, int stage) {
    const unsigned char* from = kOutgoing ? m.user : flags.slot(p.rank, m.peer, m.sequence);
    mbarrier_arrive_expect(&state.loaded[stage], m.padded());
    bulk_load(shared_address(shared.data[stage]), from, m.padded(), &state.loaded[stage]);
  }
  ARK_DEVICE void loaded() {
    ++num_loading;
    next();
  }
  ARK_DEVICE void store(const Message& m, int stage) {
    unsigned char* to = kOutgoing ? flags.slot(m.peer, p.rank, m.sequence) : m.user;
    bulk_store(to, shared_address(shared.data[stage]), m.padded());
    bulk_commit();
  }
  ARK_DEVICE void stored() {
    ++num_storing;
    bulk_wait_read<kReading>();
    if (num_storing > kReading) num_read = num_storing - kReading;
    if (!kOutgoing) {
      num_written = num_storing;
    } else if (num_storing - num_written > kFlying) {
      bulk_wait<kFlying>();
      arrived(num_storing - kFlying);
    }
  }
  /// The writes of all messages before number `end` are done.
  ARK_DEVICE void arrived(u32 end) {
    for (; num_written != end; ++num_written) {
      const Message& m = state.messages[num_written % kUntold];
      shared_store_release(&state.written.seen[m.peer], m.sequence + 1);
    }
  }

  ARK_DEVICE void slow_copy(int action, int lane) {
    __syncwarp();
    const u32 number = __shfl_sync(0xffffffffu, action == kSlowLoad ? num_loading : num_storing, 0);
    const int stage = number % kStages;
    const Message m = state.messages[number % kUntold];
    if (action == kSlowLoad)
      copy_by_warp(shared.data[stage], m.user, m.bytes, lane);
    else
      copy_by_warp(m.user, shared.data[stage], m.bytes, lane);
    fence_proxy_async();
    __syncwarp();
    if (lane != 0) return;
    if (action == kSlowLoad) {
      mbarrier_arrive(&state.loaded[stage]);
      loaded();
    } else {
      bulk_commit();  // an empty group keeps the count of groups and messages the same
      stored();
    }
  }
};

}  // namespace ark::device
