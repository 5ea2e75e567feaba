// What the collective kernels and the host agree on: the layout of a group's arena, the launch parameters, the error
// record. Compiled by the host compiler and by NVRTC: no standard headers here.
//
// Every rank owns a segment of `ArenaLayout::size_bytes` that all ranks of the group map. A rank writes into its peers'
// segments and reads its own; nothing is read over the link. Three ways to move data:
//  packets  16 bytes that say themselves whether they have arrived (collective_packet.cuh): lowest latency.
//  rings    slots of kMessageBytes with a count of messages beside them: full rate of the link (collective_mover.cuh).
//  calls    one packet per rank and launch that says what the rank is about to do, compared by everybody. No launch
//           ends before it has heard from every peer: what a launch reads may be written again two launches later.
#pragma once
#include "device/abi.h"

#ifdef __CUDACC__
#define ARK_HOST_DEVICE __host__ __device__
#else
#define ARK_HOST_DEVICE
#endif

namespace ark::abi {

inline constexpr int kMaxRanks = 8;
// Reductions of floats may use packets of 16 bytes that are cleared after reading. The kernels used 8-byte packets with
// flags for every type while the host counted on 16 for floats, and ran over their boxes (2 ranks: from 2 MB on); what
// was measured are the 8-byte ones. The cleared ones are right in an emulation and have not run on a GPU yet.
inline constexpr bool kClearedPackets = false;
inline constexpr int kMessageBytes = 16384;  // of one bulk copy; from 8 KB on the link's rate is reached
inline constexpr int kMaxRingWorkers = 32;   // CTAs; 32 of them with 16 KB messages saturate the link
inline constexpr int kMaxPointWorkers = 8;   // of a send or receive
inline constexpr int kRingSlots = 8;
inline constexpr int kFlagBytes = 32;  // distance between flags

/// Rings from every rank to every rank and worker. kRingPoint serves send and receive.
enum class Ring : i32 { kReduce, kGather, kPoint, kCount };

enum class CollectiveKind : i32 { kBarrier, kAllReduce, kReduce, kReduceScatter, kExchange, kSend, kReceive };
/// Values of comm::Reduction.
enum class ReduceOp : i32 { kSum, kProduct, kMin, kMax, kAverage, kBitAnd, kBitOr, kBitXor };
enum class Algorithm : i32 { kOneShot, kTwoShot, kRing };

/// Offsets within every rank's segment.
struct ArenaLayout {
  u64 calls;    // [2][kMaxRanks] packets
  u64 aborts;   // [kMaxRanks] u32: rank r has given up
  u64 arrived;  // [Ring][kMaxRingWorkers][kMaxRanks] flags: messages that r has put into the ring to here
  u64 credits;  // likewise: messages that r has taken out of the ring from here
  u64 packets;  // [2] sets of packet_set_bytes
  u64 rings;    // [Ring][workers][world][kRingSlots] messages
  u64 size_bytes;
  u64 packet_set_bytes;
};

/// In the device memory of its rank; lives as long as the group, also across replays of captured launches.
struct CollectiveState {
  u32 epoch;    // of the next launch
  u32 entered;  // CTAs of this launch that have read the epoch
  u32 abort;    // nobody waits any more
  u32 pad[29];
  u32 sent[static_cast<int>(Ring::kCount)][kMaxRingWorkers][kMaxRanks];
  u32 received[static_cast<int>(Ring::kCount)][kMaxRingWorkers][kMaxRanks];
};

/// What a wait was for.
enum class CollectiveWait : i32 { kCall, kPacket, kArrival, kCredit, kTile, kLoad, kMismatch, kPeerAbort };

/// In pinned host memory. `set` is written last.
struct CollectiveError {
  u32 set;
  i32 wait;  // CollectiveWait
  i32 peer;  // rank that did not come, -1: not known
  i32 worker;
  u64 own_call, peer_call;  // packed calls (kMismatch, kCall)
  u32 expected, seen;
  u32 epoch;
  u32 pad;
  u64 sequence;  // of the call, as given at its launch
};

/// One rank's part of an exchange: bytes to and from every peer.
struct ExchangePart {
  const unsigned char* source;
  unsigned char* destination;
  u64 send_bytes, receive_bytes;
};

/// A call, packed into 64 bits so that one packet carries it: kind, type, operation, root + 1, then the element count.
ARK_HOST_DEVICE inline constexpr u64 pack_call(CollectiveKind kind, i32 dtype, ReduceOp op, i32 root, u64 count) {
  return static_cast<u64>(kind) | static_cast<u64>(dtype & 15) << 4 | static_cast<u64>(op) << 8 |
         static_cast<u64>((root + 1) & 15) << 12 | count << 16;
}

struct CollectiveParams {
  unsigned char* base[kMaxRanks];  // of every rank's segment, as mapped here
  ArenaLayout layout;
  CollectiveState* state;
  CollectiveError* error;
  u64 deadline_ns;
  u64 call;  // pack_call
  u64 sequence;
  i32 rank, world;
  i32 root;  // -1: all
  CollectiveKind kind;
  Algorithm algorithm;
  ReduceOp op;
  i32 early;       // launched with programmatic dependence
  i32 peer;        // kSend, kReceive
  i32 uses_rings;  // kExchange: some pair is larger than packet_limit
  i32 pad;
  u64 count;  // elements of the whole (all-reduce, reduce), of one part (reduce-scatter)
  const unsigned char* in;
  unsigned char* out;
  u64 packet_limit;               // kExchange: pairs of at most this many bytes travel as packets
  ExchangePart parts[kMaxRanks];  // kExchange; [peer] of kSend, kReceive
};

/// Workers that serve a pair of an exchange: both ends compute the same.
ARK_HOST_DEVICE inline constexpr int ring_workers(u64 bytes, int limit) {
  const u64 messages = (bytes + kMessageBytes - 1) / kMessageBytes;
  return messages < static_cast<u64>(limit) ? static_cast<int>(messages) : limit;
}

}  // namespace ark::abi
