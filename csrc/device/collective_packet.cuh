// Collectives by packets: 16 bytes that carry data and tell by themselves whether they have arrived, so that a transfer
// takes one store and one poll and no fence. Two sets of boxes are used in turn by the parity of the epoch; a reader
// clears what it has read. Written for any set of threads: worker is a thread's index, num_workers their number.
#pragma once
#include "device/collective_element.cuh"
#include "device/signal.cuh"

namespace ark::device {

/// 8 bytes of data, each half followed by the epoch: any bit pattern.
struct FlaggedPacket {
  static constexpr int kWords = 2;
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

/// The packet that a reduction of this element type uses.
template <class E>
struct PacketOf {
  using Type = FlaggedPacket;
};
template <bool kHalf>
struct PacketOf<ShortFloat<kHalf>> {
  using Type = ClearedPacket;
};
template <>
struct PacketOf<PlainElement<float>> {
  using Type = ClearedPacket;
};

/// The boxes of one launch. In every rank's segment and set: an area per sending rank.
struct Boxes {
  const CollectiveParams& p;
  u32 epoch;
  u64 begin, area_bytes;  // offset of the first area in a segment; bytes of an area

  /// `part` of `parts` equal parts of the set.
  ARK_DEVICE Boxes(const CollectiveParams& params, u32 epoch_, int part, int parts)
      : p(params),
        epoch(epoch_),
        begin(params.layout.packets + (epoch_ & 1) * params.layout.packet_set_bytes +
              part * (params.layout.packet_set_bytes / parts)),
        area_bytes(params.layout.packet_set_bytes / parts / params.world / 16 * 16) {}

  ARK_DEVICE unsigned char* box(int owner, int from, u64 index) const {
    return p.base[owner] + begin + from * area_bytes + index * 16;
  }
};

/// Receives packets `index + u * stride` (u < kCount) of the ranks for which wanted(r, u): all loads are issued before
/// the first is looked at (polling one peer after the other costs 4x with 8 ranks). Clears the boxes.
template <class P, int kWorld, int kCount, class Wanted>
ARK_DEVICE bool receive_packets(u32 (&w)[kCount][kWorld][P::kWords], const Boxes& boxes, u64 index, u64 stride,
                                Wanted wanted) {
  const int rank = boxes.p.rank;
  u32 raw[kCount][kWorld][4];
  Patience patience;
  while (true) {
    int missing = -1;
#pragma unroll
    for (int u = 0; u < kCount; u++)
#pragma unroll
      for (int r = 0; r < kWorld; r++)
        if (wanted(r, u)) load_packet(raw[u][r], boxes.box(rank, r, index + u * stride));
#pragma unroll
    for (int u = 0; u < kCount; u++)
#pragma unroll
      for (int r = 0; r < kWorld; r++)
        if (wanted(r, u) && !P::arrived(raw[u][r], boxes.epoch)) missing = r;
    if (missing < 0) break;
    if (!patience.again(boxes.p, {CollectiveWait::kPacket, missing}, boxes.epoch, 0)) return false;
  }
  const u32 cleared[4] = {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu};
#pragma unroll
  for (int u = 0; u < kCount; u++)
#pragma unroll
    for (int r = 0; r < kWorld; r++)
      if (wanted(r, u)) {
        P::unpack(w[u][r], raw[u][r]);
        store_packet(boxes.box(rank, r, index + u * stride), cleared);
      }
  return true;
}

/// Whether rank r gets the result.
ARK_DEVICE bool takes_result(const CollectiveParams& p, int r) { return p.root < 0 || p.root == r; }

/// All-reduce or reduce in one hop: everybody sends everything and reduces everything.
template <class E, int kWorld, int kCount>
struct OneShot {
  using P = typename PacketOf<E>::Type;
  using Memory = Span<E::kBytes>;
  const CollectiveParams& p;
  Boxes boxes;
  Memory in, out;
  u64 limit;

  ARK_DEVICE OneShot(const CollectiveParams& params, u32 epoch)
      : p(params),
        boxes(params, epoch, 0, 1),
        in(params.in, params.count * E::kBytes),
        out(params.out, params.count * E::kBytes),
        limit(in.template blocks<P::kWords>()) {}

