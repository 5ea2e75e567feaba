// Contiguous bytes from memory through shared memory to memory by the bulk copy engine (TMA), one warp, many messages
// in flight: out of user memory into the rings of the peers, or out of the own rings into user memory.
#pragma once
#include "device/collective_element.cuh"
#include "device/signal.cuh"

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
  u32 i;  // number among the messages of this peer and worker in this launch

  /// The engine moves multiples of 16 bytes between addresses that are.
  ARK_DEVICE bool whole() const { return (bytes & 15) == 0 && (reinterpret_cast<u64>(user) & 15) == 0; }
  ARK_DEVICE u32 padded() const { return (bytes + 15) & ~15u; }
};

template <int kStages>
struct MoverShared {
  unsigned char data[kStages][abi::kMessageBytes];
};
/// What a mover keeps beside its data.
template <int kStages>
struct MoverState {
  u64 loaded[kStages];       // mbarriers
  u32 base[abi::kMaxRanks];  // messages of earlier launches, per peer
  u32 seen[abi::kMaxRanks];  // last value read of the flag that is waited for
  Message slow;
};

/// Messages in the order (i, peer): in every round one to or from each peer that has as many. The senders go round
/// upwards and the receivers downwards, so that all pairs move at the same time, and nobody waits in a circle: what a
/// receiver waits for is never behind anything of a later round.
template <class Segments>
struct Cursor {
  const Segments& segments;
  const CollectiveParams& p;
  int worker;
  bool outgoing;
  bool done = false;
  Message message{};

  ARK_DEVICE Cursor(const Segments& s, const CollectiveParams& params, int worker_, bool outgoing_)
      : segments(s), p(params), worker(worker_), outgoing(outgoing_) {
    next();
  }
  ARK_DEVICE void next() {
    for (++step_;; ++step_) {
      if (step_ >= p.world) {
        if (!in_round_) {
          done = true;
          return;
        }
        in_round_ = false;
        step_ = 0;
        ++round_;
        continue;
      }
      const int peer = (p.rank + (outgoing ? step_ : p.world - step_)) % p.world;
      const Segment s = segments(peer);
      if (!s.has(worker, round_)) continue;
      const u64 at = s.index(worker, round_) * abi::kMessageBytes;
      message = {s.data + at, static_cast<u32>(min(static_cast<u64>(abi::kMessageBytes), s.size_bytes - at)), peer,
                 round_};
      in_round_ = true;
      return;
    }
  }

 private:
  int step_ = 0;
  u32 round_ = 0;
  bool in_round_ = false;
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

/// Moves all messages of `segments` that are this worker's. One whole warp. kOutgoing: user memory -> rings of the
/// peers; else own rings -> user memory. False when a wait failed.
template <bool kOutgoing, int kStages, class Segments>
struct Mover {
  static constexpr int kPending = 4;  // messages whose writes are under way before the oldest is waited for
  const CollectiveParams& p;
  RingFlags flags;
  const Segments& segments;
  MoverShared<kStages>& shared;
  MoverState<kStages>& state;
  Cursor<Segments> loading, storing, retiring;
  u32 num_loading = 0, num_storing = 0, num_retiring = 0;  // messages behind each cursor
  Patience patience;

  enum Action : int { kDone, kFailed, kSlowLoad, kSlowStore };

  ARK_DEVICE Mover(const CollectiveParams& params, Ring ring, int worker, const Segments& s,
                   MoverShared<kStages>& shared_, MoverState<kStages>& state_)
      : p(params),
        flags{params, ring, worker},
        segments(s),
        shared(shared_),
        state(state_),
        loading(s, params, worker, kOutgoing),
        storing(loading),
        retiring(loading) {}

  /// The barriers, by one thread, before the CTA meets.
  ARK_DEVICE static void init(MoverState<kStages>& state) {
    for (int i = 0; i < kStages; i++) mbarrier_init(&state.loaded[i], 1);
  }

  ARK_DEVICE u32* counts() const {
    auto& all = kOutgoing ? p.state->sent : p.state->received;
    return all[static_cast<int>(flags.ring)][flags.worker];
  }

  ARK_DEVICE bool run(int lane) {
    if (lane < abi::kMaxRanks) {
      state.base[lane] = counts()[lane];
      state.seen[lane] = state.base[lane] - (kOutgoing ? abi::kRingSlots : 0);
    }
    __syncwarp();
    while (true) {
      int action = kDone;
      if (lane == 0) action = advance();
      action = __shfl_sync(0xffffffffu, action, 0);
      if (action == kDone) break;
      if (action == kFailed) return false;
      slow_copy(action, lane);
    }
    if (lane < p.world && lane != p.rank) counts()[lane] = state.base[lane] + segments(lane).messages_of(flags.worker);
    return true;
  }

