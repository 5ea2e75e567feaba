// Collectives by packets: 16 bytes that carry data and tell by themselves whether they have arrived, so that a transfer
// takes one store and one poll and no fence. Two sets of boxes are used in turn by the parity of the epoch; a reader
// clears what it has read. Written for any set of threads: worker is a thread's index, num_workers their number.
#pragma once
#include "device/collective/element.cuh"
#include "device/collective/signal.cuh"

namespace ark::device {

/// 8 bytes of data, each half followed by the epoch: any bit pattern.
struct FlaggedPacket {
  static constexpr int kWords = 2;
  static constexpr bool kCleared = false;
  ARK_DEVICE static void send(unsigned char* box, const u32 (&w)[2], u32 epoch) {
    const u32 packet[4] = {w[0], epoch, w[1], epoch};
    store_packet(box, packet);
  }
  ARK_DEVICE static bool arrived(const u32 (&raw)[4], u32 epoch) { return raw[1] == epoch && raw[3] == epoch; }
  ARK_DEVICE static void unpack(u32 (&w)[2], const u32 (&raw)[4]) {
    w[0] = raw[0];
    w[1] = raw[2];
  }
};

/// 16 bytes of data: a cleared box holds the word 0xffffffff four times, which no packet contains. It is a NaN of every
/// float type (a pair of them in 16 bits); a sender turns it into another one. Only for floats of up to 32 bits.
struct ClearedPacket {
  static constexpr int kWords = 4;
  static constexpr bool kCleared = true;
  ARK_DEVICE static void send(unsigned char* box, const u32 (&w)[4], u32) {
    u32 packet[4];
#pragma unroll
    for (int i = 0; i < 4; i++) packet[i] = w[i] == 0xffffffffu ? 0x7fff7fffu : w[i];
    store_packet(box, packet);
  }
  ARK_DEVICE static bool arrived(const u32 (&raw)[4], u32) {
    return raw[0] != 0xffffffffu && raw[1] != 0xffffffffu && raw[2] != 0xffffffffu && raw[3] != 0xffffffffu;
  }
  ARK_DEVICE static void unpack(u32 (&w)[4], const u32 (&raw)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = raw[i];
  }
};

/// The packet that a reduction of this element type uses; the host counts boxes by the same rule. By the traits of E,
/// not by its type: ElementOf<...> only derives from the types that have them.
template <bool kClears>
struct PacketIf {
  using Type = FlaggedPacket;
};
template <>
struct PacketIf<true> {
  using Type = ClearedPacket;
};
template <class E>
struct PacketOf : PacketIf<abi::kClearedPackets && E::kFloat && E::kBytes <= 4> {};
inline constexpr int kFloatPacketWords = abi::kClearedPackets ? 4 : 2;
static_assert(PacketOf<ElementOf<abi::kTypeF16>>::Type::kWords == kFloatPacketWords &&
              PacketOf<ElementOf<abi::kTypeBF16>>::Type::kWords == kFloatPacketWords &&
              PacketOf<ElementOf<abi::kTypeF32>>::Type::kWords == kFloatPacketWords);
static_assert(PacketOf<ElementOf<abi::kTypeI32>>::Type::kWords == 2 &&
              PacketOf<ElementOf<abi::kTypeF64>>::Type::kWords == 2);

/// The boxes of one launch for packets of type P. In every rank's segment and set: an area per sending rank.
template <class P>
struct Boxes {
  const CollectiveParams& p;
  u32 epoch;
  u64 begin, area_bytes;  // offset of the first area in a segment; bytes of an area

  /// `part` of `parts` equal parts of the set.
  ARK_DEVICE Boxes(const CollectiveParams& params, u32 epoch_, int part, int parts)
      : p(params),
        epoch(epoch_),
        begin((P::kCleared ? params.layout.packets : params.layout.flagged) +
              (epoch_ & 1) * params.layout.packet_set_bytes + part * (params.layout.packet_set_bytes / parts)),
        area_bytes(params.layout.packet_area_bytes / parts) {}

