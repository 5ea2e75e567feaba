// Sends that go on beside a worker's tiles. An op that does nothing but copy to other ranks (OpRecord::background) takes
// no turn of the consumers: its items stand in a list of their own, and the reporter copies a piece of one whenever it has
// nothing to report. No worker stops to compute. (A piece of 2 KB takes some 2.6 us, notes/collectives.md.)
//
// An item is one tile. Operands of such a record are runs of 16-byte vectors: a source, and behind it the boxes that it
// is copied to.
#pragma once
#include "device/loop/record.cuh"

namespace ark::device {

// 1: the kernel of plans with ops in the background.
#ifndef ARK_BACKGROUND
#define ARK_BACKGROUND 0
#endif
inline constexpr bool kBackground = ARK_BACKGROUND != 0;
static_assert(!kBackground || !kLoop);

/// All lanes of the reporter call everything together. Records are read where they lie, in global memory, and the state
/// is in shared memory: the warp may have no more than 56 registers.
class BackgroundSender {
 public:
  ARK_DEVICE BackgroundSender(const Worker& worker, const u64* slots) : worker_(worker), slots_(slots) {
    if (kBackground && lane() == 0)
      worker.shared.sent = {worker.launch.list_begin[worker.launch.num_workers + blockIdx.x], 0, 0};
    __syncwarp();
  }

  ARK_DEVICE bool done() const { return item().record == abi::kEnd; }

  /// Piece by piece until `enough()` or all is sent. (What it waits for has its deadline in the waits of others.)
  template <class Enough>
  ARK_DEVICE void send_until(Enough enough) {
    const auto leave = [&] { return __any_sync(~0u, worker_.waiter.failed() || enough()); };
    while (!done()) {
      if (state().end == 0) {
        do
          if (leave()) return;
        while (!ready());
        begin_item();
      }
      const Runs runs = find_runs();
      while (state().at < state().end) {
        copy_piece(runs);
        if (leave()) return;
      }
      end_item();
    }
  }
  /// All that is left.
  ARK_DEVICE void finish() {
    while (!done() && !__any_sync(~0u, worker_.waiter.failed())) {
      if (state().end == 0) {
        wait_for_tiles(worker_, Task{&record(), nullptr, item().first, 1, state().index}, item().first, 1, true);
        if (__any_sync(~0u, worker_.waiter.failed())) return;
        begin_item();
      }
      const Runs runs = find_runs();
      while (state().at < state().end) copy_piece(runs);
      end_item();
    }
  }

 private:
  /// Where an item's operands begin: lane i has the address of operand i. Bit 0: it is a box, of address 0 where
  /// nothing goes there; 0: there is no such operand. Looked up once an item: a look at the record for every piece cost
  /// much (notes/collectives.md).
  using Runs = u64;
  static constexpr int kPieces = 4;  // vectors of a lane under way

  ARK_DEVICE SentInBackground& state() const { return worker_.shared.sent; }
  ARK_DEVICE const abi::WorkItem& item() const { return worker_.shared.launch.items[state().index]; }
  ARK_DEVICE const abi::OpRecord& record() const {
    return *reinterpret_cast<const abi::OpRecord*>(worker_.shared.launch.records +
                                                   static_cast<i64>(item().record) * 64);
  }
  static ARK_DEVICE int lane() { return thread_index() & 31; }

  ARK_DEVICE bool ready() const;
  ARK_DEVICE void begin_item() const;
  ARK_DEVICE Runs find_runs() const;
  ARK_DEVICE void copy_piece(Runs runs) const;
  ARK_DEVICE void end_item() const;

