// The fetch warp: the list of items as the other roles see it.
#pragma once
#include "device/loop/background.cuh"
#include "device/loop/border.cuh"
#include "device/loop/cache_position.cuh"
#include "device/loop/item_arrivals.cuh"
#include "device/loop/record.cuh"

namespace ark::device {

/// Warp 2: copies records into shared memory ahead of the other roles and puts addresses in place of slots and offsets.
/// While there is no room for the next one it sends in the background.
struct Fetcher {
  static constexpr int kPieces = abi::kMaxRecordBytes / 512;   // of 16 bytes per lane
  static constexpr int kSentByFetch = 2;                       // vectors of a lane under way: registers are scarce
  static constexpr bool kSends = kBackground && kSenders > 1;  // while there is no room

  const Worker& worker;
  const u64* slots;
  const abi::LoopLaunch& loop;
  u32 pushed = 0, oldest = 0;  // entries in the list, entries known to be free again
  int head = 0;                // next free byte of Shared::records
  bool ok = true;

  ARK_DEVICE Fetcher(const Worker& w, const u64* slot_table, const abi::LoopLaunch& iterations)
      : worker(w), slots(slot_table), loop(iterations) {}

  ARK_DEVICE void run() {
    const int lane = thread_index() & 31;
    const abi::WorkItem* items = worker.launch.items;
    int index = begin();
    abi::WorkItem item = items[index];
    int bytes = record_bytes(item);
    while (item.record != abi::kEnd) {
      if constexpr (kSends) {  // registers are scarce there: what this warp holds is read again
        send_until_room(index);
        item = items[index];
        bytes = record_bytes(item);
      }
      int next_index = index + 1;
      abi::WorkItem next = items[next_index];
      if (kLoop && next.record == abi::kEnd) next = items[next_index = begin()];
      const int offset = reserve(bytes);
      if (!ok) return;
      copy(item, offset, bytes, lane);
      if constexpr (kLoop)
        if (index == begin() && !goes_on(worker, loop, ok)) break;
      const int next_bytes = record_bytes(next);
      publish(item, offset, bytes, index, next_index, lane);
      if (kLoop && next_index <= index) {
        __syncwarp();
        if (lane == 0) ++worker.shared.loop.iteration;
        __syncwarp();
      }
      item = next;
      bytes = next_bytes;
      index = next_index;
    }
    if constexpr (kSends) send_until_room(index);
    if (ok) reserve(0);
    if (ok) publish(abi::WorkItem{abi::kEnd, 0, 0, 0}, 0, 0, index, index + 1, lane);
    if constexpr (kSends) {
      if (!ok) return;
      if (pushed > 1) send_until_free(pushed - 2);  // the last item's entry: its waits come before those of finish()
      BackgroundSender<1, kSentByFetch>(worker, slots).finish();
    }
  }

