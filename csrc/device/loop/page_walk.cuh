// Walks over pages for inner loops that must keep pace with the tensor cores (three pages in 0.6 us): one lane issues
// the copies of a whole tile, and loader and consumers keep every address in registers. With
// Loader::acquire()/advance(), a warp's votes, address arithmetic and a release per page, a page took 0.46 us.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

/// One lane of a loader, between two points at which the warp is together: construct, walk, finish(); then all lanes
/// call PageWalk::rejoin(loader, the lane that walked).
struct PageWalk {
  Loader& loader;
  u32 ring, full, empty;  // addresses
  u32 page;
  u32 slot, parity;
  u32 theirs;  // bit s: the last page in slot s was not filled by this loader

  ARK_DEVICE explicit PageWalk(Loader& l)
      : loader(l),
        ring(opaque(shared_address(l.worker.shared.ring))),
        full(opaque(shared_address(l.worker.shared.full))),
        empty(opaque(shared_address(l.worker.shared.empty))),
        page(l.page),
        slot(l.slot),
        parity(l.parity),
        theirs(~l.mine & ((1u << (l.page < kPages ? l.page : kPages)) - 1)) {}

  /// The next page's address, once it is free; the caller then arrives on barrier() with the bytes to come, and calls
  /// advance().
  ARK_DEVICE u32 acquire() {
    if ((theirs >> slot & 1) != 0 || !mbarrier_try_wait(empty + slot * 8, parity)) wait();
    theirs &= ~(1u << slot);
    return ring + slot * kPageBytes;
  }
  ARK_DEVICE u32 barrier() const { return full + slot * 8; }
  /// Loader::throttle, between acquire() and the copies.
  ARK_DEVICE void throttle() const { throttle(0, kPagesInFlight); }
  /// Before the copies into the page that lies `i` behind the next one: until the own page `back` pages before that, of
  /// an earlier step (i < back <= kPages), has landed.
  ARK_DEVICE void throttle(u32 i, u32 back) const {
    const u32 at = slot + i + kPages - back;  // of this round or of one of its neighbours
    const u32 slot_then = at < kPages ? at : at < 2 * kPages ? at - kPages : at - 2 * kPages;
    const u32 phase = at < kPages || at >= 2 * kPages ? parity : parity ^ 1;
    if (page + i < back || (theirs >> slot_then & 1) != 0) return;
    const u32 landed = full + slot_then * 8;
    if (mbarrier_test_wait(landed, phase) || mbarrier_test_wait(empty + slot_then * 8, phase)) return;
    for (int polls = 0; polls < kThrottlePolls && !mbarrier_try_wait(landed, phase); ++polls) {
    }
  }
  ARK_DEVICE void advance() {
    ++page;
    if (++slot == kPages) {
      slot = 0;
      parity ^= 1;
    }
  }
  ARK_DEVICE u32 next_address() const { return ring + slot * kPageBytes; }
  /// The next `count` pages, fewer than the ring has, are the other loader's.
  ARK_DEVICE void pass(u32 count) {
    const u32 run = ((1u << count) - 1) << slot;
    theirs |= (run | run >> kPages) & ((1u << kPages) - 1);
    page += count;
    slot += count;
    if (slot >= kPages) {
      slot -= kPages;
      parity ^= 1;
    }
  }
  // The same for kCount pages at once, of which this loader fills those with a bit in `own`.
  template <u32 kCount>
  ARK_DEVICE void acquire(u32 own) {
    bool free = (theirs & slots<kCount>(own)) == 0;
#pragma unroll
    for (u32 i = 0; i < kCount; ++i)
      if (own >> i & 1) free = mbarrier_try_wait(empty + slot_at(i) * 8, parity_at(i)) && free;
    if (!free) wait_each(own, kCount);
  }
  ARK_DEVICE u32 address(u32 i) const { return ring + slot_at(i) * kPageBytes; }
  ARK_DEVICE u32 barrier(u32 i) const { return full + slot_at(i) * 8; }
  template <u32 kCount>
  ARK_DEVICE void advance(u32 own) {
    theirs = (theirs | slots<kCount>((1u << kCount) - 1)) & ~slots<kCount>(own);
    page += kCount;
    slot += kCount;
    if (slot >= kPages) {
      slot -= kPages;
      parity ^= 1;
    }
  }
  /// Lets the other loader know, at least once in 12 pages.
  ARK_DEVICE void publish() { shared_store_relaxed(&loader.worker.shared.progress[loader.me], page); }
  ARK_DEVICE void finish() {
    publish();
    save();
  }