  const Worker& worker_;
  const u64* slots_;
};

/// What the item waits for is there.
ARK_DEVICE bool BackgroundSender::ready() const {
  const abi::OpRecord& r = record();
  const u32 epoch = worker_.epoch + 1;
  bool there = true;
#pragma unroll 1
  for (int w = 0; w < r.num_waits; ++w) {
    const abi::Wait& wait = r.wait[w];
    const Counters c(wait, r, item().first);
    const int blocks = c.high - c.low + 1, ranks = wait.rank_stride != 0 ? kRanks : 1;
#pragma unroll 1
    for (int i = lane(); there && i < blocks * ranks; i += 32) {
      const int block = c.low + i % blocks;
      const u32* counter = Worker(worker_.shared, worker_.shared.launch)
                               .counter(wait.counter + static_cast<u32>(block + i / blocks * wait.rank_stride));
      const u32 seen = wait.rank_stride != 0 ? load_acquire_system(counter) : load_acquire(counter);
      there = reached(seen, epoch * (block == (wait.limit - 1) / wait.div ? wait.last_target : wait.target));
    }
  }
  return __all_sync(~0u, there);
}

ARK_DEVICE void BackgroundSender::begin_item() const {
  if (lane() == 0) {
    const abi::OpRecord& r = record();
    const int bytes = element_bytes(reinterpret_cast<const abi::Operand*>(&r + 1)->dtype);
    const i64 tile = r.params.program.tile, begin = item().first * tile;
    state().at = static_cast<i32>(begin * bytes / 16);
    state().end = static_cast<i32>(min(begin + tile, r.size[0]) * bytes / 16);
    if constexpr (kTrace)
      if (worker_.shared.launch.trace != nullptr) {
        abi::TraceRecord& t = worker_.shared.launch.trace[state().index];
        t = {r.op, item().first, 1, worker_.shared.launch.num_workers + static_cast<i32>(blockIdx.x)};
        t.begin = t.wait_end = t.load_end = global_time_ns();
      }
  }
  __syncwarp();
}

ARK_DEVICE BackgroundSender::Runs BackgroundSender::find_runs() const {
  const abi::OpRecord& r = record();
  const abi::Operand* const operands = reinterpret_cast<const abi::Operand*>(&r + 1);
  const bool there = lane() < r.num_operands, box = there && (operands[lane()].slot & abi::kBoxSlot) != 0;
  // Boxes stand behind their source in the order of ranks where one is left out (verify/background.cpp).
  const u32 sources = __ballot_sync(~0u, there && !box) & ((1u << lane()) - 1);
  const bool own = box && lane() - (32 - __clz(static_cast<i32>(sources))) == worker_.shared.launch.rank;
  if (own && r.background == abi::kToOthers) return 1;
  if (!there) return 0;
  const Worker worker(worker_.shared, worker_.shared.launch);
  const i64 begin = slot_address(worker, slots_, operands[lane()].slot) +
                    operands[lane()].offset * element_bytes(operands[lane()].dtype);
  return static_cast<u64>(begin) | (box ? 1 : 0);
}

ARK_DEVICE void BackgroundSender::copy_piece(Runs runs) const {
  const int first = state().at + lane(), left = state().end - first;
  Raw<16> piece[kPieces];
#pragma unroll 1
  for (int x = 0; x < 32; ++x) {
    const u64 begin = __shfl_sync(~0u, runs, x);
    if (begin == 0) break;
    if (begin == 1) continue;
    unsigned char* const run = reinterpret_cast<unsigned char*>((begin & ~1ull) + static_cast<u64>(first) * 16);
    // Of a source, what comes two pieces later: lines of 128 bytes, by every eighth lane.
    constexpr int kAhead = 2 * 32 * kPieces;
    if ((begin & 1) == 0 && lane() % 8 == 0)
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        if (i * 32 + kAhead < left) prefetch_l2(run + i * 512 + kAhead * 16);
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (i * 32 < left) {
        if ((begin & 1) != 0)
          store_global<16>(run + i * 512, piece[i]);
        else
          piece[i] = load_global<16>(run + i * 512);
      }
  }
  __syncwarp();
  if (lane() == 0) state().at += 32 * kPieces;
  __syncwarp();
}

/// What all lanes have stored is there before the tile counts, on every rank: each lane tells one of them.
ARK_DEVICE void BackgroundSender::end_item() const {
  const abi::OpRecord& r = record();
  const abi::LaunchHeader& launch = worker_.shared.launch;
  fence_system();
#pragma unroll 1
  for (int a = 0; a < r.num_arrivals; ++a) {
    const Counters c(r.arrive[a], r, item().first);
    const u32 first = r.arrive[a].counter + static_cast<u32>(launch.rank * r.arrive_rank_stride[a] + c.low);
#pragma unroll 1
    for (int i = lane(); i < (c.high - c.low + 1) * kRanks; i += 32) {
      u32* const counters = reinterpret_cast<u32*>(launch.peers[i % kRanks] + 1);
      red_relaxed_add_system(counters + static_cast<u64>(first + i / kRanks) * abi::kCounterStride, 1);
    }
  }
  __syncwarp();
  if (lane() == 0) {
    if constexpr (kTrace)
      if (worker_.shared.launch.trace != nullptr) worker_.shared.launch.trace[state().index].end = global_time_ns();
    ++state().index;
    state().end = 0;
  }
  __syncwarp();
}

}  // namespace ark::device
