// What a wait that has failed says to the host: plain data, one form for the loop and for the collectives. Compiled by
// the host compiler and by NVRTC: no standard headers here.
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

/// A wait that ended unfulfilled: its name, what it wanted to see, and what it saw.
template <class Name>
struct Fault {
  Name name;
  u32 expected, seen;
};

/// In pinned host memory, zeroed by the host, filled in once by the first wait of the rank that fails
/// (device/wait/report.cuh). `set` is written last; 0: nothing is here.
template <class Name>
struct FaultRecord {
  u32 set;
  i32 worker;  // the CTA that waited
  Fault<Name> fault;
};

/// What an abort word between ranks says, 0 being that nobody has failed: which rank it was about, or, of the loop
/// (RunState::abort), which rank gave up. CollectiveState::abort is 1.
ARK_HOST_DEVICE inline constexpr u32 abort_about(i32 rank) { return static_cast<u32>(rank) + 1; }
ARK_HOST_DEVICE inline constexpr i32 rank_of_abort(u32 about) { return static_cast<i32>(about) - 1; }

/// Deadlines that a wait for the own rank may take among ranks: a peer's absence holds it up as well, and the wait for
/// the peer passes its deadline first and names it. (Where processes shared GPUs, a rank that was missing was not
/// named.)
inline constexpr int kOwnPatience = 2;

// ---- of the loop kernel

/// What WaitName::counter is where the wait was for no counter.
inline constexpr i32 kWaitPageFull = -1, kWaitPageEmpty = -2, kWaitRecord = -3, kWaitMaps = -4, kWaitLoader = -5,
                     kWaitFlaggedWords = -6, kWaitConsumers = -7, kWaitBorder = -8;
/// `counter` is a counter's number, with the group of an exchange's (kCounterGroupShift), or one of these.
struct WaitName {
  i32 op, tile, counter;  // -1: of none
};

inline constexpr u32 kErrorDeadline = 1, kErrorIndex = 2, kErrorRank = 3;  // ErrorRecord::set
/// kErrorDeadline: a wait. kErrorIndex: rank, worker, fault.name.op, index_value and index_limit are valid. kErrorRank:
/// fault.seen is the rank of `group` that gave up first.
struct ErrorRecord : FaultRecord<WaitName> {
  i32 rank;
  i64 index_value, index_limit;
  i32 iteration;  // of a loop: the one that ran
  i32 group;
};
static_assert(sizeof(ErrorRecord) == 56);

// ---- of the collectives

/// What a wait was for.
enum class CollectiveWait : i32 {
  kCall,
  kPacket,
  kArrival,
  kCredit,
  kTile,
  kLoad,
  kMismatch,
  kPeerAbort,
  kWindow,
  kEnd,
  kSent,     // a pair disagrees: own_call and peer_call carry its sizes
  kExpected  // likewise, about what goes the other way
};
struct SignalName {
  CollectiveWait wait;
  i32 peer;  // rank that did not come, -1: not known
};

struct CollectiveError : FaultRecord<SignalName> {
  u32 epoch;
  u64 own_call, peer_call;  // packed calls (kMismatch, kCall, kSent, kExpected)
  u64 sequence;             // of the call, as given at its launch
};
static_assert(sizeof(CollectiveError) == 56);

}  // namespace ark::abi
