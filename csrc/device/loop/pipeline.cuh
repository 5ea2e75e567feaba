// What the roles of a worker do at every item: wait for tiles, load and release pages, report tiles.
//
// Page sequence. The pages of all items of a worker form one endless sequence; page p lives in slot p % kPages of the
// ring. How many pages an item has, and which loader fills which of them, is a pure function of record and item, so
// that the two loaders and the consumers agree without talking. A loader that does not fill a page skips it; consumers
// release every page.
#pragma once
#include "device/loop/worker.cuh"

namespace ark::device {

// 0: no item has pages that are loaded after its waits, so that all pages are the immutable loader's and nobody skips
// any. Decode steps: a loader that only counted its pages had as much code as the one that fills them.
#ifndef ARK_DEPENDENT_PAGES
#define ARK_DEPENDENT_PAGES 1
#endif
inline constexpr bool kDependentPages = ARK_DEPENDENT_PAGES != 0;

/// Whether a wait for an exchange is for that rank. Of role kSource for the tile's batch alone, if that is another
/// rank's.
ARK_DEVICE bool is_awaited(const Worker& worker, const abi::OpRecord& r, const abi::Wait& wait, int tile, int rank) {
  if constexpr (kGroups > 1) return rank < worker.ranks_of(wait.counter);  // which have no such role
  if (wait.role != static_cast<i32>(abi::WaitRole::kSource)) return true;
  return rank != worker.launch.rank && rank == tile / abi::tiles_of_outer(r);
}

/// The warp's lanes wait for everything that tiles [first, first + count) of the task need, several counters at once.
/// Acquire.gpu by each lane, then the warp is converged.
ARK_DEVICE void wait_for_tiles(const Worker& worker, const Task& task, int first, int count) {
  const abi::OpRecord& r = *task.record;
  const int lane = thread_index() & 31;
  const u32 epoch = task.epoch(worker.epoch);
  for (int w = 0; w < r.num_waits; ++w) {
    const abi::Wait& wait = r.wait[w];
    const bool same = (wait.coef[0] | wait.coef[1] | wait.coef[2]) == 0;
    const int tiles = same ? 1 : count;
    const int last_row = wait.limit - 1;
    for (int t = 0; t < tiles; ++t) {
      const int tile = first + t;
      const int row = same ? wait.base : abi::row_of(wait, abi::coordinates_of(r, tile));
      const int begin = row < 0 ? 0 : row;
      const int end = min(row + wait.extent, wait.limit);
      if (begin >= end) continue;
      const int low = begin / wait.div, high = (end - 1) / wait.div, last = last_row / wait.div;
      if constexpr (kRanks > 1) {
        const int blocks = high - low + 1;
        for (int i = lane; wait.rank_stride != 0 && i < blocks * kRanks; i += 32) {
          if (!is_awaited(worker, r, wait, tile, i / blocks)) continue;
          const int c = low + i % blocks;
          const u32 target = c == last ? wait.last_target : wait.target;
          worker.wait(wait.counter + c, (epoch + 1) * target, wait.rank_stride, i / blocks, r.op, tile);
        }
        if (wait.rank_stride != 0) continue;
      }
      for (int c = low + lane; c <= high; c += 32) {
        const u32 target = c == last ? wait.last_target : wait.target;
        worker.waiter.wait_counter(worker.counter(wait.counter + c), (epoch + 1) * target,
                                   WaitName{r.op, tile, static_cast<i32>(wait.counter) + c});
      }
    }
  }
  __syncwarp();
}

/// The warp that has waited notes when: behind the barrier that follows, the clock may still show the time before it.
ARK_DEVICE void trace_wait(const Worker& worker, const Task& task) {
  if constexpr (kTrace) {
    if ((thread_index() & 31) == 0) worker.shared.wait_end[task.slot - worker.shared.task] = global_time_ns();
  }
}

/// wait_for_tiles of a whole item as a function: the rare case of an item whose waits are not simple, kept out of the
/// instruction cache of the others. Not for families that use wgmma.
__device__ __noinline__ void wait_for_tiles_called(Shared* shared, const abi::LaunchHeader* launch, Task task) {
  wait_for_tiles(Worker(*shared, *launch), task, task.first, task.count);
}

/// The same for a whole item whose waits fall on one counter each.
ARK_DEVICE void wait_for_counters(const Worker& worker, const Task& task) {
  const int lane = thread_index() & 31;
  if constexpr (kRanks > 1) {
    const TaskSlot& t = *task.slot;
    for (int i = lane; i < t.single_waits * kRanks; i += 32) {
      const int w = i / kRanks, rank = i % kRanks, stride = task.record->wait[w].rank_stride;
      if (rank == 0 || (stride != 0 && (kGroups == 1 || rank < worker.ranks_of(t.wait_counter[w]))))
        worker.wait(t.wait_counter[w], t.wait_target[w], stride, rank, task.record->op, task.first);
    }
    __syncwarp();
    return;
  }
  if (lane < task.slot->single_waits)
    worker.waiter.wait_counter(worker.counter(task.slot->wait_counter[lane]), task.slot->wait_target[lane],
                               WaitName{task.record->op, task.first, static_cast<i32>(task.slot->wait_counter[lane])});
  __syncwarp();
}

/// One warp reports tiles [first, first + count) as done: release.gpu on every counter that their rows fall on. The
/// caller has made sure (consumer barrier) that all writes of these tiles happened before.
ARK_DEVICE void arrive_for_tiles(const Worker& worker, const Task& task, int first, int count) {
  const abi::OpRecord& r = *task.record;
  const int lane = thread_index() & 31;
  for (int a = 0; a < r.num_arrivals; ++a) {
    const abi::Arrive& arrive = r.arrive[a];
    if ((arrive.coef[0] | arrive.coef[1] | arrive.coef[2]) == 0 &&
        arrive.extent <= arrive.div) {  // one counter for all tiles
      const int begin = max(arrive.base, 0), end = min(arrive.base + arrive.extent, arrive.limit);
      if (begin < end)
        for (int c = begin / arrive.div + lane; c <= (end - 1) / arrive.div; c += 32)
          worker.count(arrive.counter + c, count, r.arrive_rank_stride[a]);
      continue;
    }
    for (int t = 0; t < count; t += 32) {
      const int tile = first + t + lane;
      int low = -1, high = -2;
      if (t + lane < count) {
        const int row = abi::row_of(arrive, abi::coordinates_of(r, tile));
        const int begin = max(row, 0), end = min(row + arrive.extent, arrive.limit);
        if (begin < end) {
          low = begin / arrive.div;
          high = (end - 1) / arrive.div;
        }
      }
      const unsigned same = __match_any_sync(~0u, low);  // neighbours that share a first counter send one sum
      if (low >= 0 && (__ffs(same) - 1) == lane)
        worker.count(arrive.counter + low, __popc(same), r.arrive_rank_stride[a]);
      for (int c = low + 1; c <= high; ++c) worker.count(arrive.counter + c, 1, r.arrive_rank_stride[a]);
    }
  }
}

/// A loader's view of the page sequence; all 32 lanes of the warp call everything together.
/// For each page of an item, in order, a loader calls either skip() or acquire() ... advance(); where all pages are
/// immutable (kDependentPages 0), the loader of these alone does.
struct Loader {
  Worker& worker;
  int me;          // 0: immutable pages, 1: dependent pages
  u32 page = 0;    // next page of the sequence
  int slot = 0;    // page % kPages
  u32 parity = 1;  // of the `empty` phase that frees the slot
  // bit s: the last page in slot s was filled by this loader; where there is one alone, it fills all
  u32 mine = kDependentPages ? 0 : (1u << kPages) - 1;
  bool ok = true;  // false after a failed wait: issue nothing any more
  i32 op = -1;     // of the current item, for error records
  bool maps_ready = false;
  i32 maps_op = -1;  // op whose tensor maps this loader has had fetched

