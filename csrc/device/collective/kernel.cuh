// The standalone kernels: a launch is one collective. A CTA is a worker; element and message to CTA is a fixed map.
#pragma once
#include "device/collective/packet.cuh"
#include "device/collective/ring.cuh"

namespace ark::device {

inline constexpr int kPacketThreads = 256;
/// Warps of the rings: two move data, one sees to calls and results, one watches flags, one raises them. The others
/// reduce, or exchange small parts.
enum RingWarp { kSendWarp, kTakeWarp, kCallWarp, kWatchWarp, kRaiseWarp, kMovingWarps };
inline constexpr int kMovingThreads = kMovingWarps * 32;
inline constexpr int kRingThreads = kMovingThreads + kTiles * kGroupThreads;
inline constexpr int kExchangeThreads = kMovingThreads + 256;
ARK_DEVICE void begin_launch(const CollectiveParams& p) {
  if (!p.early) return;
  grid_wait_previous();
  grid_release_next();  // only now: at most one launch waits on the GPU, and takes no room that others need
}

/// One algorithm of packet.cuh, all chunks. CTA 0 exchanges the calls and moves no data.
template <class Algorithm>
ARK_DEVICE void run_packets(const CollectiveParams& p, u32 epoch, int thread) {
  const u32 workers = (gridDim.x - 1) * kPacketThreads;
  const u32 worker = (blockIdx.x - 1) * kPacketThreads + thread, step = Algorithm::kCount * workers;
  const Algorithm algorithm(p, epoch, workers);
  typename Algorithm::Own own;
  if (worker < algorithm.limit) algorithm.send(worker, own);
  for (u32 t = worker; t < algorithm.limit; t += step) {
    typename Algorithm::Own next;
    if (t + step < algorithm.limit) algorithm.send(t + step, next);
    if (!algorithm.receive(t, own)) return;
#pragma unroll
    for (int u = 0; u < Algorithm::kCount; u++)
#pragma unroll
      for (int i = 0; i < Algorithm::P::kWords; i++) own[u][i] = next[u][i];
  }
  algorithm.finish(worker);
}

/// With as many packets of a thread at a time as it takes for one pass, up to kMany: the fewer the faster.
template <template <int> class Algorithm, int kMany>
ARK_DEVICE void run_passes(const CollectiveParams& p, u32 epoch, int thread, u64 packets) {
  const u64 threads = static_cast<u64>(gridDim.x - 1) * kPacketThreads;
  if constexpr (kMany > 1)
    if (packets > threads * (kMany / 2)) return run_packets<Algorithm<kMany>>(p, epoch, thread);
  if constexpr (kMany > 2)
    if (packets > threads * (kMany / 4)) return run_packets<Algorithm<kMany / 2>>(p, epoch, thread);
  run_packets<Algorithm<1>>(p, epoch, thread);
}

/// All-reduce, reduce and reduce-scatter by packets. kPacketThreads threads, a CTA for the calls and any number for the
/// data: they are apart so that two CTAs of eight warps, all of whose registers are used, share an SM.
template <class E, int kWorld>
struct PacketKernel {
  template <int kCount>
  using One = OneShot<E, kWorld, kCount>;
  template <int kCount>
  using Two = TwoShot<E, kWorld, kCount>;
  static constexpr int kWords = PacketOf<E>::Type::kWords;
  // Packets of a thread at a time: registers are the limit.
  static constexpr int kMany = kWorld == 2 ? 2 : kWorld <= 4 && (E::kFloat || E::kBytes > 2) ? 4 / kWords : 1;