  ARK_DEVICE unsigned char* box(int owner, int from, u64 index) const {
    return p.base[owner] + begin + from * area_bytes + index * 16;
  }
};

/// Receives packet index[u] of every rank whose bit is set in wanted[u]. The boxes of all ranks are read, in one go and
/// under no condition, before the first is looked at: polling one peer after the other costs a latency for each, and so
/// does every conditional load. Of two ranks the own box, which nobody fills, is not read: the peer's stands for both.
/// Every index must lie inside the areas. Clears the boxes that were wanted, if packets are.
template <class P, int kWorld, int kCount>
ARK_DEVICE bool receive_packets(u32 (&w)[kCount][kWorld][P::kWords], const Boxes<P>& boxes, const u32 (&index)[kCount],
                                const u32 (&wanted)[kCount]) {
  unsigned char* own = boxes.box(boxes.p.rank, 0, 0);
  const int only = 1 - boxes.p.rank;  // of two ranks
  u32 raw[kCount][kWorld][4];
  SignalName name{CollectiveWait::kPacket, -1};
  const auto arrived = [&] {
#pragma unroll
    for (int u = 0; u < kCount; u++)
#pragma unroll
      for (int r = 0; r < (kWorld == 2 ? 1 : kWorld); r++)
        load_packet(raw[u][r], own + (kWorld == 2 ? only : r) * boxes.area_bytes + index[u] * 16ull);
    if constexpr (kWorld == 2)
#pragma unroll
      for (int u = 0; u < kCount; u++)
#pragma unroll
        for (int i = 0; i < 4; i++) raw[u][1][i] = raw[u][0][i];
    u32 missing = 0;
#pragma unroll
    for (int u = 0; u < kCount; u++)
#pragma unroll
      for (int r = 0; r < kWorld; r++) missing |= P::arrived(raw[u][r], boxes.epoch) ? 0 : wanted[u] & 1u << r;
    name.peer = __ffs(missing) - 1;
    return missing == 0;
  };
  if (!wait_for_peer(boxes.p, name, boxes.epoch, arrived, [] { return 0u; })) return false;
  const u32 cleared[4] = {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu};
#pragma unroll
  for (int u = 0; u < kCount; u++)
#pragma unroll
    for (int r = 0; r < kWorld; r++) {
      P::unpack(w[u][r], raw[u][r]);
      if (P::kCleared && wanted[u] >> r & 1) store_packet(own + r * boxes.area_bytes + index[u] * 16ull, cleared);
    }
  return true;
}

/// Whether rank r gets the result.
ARK_DEVICE bool takes_result(const CollectiveParams& p, int r) { return p.root < 0 || p.root == r; }

/// The rank that comes k after this one. Of many ranks, what follows from it is worked out anew wherever it is needed:
/// kept for all of them, it would not fit into registers.
template <int kWorld>
ARK_DEVICE int peer_after(const CollectiveParams& p, int k) {
  if constexpr (kWorld > 4)
    return static_cast<int>((opaque(static_cast<u32>(p.rank)) + k) % kWorld);
  else
    return (p.rank + k) % kWorld;
}

/// w[rank] = own, with indices that the compiler knows.
template <int kWorld, int kWords>
ARK_DEVICE void place_own(u32 (&w)[kWorld][kWords], const u32 (&own)[kWords], int rank) {
#pragma unroll
  for (int r = 0; r < kWorld; r++)
#pragma unroll
    for (int i = 0; i < kWords; i++) w[r][i] = r == rank ? own[i] : w[r][i];
}

// The algorithms below work in chunks of kCount packets per worker: send(t, own) sends packets t, t + workers, ... and
// keeps what is this rank's own; receive(t, own) takes in the same packets of the others. A worker sends a chunk ahead
// of the one it receives, so that the link does not idle; finish() is what comes after all chunks.

/// All-reduce or reduce in one hop: everybody sends everything and reduces everything.
template <class E, int kWorld, int kCount_, class P_ = typename PacketOf<E>::Type>
struct OneShot {
  using P = P_;
  using Memory = Span<E::kBytes>;
  static constexpr int kCount = kCount_;
  using Own = u32[kCount][P::kWords];
  const CollectiveParams& p;
  Boxes<P> boxes;
  Memory in, out;
  u32 limit, workers;

  ARK_DEVICE OneShot(const CollectiveParams& params, u32 epoch, u32 num_workers)
      : p(params),
        boxes(params, epoch, 0, 1),
        in(params.in, params.count * E::kBytes),
        out(params.out, params.count * E::kBytes),
        limit(static_cast<u32>(in.template blocks<P::kWords>())),
        workers(num_workers) {}

  ARK_DEVICE void send(u32 t, Own& own) const {
    in.load_many(own, t, workers);
    push(t, own);
  }
  ARK_DEVICE bool receive(u32 t, const Own& own) const {
    if (!takes_result(p, p.rank)) return true;
    Own result;
    if (!take(t, own, result)) return false;
#pragma unroll
    for (int u = 0; u < kCount; u++)
      if (t + u * workers < limit) out.store(result[u], t + u * workers);
    return true;
  }

