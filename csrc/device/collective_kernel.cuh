// The standalone kernels: a launch is one collective. A CTA is a worker; element and message to CTA is a fixed map and
// CTAs of a launch do not wait for each other, so a grid need not be resident as a whole.
#pragma once
#include "device/collective_packet.cuh"
#include "device/collective_ring.cuh"

namespace ark::device {

inline constexpr int kPacketThreads = 256;  // and a warp for the call
inline constexpr int kRingThreads = 384;

ARK_DEVICE void begin_launch(const CollectiveParams& p) {
  if (!p.early) return;
  grid_release_next();
  grid_wait_previous();
}

/// All-reduce, reduce and reduce-scatter by packets. kPacketThreads + 32 threads, any number of CTAs.
template <class E, int kWorld>
ARK_DEVICE void packet_kernel(const CollectiveParams& p) {
  begin_launch(p);
  const int thread = thread_index(), lane = thread & 31;
  const bool clerk = thread >= kPacketThreads;
  const u32 epoch = load_relaxed(&p.state->epoch);
  const u64 worker = static_cast<u64>(blockIdx.x) * kPacketThreads + thread;
  const u64 workers = static_cast<u64>(gridDim.x) * kPacketThreads;
  constexpr int kMany = kWorld == 2   ? 4
                        : kWorld <= 4 ? 2
                                      : 1;  // packets of a thread at a time: registers are the limit
  auto run = [&](const auto& algorithm) {
    if (clerk)
      announce_call(p, epoch, lane);
    else
      algorithm.send(worker, workers);
    __syncthreads();
    if (clerk)
      finish_call(p, epoch, lane);
    else
      algorithm.receive(worker, workers);
  };
  const bool slices = p.algorithm == abi::Algorithm::kTwoShot && p.kind != CollectiveKind::kReduceScatter;
  const bool few = p.count * E::kBytes <= workers * (PacketOf<E>::Type::kWords * 4) * (slices ? kWorld : 1);
  if (p.algorithm == abi::Algorithm::kOneShot) {
    if (few)
      run(OneShot<E, kWorld, 1>(p, epoch));
    else
      run(OneShot<E, kWorld, kMany>(p, epoch));
  } else {
    if (few)
      run(TwoShot<E, kWorld, 1>(p, epoch));
    else
      run(TwoShot<E, kWorld, kMany>(p, epoch));
  }
}

/// The same through the rings. kRingThreads threads, at most kMaxRingWorkers CTAs, sizeof(RingShared) of shared memory.
template <class E, int kWorld>
ARK_DEVICE void ring_kernel(const CollectiveParams& p) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  RingShared& shared = *reinterpret_cast<RingShared*>(dynamic_shared);
  begin_launch(p);
  const int thread = thread_index(), warp = thread / 32, lane = thread & 31;
  const int worker = static_cast<int>(blockIdx.x);
  const u32 epoch = load_relaxed(&p.state->epoch);
  const Slices in(p, p.in, E::kBytes), out(p, p.out, E::kBytes);
  const ResultSlices results{out};
  Segment own_out = out(p.rank);
  if (p.kind == CollectiveKind::kReduceScatter) own_out.data = p.out;
  using Send = Mover<true, kSendStages, Slices>;
  using Take = Mover<false, kTakeStages, ResultSlices>;
  if (thread == 0) {
    Send::init(shared.send_state);
    Take::init(shared.take_state);
    for (int i = 0; i < kTiles; i++) {
      mbarrier_init(&shared.full[i], kReduceThreads);
      mbarrier_init(&shared.empty[i], 1);
    }
    shared.failed = 0;
    fence_mbarrier_init();
  }
  if (warp == 3) announce_call(p, epoch, lane);
  __syncthreads();
  if (warp == 0) {
    Send(p, Ring::kReduce, worker, in, shared.send, shared.send_state).run(lane);
  } else if (warp == 1) {
    if (p.kind != CollectiveKind::kReduceScatter)
      Take(p, Ring::kGather, worker, results, shared.take, shared.take_state).run(lane);
  } else if (warp == 2) {
    if (lane == 0) ResultSender{p, shared, own_out, {p, Ring::kReduce, worker}, {p, Ring::kGather, worker}}.run();
  } else if (warp == 3) {
    finish_call(p, epoch, lane);
  } else {
    Reducer<E, kWorld>{p, shared, in(p.rank), own_out, {p, Ring::kReduce, worker}}.run(thread - 128);
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
    return {data, bytes, abi::ring_workers(bytes, abi::kMaxRingWorkers)};
  }
};

