// Reductions at the rate of the link, through the rings. Per CTA (a worker of the collective): one warp sends the
// slices to their owners, three groups of three reduce what has come for the own slice, one warp sends the results on,
// one takes in the results of the others, one watches the flags of the peers, one raises those at the peers. They meet
// at the rings and at the tiles only.
#pragma once
#include "device/collective/mover.cuh"

namespace ark::device {

inline constexpr int kSendStages = 6, kTakeStages = 4;
// Reducers work in groups, one per tile, on messages in turn: one message is a chain of latencies, several hide it.
inline constexpr int kTiles = 3, kGroupThreads = 96;
inline constexpr int kFirstGroupBarrier = 1;  // named barriers, one per group; 0 is the CTA's

/// Slices of an all-reduce or reduce; parts of a reduce-scatter.
struct Slices {
  const CollectiveParams& p;
  unsigned char* data;
  u64 slice_bytes, size_bytes;  // of the whole
  int workers;

  ARK_DEVICE Slices(const CollectiveParams& params, const unsigned char* data_, int element_bytes)
      : p(params), data(const_cast<unsigned char*>(data_)) {
    const u64 bytes = params.count * element_bytes;
    if (params.kind == CollectiveKind::kReduceScatter) {
      slice_bytes = bytes;
      size_bytes = bytes * params.world;
    } else {
      const u64 messages = (bytes + abi::kMessageBytes - 1) / abi::kMessageBytes;
      slice_bytes = (messages + params.world - 1) / params.world * abi::kMessageBytes;
      size_bytes = bytes;
    }
    workers = abi::ring_workers(slice_bytes, params.ring_workers);
  }
  ARK_DEVICE Segment operator()(int r) const {
    const u64 begin = slice_bytes * r;
    return {data + begin, begin >= size_bytes ? 0 : min(slice_bytes, size_bytes - begin), workers};
  }
};

/// The slices whose results come to this rank, and go from it.
struct ResultSlices {
  Slices slices;
  ARK_DEVICE Segment operator()(int r) const {
    Segment s = slices(r);
    if (slices.p.root >= 0 && slices.p.root != slices.p.rank) s.size_bytes = 0;
    return s;
  }
};

struct RingShared {
  MoverShared<kSendStages> send;
  MoverShared<kTakeStages> take;
  unsigned char tiles[kTiles][abi::kMessageBytes];
  MoverState<kSendStages> send_state;
  MoverState<kTakeStages> take_state;
  Watched arrivals, gather_credits;
  Watched gather_fenced;            // credits as last seen before a proxy fence
  u64 full[kTiles], empty[kTiles];  // mbarriers
  u32 failed[kTiles][2];            // by group and parity of its turn: nobody is about to read what is being set
  u32 finished;
  u32 results_written;               // tiles of this launch that have arrived everywhere
  u32 results_sent[abi::kMaxRanks];  // to every rank, before this launch
};

/// The own slice: reduces message after message into the tiles.
template <class E, int kWorld>
struct Reducer {
  // Blocks of a thread at a time: registers are the limit.
  static constexpr int kCount = kWorld == 2 ? 4 : kWorld > 4 ? 1 : kWorld == 4 && E::kBytes != 4 ? 3 : 2;
  const CollectiveParams& p;
  RingShared& shared;
  Segment in, out;
  RingFlags flags;

  /// Group `tile` of kTiles, threads numbered from 0.
  ARK_DEVICE void run(int tile, int thread) const {
    const u32 messages = in.messages_of(flags.worker);
    const u32* received = p.state->received[static_cast<int>(Ring::kReduce)][flags.worker];
    u32 base[kWorld];
#pragma unroll
    for (int r = 0; r < kWorld; r++) base[r] = received[r];
    for (u32 i = tile; i < messages; i += kTiles) {
      volatile u32& failed = shared.failed[tile][i / kTiles & 1];
      if (thread < 32 && !wait(i, tile, received, thread)) failed = 1;
      named_barrier_sync(kFirstGroupBarrier + tile, kGroupThreads);
      if (failed != 0) return;
      // Addresses are made anew: kept over the wait, they would not fit into registers.
      reduce_message(i, tile, base, static_cast<int>(opaque(static_cast<u32>(thread))));
      fence_proxy_async_shared();
      mbarrier_arrive(&shared.full[tile]);
    }
  }

