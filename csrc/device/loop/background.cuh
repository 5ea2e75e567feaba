// Sends that go on beside a worker's tiles. An op that does nothing but copy to other ranks (OpRecord::background)
// takes no turn of the consumers: its items stand in a list of their own, and the reporter and the fetch warp each copy
// a piece of one whenever they have nothing else to do. No worker stops to compute. (A piece of 2 KB takes one warp
// some 2.6 us, notes/collectives.md.)
//
// An item is one tile; the two warps take turns with them. Operands of such a record are runs of 16-byte vectors: a
// source, and behind it the boxes that it is copied to.
//
// Tiles may wait for what either warp has begun to send, so neither waits for tiles of its worker without sending.
#pragma once
#include "device/loop/record.cuh"

namespace ark::device {

// 1: the kernel of plans with ops in the background.
#ifndef ARK_BACKGROUND
#define ARK_BACKGROUND 0
#endif
inline constexpr bool kBackground = ARK_BACKGROUND != 0;
static_assert(!kBackground || (!kLoop && kGroups == 1));
static_assert(!kLoop || kGroups == 1);  // at a border nobody listens to the other groups

/// Before the roles begin, one thread.
ARK_DEVICE void start_sends(Shared& s, const abi::LaunchHeader& launch) {
  const i32 begin = launch.list_begin[launch.num_workers + blockIdx.x];
  for (int i = 0; i < kSenders; ++i) {
    s.sent.index[i] = i == 0 || launch.items[begin].record == abi::kEnd ? begin : begin + i;
    s.sent.left[i] = -1;
  }
}

/// All lanes of sender kMe's warp call everything together. Records are read where they lie, in global memory, and the
/// state is in shared memory: the warp may have no more than 56 registers.
template <int kMe, int kPieces>  // vectors of a lane under way
class BackgroundSender {
 public:
  ARK_DEVICE BackgroundSender(const Worker& worker, const u64* slots) : worker_(worker), slots_(slots) {}

  ARK_DEVICE bool done() const { return item().record == abi::kEnd; }

  /// Piece by piece until `enough()` or all is sent. (What it waits for has its deadline in the waits of others.)
  template <class Enough>
  ARK_DEVICE void send_until(Enough enough) {
    const auto leave = [&] { return __any_sync(~0u, worker_.waiter.failed() || enough()); };
    while (!done()) {
      if (left() < 0) {
        do
          if (leave()) return;
        while (!in_turn() || !ready());
        begin_item();
      }
      const Runs runs = find_runs();
      while (left() > 0) {
        copy_piece(runs);
        if (leave()) return;
      }
      end_item();
    }
  }
  /// All that is left.
  ARK_DEVICE void finish() {
    while (!done() && !__any_sync(~0u, worker_.waiter.failed())) {
      if (left() < 0) {
        while (!in_turn())  // the other sender's waits have deadlines
          if (__any_sync(~0u, worker_.waiter.failed())) return;
        wait_for_tiles(worker_, Task{&record(), nullptr, item().first, 1, index()}, item().first, 1);
        if (__any_sync(~0u, worker_.waiter.failed())) return;
        begin_item();
      }
      const Runs runs = find_runs();
      while (left() > 0) copy_piece(runs);
      end_item();
    }
  }

 private:
  /// Where an item's operands begin: lane i has the address of operand i. Bit 0: it is a box, of address 0 where
  /// nothing goes there; 0: there is no such operand. Looked up once an item: a look at the record for every piece cost
  /// much (notes/collectives.md).
  using Runs = u64;

