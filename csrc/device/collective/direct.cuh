// Collectives on registered memory: tensors that every rank of the group has mapped. Nothing is staged: the owner of a
// slice reads it from all ranks, reduces it and writes the result into all; what is only moved is written to where it
// belongs. A launch begins when all ranks have said where their tensors lie, and ends when all have said that they are
// done with them; between the two nobody waits.
#pragma once
#include "device/collective/element.cuh"
#include "device/collective/signal.cuh"

namespace ark::device {

inline constexpr int kDirectThreads = 512;

/// Where the ranks' tensors lie, as mapped here. In shared memory.
struct Places {
  unsigned char* in[abi::kMaxRanks];
  unsigned char* out[abi::kMaxRanks];
  u32 failed;
};

/// Begins a launch; all threads of the CTA. False when the group has failed.
ARK_DEVICE bool meet_peers(const CollectiveParams& p, u32 epoch, Places& places) {
  const int thread = thread_index(), lane = thread & 31;
  if (thread == 0) places.failed = 0;
  if (thread < 32) {
    announce_call(p, static_cast<int>(blockIdx.x), epoch, lane);
    const bool peer = lane < p.world && lane != p.rank;
    if (blockIdx.x == 0 && peer) {
      const u64 own[2] = {p.place_in, p.place_out};
      for (int i = 0; i < 2; i++) {
        store_tagged(place_packet(p, lane, p.rank, epoch, i), own[i], epoch, epoch);
      }
    }
    finish_call(p, static_cast<int>(blockIdx.x), epoch, lane);
    __syncwarp();
    if (lane < p.world) {
      u64 place[2] = {p.place_in, p.place_out};
      for (int i = 0; peer && i < 2; i++) {
        u64 theirs;
        const bool came = wait_tagged(p, place_packet(p, p.rank, lane, epoch, i), lane, epoch, epoch, theirs);
        if (!came || abi::window_of(theirs) != abi::window_of(place[i])) {
          fail_group(p, {CollectiveWait::kWindow, lane}, static_cast<u32>(abi::window_of(place[i])),
                     static_cast<u32>(abi::window_of(theirs)));
          atomicExch(&places.failed, 1u);
        }
        place[i] = theirs;
      }
      places.in[lane] = p.window_in[lane] + abi::offset_of_place(place[0]);
      places.out[lane] = p.window_out[lane] + abi::offset_of_place(place[1]);
      fence_system();  // what the peers wrote before this launch
    }
  }
  __syncthreads();
  return places.failed == 0;
}

/// Ends a launch; all threads of the CTA. CTA i of a rank waits for CTA i of all the others, which work on the same
/// blocks.
ARK_DEVICE void part_from_peers(const CollectiveParams& p, u32 epoch) {
  __syncthreads();
  const int lane = thread_index();
  if (lane >= p.world || lane == p.rank) return;
  auto flag = [&](int owner, int from) {
    return reinterpret_cast<u32*>(p.base[owner] + p.layout.parted +
                                  (static_cast<u64>(blockIdx.x) * abi::kMaxRanks + from) * abi::kFlagBytes);
  };
  fence_system();
  store_relaxed_system(flag(lane, p.rank), epoch);
  u32 seen = 0;
  wait_for_peer(
      p, {CollectiveWait::kEnd, lane}, epoch, [&] { return (seen = load_acquire_system(flag(p.rank, lane))) == epoch; },
      [&] { return seen; });
}

/// All-reduce, reduce and reduce-scatter. kDirectThreads threads, any number of CTAs that are resident together.
template <class E, int kWorld>
ARK_DEVICE void direct_reduce_kernel(const CollectiveParams& p) {
  constexpr int kCount = kWorld == 2                    ? 8
                         : kWorld <= 4 && E::kBytes > 1 ? 4
                                                        : 2;  // blocks of a thread at a time: registers
  using Memory = Span<E::kBytes>;
  __shared__ Places places;
  const u32 epoch = load_relaxed(&p.state->epoch);
  __syncthreads();
  if (!meet_peers(p, epoch, places)) return;
  const bool scatter = p.kind == CollectiveKind::kReduceScatter;
  const u64 bytes = p.count * E::kBytes;
  const u64 slice = scatter ? bytes : ((bytes + 15) / 16 + kWorld - 1) / kWorld * 16, begin = slice * p.rank;
  const u64 size = scatter ? slice : begin >= bytes ? 0 : min(slice, bytes - begin);
  const u64 blocks = (size + 15) / 16, workers = static_cast<u64>(gridDim.x) * kDirectThreads;
  for (u64 t = blockIdx.x * kDirectThreads + thread_index(); t < blocks; t += kCount * workers) {
    u32 w[kWorld][kCount][4];
#pragma unroll
    for (int r = 0; r < kWorld; r++) Memory(places.in[r] + begin, size).load_many(w[r], t, workers);
#pragma unroll
    for (int u = 0; u < kCount; u++) {
      if (t + u * workers >= blocks) continue;
      u32 parts[kWorld][4], result[4];
#pragma unroll
      for (int r = 0; r < kWorld; r++)
#pragma unroll
        for (int i = 0; i < 4; i++) parts[r][i] = w[r][u][i];
      reduce_words<E>(result, parts, p.op);
      if (scatter) {
        Memory(p.out, size).store(result, t + u * workers);
      } else {
#pragma unroll
        for (int r = 0; r < kWorld; r++)
          if (p.root < 0 || p.root == r) Memory(places.out[r] + begin, size).store(result, t + u * workers);
      }
    }
  }
  part_from_peers(p, epoch);
}

/// All-gather, broadcast, even all-to-all: every rank writes its parts into the outputs of the others.
template <int kWorld>
ARK_DEVICE void direct_move_kernel(const CollectiveParams& p) {
  constexpr int kCount = 8;
  __shared__ Places places;
  const u32 epoch = load_relaxed(&p.state->epoch);
  __syncthreads();
  if (!meet_peers(p, epoch, places)) return;
  const u64 workers = static_cast<u64>(gridDim.x) * kDirectThreads;
  for (int k = 1; k <= kWorld; k++) {
    const int r = (p.rank + k) % kWorld;  // the own part last
    const abi::ExchangePart& part = p.parts[r];
    unsigned char* destination = r == p.rank ? part.destination : places.out[r] + p.push_offset;
    if (part.send_bytes == 0 || part.source == destination) continue;
    const Span<1> from(part.source, part.send_bytes), to(destination, part.send_bytes);
    const u64 blocks = from.blocks<4>();
    for (u64 t = blockIdx.x * kDirectThreads + thread_index(); t < blocks; t += kCount * workers) {
      u32 w[kCount][4];
      from.load_many(w, t, workers);
#pragma unroll
      for (int u = 0; u < kCount; u++)
        if (t + u * workers < blocks) to.store(w[u], t + u * workers);
    }
  }
  part_from_peers(p, epoch);
}

}  // namespace ark::device
