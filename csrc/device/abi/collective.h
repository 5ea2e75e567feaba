// What the collective kernels and the host agree on: the layout of a group's arena, the launch parameters.
// Compiled by the host compiler and by NVRTC: no standard headers here.
//
// Every rank owns a segment of `ArenaLayout::size_bytes` that all ranks of the group map. A rank writes into its peers'
// segments and reads its own; nothing is read over the link. Three ways to move data:
//  packets  16 bytes that say themselves whether they have arrived (collective/packet.cuh): lowest latency.
//  rings    slots of kMessageBytes with a count of messages beside them: full rate of the link (collective/mover.cuh).
//  calls    one packet per rank and launch that says what the rank is about to do, compared by everybody. No launch
//           ends before it has heard from every peer: what a launch reads may be written again two launches later.
#pragma once
#include "device/abi/abi.h"
#include "device/abi/call_word.h"
#include "device/abi/wait.h"

namespace ark::abi {

inline constexpr int kMaxRanks = 8;
// Reductions of floats of up to 32 bits use packets of 16 bytes of data that are cleared after reading; the others use
// packets of 8 bytes that carry flags.
inline constexpr bool kClearedPackets = true;
inline constexpr int kMessageBytes = 16384;    // of one bulk copy; from 8 KB on the link's rate is reached
inline constexpr int kMaxRingWorkers = 64;     // CTAs: two launches of two groups fit on the GPU together
inline constexpr int kMaxPointWorkers = 8;     // of a send or receive
inline constexpr int kFlagBytes = 32;          // distance between flags
inline constexpr int kMaxDirectWorkers = 132;  // CTAs of a launch on registered memory

/// Rings from every rank to every rank and worker: what is to be reduced, what has been, exchanges, sends and receives.
enum class Ring : i32 { kReduce, kGather, kMove, kPoint, kCount };
/// Messages that a ring holds, powers of two. Those of a reduction are few, so that they are read before the tensors
/// that stream by have driven them out of the L2.
ARK_HOST_DEVICE inline constexpr u32 ring_slots(Ring ring) {
  constexpr u32 kSlots[] = {8, 8, 16, 16};
  return kSlots[static_cast<int>(ring)];
}
/// Slots of the rings before `ring`, of a worker and pair.
ARK_HOST_DEVICE inline constexpr u32 slots_before(Ring ring) {
  u32 slots = 0;
  for (int r = 0; r < static_cast<int>(ring); r++) slots += ring_slots(static_cast<Ring>(r));
  return slots;
}
// Sizes of sends from a rank. One that begins has sent all messages of those before it but a ring's at most, so that
// what was twice as far back has been taken, and its size was read before.
inline constexpr int kPointBoxes = 2 * ring_slots(Ring::kPoint);

enum class Algorithm : i32 { kOneShot, kTwoShot, kRing, kDirect };

/// Offsets within every rank's segment.
struct ArenaLayout {
  u64 calls;    // [2][kMaxRanks] packets
  u64 aborts;   // [kMaxRanks] u32: rank r has given up (abort_about)
  u64 arrived;  // [Ring][kMaxRingWorkers][kMaxRanks] flags: messages that r has put into the ring to here
  u64 credits;  // likewise: messages that r has taken out of the ring from here
  u64 packets;  // [2] sets of packet_set_bytes: packets that are cleared after reading
  u64 flagged;  // likewise: packets that carry the epoch
  u64 places;   // [2][kMaxRanks][2] packets: where the tensors of r lie (collective/direct.cuh), or what r sends here
                // and expects from here, where pairs of an exchange may differ
  u64 parted;   // [kMaxDirectWorkers][kMaxRanks] flags: the last launch that this worker of r has ended
  u64 points;   // [kMaxRanks][kPointBoxes] packets: the size of what r sends
  u64 rings;    // [Ring][workers][world][ring_slots] messages
  u64 size_bytes;
  u64 packet_set_bytes;
  u64 packet_area_bytes;  // of a set: for the packets of one sender, a multiple of 32
};

/// In the device memory of its rank; lives as long as the group, also across replays of captured launches.
struct CollectiveState {
  u32 epoch;    // of the next launch
  u32 entered;  // CTAs of this launch that have read the epoch
  u32 abort;    // nobody waits any more
  u32 seats;    // CTAs of this launch that have asked for a part in it
  u32 pad[28];
  u32 sent[static_cast<int>(Ring::kCount)][kMaxRingWorkers][kMaxRanks];
  u32 received[static_cast<int>(Ring::kCount)][kMaxRingWorkers][kMaxRanks];
};

/// One rank's part of an exchange: bytes to and from every peer. Workers: CTAs of the rings that serve it, the same at
/// both ends (kExchange).
struct ExchangePart {
  const unsigned char* source;
  unsigned char* destination;
  u64 send_bytes, receive_bytes;
  i32 send_workers, receive_workers;
};

/// A place in registered memory: the number of the window and the offset in it, of the same number on all ranks.
ARK_HOST_DEVICE inline constexpr u64 pack_place(u64 window, u64 offset) { return window << 48 | offset; }
ARK_HOST_DEVICE inline constexpr u64 window_of(u64 place) { return place >> 48; }
ARK_HOST_DEVICE inline constexpr u64 offset_of_place(u64 place) { return place & ((1ull << 48) - 1); }

struct CollectiveParams {
  unsigned char* base[kMaxRanks];  // of every rank's segment, as mapped here
  ArenaLayout layout;
  CollectiveState* state;
  CollectiveError* error;
  u64 deadline_ns;
  u64 call;  // call_word.h
  u64 sequence;
  i32 rank, world;
  i32 root;  // -1: all
  CollectiveKind kind;
  Algorithm algorithm;
  ReduceOp op;
  i32 early;         // launched with programmatic dependence
  i32 peer;          // kSend, kReceive
  i32 uses_rings;    // kExchange: some pair is larger than packet_limit
  i32 ring_workers;  // CTAs of the rings, the same on all ranks (kExchange: at most these of this rank)
  i32 workers;       // CTAs that take part: the first of the launch that ask
  u64 count;         // elements of the whole (all-reduce, reduce), of one part (reduce-scatter)
  const unsigned char* in;
  unsigned char* out;
  u64 packet_limit;               // kExchange: pairs of at most this many bytes travel as packets
  ExchangePart parts[kMaxRanks];  // kExchange; [peer] of kSend, kReceive
  // Registered memory: every rank's window as mapped here, the own tensors' places, and where this rank's part begins
  // in the outputs of the others. No tensor: window 0, offset 0.
  unsigned char* window_in[kMaxRanks];
  unsigned char* window_out[kMaxRanks];
  u64 place_in, place_out;
  u64 push_offset;
  i32 compares_pairs;  // kExchange: the sizes of pairs may differ, so that the call does not say them
  i32 mixes_pairs;     // kExchange: calls of other ranks may say them, or not, unlike this one
};

/// Workers that serve a pair: both ends compute the same.
ARK_HOST_DEVICE inline constexpr int ring_workers(u64 bytes, int limit) {
  const u64 messages = (bytes + kMessageBytes - 1) / kMessageBytes;
  return messages < static_cast<u64>(limit) ? static_cast<int>(messages) : limit;
}

}  // namespace ark::abi