 private:
  ARK_DEVICE u32 sequence(const Message& m) const { return state.base[m.peer] + m.i; }

  /// Outgoing: the peer's slot is free. Incoming: the message has arrived.
  ARK_DEVICE bool ready(const Message& m) {
    const u32 target = sequence(m) + 1 - (kOutgoing ? abi::kRingSlots : 0);
    if (reached(state.seen[m.peer], target)) return true;
    const u32* flag = kOutgoing ? flags.credit(p.rank, m.peer) : flags.arrived(p.rank, m.peer);
    const u32 now = load_acquire_system(flag);
    if (!reached(now, target)) return false;
    state.seen[m.peer] = now;
    fence_proxy_async();
    return true;
  }

  ARK_DEVICE Action advance() {
    while (!retiring.done) {
      bool progress = false;
      while (!loading.done && num_loading - num_retiring < kStages) {
        const Message& m = loading.message;
        if (!kOutgoing && !ready(m)) break;
        const int stage = num_loading % kStages;
        progress = true;
        if (kOutgoing && !m.whole()) {
          state.slow = m;
          return kSlowLoad;
        }
        load(m, stage);
        ++num_loading;
        loading.next();
      }
      while (num_storing != num_loading) {
        const Message& m = storing.message;
        const int stage = num_storing % kStages;
        if (kOutgoing && !ready(m)) break;
        if (!mbarrier_try_wait(&state.loaded[stage], num_storing / kStages & 1)) break;
        progress = true;
        if (!kOutgoing) store_relaxed_system(flags.credit(m.peer, p.rank), sequence(m) + 1);
        if (!kOutgoing && !m.whole()) {
          state.slow = m;
          return kSlowStore;
        }
        store(m, stage);
        stored();
      }
      if (!progress && num_storing != num_retiring) {
        bulk_wait<0>();
        retire(num_storing);
        progress = true;
      }
      if (progress)
        patience = Patience();
      else if (!patience.again(p, blocked_on(), sequence(blocked()) + 1, state.seen[blocked().peer]))
        return kFailed;
    }
    return kDone;
  }

  ARK_DEVICE const Message& blocked() const { return storing.done ? retiring.message : storing.message; }
  ARK_DEVICE SignalName blocked_on() const {
    return {kOutgoing ? CollectiveWait::kCredit : CollectiveWait::kArrival, blocked().peer};
  }

  ARK_DEVICE void load(const Message& m, int stage) {
    const unsigned char* from = kOutgoing ? m.user : flags.slot(p.rank, m.peer, sequence(m));
    mbarrier_arrive_expect(&state.loaded[stage], m.padded());
    bulk_load(shared_address(shared.data[stage]), from, m.padded(), &state.loaded[stage]);
  }
  ARK_DEVICE void store(const Message& m, int stage) {
    unsigned char* to = kOutgoing ? flags.slot(m.peer, p.rank, sequence(m)) : m.user;
    bulk_store(to, shared_address(shared.data[stage]), m.padded());
    bulk_commit();
  }
  ARK_DEVICE void stored() {
    ++num_storing;
    storing.next();
    if (num_storing - num_retiring >= kPending) {
      bulk_wait<kPending / 2>();
      retire(num_storing - kPending / 2);
    }
  }
  /// The writes of all messages before number `end` are done.
  ARK_DEVICE void retire(u32 end) {
    if (kOutgoing) fence_system();
    for (; num_retiring != end; ++num_retiring) {
      const Message& m = retiring.message;
      if (kOutgoing) store_relaxed_system(flags.arrived(m.peer, p.rank), sequence(m) + 1);
      retiring.next();
    }
  }

  ARK_DEVICE void slow_copy(int action, int lane) {
    __syncwarp();
    const Message m = state.slow;
    const int stage = __shfl_sync(0xffffffffu, (action == kSlowLoad ? num_loading : num_storing) % kStages, 0);
    if (action == kSlowLoad)
      copy_by_warp(shared.data[stage], m.user, m.bytes, lane);
    else
      copy_by_warp(m.user, shared.data[stage], m.bytes, lane);
    fence_proxy_async();
    __syncwarp();
    if (lane != 0) return;
    if (action == kSlowLoad) {
      mbarrier_arrive(&state.loaded[stage]);
      ++num_loading;
      loading.next();
    } else {
      bulk_commit();  // an empty group keeps the count of groups and messages the same
      stored();
    }
  }
};

}  // namespace ark::device