  ARK_DEVICE static void run(const CollectiveParams& p) {
    begin_launch(p);
    const int thread = thread_index();
    const u32 epoch = load_relaxed(&p.state->epoch);
    if (blockIdx.x == 0) {
      if (thread >= 32) return;
      announce_call(p, 0, epoch, thread);
      return finish_call_alone(p, epoch, thread);
    }
    __syncthreads();  // all threads have read the epoch
    if (thread == 0) count_in(p);
    const u64 slices = p.algorithm == abi::Algorithm::kOneShot || p.kind == CollectiveKind::kReduceScatter ? 1 : kWorld;
    const u64 packets = p.count * E::kBytes / (kWords * 4 * slices);  // about: what is left over is another pass
    if (p.algorithm == abi::Algorithm::kOneShot)
      run_passes<One, kMany>(p, epoch, thread, packets);
    else
      run_passes<Two, kMany>(p, epoch, thread, packets);
  }
};

/// The same through the rings. kRingThreads threads, at most p.ring_workers workers, sizeof(RingShared) of shared
/// memory.
template <class E, int kWorld>
ARK_DEVICE void ring_kernel(const CollectiveParams& p) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  RingShared& shared = *reinterpret_cast<RingShared*>(dynamic_shared);
  begin_launch(p);
  const int thread = thread_index(), warp = thread / 32, lane = thread & 31;
  __shared__ int seat;
  if (thread == 0) seat = take_seat(p);
  __syncthreads();
  const int worker = seat;
  if (worker >= p.workers) return;
  const u32 epoch = load_relaxed(&p.state->epoch);
  const Slices in(p, p.in, E::kBytes), out(p, p.out, E::kBytes);
  const ResultSlices results{out};
  Segment own_out = out(p.rank);
  if (p.kind == CollectiveKind::kReduceScatter) own_out.data = p.out;
  using Send = Mover<true, Ring::kReduce, kSendStages, Slices>;
  using Take = Mover<false, Ring::kGather, kTakeStages, ResultSlices>;
  Send send(p, worker, in, shared.send, shared.send_state);
  Take take(p, worker, results, shared.take, shared.take_state);
  const RingFlags reduce{p, Ring::kReduce, worker}, gather{p, Ring::kGather, worker};
  if (warp == kSendWarp) send.prepare(lane);
  if (warp == kTakeWarp) take.prepare(lane);
  const ResultSender sender{p, shared, own_out, reduce, gather};
  FlagRaiser raiser;
  if (warp == kRaiseWarp) raiser = lane < abi::kMaxRanks ? send.raiser(lane) : sender.raiser(lane - abi::kMaxRanks);
  if (warp == kCallWarp && lane < abi::kMaxRanks) {
    const u32 sent = p.state->sent[static_cast<int>(Ring::kGather)][worker][lane];
    shared.arrivals.seen[lane] = p.state->received[static_cast<int>(Ring::kReduce)][worker][lane];
    shared.results_sent[lane] = sent;
    shared.gather_credits.seen[lane] = shared.gather_fenced.seen[lane] = sent - abi::ring_slots(Ring::kGather);
  }
  if (warp == kCallWarp) announce_call(p, worker, epoch, lane);
  if (thread == kWatchWarp * 32) {
    Send::init(shared.send_state);
    Take::init(shared.take_state);
    for (int i = 0; i < kTiles; i++) {
      mbarrier_init(&shared.full[i], kGroupThreads);
      mbarrier_init(&shared.empty[i], 1);
      shared.failed[i][0] = shared.failed[i][1] = 0;
    }
    shared.finished = shared.results_written = 0;
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp == kSendWarp) {
    send.run(lane);
    if (lane == 0) shared_count_release(&shared.finished);
  } else if (warp == kTakeWarp) {
    if (p.kind != CollectiveKind::kReduceScatter) take.run(lane);
    if (lane == 0) shared_count_release(&shared.finished);
  } else if (warp == kCallWarp) {
    // The calls come with the first messages or before. The sender ends after the reducers' last message, or has
    // failed.
    finish_call(p, worker, epoch, lane);
    __syncwarp();
    if (lane == 0) {
      ResultSender(sender).run();
      shared_count_release(&shared.finished);
    }
  } else if (warp == kWatchWarp) {
    const int r = lane % abi::kMaxRanks;
    const bool peer = r < p.world && r != p.rank;
    const u32* const sources[4] = {send.flag(r), take.flag(r), reduce.arrived(p.rank, r), gather.credit(p.rank, r)};
    u32* const seen[4] = {&shared.send_state.flags.seen[r], &shared.take_state.flags.seen[r], &shared.arrivals.seen[r],
                          &shared.gather_credits.seen[r]};
    const int set = lane / abi::kMaxRanks;
    const u32* source = set == 0 ? sources[0] : set == 1 ? sources[1] : set == 2 ? sources[2] : sources[3];
    u32* target = set == 0 ? seen[0] : set == 1 ? seen[1] : set == 2 ? seen[2] : seen[3];
    watch_flags(peer ? source : nullptr, target, &shared.finished, 3);
  } else if (warp == kRaiseWarp) {
    raiser.run(&shared.finished, 3);
  } else {
    const int reducer = thread - kMovingThreads;
    Reducer<E, kWorld>{p, shared, in(p.rank), own_out, reduce}.run(reducer / kGroupThreads, reducer % kGroupThreads);
  }
}