  /// The same with the data in registers: what is sent...
  ARK_DEVICE void push(u32 t, const Own& own) const {
#pragma unroll
    for (int k = 1; k < kWorld; k++) {
      const int r = peer_after<kWorld>(p, k);
      unsigned char* box = boxes.box(r, p.rank, t);
#pragma unroll
      for (int u = 0; u < kCount; u++)
        if (t + u * workers < limit && takes_result(p, r)) P::send(box + u * workers * 16ull, own[u], boxes.epoch);
    }
  }
  /// ... and the result.
  ARK_DEVICE bool take(u32 t, const Own& own, Own& result) const {
    u32 w[kCount][kWorld][P::kWords], index[kCount], wanted[kCount];
#pragma unroll
    for (int u = 0; u < kCount; u++) {
      index[u] = t + u * workers < limit ? t + u * workers : t;  // unwanted: no place that others poll
      wanted[u] = t + u * workers < limit ? ((1u << kWorld) - 1) & ~(1u << p.rank) : 0;
    }
    if (!receive_packets<P, kWorld, kCount>(w, boxes, index, wanted)) return false;
#pragma unroll
    for (int u = 0; u < kCount; u++) {
      place_own(w[u], own[u], p.rank);
      reduce_words<E>(result[u], w[u], p.op);
    }
    return true;
  }
  ARK_DEVICE void finish(u32) const {}
};

/// All-reduce or reduce in two hops, and reduce-scatter, its first half: the owner of a slice reduces it and sends the
/// result to all.
template <class E, int kWorld, int kCount_>
struct TwoShot {
  using P = typename PacketOf<E>::Type;
  using Memory = Span<E::kBytes>;
  static constexpr int kCount = kCount_;
  static constexpr u32 kBlock = P::kWords * 4;
  using Own = u32[kCount][P::kWords];
  const CollectiveParams& p;
  Boxes<P> scattered, gathered;
  bool scatter_only;
  u64 slice_bytes;
  u32 limit, own_limit, workers;

  ARK_DEVICE TwoShot(const CollectiveParams& params, u32 epoch, u32 num_workers)
      : p(params),
        scattered(params, epoch, 0, 2),
        gathered(params, epoch, 1, 2),
        scatter_only(params.kind == CollectiveKind::kReduceScatter),
        workers(num_workers) {
    const u64 bytes = p.count * E::kBytes;
    slice_bytes = scatter_only ? bytes : ((bytes + kBlock - 1) / kBlock + kWorld - 1) / kWorld * kBlock;
    limit = static_cast<u32>((slice_bytes + kBlock - 1) / kBlock);
    own_limit = blocks_of(p.rank);
  }
  /// Slice r of the tensor at `address`.
  ARK_DEVICE Memory slice(const unsigned char* address, int r) const {
    // As peer_after.
    if constexpr (kWorld > 4) r = static_cast<int>(opaque(static_cast<u32>(r)));
    const u64 bytes = p.count * E::kBytes, begin = slice_bytes * r;
    if (scatter_only) return Memory(address + begin, slice_bytes);
    return Memory(address + begin, begin >= bytes ? 0 : min(slice_bytes, bytes - begin));
  }
  ARK_DEVICE u32 blocks_of(int r) const { return static_cast<u32>(slice(p.in, r).template blocks<P::kWords>()); }

  ARK_DEVICE void send(u32 t, Own& own) const {
    u32 w[kWorld][kCount][P::kWords];
#pragma unroll
    for (int k = 0; k < kWorld; k++) slice(p.in, peer_after<kWorld>(p, k)).load_many(w[k], t, workers);
#pragma unroll
    for (int k = 1; k < kWorld; k++) {
      const int r = peer_after<kWorld>(p, k);
      const u32 blocks = blocks_of(r);
      unsigned char* box = scattered.box(r, p.rank, t);
#pragma unroll
      for (int u = 0; u < kCount; u++)
        if (t + u * workers < blocks) P::send(box + u * workers * 16ull, w[k][u], scattered.epoch);
    }
#pragma unroll
    for (int u = 0; u < kCount; u++)
#pragma unroll
      for (int i = 0; i < P::kWords; i++) own[u][i] = w[0][u][i];
  }

