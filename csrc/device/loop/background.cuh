// Sends that go on beside a worker's tiles. An op that does nothing but copy to other ranks (OpRecord::background) takes
// no turn of the consumers: its items stand in a list of their own, and the reporter copies a piece of one whenever it has
// nothing to report. All workers together fill the link that way (a piece takes a microsecond or two, mostly the way to
// memory), and none of them stops to compute.
//
// An item is one tile. Operands of such a record are runs of 16-byte vectors: a source, and behind it the boxes that it is copied to.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

// 1: the kernel of plans with ops in the background.
#ifndef ARK_BACKGROUND
#define ARK_BACKGROUND 0
#endif
inline constexpr bool kBackground = ARK_BACKGROUND != 0;
static_assert(!kBackground || !kLoop);

/// First and last counter that rows [row, row + extent) of a tile fall on, or an empty range.
struct Counters {
  int low = 0, high = -1;
  template <class Map>
  ARK_DEVICE Counters(const Map& map, const abi::OpRecord& r, int tile) {
    int row = map.base;
    if (!fixed(map)) {
      const int c2 = tile % r.grid[2], rest = tile / r.grid[2];
      row += rest / r.grid[1] * map.coef[0] + rest % r.grid[1] * map.coef[1] + c2 * map.coef[2];
    }
    const int begin = max(row, 0), end = min(row + map.extent, map.limit);
    if (begin >= end) return;
    low = begin / map.div;
    high = (end - 1) / map.div;
  }
  ARK_DEVICE bool single() const { return low == high; }
  /// The same rows for every tile.
  template <class Map>
  static ARK_DEVICE bool fixed(const Map& map) {
    return (map.coef[0] | map.coef[1] | map.coef[2]) == 0;
  }
};

/// The address in a slot of the launch; boxes lie twice in memory, for even and for odd launches.
ARK_DEVICE i64 slot_address(const Worker& worker, const u64* slots, u32 slot) {
  if constexpr (kRanks > 1)
    if ((slot & abi::kBoxSlot) != 0)
      return static_cast<i64>(slots[slot & ~abi::kBoxSlot]) + (worker.epoch & 1) * worker.launch.box_bytes;
  return static_cast<i64>(slots[slot]);
}

/// All lanes of the reporter call everything together. Records are read where they lie, in global memory, and the state
/// is in shared memory: the warp has 56 registers.
class BackgroundSender {
 public:
  ARK_DEVICE BackgroundSender(const Worker& worker, const u64* slots) : worker_(worker), slots_(slots) {
    if (kBackground && lane() == 0)
      worker.shared.sent = {worker.launch.list_begin[worker.launch.num_workers + blockIdx.x], 0, 0};
    __syncwarp();
  }

  ARK_DEVICE bool done() const { return item().record == abi::kEnd; }

  /// Piece by piece until `ready()` or all is sent. (What it waits for has its deadline in the waits of others.)
  template <class Ready>
  ARK_DEVICE void send_until(Ready ready_now) {
    if (done()) return;
    Runs runs;
    bool known = false;
    while (!__any_sync(~0u, worker_.waiter.failed()) && !__all_sync(~0u, ready_now())) {
      if (state().end == 0) {
        if (!ready()) continue;
        begin_item();
      }
      if (!known) runs = find_runs();
      known = true;
      copy_piece(runs);
      if (state().at < state().end) continue;
      end_item();
      if (done()) return;
      known = false;
    }
  }
  /// All that is left.
  ARK_DEVICE void finish() {
    while (!done() && !__any_sync(~0u, worker_.waiter.failed())) {
      if (state().end == 0) {
        wait_for_tiles(worker_, Task{&record(), nullptr, item().first, 1, state().index}, item().first, 1, true);
        begin_item();
      }
      const Runs runs = find_runs();
      while (state().at < state().end) copy_piece(runs);
      end_item();
    }
  }

 private:
  /// Where an item's operands begin: lane i has the address of operand i. (The waits of others drop what the L1 holds, so
  /// that each look at a record goes to the L2: with one for every piece, a piece took 3 us.)
  struct Runs {
    unsigned char* address;
    u32 boxes;  // bit i: operand i is one
    int count;
  };
  static constexpr int kPieces = 3;  // vectors of a lane under way; 4 take a register too many

  ARK_DEVICE SentInBackground& state() const { return worker_.shared.sent; }
  ARK_DEVICE const abi::WorkItem& item() const { return worker_.launch.items[state().index]; }
  ARK_DEVICE const abi::OpRecord& record() const {
    return *reinterpret_cast<const abi::OpRecord*>(worker_.launch.records + static_cast<i64>(item().record) * 64);
  }
  static ARK_DEVICE int lane() { return thread_index() & 31; }

  ARK_DEVICE bool ready() const;
  ARK_DEVICE void begin_item() const;
  ARK_DEVICE Runs find_runs() const;
  ARK_DEVICE void copy_piece(const Runs& runs) const;
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
      const u32* counter = worker_.counter(wait.counter + static_cast<u32>(block + i / blocks * wait.rank_stride));
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
      if (worker_.launch.trace != nullptr) {
        abi::TraceRecord& t = worker_.launch.trace[state().index];
        t = {r.op, item().first, 1, static_cast<i32>(blockIdx.x)};
        t.begin = t.wait_end = t.load_end = global_time_ns();
      }
  }
  __syncwarp();
}

ARK_DEVICE BackgroundSender::Runs BackgroundSender::find_runs() const {
  const abi::OpRecord& r = record();
  const abi::Operand& operand = reinterpret_cast<const abi::Operand*>(&r + 1)[min(lane(), r.num_operands - 1)];
  const i64 begin = slot_address(worker_, slots_, operand.slot) + operand.offset * element_bytes(operand.dtype);
  return {reinterpret_cast<unsigned char*>(begin), __ballot_sync(~0u, (operand.slot & abi::kBoxSlot) != 0),
          r.num_operands};
}

ARK_DEVICE void BackgroundSender::copy_piece(const Runs& runs) const {
  const int first = state().at + lane(), left = state().end - first;
  Raw<16> piece[kPieces];
#pragma unroll 1
  for (int x = 0; x < runs.count; ++x) {
    const u64 begin = __shfl_sync(~0u, reinterpret_cast<u64>(runs.address), x);
    unsigned char* const run = reinterpret_cast<unsigned char*>(begin) + i64{first} * 16;
    const bool box = (runs.boxes >> x & 1) != 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (i * 32 < left) {
        if (box)
          store_global<16>(run + i * 512, piece[i]);
        else
          piece[i] = load_global<16>(run + i * 512);
      }
  }
  __syncwarp();
  if (lane() == 0) state().at += 32 * kPieces;
  __syncwarp();
}

ARK_DEVICE void BackgroundSender::end_item() const {
  const abi::OpRecord& r = record();
#pragma unroll 1
  for (int a = 0; a < r.num_arrivals; ++a) {
    const Counters c(r.arrive[a], r, item().first);
#pragma unroll 1
    for (int i = c.low + lane(); i <= c.high; i += 32)
      worker_.count(r.arrive[a].counter + static_cast<u32>(i), 1, r.arrive_rank_stride[a]);
  }
  __syncwarp();
  if (lane() == 0) {
    if constexpr (kTrace)
      if (worker_.launch.trace != nullptr) worker_.launch.trace[state().index].end = global_time_ns();
    ++state().index;
    state().end = 0;
  }
  __syncwarp();
}

}  // namespace ark::device