struct ExchangeShared {
  MoverShared<kSendStages> send;
  MoverShared<kSendStages> take;
};
struct ExchangeStates {
  MoverState<kSendStages> send, take;
};

/// The own part of an exchange.
ARK_DEVICE void copy_own_part(const CollectiveParams& p, u64 worker, u64 num_workers) {
  const abi::ExchangePart& part = p.parts[p.rank];
  if (part.source == part.destination) return;
  const Span<1> from(part.source, part.send_bytes), to(part.destination, part.send_bytes);
  const u64 blocks = from.blocks<4>();
  for (u64 t = worker; t < blocks; t += 4 * num_workers) {
    u32 w[4][4];
#pragma unroll
    for (int u = 0; u < 4; u++)
      if (t + u * num_workers < blocks) from.load(w[u], t + u * num_workers);
#pragma unroll
    for (int u = 0; u < 4; u++)
      if (t + u * num_workers < blocks) to.store(w[u], t + u * num_workers);
  }
}

/// All-gather, broadcast, gather, scatter, all-to-all, barrier: every rank has a part for every rank. kRingThreads
/// threads; shared memory only when a pair is too large for packets.
template <int kWorld>
ARK_DEVICE void exchange_kernel(const CollectiveParams& p) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  __shared__ ExchangeStates states;
  ExchangeShared& shared = *reinterpret_cast<ExchangeShared*>(dynamic_shared);
  begin_launch(p);
  const int thread = thread_index(), warp = thread / 32, lane = thread & 31;
  const int worker = static_cast<int>(blockIdx.x);
  const u32 epoch = load_relaxed(&p.state->epoch);
  const BigParts outgoing{p, true}, incoming{p, false};
  using Send = Mover<true, kSendStages, BigParts>;
  using Take = Mover<false, kSendStages, BigParts>;
  if (thread == 0) {
    Send::init(states.send);
    Take::init(states.take);
    fence_mbarrier_init();
  }
  const Boxes boxes(p, epoch, 0, 1);
  const u64 index = static_cast<u64>(blockIdx.x) * (kRingThreads - 128) + (thread - 128);
  const u64 count = static_cast<u64>(gridDim.x) * (kRingThreads - 128);
  if (warp >= 4) send_small_parts<kWorld>(p, boxes, index, count);
  if (warp == 3) announce_call(p, epoch, lane);
  __syncthreads();
  if (warp == 0) {
    if (worker < abi::kMaxRingWorkers) Send(p, Ring::kGather, worker, outgoing, shared.send, states.send).run(lane);
  } else if (warp == 1) {
    if (worker < abi::kMaxRingWorkers) Take(p, Ring::kGather, worker, incoming, shared.take, states.take).run(lane);
  } else if (warp == 3) {
    finish_call(p, epoch, lane);
  } else if (warp >= 4) {
    receive_small_parts<kWorld>(p, boxes, index, count);
    copy_own_part(p, index, count);
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

/// Send or receive: one warp; the ring of the pair is its only order.
ARK_DEVICE void point_kernel(const CollectiveParams& p) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  __shared__ MoverState<kSendStages> state;
  auto& shared = *reinterpret_cast<MoverShared<kSendStages>*>(dynamic_shared);
  const int lane = thread_index();
  const PointPart part{p};
  if (lane == 0) {
    Mover<true, kSendStages, PointPart>::init(state);
    fence_mbarrier_init();
  }
  __syncwarp();
  const int worker = static_cast<int>(blockIdx.x);
  if (p.kind == CollectiveKind::kSend)
    Mover<true, kSendStages, PointPart>(p, Ring::kPoint, worker, part, shared, state).run(lane);
  else
    Mover<false, kSendStages, PointPart>(p, Ring::kPoint, worker, part, shared, state).run(lane);
}

}  // namespace ark::device