/// Parts of an exchange that go through the rings.
struct BigParts {
  const CollectiveParams& p;
  bool outgoing;
  ARK_DEVICE Segment operator()(int r) const {
    const abi::ExchangePart& part = p.parts[r];
    const u64 bytes = outgoing ? part.send_bytes : part.receive_bytes;
    unsigned char* data = outgoing ? const_cast<unsigned char*>(part.source) : part.destination;
    if (r == p.rank || bytes <= p.packet_limit) return {nullptr, 0, 0};
    return {data, bytes, outgoing ? part.send_workers : part.receive_workers};
  }
};

struct ExchangeShared {
  MoverShared<kSendStages> send;
  MoverShared<kSendStages> take;
};
struct ExchangeStates {
  MoverState<kSendStages> send, take;
  u32 finished;
  int seat;
};

/// The own part of an exchange.
ARK_DEVICE void copy_own_part(const CollectiveParams& p, u64 worker, u64 num_workers) {
  const abi::ExchangePart& part = p.parts[p.rank];
  if (part.source == part.destination) return;
  const Span<1> from(part.source, part.send_bytes), to(part.destination, part.send_bytes);
  const u64 blocks = from.blocks<4>();
  for (u64 t = worker; t < blocks; t += 4 * num_workers) {
    u32 w[4][4];
    from.load_many(w, t, num_workers);
#pragma unroll
    for (int u = 0; u < 4; u++)
      if (t + u * num_workers < blocks) to.store(w[u], t + u * num_workers);
  }
}