 private:
  /// Lane r: the message of rank r is here; lane 31: the tile is free.
  ARK_DEVICE bool wait(u32 i, int tile, const u32* received, int lane) const {
    u32 seen;
    if (lane < kWorld && lane != p.rank)
      return wait_watched(p, {CollectiveWait::kArrival, lane}, shared.arrivals, received[lane] + i + 1, seen);
    if (lane != 31 || i < kTiles) return true;
    const auto ready = [&] { return mbarrier_try_wait(&shared.empty[tile], (i / kTiles - 1) & 1); };
    return wait_for_peer(p, {CollectiveWait::kTile, -1}, i, ready, [] { return 0u; }, kOwnPatience);
  }

  ARK_DEVICE void reduce_message(u32 i, int tile, const u32 (&base)[kWorld], int thread) const {
    const u64 at = in.index(flags.worker, i) * abi::kMessageBytes;
    const u64 bytes = min(static_cast<u64>(abi::kMessageBytes), in.size_bytes - at);
    const Span<E::kBytes> own(in.data + at, bytes), direct(out.data + at, bytes);
    const bool direct_store = (!direct.aligned || (bytes & 15) != 0) && (p.root < 0 || p.root == p.rank);
    const u32 blocks = static_cast<u32>(own.template blocks<4>());
    for (u32 block = thread; block < blocks; block += kCount * kGroupThreads) {
      u32 mine[kCount][4], w[kCount][kWorld][4];
      own.load_many(mine, block, kGroupThreads);
      // Reading behind the end of this message, or the slot of this rank, does no harm: other rings follow this one.
#pragma unroll
      for (int r = 0; r < kWorld; r++) {
        const unsigned char* slot = flags.slot(p.rank, r, base[r] + i) + block * 16;
#pragma unroll
        for (int u = 0; u < kCount; u++) load_packet(w[u][r], slot + u * kGroupThreads * 16);
      }
#pragma unroll
      for (int u = 0; u < kCount; u++) {
        if (block + u * kGroupThreads >= blocks) continue;
#pragma unroll
        for (int r = 0; r < kWorld; r++)
#pragma unroll
          for (int k = 0; k < 4; k++) w[u][r][k] = r == p.rank ? mine[u][k] : w[u][r][k];
        u32 result[4];
        reduce_words<E>(result, w[u], p.op);
        auto* to = reinterpret_cast<uint4*>(shared.tiles[tile]) + block + u * kGroupThreads;
        *to = make_uint4(result[0], result[1], result[2], result[3]);
        if (direct_store) direct.store(result, block + u * kGroupThreads);
      }
    }
  }
};

/// Sends reduced tiles to those who want them, and gives the rings' slots back.
struct ResultSender {
  const CollectiveParams& p;
  RingShared& shared;
  Segment out;
  RingFlags reduce, gather;
  static constexpr u32 kFlying = 2;  // tiles under way that have not arrived
  static constexpr u32 kIdlePolls = 32;
  // Tiles that have been sent, that have been read, and that have arrived.
  u32 num_sent = 0, num_read = 0, num_written = 0;

  ARK_DEVICE bool sends_to(int r) const {
    return r != p.rank && p.kind != CollectiveKind::kReduceScatter && (p.root < 0 || p.root == r);
  }

  /// For the lane of rank r of the warp that tells the peers.
  ARK_DEVICE FlagRaiser raiser(int r) const {
    if (r >= p.world || !sends_to(r)) return {};
    const u32 base = p.state->sent[static_cast<int>(Ring::kGather)][gather.worker][r];
    return {&shared.results_written, gather.arrived(r, p.rank), base, 0};
  }