  ARK_DEVICE i32& index() const { return worker_.shared.sent.index[kMe]; }
  ARK_DEVICE i32& at() const { return worker_.shared.sent.at[kMe]; }
  ARK_DEVICE short& left() const { return worker_.shared.sent.left[kMe]; }
  ARK_DEVICE const abi::WorkItem& item() const { return worker_.shared.launch.items[index()]; }
  /// The other sender has sent all that stands before this item in the list, or has an item of the same op: a worker's
  /// ops send one after the other.
  ARK_DEVICE bool in_turn() const {
    if constexpr (kSenders == 1) return true;
    const i32 other = *static_cast<const volatile i32*>(&worker_.shared.sent.index[kSenders - 1 - kMe]);
    const bool turn = other >= index() || worker_.shared.launch.items[other].record == item().record;
    return __all_sync(~0u, turn);
  }
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
template <int kMe, int kPieces>
ARK_DEVICE bool BackgroundSender<kMe, kPieces>::ready() const {
  const abi::OpRecord& r = record();
  const u32 epoch = worker_.epoch + 1;
  bool there = true;
#pragma unroll 1
  for (int w = 0; w < r.num_waits; ++w) {
    const abi::Wait& wait = r.wait[w];
    const Counters c(map_of(wait), r, item().first);
    const int blocks = c.count(), ranks = wait.rank_stride != 0 ? kRanks : 1;
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

template <int kMe, int kPieces>
ARK_DEVICE void BackgroundSender<kMe, kPieces>::begin_item() const {
  if (lane() == 0) {
    const abi::OpRecord& r = record();
    const int bytes = element_bytes(reinterpret_cast<const abi::Operand*>(&r + 1)->dtype);
    const i64 tile = r.params.program.tile, begin = item().first * tile;
    at() = static_cast<i32>(begin * bytes / 16);
    left() = static_cast<short>((min(begin + tile, r.size[0]) - begin) * bytes / 16);
    if constexpr (kTrace)
      if (worker_.shared.launch.trace != nullptr) {
        abi::TraceRecord& t = worker_.shared.launch.trace[index()];
        t = {r.op, item().first, 1, worker_.shared.launch.num_workers + static_cast<i32>(blockIdx.x)};
        t.begin = t.wait_end = t.load_end = global_time_ns();
      }
  }
  __syncwarp();
}

template <int kMe, int kPieces>
ARK_DEVICE typename BackgroundSender<kMe, kPieces>::Runs BackgroundSender<kMe, kPieces>::find_runs() const {
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

template <int kMe, int kPieces>
ARK_DEVICE void BackgroundSender<kMe, kPieces>::copy_piece(Runs runs) const {
  const int first = at() + lane(), ahead = left() - lane();
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
        if (i * 32 + kAhead < ahead) prefetch_l2(run + i * 512 + kAhead * 16);
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (i * 32 < ahead) {
        if ((begin & 1) != 0)
          store_global<16>(run + i * 512, piece[i]);
        else
          piece[i] = load_global<16>(run + i * 512);
      }
  }
  __syncwarp();
  if (lane() == 0) {
    at() += 32 * kPieces;
    left() = static_cast<short>(max(left() - 32 * kPieces, 0));
  }
  __syncwarp();
}

/// What all lanes have stored is there before the tile counts, on every rank: each lane tells one of them.
template <int kMe, int kPieces>
ARK_DEVICE void BackgroundSender<kMe, kPieces>::end_item() const {
  const abi::OpRecord& r = record();
  const abi::LaunchHeader& launch = worker_.shared.launch;
  fence_system();
#pragma unroll 1
  for (int a = 0; a < r.num_arrivals; ++a) {
    const Counters c(r.arrive[a], r, item().first);
    const u32 first = r.arrive[a].counter + static_cast<u32>(launch.rank * r.arrive_rank_stride[a] + c.low);
#pragma unroll 1
    for (int i = lane(); i < c.count() * kRanks; i += 32) {
      u32* const counters = reinterpret_cast<u32*>(launch.peers[i % kRanks] + 1);
      red_relaxed_add_system(counters + static_cast<u64>(first + i / kRanks) * abi::kCounterStride, 1);
    }
  }
  __syncwarp();
  if (lane() == 0) {
    if constexpr (kTrace)
      if (worker_.shared.launch.trace != nullptr) worker_.shared.launch.trace[index()].end = global_time_ns();
    const i32 next = index() + 1;  // the other's, or the list's end
    index() = launch.items[next].record == abi::kEnd ? next : next + kSenders - 1;
    left() = -1;
  }
  __syncwarp();
}

}  // namespace ark::device