  ARK_DEVICE void send(u64 worker, u64 num_workers) const {
    for (u64 t = worker; t < limit; t += kCount * num_workers) {
      u32 own[kCount][P::kWords];
#pragma unroll
      for (int u = 0; u < kCount; u++)
        if (t + u * num_workers < limit) in.load(own[u], t + u * num_workers);
#pragma unroll
      for (int u = 0; u < kCount; u++)
        if (t + u * num_workers < limit)
#pragma unroll
          for (int k = 1; k < kWorld; k++) {
            const int r = (p.rank + k) % kWorld;
            if (takes_result(p, r)) P::send(boxes.box(r, p.rank, t + u * num_workers), own[u], boxes.epoch);
          }
    }
  }
  ARK_DEVICE void receive(u64 worker, u64 num_workers) const {
    if (!takes_result(p, p.rank)) return;
    for (u64 t = worker; t < limit; t += kCount * num_workers) {
      u32 w[kCount][kWorld][P::kWords];
      u32 own[kCount][P::kWords];
#pragma unroll
      for (int u = 0; u < kCount; u++)
        if (t + u * num_workers < limit) in.load(own[u], t + u * num_workers);
      if (!receive_packets<P, kWorld, kCount>(w, boxes, t, num_workers,
                                              [&](int r, int u) { return r != p.rank && t + u * num_workers < limit; }))
        return;
#pragma unroll
      for (int u = 0; u < kCount; u++) {
        if (t + u * num_workers >= limit) continue;
        place_own(w[u], own[u], p.rank);
        u32 result[P::kWords];
        reduce_words<E>(result, w[u], p.op);
        out.store(result, t + u * num_workers);
      }
    }
  }
  /// w[rank] = own, with indices that the compiler knows.
  ARK_DEVICE static void place_own(u32 (&w)[kWorld][P::kWords], const u32 (&own)[P::kWords], int rank) {
#pragma unroll
    for (int r = 0; r < kWorld; r++)
#pragma unroll
      for (int i = 0; i < P::kWords; i++)
        if (r == rank) w[r][i] = own[i];
  }
};

/// All-reduce or reduce in two hops, and reduce-scatter, its first half: the owner of a slice reduces it and sends the
/// result to all.
template <class E, int kWorld, int kCount>
struct TwoShot {
  using P = typename PacketOf<E>::Type;
  using Memory = Span<E::kBytes>;
  const CollectiveParams& p;
  Boxes scattered, gathered;
  bool scatter_only;
  u64 slice_bytes;

  ARK_DEVICE TwoShot(const CollectiveParams& params, u32 epoch)
      : p(params),
        scattered(params, epoch, 0, 2),
        gathered(params, epoch, 1, 2),
        scatter_only(params.kind == CollectiveKind::kReduceScatter) {
    constexpr u64 kBlock = P::kWords * 4;
    const u64 bytes = p.count * E::kBytes;
    slice_bytes = scatter_only ? bytes : ((bytes + kBlock - 1) / kBlock + kWorld - 1) / kWorld * kBlock;
  }
  /// Slice r of the tensor at `address`.
  ARK_DEVICE Memory slice(const unsigned char* address, int r) const {
    const u64 bytes = p.count * E::kBytes, begin = slice_bytes * r;
    if (scatter_only) return Memory(address + begin, slice_bytes);
    return Memory(address + begin, begin >= bytes ? 0 : min(slice_bytes, bytes - begin));
  }
  ARK_DEVICE u64 blocks_of(int r) const { return slice(p.in, r).template blocks<P::kWords>(); }

  ARK_DEVICE void send(u64 worker, u64 num_workers) const {
    const u64 limit = (slice_bytes + P::kWords * 4 - 1) / (P::kWords * 4);
    for (u64 t = worker; t < limit; t += kCount * num_workers) {
      u32 w[kCount][kWorld][P::kWords];
#pragma unroll
      for (int u = 0; u < kCount; u++)
#pragma unroll
        for (int k = 1; k < kWorld; k++) {
          const int r = (p.rank + k) % kWorld;
          const Memory from = slice(p.in, r);
          if (t + u * num_workers < from.template blocks<P::kWords>()) from.load(w[u][k], t + u * num_workers);
        }
#pragma unroll
      for (int u = 0; u < kCount; u++)
#pragma unroll
        for (int k = 1; k < kWorld; k++) {
          const int r = (p.rank + k) % kWorld;
          if (t + u * num_workers < blocks_of(r))
            P::send(scattered.box(r, p.rank, t + u * num_workers), w[u][k], scattered.epoch);
        }
    }
  }