  ARK_DEVICE Loader(Worker& w, int role) : worker(w), me(role) {}

  /// The next n pages are filled by the other loader.
  ARK_DEVICE void skip(int n) {
    if (n <= 0) return;
    if (n >= kPages) {
      mine = 0;
    } else {
      const u32 run = ((1u << n) - 1) << slot;
      mine &= ~((run | (run >> kPages)) & ((1u << kPages) - 1));
    }
    page += n;
    const int moved = slot + n;
    if (moved / kPages & 1) parity ^= 1;
    slot = moved % kPages;
    publish();
  }

  /// Waits until the next page is free; its address in shared memory (u32, 1024-aligned).
  ARK_DEVICE u32 acquire() {
    ok = wait_free() && ok;
    ok = __all_sync(~0u, ok);
    return shared_address(worker.shared.ring[slot]);
  }
  /// Barrier on which the copies into the page complete: one lane calls mbarrier_arrive_expect(barrier(), bytes)
  /// exactly once.
  ARK_DEVICE u64* barrier() { return &worker.shared.full[slot]; }
  /// After the copies into the page have been issued (or none: then one lane has arrived plainly).
  ARK_DEVICE void advance() {
    if constexpr (kDependentPages) mine |= 1u << slot;
    ++page;
    if (++slot == kPages) {
      slot = 0;
      parity ^= 1;
    }
    if constexpr (kDependentPages)
      publish();
    else
      __syncwarp();
  }

