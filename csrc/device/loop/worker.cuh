// The shared memory of a worker, and what all its roles do with it: items, counters.
#pragma once
#include "device/abi/launch.h"
#include "device/abi/roles.h"
#include "device/loop/sync.cuh"
#include "device/ptx/ptx.cuh"

namespace ark::device {

#ifndef ARK_TRACE
#define ARK_TRACE 0
#endif
inline constexpr bool kTrace = ARK_TRACE != 0;  // the generated source defines ARK_TRACE

inline constexpr int kPages = 12;  // 6 pages cost 10 % of a decode step (0.650 -> 0.714 ms)
inline constexpr int kPageBytes = 16384;
inline constexpr int kConsumerThreads = 256;
inline constexpr int kConsumerWarps = 8;
// Consumer warps with a second job; warp 0 reports tiles of items that are not finished yet.
inline constexpr int kPollWarp = 1, kListWarp = 7;
inline constexpr int kScratchBytes = 28 * 1024;
/// What the table of several groups takes of the record ring; 8 bytes of it are Shared::maps_ready, for which there is
/// room without.
inline constexpr int kGroupTableBytes = kGroups > 1 ? (kGroups* int{sizeof(abi::GroupLaunch)} + 8 + 63) / 64 * 64 : 0;
// Three records of the largest size, four to five usual ones; a trace takes room from them.
inline constexpr int kRecordRingBytes = 6 * 1024 - kGroupTableBytes - (kTrace ? 128 : 0);
static_assert(kRecordRingBytes >= 2 * abi::kMaxRecordBytes);
inline constexpr int kTaskSlots = 4;  // as many records as the ring of records holds
// streaming reads: more only adds queueing in the memory system (0.671 -> 0.688 ms at 12)
inline constexpr int kPagesInFlight = 4;
inline constexpr int kThrottlePolls = 4;  // each sleeps up to some 15 us

inline constexpr int kStamps = 14;              // of an item, by the consumers (trace only)
inline constexpr short kBegins = 1, kEnds = 2;  // TaskSlot::border

/// An item as the roles see it: decoded by the fetch warp ahead of time.
struct TaskSlot {
  i32 record;           // abi::WorkItem::record
  i32 first, count;     // tiles
  u32 epoch;            // finished launches of this run, and iterations of this one before the item's
  i32 item_index;       // in the launch's `items`
  short record_offset;  // in Shared::records
  short record_bytes;
  // What the item waits for and where it reports, when every wait falls on one counter (single_waits >= 0), every
  // arrival of all its tiles on one (single_arrivals >= 0), or on two neighbours at most (known_arrivals >= 0): worked
  // out by the fetch warp, so that nobody divides between an op and the next. -1: not so simple, the record is asked.
  signed char single_waits, single_arrivals, known_arrivals;
  signed char waits_alike;  // every tile of the op waits for the same
  union {
    abi::Coordinates at;  // of the first tile
    /// Of decode attention, worked out once for all roles (attention/decode_keys.cuh). The position: rows of the cache
    /// that no op before writes, read once for all of them.
    struct {
      i32 position, parts_used, part_length;
    } keys;
  };
  u32 wait_counter[abi::kMaxWaits], wait_target[abi::kMaxWaits];  // target of this launch
  u32 arrive_counter[abi::kMaxArrivals];  // to which `arrive_tiles` of the item's tiles add, and the next one's share
  unsigned short arrive_tiles[abi::kMaxArrivals][2];
  i32 arrived;   // tiles that the consumers have reported themselves; written by them
  short border;  // of a loop: the item begins (kBegins), ends (kEnds) the worker's part of an iteration
};

/// In the background: the reporter and the fetch warp. Another number is for measurements.
#ifndef ARK_SENDERS
#define ARK_SENDERS 2
#endif
inline constexpr int kSenders = ARK_SENDERS;

/// How far each of a worker's senders is (background.cuh).
struct SentInBackground {
  i32 index[kSenders];   // of the item, in the launch's `items`
  i32 at[kSenders];      // vector of the runs that it copies next
  short left[kSenders];  // vectors; -1: the item has not begun
};

struct Shared {
  unsigned char ring[kPages][kPageBytes];   // 1024-aligned
  unsigned char scratch[kScratchBytes];     // 1024-aligned; belongs to the consumers of the current item
  unsigned char records[kRecordRingBytes];  // 64-aligned records, filled by the fetch warp
  alignas(16) unsigned char zeros[16];
  u64 full[kPages];   // 1 arrival (the loader) and the bytes
  u64 empty[kPages];  // one arrival per consumer warp
  u64 task_full[kTaskSlots], task_empty[kTaskSlots];
  u64 task_done[kTaskSlots];  // one arrival per consumer warp: its writes of the item have been issued
  TaskSlot task[kTaskSlots];
  u32 progress[2];  // per loader: pages below it are issued or not its own
  short leave[2];   // by parity of the item: consumers leave after it
  Failure failure;
  u32 epoch;
  union {  // no plan has both
    SentInBackground sent;
    struct {
      u32 gate;       // of a loop whose only worker this is: abi::LoopState::gate
      u32 iteration;  // of the next item that the fetch warp hands out
    } loop;
  };
  abi::LaunchHeader launch;  // for functions that are called (outline.cuh): the kernel's parameter is far from them
  u64 maps_ready;            // one arrival, of warp 3: copies may read the tensor maps
  u64 wait_end[kTrace ? kTaskSlots : 1];  // trace only: when the waits of the item's last tile were over
  u32 stamp[kTrace ? kStamps : 1];
};
inline constexpr int kSharedBytes = 232448;  // what one CTA may have on sm_90
static_assert(sizeof(Shared) <= kSharedBytes);

/// One item: `count` tiles of an op from `first` on. `record` and the operands lie in shared memory until the item is
/// done.
struct Task {
  const abi::OpRecord* record;
  const TaskSlot* slot;
  i32 first, count, item;