 private:
  ARK_DEVICE int begin() const { return worker.launch.list_begin[blockIdx.x]; }
  /// Finished launches of this run, and iterations of this one.
  ARK_DEVICE u32 epoch() const {
    if constexpr (kLoop) return worker.epoch + worker.shared.loop.iteration;
    return worker.epoch;
  }
  ARK_DEVICE const unsigned char* record(const abi::WorkItem& item) const {
    return worker.launch.records + static_cast<i64>(item.record) * 64;
  }
  ARK_DEVICE int record_bytes(const abi::WorkItem& item) const {
    return item.record == abi::kEnd ? 0 : reinterpret_cast<const abi::OpRecord*>(record(item))->record_bytes;
  }
  ARK_DEVICE void copy(const abi::WorkItem& item, int offset, int bytes, int lane) {
    const uint4* from = reinterpret_cast<const uint4*>(record(item));
    uint4* to = reinterpret_cast<uint4*>(worker.shared.records + offset);
    uint4 piece[kPieces] = {};
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if ((i * 32 + lane) * 16 < bytes) piece[i] = from[i * 32 + lane];
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if ((i * 32 + lane) * 16 < bytes) to[i * 32 + lane] = piece[i];
    __syncwarp();
  }
  ARK_DEVICE int place(int bytes) const { return head + bytes > kRecordRingBytes ? 0 : head; }
  /// By the entries that are known to be free: one is, and so are `bytes` of record memory at their place.
  ARK_DEVICE bool has_room(int bytes) const {
    const u32 k = oldest + (thread_index() & 31);
    const int offset = place(bytes);
    bool overlap = false;
    if (k - oldest < pushed - oldest) {
      const TaskSlot& t = worker.shared.task[k % kTaskSlots];
      overlap = t.record_offset < offset + bytes && offset < t.record_offset + t.record_bytes;
    }
    return !__any_sync(~0u, overlap) && pushed - oldest < kTaskSlots;
  }
  /// A list entry and `bytes` of record memory that no role reads any more; the offset.
  ARK_DEVICE int reserve(int bytes) {
    const int offset = place(bytes);
    while (!has_room(bytes)) {
      ok = worker.waiter.wait_barrier(&worker.shared.task_empty[oldest % kTaskSlots], oldest / kTaskSlots & 1,
                                      WaitName{-1, -1, abi::kWaitRecord});
      if (!(ok = __all_sync(~0u, ok))) return 0;
      ++oldest;
    }
    head = offset + bytes;
    return offset;
  }
  ARK_DEVICE bool is_free(u32 k) const {
    return mbarrier_test_wait(shared_address(&worker.shared.task_empty[k % kTaskSlots]), k / kTaskSlots & 1);
  }
  ARK_DEVICE void send_until_free(u32 k) const {
    BackgroundSender<1, kSentByFetch>(worker, slots).send_until([&] { return is_free(k); });
  }
  /// Until reserve() need not wait for the record of item `index`, or all is sent. It must not wait before: the tiles
  /// that it waits for may wait for what this warp has begun to send.
  ARK_DEVICE void send_until_room(int index) {
    while (!has_room(record_bytes(worker.launch.items[index]))) {
      send_until_free(oldest);
      if (!__any_sync(~0u, is_free(oldest))) return;
      ++oldest;
    }
  }
  /// One tile, or two on the same counter as the first.
  static ARK_DEVICE bool alike_tiles(const abi::Arrive& map, const abi::OpRecord& r, const abi::WorkItem& item,
                                     const Counters& first) {
    if (item.count != 2) return item.count == 1;
    const Counters second(map, r, item.first + 1);
    return second.single() && second.low == first.low;
  }
  /// Works out TaskSlot's waits and arrivals; lanes 0.. the waits, lanes 16.. the arrivals.
  ARK_DEVICE void resolve(const abi::WorkItem& item, const abi::OpRecord& r, TaskSlot& t) {
    const int lane = thread_index() & 31;
    bool simple_wait = true, simple_arrival = true, known_arrivals = true, alike = true;
    const bool waits = lane < r.num_waits;
    if (waits || (lane >= 16 && lane - 16 < r.num_arrivals)) {
      const abi::Arrive& map = waits ? map_of(r.wait[lane]) : r.arrive[lane - 16];
      const Counters c(map, r, item.first);
      const bool fixed = Counters::fixed(map), single = c.single() && (fixed || alike_tiles(map, r, item, c));
      if (waits) {
        const abi::Wait& w = r.wait[lane];
        const bool of_source =
            kRanks > 1 && w.role == static_cast<i32>(abi::WaitRole::kSource);  // differs over batches
        alike = fixed && !of_source;
        simple_wait = single && !of_source;
        t.wait_counter[lane] = w.counter + c.low;
        t.wait_target[lane] = (epoch() + 1) * (c.low_is_last(map) ? w.last_target : w.target);
      } else {
        simple_arrival = single;
        known_arrivals = item.count < 1 << 16;
        ItemArrivals at{c.low, {item.count, 0}};
        if (kRanks == 1 && !single) {
          at = ItemArrivals::of(map, r, abi::coordinates_of(r, item.first), item.count);
          known_arrivals = known_arrivals && at.known;
        }
        t.arrive_counter[lane - 16] = map.counter + at.low;
        for (int i = 0; i < 2; ++i) t.arrive_tiles[lane - 16][i] = static_cast<unsigned short>(at.tiles[i]);
      }
    }
    alike = __all_sync(~0u, alike);
    simple_wait = __all_sync(~0u, simple_wait);
    simple_arrival = __all_sync(~0u, simple_arrival);
    known_arrivals = __all_sync(~0u, known_arrivals);
    if (lane == 0) {
      t.waits_alike = static_cast<signed char>(alike);
      t.single_waits = static_cast<signed char>(simple_wait ? r.num_waits : -1);
      t.single_arrivals = static_cast<signed char>(simple_arrival ? r.num_arrivals : -1);
      t.known_arrivals = static_cast<signed char>(known_arrivals ? r.num_arrivals : -1);
    }
  }
  /// The keys of decode attention. Later in the launch another op may move the position on.
  static ARK_DEVICE void cut_keys(const abi::OpRecord& r, TaskSlot& t) {
    if (r.kind != abi::TaskKind::kAttentionDecode) return;
    const abi::AttentionParams& p = r.params.attention;
    int position = p.causal ? max(0, min(p.keys, p.queries + p.causal_offset)) : p.keys, parts = max(1, p.parts);
    if (p.fresh_operand >= 0) {
      position = cache_position(reinterpret_cast<const abi::Operand*>(&r + 1)[p.fresh_operand], p.keys);
      parts = cache_parts(position, p.queries, p.positions_per_part, p.parts);
    }
    t.keys.position = position;
    t.keys.parts_used = parts;
    t.keys.part_length = parts > 1 ? (position + parts - 1) / parts : position;
  }
  /// Batches of lists count from the own rank, whose rows have a map of their own.
  ARK_DEVICE void turn(abi::WorkItem& item, abi::OpRecord& r, int lane) const {
    if (!abi::has_own_rows(r)) return;
    abi::MatmulTileParams& p = r.params.matmul;
    const bool own = item.first < abi::tiles_of_outer(r);
    item.first = abi::turned_tile(r, item.first, worker.launch.rank);
    __syncwarp();
    if (!own || lane != 0) return;
    const i32 map_a = p.map_a;
    p.map_a = p.map_own;
    p.map_own = map_a;
    p.own_rows = abi::kTheseOwnRows;
  }
  ARK_DEVICE void publish(abi::WorkItem item, int offset, int bytes, int index, int next_index, int lane) {
    Shared& s = worker.shared;
    const int slot = pushed % kTaskSlots;
    if (item.record != abi::kEnd) {
      abi::OpRecord* r = reinterpret_cast<abi::OpRecord*>(s.records + offset);
      abi::Operand* operands = reinterpret_cast<abi::Operand*>(r + 1);
      for (int i = lane; i < r->num_operands; i += 32)
        if (operands[i].slot == abi::kFlagSlot)
          operands[i].offset = reinterpret_cast<i64>(worker.launch.counters + operands[i].offset);
        else if (operands[i].slot != abi::kNoSlot)
          operands[i].offset =
              slot_address(worker, slots, operands[i].slot) + operands[i].offset * element_bytes(operands[i].dtype);
    }
    if (item.record != abi::kEnd) {
      __syncwarp();
      abi::OpRecord& r = *reinterpret_cast<abi::OpRecord*>(s.records + offset);
      if constexpr (kRanks > 1) turn(item, r, lane);
      if (lane == 0) s.task[slot].at = abi::coordinates_of(r, item.first);
      resolve(item, r, s.task[slot]);
      cut_keys(r, s.task[slot]);
    }
    if (lane == 0) {
      TaskSlot& t = s.task[slot];
      t.record = item.record;
      t.first = item.first;
      t.count = item.count;
      if constexpr (kLoop) {
        t.epoch = epoch();
        t.border = static_cast<short>((index == begin() ? kBegins : 0) | (next_index <= index ? kEnds : 0));
      }
      t.record_offset = static_cast<short>(offset);
      t.record_bytes = static_cast<short>(bytes);
      t.item_index = index;
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&s.task_full[slot]);
    ++pushed;
  }
};

}  // namespace ark::device