/// All-gather, broadcast, gather, scatter, all-to-all, barrier: every rank has a part for every rank.
/// kExchangeThreads threads; dynamic shared memory only when a pair is too large for packets.
template <int kWorld>
ARK_DEVICE void exchange_kernel(const CollectiveParams& p) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  __shared__ ExchangeStates states;
  ExchangeShared& shared = *reinterpret_cast<ExchangeShared*>(dynamic_shared);
  begin_launch(p);
  const int thread = thread_index(), warp = thread / 32, lane = thread & 31;
  if (thread == 0) states.seat = take_seat(p);
  __syncthreads();
  const int worker = states.seat;
  if (worker >= p.workers) return;
  const u32 epoch = load_relaxed(&p.state->epoch);
  const BigParts outgoing{p, true}, incoming{p, false};
  using Send = Mover<true, Ring::kMove, kSendStages, BigParts>;
  using Take = Mover<false, Ring::kMove, kSendStages, BigParts>;
  Send send(p, worker, outgoing, shared.send, states.send);
  Take take(p, worker, incoming, shared.take, states.take);
  const bool rings = p.uses_rings && worker < p.ring_workers;
  const Boxes<FlaggedPacket> boxes(p, epoch, 0, 1);
  const u32 index = worker * (kExchangeThreads - kMovingThreads) + (thread - kMovingThreads);
  const u32 count = p.workers * (kExchangeThreads - kMovingThreads);
  FlagRaiser raiser;
  if (rings && warp == kRaiseWarp) raiser = send.raiser(lane);
  if (warp >= kMovingWarps) send_small_parts<kWorld>(p, boxes, index, count);
  if (rings && warp == kSendWarp) send.prepare(lane);
  if (rings && warp == kTakeWarp) take.prepare(lane);
  if (thread == kWatchWarp * 32) {
    Send::init(states.send);
    Take::init(states.take);
    states.finished = 0;
    fence_mbarrier_init();
  }
  if (warp == kCallWarp) announce_exchange(p, worker, epoch, lane);
  __syncthreads();
  if (warp >= kMovingWarps) {
    receive_small_parts<kWorld>(p, boxes, index, count);
    copy_own_part(p, index, count);
  } else if (warp == kCallWarp) {
    finish_exchange(p, worker, epoch, lane);
  } else if (rings && warp == kSendWarp) {
    send.run(lane);
    if (lane == 0) shared_count_release(&states.finished);
  } else if (rings && warp == kTakeWarp) {
    take.run(lane);
    if (lane == 0) shared_count_release(&states.finished);
  } else if (rings && warp == kRaiseWarp) {
    raiser.run(&states.finished, 2);
  } else if (rings && warp == kWatchWarp) {
    const int r = lane % abi::kMaxRanks;
    const bool peer = r < p.world && r != p.rank && lane < 2 * abi::kMaxRanks;
    const bool first = lane < abi::kMaxRanks;
    watch_flags(!peer   ? nullptr
                : first ? send.flag(r)
                        : take.flag(r),
                first ? &states.send.flags.seen[r] : &states.take.flags.seen[r], &states.finished, 2);
  }
}

/// The one pair of a send or receive.
struct PointPart {
  const CollectiveParams& p;
  ARK_DEVICE Segment operator()(int r) const {
    if (r != p.peer) return {nullptr, 0, 0};
    const abi::ExchangePart& part = p.parts[r];
    const bool sends = p.kind == CollectiveKind::kSend;
    const u64 bytes = sends ? part.send_bytes : part.receive_bytes;
    return {sends ? const_cast<unsigned char*>(part.source) : part.destination, bytes,
            abi::ring_workers(bytes, abi::kMaxPointWorkers)};
  }
};

template <bool kOutgoing>
ARK_DEVICE void run_point(const CollectiveParams& p, MoverShared<kSendStages>& shared, MoverState<kSendStages>& state,
                          u32& finished) {
  const int thread = thread_index(), lane = thread & 31;
  const PointPart part{p};
  using Move = Mover<kOutgoing, Ring::kPoint, kSendStages, PointPart>;
  Move move(p, static_cast<int>(blockIdx.x), part, shared, state);
  PointSize size(p, kOutgoing, thread == 32);
  if (kOutgoing)
    size.announce();
  else
    size.early();
  FlagRaiser raiser;
  if (kOutgoing && thread >= 64 && lane == p.peer) raiser = move.raiser(lane);
  if (thread < 32) move.prepare(lane);
  if (thread == 32) {
    Move::init(state);
    finished = 0;
    fence_mbarrier_init();
  }
  __syncthreads();
  if (thread < 32) {
    move.run(lane);
    if (lane == 0) shared_count_release(&finished);
  } else if (thread >= 64) {
    if (kOutgoing) raiser.run(&finished, 1);
  } else {
    if (!kOutgoing) size.compare();
    watch_flags(lane == p.peer ? move.flag(lane) : nullptr, &state.flags.seen[lane % abi::kMaxRanks], &finished, 1);
  }
}

/// Send or receive: one warp moves, one watches flags, one raises them; the ring of the pair is its only order.
ARK_DEVICE void point_kernel(const CollectiveParams& p) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  __shared__ MoverState<kSendStages> state;
  __shared__ u32 finished;
  auto& shared = *reinterpret_cast<MoverShared<kSendStages>*>(dynamic_shared);
  if (p.kind == CollectiveKind::kSend)
    run_point<true>(p, shared, state, finished);
  else
    run_point<false>(p, shared, state, finished);
}

}  // namespace ark::device