  /// Streaming reads: call between acquire() and the copies. Waits until the own page kPagesInFlight back has landed.
  /// Only a throttle, so it gives up after a while. The other loader may be a round ahead: then the page has been read,
  /// its slot filled again, and `full` looks as if nothing had landed (a poll sleeps some 15 us: 256 took 4 ms).
  ARK_DEVICE void throttle() {
    int s = slot - kPagesInFlight;
    u32 p = parity ^ 1;
    if (s < 0) {
      s += kPages;
      p ^= 1;
    }
    if (page < kPagesInFlight || (kDependentPages && !(mine >> s & 1))) return;
    const u32 full = shared_address(&worker.shared.full[s]), empty = shared_address(&worker.shared.empty[s]);
    if (mbarrier_test_wait(full, p) || mbarrier_test_wait(empty, p)) return;
    for (int polls = 0; polls < kThrottlePolls && !mbarrier_try_wait(full, p); ++polls) {
    }
  }

  /// Dependent pages: everything that these tiles need is there, also for bulk and tensor copies issued by this warp.
  ARK_DEVICE void wait_for(const Task& task, int first, int count) {
    wait_for_tiles(worker, task, first, count);
    end_wait(task);
  }
  /// The same for a tile, by all counters at once where each wait falls on one. Takes registers: not for all kernels.
  ARK_DEVICE void wait_at_once(const Task& task, int tile) {
    if (task.slot->single_waits < 0) return wait_for(task, tile, 1);
    wait_for_counters(worker, task);
    end_wait(task);
  }
  ARK_DEVICE int lane() const { return thread_index() & 31; }

  /// The next page's slot is free (one lane's view of acquire()).
  ARK_DEVICE bool wait_free() const {
    // `empty` is a parity: being two phases ahead would look like free. Where the other loader filled the slot last, it
    // must have got there first.
    bool free = true;
    if (kDependentPages && page >= kPages && !(mine >> slot & 1)) {
      const u32* other = &worker.shared.progress[me ^ 1];
      u32 seen = 0;
      const u32 behind = page - kPages;
      free = worker.waiter.spin(
          [&] {
            seen = shared_load_acquire(other);
            return static_cast<i32>(seen - behind) > 0;
          },
          [&] { return seen; }, WaitName{op, -1, abi::kWaitLoader}, behind, kBarrierPatience);
    }
    return worker.waiter.wait_barrier(&worker.shared.empty[slot], parity, WaitName{op, -1, abi::kWaitPageEmpty}) &&
           free;
  }

 private:
  ARK_DEVICE void end_wait(const Task& task) {
    trace_wait(worker, task);
    fence_proxy_async_global();
    ok = !__any_sync(~0u, worker.waiter.failed()) && ok;
  }
  /// Relaxed: the other loader only learns which phases of `empty` this one has seen.
  ARK_DEVICE void publish() {
    if ((thread_index() & 31) == 0) *static_cast<volatile u32*>(&worker.shared.progress[me]) = page;
    __syncwarp();
  }
};

/// What a consumer carries from item to item and hands to a function that it calls, and back.
struct ConsumerState {
  u32 page = 0;                    // first page of the current item, advanced by the family
  i32 arrived = 0;                 // tiles of the current item already reported
  i32 op = -1;                     // of the current item, for error records
  i32 staged = -1;                 // op whose activation lies at the beginning of the scratch memory (matmul_rows)
  u64 wait_end = 0, load_end = 0;  // trace only
};

/// The named barriers of a worker; 0 is __syncthreads.
enum NamedBarrier : int {
  kConsumerBarrier = 1,  // all consumers
  kGroupBarrier = 2,     // and 3: those of a warpgroup
  kTurnBarrier = 4,      // and 5: whose turn it is (attention/common.cuh)
  kJoinBarrier = 6,      // to 9: a warp of each warpgroup (matmul/epilogue_join.cuh)
  kPairBarrier = 10,     // one pair of warps that are neighbours (attention/decode.cuh)
};

/// A consumer warp's view: 8 warps, 2 warpgroups of 4. All consumers keep `page` equal by advancing over every page of
/// an item.
struct Consumer : ConsumerState {
  Worker& worker;