  /// One thread.
  ARK_DEVICE void run() {
    const u32 messages = out.messages_of(reduce.worker);
    u32* received = p.state->received[static_cast<int>(Ring::kReduce)][reduce.worker];
    u32 taken[abi::kMaxRanks];
#pragma unroll
    for (int r = 0; r < abi::kMaxRanks; r++) taken[r] = received[r];
    for (u32 i = 0; i < messages; i++) {
      const int tile = i % kTiles;
      if (!wait_full(tile, i)) return;
      // Everybody has read the slots of this message (arrivals at the tile's barrier).
#pragma unroll
      for (int r = 0; r < abi::kMaxRanks; r++)
        if (r < p.world && r != p.rank) store_relaxed_system(reduce.credit(r, p.rank), taken[r] + i + 1);
      if (!send(i, tile)) return;
      ++num_sent;
      bulk_wait_read<1>();
      free_tiles(num_sent - 1);
      if (num_sent - num_written > kFlying) {
        bulk_wait<kFlying>();
        arrived(num_sent - kFlying);
      }
    }
    bulk_wait<0>();
    arrived(num_sent);
#pragma unroll
    for (int r = 0; r < abi::kMaxRanks; r++) {
      if (r >= p.world || r == p.rank) continue;
      if (sends_to(r)) p.state->sent[static_cast<int>(Ring::kGather)][gather.worker][r] += messages;
      received[r] = taken[r] + messages;
    }
  }

 private:
  ARK_DEVICE bool wait_full(int tile, u32 i) {
    PeerPatience patience;
    u32 idle = 0;
    while (!mbarrier_try_wait(&shared.full[tile], i / kTiles & 1)) {
      if (num_sent != num_read) {
        bulk_wait_read<0>();
        free_tiles(num_sent);
      } else if (num_sent != num_written && ++idle >= kIdlePolls) {
        bulk_wait<0>();
        arrived(num_sent);
      } else if (!patience.again(GroupRank{p}, {CollectiveWait::kTile, -1}, i, 0, kOwnPatience)) {
        return false;
      }
    }
    return true;
  }

  ARK_DEVICE bool send(u32 i, int tile) {
    const u64 at = out.index(reduce.worker, i) * abi::kMessageBytes;
    const Message m{out.data + at, static_cast<u32>(min(static_cast<u64>(abi::kMessageBytes), out.size_bytes - at)),
                    p.rank, i};
    const u32 from = shared_address(shared.tiles[tile]);
    // Every rank begins with the one after it: not all with the same.
    if (!wait_credits(i)) return false;
#pragma unroll 1
    for (int step = 1; step < p.world; step++) {
      const int r = peer_at(step);
      if (sends_to(r)) bulk_store(gather.slot(r, p.rank, shared.results_sent[r] + i), from, m.padded());
    }
    if (m.whole() && (p.root < 0 || p.root == p.rank)) bulk_store(m.user, from, m.padded());
    bulk_commit();
    return true;
  }

  ARK_DEVICE int peer_at(int step) const { return p.rank + step < p.world ? p.rank + step : p.rank + step - p.world; }
  /// The slots of tile i are free, for writes through the asynchronous proxy.
  ARK_DEVICE bool wait_credits(u32 i) const {
    bool fence = false;
#pragma unroll 1
    for (int r = 0; r < p.world; r++) {
      const u32 target = shared.results_sent[r] + i + 1 - abi::ring_slots(Ring::kGather);
      if (!sends_to(r) || reached(shared.gather_fenced.seen[r], target)) continue;
      u32 seen;
      if (!wait_watched(p, {CollectiveWait::kCredit, r}, shared.gather_credits, target, seen)) return false;
      shared.gather_fenced.seen[r] = seen;
      fence = true;
    }
    if (fence) fence_proxy_async();
    return true;
  }

  /// All tiles before number `end` have been read.
  ARK_DEVICE void free_tiles(u32 end) {
    for (; num_read != end; ++num_read) mbarrier_arrive(&shared.empty[num_read % kTiles]);
  }
  /// The writes of all tiles before number `end` are done.
  ARK_DEVICE void arrived(u32 end) {
    shared_store_release(&shared.results_written, end);
    num_written = end;
  }
};

}  // namespace ark::device