  ARK_DEVICE const abi::Operand& operand(int i) const { return reinterpret_cast<const abi::Operand*>(record + 1)[i]; }
  ARK_DEVICE bool has(int i) const { return operand(i).slot != abi::kNoSlot; }
  /// Where tile first + i lies, without a division: roles ask at the beginning of each item, where they are waited for.
  /// Not of decode attention.
  ARK_DEVICE abi::Coordinates coordinates(int i) const {
    abi::Coordinates at = slot->at;
    const int inners = record->grid[abi::GridAxis::kInner], middles = record->grid[abi::GridAxis::kMiddle];
    at.inner += i;
#pragma unroll 1
    while (at.inner >= inners) {
      at.inner -= inners;
      if (++at.middle == middles) at.middle = 0, ++at.outer;
    }
    return at;
  }
  /// Launches of this run, and iterations of this one, that have ended before this item.
  ARK_DEVICE u32 epoch(u32 of_launch) const {
    if constexpr (kLoop) return slot->epoch;
    return of_launch;
  }
  /// Address of the operand's element 0, its offset applied: the fetch warp has replaced Operand::offset by it.
  template <class T>
  ARK_DEVICE T* address(int i) const {
    return reinterpret_cast<T*>(operand(i).offset);
  }
};

ARK_DEVICE void note_index_error(abi::RunState* state, int op, i64 index, i64 limit) {
  if (atomicCAS(&state->index_error, 0u, static_cast<u32>(op) + 1) != 0) return;
  state->index_value = index;
  state->index_limit = limit;
}
__device__ __noinline__ void note_index_error_called(abi::RunState* state, int op, i64 index, i64 limit) {
  note_index_error(state, op, index, limit);
}

/// Everything that all roles of a worker share.
struct Worker {
  Shared& shared;
  const abi::LaunchHeader& launch;
  Waiter waiter;
  u32 epoch;  // finished launches of this run; iterations of a loop: Task::epoch