  ARK_DEVICE void receive(u64 worker, u64 num_workers) const {
    if (reduce_own(worker, num_workers) && !scatter_only && takes_result(p, p.rank)) gather(worker, num_workers);
  }

  ARK_DEVICE bool reduce_own(u64 worker, u64 num_workers) const {
    const Memory in = slice(p.in, p.rank);
    const Memory out = scatter_only ? Memory(p.out, slice_bytes) : slice(p.out, p.rank);
    const u64 limit = in.template blocks<P::kWords>();
    for (u64 t = worker; t < limit; t += kCount * num_workers) {
      u32 w[kCount][kWorld][P::kWords];
      u32 own[kCount][P::kWords];
#pragma unroll
      for (int u = 0; u < kCount; u++)
        if (t + u * num_workers < limit) in.load(own[u], t + u * num_workers);
      if (!receive_packets<P, kWorld, kCount>(w, scattered, t, num_workers,
                                              [&](int r, int u) { return r != p.rank && t + u * num_workers < limit; }))
        return false;
#pragma unroll
      for (int u = 0; u < kCount; u++) {
        const u64 block = t + u * num_workers;
        if (block >= limit) continue;
        OneShot<E, kWorld, 1>::place_own(w[u], own[u], p.rank);
        u32 result[P::kWords];
        reduce_words<E>(result, w[u], p.op);
        if (!scatter_only)
#pragma unroll
          for (int k = 1; k < kWorld; k++) {
            const int r = (p.rank + k) % kWorld;
            if (takes_result(p, r)) P::send(gathered.box(r, p.rank, block), result, gathered.epoch);
          }
        if (scatter_only || takes_result(p, p.rank)) out.store(result, block);
      }
    }
    return true;
  }

  ARK_DEVICE void gather(u64 worker, u64 num_workers) const {
    const u64 limit = slice_bytes / (P::kWords * 4);
    for (u64 t = worker; t < limit; t += kCount * num_workers) {
      u32 w[kCount][kWorld][P::kWords];
      auto wanted = [&](int r, int u) { return r != p.rank && t + u * num_workers < blocks_of(r); };
      if (!receive_packets<P, kWorld, kCount>(w, gathered, t, num_workers, wanted)) return;
#pragma unroll
      for (int u = 0; u < kCount; u++)
#pragma unroll
        for (int r = 0; r < kWorld; r++)
          if (wanted(r, u)) slice(p.out, r).store(w[u][r], t + u * num_workers);
    }
  }
};

/// The pairs of an exchange that are small enough: bytes, any alignment.
template <int kWorld>
ARK_DEVICE void send_small_parts(const CollectiveParams& p, const Boxes& boxes, u64 worker, u64 num_workers) {
  using P = FlaggedPacket;
#pragma unroll
  for (int k = 1; k < kWorld; k++) {
    const int r = (p.rank + k) % kWorld;
    if (p.parts[r].send_bytes > p.packet_limit) continue;
    const Span<1> part(p.parts[r].source, p.parts[r].send_bytes);
    for (u64 t = worker; t < part.template blocks<P::kWords>(); t += num_workers) {
      u32 w[P::kWords];
      part.load(w, t);
      P::send(boxes.box(r, p.rank, t), w, boxes.epoch);
    }
  }
}

template <int kWorld>
ARK_DEVICE void receive_small_parts(const CollectiveParams& p, const Boxes& boxes, u64 worker, u64 num_workers) {
  using P = FlaggedPacket;
  auto blocks = [&](int r) {
    return r == p.rank || p.parts[r].receive_bytes > p.packet_limit ? 0 : (p.parts[r].receive_bytes + 7) / 8;
  };
  u64 limit = 0;
#pragma unroll
  for (int r = 0; r < kWorld; r++) limit = max(limit, blocks(r));
  for (u64 t = worker; t < limit; t += num_workers) {
    u32 w[1][kWorld][P::kWords];
    auto wanted = [&](int r, int) { return t < blocks(r); };
    if (!receive_packets<P, kWorld, 1>(w, boxes, t, num_workers, wanted)) return;
#pragma unroll
    for (int r = 0; r < kWorld; r++)
      if (wanted(r, 0)) Span<1>(p.parts[r].destination, p.parts[r].receive_bytes).store(w[0][r], t);
  }
}

}  // namespace ark::device