  ARK_DEVICE static void rejoin(Loader& loader, u32 lane) {
    __syncwarp();
    loader.page = __shfl_sync(~0u, loader.page, lane);
    loader.slot = __shfl_sync(~0u, loader.slot, lane);
    loader.parity = __shfl_sync(~0u, loader.parity, lane);
    loader.mine = __shfl_sync(~0u, loader.mine, lane);
    loader.ok = __shfl_sync(~0u, static_cast<int>(loader.ok), lane) != 0;
  }

 private:
  ARK_DEVICE void save() {
    loader.page = page;
    loader.slot = static_cast<int>(slot);
    loader.parity = parity;
    loader.mine = ~theirs & ((1u << kPages) - 1);
  }
  ARK_DEVICE void wait() {
    publish();
    save();
    loader.ok = loader.wait_free() && loader.ok;
  }
  ARK_DEVICE void wait_each(u32 own, u32 count) {
    publish();
    save();
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) {
      if (own >> i & 1) loader.ok = loader.wait_free() && loader.ok;
      ++loader.page;
      if (++loader.slot == kPages) {
        loader.slot = 0;
        loader.parity ^= 1;
      }
    }
  }
  ARK_DEVICE u32 slot_at(u32 i) const { return slot + i < kPages ? slot + i : slot + i - kPages; }
  ARK_DEVICE u32 parity_at(u32 i) const { return slot + i < kPages ? parity : parity ^ 1; }
  /// Bits of the next pages' slots from bits of the pages.
  template <u32 kCount>
  ARK_DEVICE u32 slots(u32 bits) const {
    const u32 run = bits << slot;
    return (run | run >> kPages) & ((1u << kPages) - 1);
  }
};

/// A consumer warp's view of the ring.
struct PageReader {
  const Consumer& consumer;
  u32 ring, full, empty;  // addresses
  u32 slot, parity;       // of the next page

  ARK_DEVICE explicit PageReader(const Consumer& c)
      : consumer(c),
        ring(opaque(shared_address(c.worker.shared.ring))),
        full(opaque(shared_address(c.worker.shared.full))),
        empty(opaque(shared_address(c.worker.shared.empty))),
        slot(c.page % kPages),
        parity(c.page / kPages & 1) {}

  ARK_DEVICE u32 slot_at(u32 i) const { return slot + i < kPages ? slot + i : slot + i - kPages; }
  ARK_DEVICE u32 address(u32 slot_number) const { return ring + slot_number * kPageBytes; }
  /// The next kCount pages have landed.
  template <int kCount>
  ARK_DEVICE void wait() const {
    bool there = true;
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) there = mbarrier_try_wait(full + slot_at(i) * 8, parity_at(i)) && there;
    if (there) return;
#pragma unroll 1
    for (u32 i = 0; i < kCount; ++i)
      consumer.worker.waiter.wait_barrier(&consumer.worker.shared.full[slot_at(i)], parity_at(i),
                                          WaitName{consumer.op, -1, abi::kWaitPageFull});
  }
  /// The next `count` pages, at most 32, have landed: a lane looks at one of them; the warp is together afterwards.
  ARK_DEVICE void wait(int count) const {
    const int lane = consumer.lane();
    bool there = true;
    if (lane < count) there = mbarrier_try_wait(full + slot_at(lane) * 8, parity_at(lane));
    if (!__all_sync(~0u, there)) wait_each(count);
    __syncwarp();  // a vote orders no memory: what one lane has seen come is there for all
  }
  /// This warp has read the next `count` pages: a lane reports one of them.
  ARK_DEVICE void release_next(int count) const {
    __syncwarp();
    if (consumer.lane() < count) mbarrier_arrive(empty + slot_at(consumer.lane()) * 8);
  }
  /// This warp has read kCount pages from `first` on.
  template <int kCount>
  ARK_DEVICE void release(u32 first) const {
    __syncwarp();
    if (consumer.lane() == 0) {
#pragma unroll
      for (u32 i = 0; i < kCount; ++i)
        mbarrier_arrive(empty + (first + i < kPages ? first + i : first + i - kPages) * 8);
    }
  }
  ARK_DEVICE void advance(u32 count) {
    slot += count;
    if (slot >= kPages) {
      slot -= kPages;
      parity ^= 1;
    }
  }

 private:
  ARK_DEVICE void wait_each(int count) const {
#pragma unroll 1
    for (int i = 0; i < count; ++i)
      consumer.worker.waiter.wait_barrier(&consumer.worker.shared.full[slot_at(i)], parity_at(i),
                                          WaitName{consumer.op, -1, abi::kWaitPageFull});
  }
  ARK_DEVICE u32 parity_at(u32 i) const { return slot + i < kPages ? parity : parity ^ 1; }
};

}  // namespace ark::device