  ARK_DEVICE Worker(Shared& s, const abi::LaunchHeader& header)
      : shared(s), launch(header), waiter{header.state, &s.failure, header.deadline_ns}, epoch(s.epoch) {}
  /// An index of this op that does not lie in [0, limit); the host raises the first one later.
  ARK_DEVICE void report_index_error(int op, i64 index, i64 limit) const {
    if constexpr (ARK_CALLED_WAITS != 0)
      note_index_error_called(launch.state, op, index, limit);
    else
      note_index_error(launch.state, op, index, limit);
  }
  /// Of several groups of the launch the one whose exchange has this counter.
  ARK_DEVICE const abi::GroupLaunch& group_of(u32 c) const {
    return shared.failure.group(c >> abi::kCounterGroupShift);
  }
  /// Of that group.
  ARK_DEVICE int ranks_of(u32 c) const {
    if constexpr (kGroups > 1) return group_of(c).world;
    return kRanks;
  }
  /// In it.
  ARK_DEVICE int own_rank(u32 c) const {
    if constexpr (kGroups > 1) return group_of(c).rank;
    return launch.rank;
  }
  ARK_DEVICE const u32* counter(u32 c) const { return launch.counters + static_cast<u64>(c) * abi::kCounterStride; }
  /// The own one, of an exchange.
  ARK_DEVICE const u32* rank_counter(u32 c) const {
    if constexpr (kGroups == 1) return counter(c);
    return reinterpret_cast<const u32*>(group_of(c).state + 1) +
           static_cast<u64>(c & abi::kCounterNumber) * abi::kCounterStride;
  }
  /// Adds `n` to counter c: release.gpu. With `rank_stride` the tiles have written boxes of an exchange: adds it on all
  /// ranks to the counter that stands for this one, release.sys.
  ARK_DEVICE void count(u32 c, u32 n, int rank_stride) const {
    if constexpr (kRanks > 1) {
      if (rank_stride != 0) return count_on_ranks(c, n, rank_stride);
    }
    red_release_add(const_cast<u32*>(counter(c)), n);
  }
  /// Waits for counter c; with `rank_stride` for that of rank r, which lies r * rank_stride behind.
  ARK_DEVICE void wait(u32 c, u32 target, int rank_stride, int rank, int op, int tile) const {
    const u32 own = c + static_cast<u32>(rank * rank_stride);
    const WaitName name{op, tile, static_cast<i32>(own)};
    if (rank_stride != 0)
      waiter.wait_rank_counter(rank_counter(own), target, name, rank == own_rank(c));
    else
      waiter.wait_counter(counter(own), target, name);
  }

 private:
  ARK_DEVICE void count_on_ranks(u32 c, u32 n, int rank_stride) const {
    if constexpr (kGroups > 1) return count_in_group(c, n, rank_stride);
    c += static_cast<u32>(launch.rank * rank_stride);
    fence_system();
#pragma unroll
    for (int r = 0; r < kRanks; ++r)
      red_relaxed_add_system(reinterpret_cast<u32*>(launch.peers[r] + 1) + static_cast<u64>(c) * abi::kCounterStride,
                             n);
  }
  ARK_DEVICE void count_in_group(u32 c, u32 n, int rank_stride) const {
    const abi::GroupLaunch& group = group_of(c);
    const u32 own = (c & abi::kCounterNumber) + static_cast<u32>(group.rank * rank_stride);
    fence_system();
#pragma unroll 1
    for (int r = 0; r < group.world; ++r)
      red_relaxed_add_system(reinterpret_cast<u32*>(group.peers[r] + 1) + static_cast<u64>(own) * abi::kCounterStride,
                             n);
  }
};

/// From the boxes of even launches to those of odd ones, of the group whose box this is.
ARK_DEVICE i64 box_bytes(const Worker& worker, u32 box_slot) {
  if constexpr (kGroups > 1)
    return worker.shared.failure.group((box_slot & ~abi::kBoxSlot) >> abi::kBoxGroupShift).box_bytes;
  return worker.launch.box_bytes;
}

}  // namespace ark::device