  ARK_DEVICE explicit Consumer(Worker& w, const ConsumerState& state = {}) : ConsumerState(state), worker(w) {}

  ARK_DEVICE int thread() const { return thread_index() - 128; }  // 0..255
  ARK_DEVICE int warp() const { return (thread_index() >> 5) - 4; }
  ARK_DEVICE int group() const { return (thread_index() >> 7) - 1; }  // warpgroup 0 or 1
  ARK_DEVICE int lane() const { return thread_index() & 31; }
  ARK_DEVICE unsigned char* scratch() const { return worker.shared.scratch; }

  /// All 256 consumers, and the 128 of this thread's warpgroup. release/acquire.cta.
  ARK_DEVICE void sync() const { named_barrier_sync(kConsumerBarrier, kConsumerThreads); }
  ARK_DEVICE void sync_group() const { named_barrier_sync(kGroupBarrier + group(), 128); }
  /// This warp and one other. One pair at a time: between two of them lies a barrier of all consumers.
  ARK_DEVICE void sync_pair() const { named_barrier_sync(kPairBarrier, 64); }

  /// Page number p of the sequence (page + i): its data, once it has landed.
  ARK_DEVICE unsigned char* wait_page(u32 p) const {
    const u32 slot = p % kPages;
    worker.waiter.wait_barrier(&worker.shared.full[slot], p / kPages & 1, WaitName{op, -1, abi::kWaitPageFull});
    return worker.shared.ring[slot];
  }
  /// This warp has read page p. `weight` arrivals: 1 when all 8 warps release it, 2 when only one warpgroup uses it.
  ARK_DEVICE void release_page(u32 p, u32 weight = 1) const {
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(&worker.shared.empty[p % kPages], weight);
  }
  ARK_DEVICE void advance(u32 pages) { page += pages; }

  /// All consumers: tiles [first, first + count) may read everything they need (one warp polls, then a barrier).
  ARK_DEVICE void wait_for(const Task& task, int first, int count) {
    if (task.record->num_waits != 0) {
      if (warp() == kPollWarp) {
        wait_for_tiles(worker, task, first, count);
        trace_wait(worker, task);
      }
      sync();
    }
  }
  /// All consumers: the whole item may read everything it needs.
  ARK_DEVICE void wait_for_item(const Task& task) {
    if (task.record->num_waits != 0) {
      if (warp() == kPollWarp) {
        wait_for_item_alone(task);
        trace_wait(worker, task);
      }
      sync();
    }
  }
  /// The same by one warp; the others learn of it at the next barrier.
  ARK_DEVICE void wait_for_item_alone(const Task& task) const {
    if (task.slot->single_waits >= 0)
      wait_for_counters(worker, task);
    else
      wait_for_tiles_called(&worker.shared, &worker.launch, task);
  }
  /// One warp of several reports `count` tiles that it has finished alone, without waiting for the others; each warp of
  /// the item calls this once and the counts add up to the item's tiles. Does nothing (the loop reports then) where
  /// arrivals are not simple.
  ARK_DEVICE void arrive_warp(const Task& task, int count) {
    const int n = task.slot->single_arrivals;
    if (n < 0) return;
    __syncwarp();
    if (lane() < n && count > 0 && !worker.waiter.failed())
      worker.count(task.slot->arrive_counter[lane()], count, task.record->arrive_rank_stride[lane()]);
    arrived = task.count;
  }
  /// Trace only: the item is at step i (0: taken, 1: may read, 12: done by its family, 13: by all warps, 14: reported;
  /// the others are the family's).
  ARK_DEVICE void stamp(int i) const {
    if constexpr (kTrace)
      if (thread() == 0) worker.shared.stamp[i] = clock_cycles();
  }
  /// Trace only: the pages of the item have all been seen.
  ARK_DEVICE void mark_loaded() {
    if constexpr (kTrace) load_end = global_time_ns();
  }
  /// All consumers: reports the next `count` tiles of the item before its end (barrier, then release by one warp).
  /// Tiles that the family does not report are reported by the reporter (loop.cuh) after consume().
  ARK_DEVICE void arrive(const Task& task, int count) {
    sync();
    if (warp() == 0) arrive_for_tiles(worker, task, task.first + arrived, count);
    arrived += count;
  }
};

}  // namespace ark::device