  ARK_DEVICE bool receive(u32 t, const Own& own) const {
    const Memory out = scatter_only ? Memory(p.out, slice_bytes) : slice(p.out, p.rank);
    u32 w[kCount][kWorld][P::kWords], index[kCount], wanted[kCount];
#pragma unroll
    for (int u = 0; u < kCount; u++) {
      index[u] = t + u * workers < limit ? t + u * workers : t;  // unwanted: no place that others poll
      wanted[u] = t + u * workers < own_limit ? ((1u << kWorld) - 1) & ~(1u << p.rank) : 0;
    }
    if (!receive_packets<P, kWorld, kCount>(w, scattered, index, wanted)) return false;
#pragma unroll
    for (int u = 0; u < kCount; u++) {
      if (wanted[u] == 0) continue;
      place_own(w[u], own[u], p.rank);
      u32 result[P::kWords];
      reduce_words<E>(result, w[u], p.op);
      if (!scatter_only)
#pragma unroll
        for (int k = 1; k < kWorld; k++) {
          const int r = peer_after<kWorld>(p, k);
          if (takes_result(p, r)) P::send(gathered.box(r, p.rank, index[u]), result, gathered.epoch);
        }
      if (scatter_only || takes_result(p, p.rank)) out.store(result, index[u]);
    }
    return true;
  }

  ARK_DEVICE void finish(u32 worker) const {
    if (scatter_only || !takes_result(p, p.rank)) return;
    for (u32 t = worker; t < limit; t += kCount * workers) {
      u32 w[kCount][kWorld][P::kWords], index[kCount], wanted[kCount];
#pragma unroll
      for (int u = 0; u < kCount; u++) {
        index[u] = t + u * workers < limit ? t + u * workers : t;  // unwanted: no place that others poll
        wanted[u] = 0;
#pragma unroll
        for (int r = 0; r < kWorld; r++)
          if (r != p.rank && t + u * workers < blocks_of(r)) wanted[u] |= 1u << r;
      }
      if (!receive_packets<P, kWorld, kCount>(w, gathered, index, wanted)) return;
#pragma unroll
      for (int u = 0; u < kCount; u++)
#pragma unroll
        for (int r = 0; r < kWorld; r++)
          if (wanted[u] >> r & 1) slice(p.out, r).store(w[u][r], index[u]);
    }
  }
};

/// The pairs of an exchange that are small enough: bytes, any alignment.
template <int kWorld>
ARK_DEVICE void send_small_parts(const CollectiveParams& p, const Boxes<FlaggedPacket>& boxes, u32 worker,
                                 u32 workers) {
  using P = FlaggedPacket;
  constexpr int kCount = 4;
#pragma unroll
  for (int k = 1; k < kWorld; k++) {
    const int r = (p.rank + k) % kWorld;
    if (p.parts[r].send_bytes > p.packet_limit) continue;
    const Span<1> part(p.parts[r].source, p.parts[r].send_bytes);
    const u32 limit = static_cast<u32>(part.template blocks<P::kWords>());
    for (u32 t = worker; t < limit; t += kCount * workers) {
      u32 w[kCount][P::kWords];
      part.load_many(w, t, workers);
#pragma unroll
      for (int u = 0; u < kCount; u++)
        if (t + u * workers < limit) P::send(boxes.box(r, p.rank, t + u * workers), w[u], boxes.epoch);
    }
  }
}

template <int kWorld>
ARK_DEVICE void receive_small_parts(const CollectiveParams& p, const Boxes<FlaggedPacket>& boxes, u32 worker,
                                    u32 workers) {
  using P = FlaggedPacket;
  constexpr int kCount = kWorld <= 4 ? 2 : 1;
  u32 blocks[kWorld], limit = 0;
#pragma unroll
  for (int r = 0; r < kWorld; r++) {
    const u64 bytes = r == p.rank ? 0 : p.parts[r].receive_bytes;
    blocks[r] = bytes > p.packet_limit ? 0 : static_cast<u32>((bytes + 7) / 8);
    limit = max(limit, blocks[r]);
  }
  for (u32 t = worker; t < limit; t += kCount * workers) {
    u32 w[kCount][kWorld][P::kWords], index[kCount], wanted[kCount];
#pragma unroll
    for (int u = 0; u < kCount; u++) {
      index[u] = t + u * workers < limit ? t + u * workers : t;  // unwanted: no place that others poll
      wanted[u] = 0;
#pragma unroll
      for (int r = 0; r < kWorld; r++)
        if (t + u * workers < blocks[r]) wanted[u] |= 1u << r;
    }
    if (!receive_packets<P, kWorld, kCount>(w, boxes, index, wanted)) return;
#pragma unroll
    for (int u = 0; u < kCount; u++)
#pragma unroll
      for (int r = 0; r < kWorld; r++)
        if (wanted[u] >> r & 1) Span<1>(p.parts[r].destination, p.parts[r].receive_bytes).store(w[u][r], index[u]);
  }
}

}  // namespace ark::device
