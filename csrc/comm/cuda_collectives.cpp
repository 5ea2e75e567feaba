#include "comm/cuda_collectives.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"

namespace ark::comm {
namespace {

using namespace ark::cuda;
using abi::CollectiveKind;
using abi::CollectiveParams;

constexpr int kFactor = 8;  // beside an operation

abi::ArenaLayout lay_out(int world) {
  abi::ArenaLayout layout{};
  uint64_t at = 0;
  auto take = [&](uint64_t bytes) {
    uint64_t begin = at;
    at = (at + bytes + 4095) / 4096 * 4096;
    return begin;
  };
  constexpr uint64_t kRings = static_cast<uint64_t>(abi::Ring::kCount);
  constexpr uint64_t kFlags = kRings * abi::kMaxRingWorkers * abi::kMaxRanks * abi::kFlagBytes;
  layout.calls = take(2 * abi::kMaxRanks * 16);
  layout.aborts = take(abi::kMaxRanks * 4);
  layout.arrived = take(kFlags);
  layout.credits = take(kFlags);
  layout.packet_set_bytes = kPacketSetBytes;
  layout.packet_area_bytes = kPacketSetBytes / world / 32 * 32;
  layout.packets = take(2 * kPacketSetBytes);
  layout.flagged = take(2 * kPacketSetBytes);
  layout.places = take(2 * abi::kMaxRanks * 2 * 16);
  layout.parted = take(static_cast<uint64_t>(abi::kMaxDirectWorkers) * abi::kMaxRanks * abi::kFlagBytes);
  layout.points = take(abi::kMaxRanks * abi::kPointBoxes * 16);
  const uint64_t pairs = static_cast<uint64_t>(abi::slots_before(abi::Ring::kPoint)) * abi::kMaxRingWorkers +
                         static_cast<uint64_t>(abi::ring_slots(abi::Ring::kPoint)) * abi::kMaxPointWorkers;
  layout.rings = take(pairs * world * abi::kMessageBytes);
  layout.size_bytes = at;
  return layout;
}

/// As PacketOf of csrc/device/collective/packet.cuh.
bool has_16_byte_packets(DType t) {
  return abi::kClearedPackets && (t == DType::kF32 || t == DType::kF16 || t == DType::kBF16);
}

/// What the kernels do: bool is or and and.
abi::ReduceOp device_op(DType dtype, Reduction op) {
  if (dtype == DType::kBool) {
    check<UnsupportedError>(op != Reduction::kAverage, "reduction average of bool: expected a number type");
    if (op == Reduction::kSum || op == Reduction::kMax) return abi::ReduceOp::kBitOr;
    if (op == Reduction::kProduct || op == Reduction::kMin) return abi::ReduceOp::kBitAnd;
  }
  check<UnsupportedError>(!is_float(dtype) || op < Reduction::kBitAnd, "reduction ", name(op), " of ", name(dtype),
                          ": expected an integer or bool type");
  return static_cast<abi::ReduceOp>(op);
}

/// As the ranks compare it.
abi::ReduceOp compared(abi::ReduceOp op, bool factor) {
  return static_cast<abi::ReduceOp>(static_cast<int>(op) | (factor ? kFactor : 0));
}

const unsigned char* bytes_of(const void* p) { return static_cast<const unsigned char*>(p); }

constexpr const char* kArenaTag = "cuda";

}  // namespace

CudaCollectives::CudaCollectives(Store& store, const GroupInfo& group, int device, std::shared_ptr<Toolchain> toolchain,
                                 const CudaCollectivesOptions& options)
    : group_(group),
      gpu_(open_gpu(device)),
      toolchain_(std::move(toolchain)),
      options_(options),
      layout_(lay_out(group.world)),
      error_(gpu_.context, sizeof(abi::CollectiveError)),
      store_(store) {
  check<UnsupportedError>(group.world >= 1 && group.world <= abi::kMaxRanks, "CUDA collectives of a host join 1 to ",
                          abi::kMaxRanks, " ranks, got ", group.world);
  if (group.world == 1) return;
  const std::string problem = toolchain_->compiler.nvrtc().problem();
  check<UnsupportedError>(problem.empty(), "no NVRTC to compile kernels with: ", problem);
  arena_ = std::make_unique<SymmetricMemory>(store, group, gpu_, kArenaTag, layout_.size_bytes);
  // Cleared packets are all ones; flags start at the number of messages of the past.
  fill_and_wait(gpu_, arena_->own() + layout_.calls, 0xff, 2 * abi::kMaxRanks * 16);
  fill_and_wait(gpu_, arena_->own() + layout_.packets, 0xff, 2 * layout_.packet_set_bytes);
  state_ = DeviceMemory(gpu_.context, sizeof(abi::CollectiveState));
  auto state = std::make_unique<abi::CollectiveState>();
  std::memset(state.get(), 0, sizeof *state);
  state->epoch = options.first_epoch;
  std::fill_n(&state->sent[0][0][0], sizeof state->sent / 4, options.first_message);
  std::fill_n(&state->received[0][0][0], sizeof state->received / 4, options.first_message);
  state_.upload(0, state.get(), sizeof *state);
  if (options.first_message) {
    std::vector<uint32_t> flags((layout_.packets - layout_.arrived) / 4, options.first_message);
    ContextScope scope(gpu_.context);
    RelaxedCaptureScope relaxed;
    Stream stream = nullptr;
    check_result(driver().stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
    check_result(driver().copy_to_device_async(arena_->own() + layout_.arrived, flags.data(), flags.size() * 4, stream),
                 "cuMemcpyHtoDAsync");
    check_result(driver().stream_synchronize(stream), "cuStreamSynchronize");
    driver().stream_destroy(stream);
  }
  arena_->offer();
}

CudaCollectives::~CudaCollectives() { wait_for_all(gpu_.context); }  // kernels may still use the arena

void CudaCollectives::refuse(Store& store, const GroupInfo& group, const std::string& why) {
  SymmetricMemory::refuse(store, group, kArenaTag, why);
}

void CudaCollectives::connect(Clock::time_point deadline, uint64_t sequence) {
  if (connected_) return;
  for (int step = 1; step < group_.world; ++step)
    reach((group_.rank + step) % group_.world, deadline, cat("collective number ", sequence));
  connected_ = true;
}

void CudaCollectives::reach(int peer, Clock::time_point deadline, const std::string& what) {
  try {
    arena_->of(peer, deadline);
  } catch (const UnsupportedError&) {
    throw;
  } catch (const std::exception& error) {
    throw DeviceError(cat("group ", group_.name, ", rank ", group_.rank, ", ", what, ": rank ", peer,
                          " did not offer its memory: ", error.what()));
  }
}

Clock::time_point CudaCollectives::deadline(const Call& call) const {
  return Clock::now() + std::chrono::nanoseconds(call.timeout_ns);
}

CollectiveParams CudaCollectives::params_for_kernels(Clock::time_point deadline, uint64_t timeout_ns) {
  connect(deadline);
  return make_params(CollectiveKind::kAllReduce, {.timeout_ns = timeout_ns});
}

CollectiveParams CudaCollectives::make_params(CollectiveKind kind, const Call& call) const {
  CollectiveParams p{};
  for (int r = 0; arena_ && r < group_.world; ++r) p.base[r] = reinterpret_cast<unsigned char*>(arena_->mapped(r));
  p.layout = layout_;
  p.state = reinterpret_cast<abi::CollectiveState*>(state_.address());
  p.error = reinterpret_cast<abi::CollectiveError*>(error_.device());
  p.deadline_ns = call.timeout_ns;
  p.sequence = call.sequence;
  p.rank = group_.rank;
  p.world = group_.world;
  p.root = -1;
  p.kind = kind;
  return p;
}

int CudaCollectives::ring_workers(uint64_t bytes) const {
  return forced_workers_ > 0 ? forced_workers_ : tuning_for(group_.world).ring_workers_for(bytes);
}

/// The most CTAs of the rings for a pair of an exchange, from what both ends know: `bytes`; of an all-to-all, which may
/// be uneven for another rank, only the size of the pair, as if all were of it.
int CudaCollectives::pair_workers(ExchangeKind kind, uint64_t pair, uint64_t bytes) const {
  if (kind == ExchangeKind::kBroadcast) return ring_workers(bytes);
  return ring_workers((kind == ExchangeKind::kAllToAll ? pair : bytes) * group_.world);
}

abi::Algorithm CudaCollectives::choose(uint64_t bytes, DType dtype) const {
  const CollectiveTuning& tuning = tuning_for(group_.world);
  // Flagged packets carry half: they fill the boxes, and the link, twice as fast.
  const uint64_t weight = has_16_byte_packets(dtype) ? 1 : 2;
  const uint64_t slice = ((bytes * weight + 15) / 16 + group_.world - 1) / group_.world * 16;
  const bool fits_one = bytes * weight <= layout_.packet_area_bytes, fits_two = slice <= layout_.packet_area_bytes / 2;
  if (forced_ == static_cast<int>(abi::Algorithm::kOneShot) && fits_one) return abi::Algorithm::kOneShot;
  if (forced_ == static_cast<int>(abi::Algorithm::kTwoShot) && fits_two) return abi::Algorithm::kTwoShot;
  if (forced_ >= 0) return abi::Algorithm::kRing;
  if (bytes * weight <= tuning.one_shot_bytes && fits_one) return abi::Algorithm::kOneShot;
  if (bytes * weight <= tuning.two_shot_bytes && fits_two) return abi::Algorithm::kTwoShot;
  return abi::Algorithm::kRing;
}

/// What a group of one rank does.
void CudaCollectives::copy_alone(void* to, const void* from, uint64_t bytes, const Call& call) {
  if (to == from || !to || !from || bytes == 0) return;
  ContextScope scope(gpu_.context);
  check_result(driver().copy_on_device_async(reinterpret_cast<DevicePtr>(to), reinterpret_cast<DevicePtr>(from), bytes,
                                             call.stream),
               "cuMemcpyDtoDAsync");
}

void CudaCollectives::all_reduce(const void* in, void* out, uint64_t count, DType dtype, Reduction op, int root,
                                 const Call& call) {
  connect(deadline(call), call.sequence);
  const auto kind = root < 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduce;
  CollectiveParams p = make_params(kind, call);
  p.in = bytes_of(in);
  p.out = static_cast<unsigned char*>(out);
  p.count = count;
  p.root = root;
  p.op = device_op(dtype, op);
  p.call = abi::pack_call(kind, static_cast<int>(dtype), compared(p.op, call.factor), root, count);
  const uint64_t bytes = count * size_bytes(dtype);
  if (group_.world == 1) return copy_alone(out, in, bytes, call);
  if (takes_direct(bytes, tuning_for(group_.world).direct_reduce) && reduce_direct(p, bytes, bytes, dtype, call))
    return;
  p.algorithm = choose(bytes, dtype);
  if (p.algorithm == abi::Algorithm::kRing) {
    p.ring_workers = ring_workers(bytes);
    const uint64_t messages = (bytes + abi::kMessageBytes - 1) / abi::kMessageBytes;
    const uint64_t slice = (messages + group_.world - 1) / group_.world * abi::kMessageBytes;
    return launch({KernelFamily::kRing, dtype, group_.world}, std::max(1, abi::ring_workers(slice, p.ring_workers)),
                  true, p, call);
  }
  const uint64_t packet = has_16_byte_packets(dtype) ? 16 : 8;
  uint64_t packets = (bytes + packet - 1) / packet;
  if (p.algorithm == abi::Algorithm::kTwoShot) packets = (packets + group_.world - 1) / group_.world;
  const int grid =
      static_cast<int>(std::clamp<uint64_t>((packets + kPacketThreads - 1) / kPacketThreads, 1, kMaxPacketWorkers));
  launch({KernelFamily::kPackets, dtype, group_.world}, grid + 1, false, p, call);
}

void CudaCollectives::reduce_scatter(const void* in, void* out, uint64_t count, DType dtype, Reduction op,
                                     const Call& call) {
  connect(deadline(call), call.sequence);
  CollectiveParams p = make_params(CollectiveKind::kReduceScatter, call);
  p.in = bytes_of(in);
  p.out = static_cast<unsigned char*>(out);
  p.count = count;
  p.op = device_op(dtype, op);
  p.call = abi::pack_call(p.kind, static_cast<int>(dtype), compared(p.op, call.factor), -1, count);
  if (group_.world == 1) return copy_alone(out, in, count * size_bytes(dtype), call);
  const uint64_t bytes = count * size_bytes(dtype), weight = has_16_byte_packets(dtype) ? 1 : 2;
  const uint64_t room = layout_.packet_area_bytes / 2;
  if (takes_direct(bytes * group_.world, tuning_for(group_.world).direct_scatter) &&
      reduce_direct(p, bytes * group_.world, 0, dtype, call))
    return;
  const bool small =
      bytes * weight <= room && bytes * group_.world * weight <= tuning_for(group_.world).reduce_scatter_bytes;
  if (small && forced_ != static_cast<int>(abi::Algorithm::kRing)) {
    p.algorithm = abi::Algorithm::kTwoShot;
    const uint64_t packet = has_16_byte_packets(dtype) ? 16 : 8, packets = (bytes + packet - 1) / packet;
    const int grid =
        static_cast<int>(std::clamp<uint64_t>((packets + kPacketThreads - 1) / kPacketThreads, 1, kMaxPacketWorkers));
    return launch({KernelFamily::kPackets, dtype, group_.world}, grid + 1, false, p, call);
  }
  p.algorithm = abi::Algorithm::kRing;
  p.ring_workers = ring_workers(bytes * group_.world);
  launch({KernelFamily::kRing, dtype, group_.world}, std::max(1, abi::ring_workers(bytes, p.ring_workers)), true, p,
         call);
}

void CudaCollectives::exchange(ExchangeKind kind, std::span<const abi::ExchangePart> parts, int root, uint64_t bytes,
                               const Call& call, const Output& output) {
  check(static_cast<int>(parts.size()) == group_.world, "an exchange with ", parts.size(), " parts in a group of ",
        group_.world);
  if (group_.world == 1) return copy_alone(parts[0].destination, parts[0].source, parts[0].send_bytes, call);
  connect(deadline(call), call.sequence);
  CollectiveParams p = make_params(CollectiveKind::kExchange, call);
  p.call = abi::pack_call(p.kind, call.type, static_cast<abi::ReduceOp>(kind), root, bytes);
  for (int r = 0; r < group_.world; ++r) p.parts[r] = parts[r];
  p.compares_pairs = bytes == 0 && (kind == ExchangeKind::kAllToAll || kind == ExchangeKind::kAllGather);
  p.mixes_pairs = kind == ExchangeKind::kAllToAll;
  if (output.data && takes_direct(output.bytes, tuning_for(group_.world).direct_move) && move_direct(p, output, call))
    return;
  p.packet_limit = forced_ == static_cast<int>(abi::Algorithm::kRing) ? 0 : tuning_for(group_.world).pair_bytes;
  uint64_t small = 0;
  int big_workers = 0;
  auto workers_for = [&](uint64_t size) {  // of one pair and direction
    if (size <= p.packet_limit) {
      small = std::max(small, size);
      return 0;
    }
    const int limit = pair_workers(kind, size, bytes), workers = abi::ring_workers(size, limit);
    p.ring_workers = std::max(p.ring_workers, limit);
    big_workers = std::max(big_workers, workers);
    return workers;
  };
  for (int r = 0; r < group_.world; ++r) {
    if (r == group_.rank) continue;
    p.parts[r].send_workers = workers_for(parts[r].send_bytes);
    p.parts[r].receive_workers = workers_for(parts[r].receive_bytes);
  }
  constexpr uint64_t kBytesPerWorker = kPacketThreads * 8;
  uint64_t grid = std::max<uint64_t>(1, (small + kBytesPerWorker - 1) / kBytesPerWorker);
  const abi::ExchangePart& own = parts[group_.rank];
  if (own.source != own.destination) grid = std::max<uint64_t>(grid, own.send_bytes / (4 * 16 * kPacketThreads));
  p.uses_rings = big_workers > 0;
  grid = std::max<uint64_t>(std::min<uint64_t>(grid, p.uses_rings ? p.ring_workers : kMaxPacketWorkers), big_workers);
  launch({KernelFamily::kExchange, DType::kU8, group_.world}, static_cast<int>(grid), p.uses_rings, p, call);
}

void CudaCollectives::barrier(const Call& call) {
  const abi::ExchangePart nothing[abi::kMaxRanks] = {};
  exchange(ExchangeKind::kBarrier, std::span(nothing, group_.world), -1, 0, call);
}

void CudaCollectives::point(CollectiveKind kind, int peer, uint64_t bytes, CollectiveParams& p, const Call& call) {
  p.peer = peer;
  p.call = abi::pack_call(kind, kUntyped, abi::ReduceOp::kSum, peer, bytes);
  launch({KernelFamily::kPoint, DType::kU8, 0}, std::max(1, abi::ring_workers(bytes, abi::kMaxPointWorkers)), true, p,
         call);
}

void CudaCollectives::send(const void* data, uint64_t bytes, int to, const Call& call) {
  reach(to, deadline(call), cat("send number ", call.sequence));
  CollectiveParams p = make_params(CollectiveKind::kSend, call);
  p.parts[to].source = bytes_of(data);
  p.parts[to].send_bytes = bytes;
  point(CollectiveKind::kSend, to, bytes, p, call);
}

void CudaCollectives::receive(void* data, uint64_t bytes, int from, const Call& call) {
  reach(from, deadline(call), cat("receive number ", call.sequence));
  CollectiveParams p = make_params(CollectiveKind::kReceive, call);
  p.parts[from].destination = static_cast<unsigned char*>(data);
  p.parts[from].receive_bytes = bytes;
  point(CollectiveKind::kReceive, from, bytes, p, call);
}

void CudaCollectives::launch(const KernelKey& key, int grid, bool with_shared, CollectiveParams& params,
                             const Call& call) {
  poll();
  Kernel* kernel = nullptr;
  {
    std::lock_guard lock(mutex_);
    kernel = &kernels_[key];
    if (!kernel->module) {
      kernel->source = collective_source(key);
      CompileOutcome outcome = toolchain_->compiler.compile(kernel->source.text, gpu_.arch);
      kernel->module = toolchain_->modules.get(gpu_, *outcome.cubin, kernel->source.entry, kernel->source.shared_bytes);
    }
    ++launches_;
  }
  LaunchAttribute attribute{};
  attribute.id = LaunchAttributeId::kProgrammaticSerialization;
  attribute.value.programmatic = 1;
  LaunchConfig config{};
  params.workers = grid;
  const bool spare = with_shared && key.family != KernelFamily::kPoint && grid >= kMinWorkersToSpread;
  config.grid_x = static_cast<unsigned>(grid + (spare ? kSpareWorkers : 0));
  config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
  config.block_x = static_cast<unsigned>(kernel->source.threads);
  config.shared_bytes = with_shared ? static_cast<unsigned>(kernel->source.shared_bytes) : 0;
  config.stream = call.stream;
  const bool direct = params.algorithm == abi::Algorithm::kDirect;
  params.early = options_.early_launch && !with_shared && !direct && grid <= kMaxEarlyWorkers;
  if (params.early) {
    config.attributes = &attribute;
    config.num_attributes = 1;
  }
  void* pointers[] = {&params};
  ContextScope scope(gpu_.context);
  check_result(driver().launch_kernel(&config, kernel->module->function(), pointers, nullptr), "cuLaunchKernelEx");
}

void CudaCollectives::poll() {
  auto* record = static_cast<abi::CollectiveError*>(error_.host());
  if (std::atomic_ref<abi::u32>(record->set).load(std::memory_order_acquire) == 0) [[likely]] {
    if (!aborted_.load(std::memory_order_acquire)) [[likely]]
      return;
    throw DeviceError(cat("group ", group_.name, ", rank ", group_.rank, ": the group was aborted"));
  }
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = describe(*record);
  throw DeviceError(failure_);
}

void CudaCollectives::abort() {
  if (!arena_) return;
  // Into the flags of this rank and of the peers that it has mapped: it may have no kernel under way that would tell
  // them.
  aborted_.store(true, std::memory_order_release);
  const uint32_t about = abi::abort_about(group_.rank);
  ContextScope scope(gpu_.context);
  RelaxedCaptureScope relaxed;
  Stream stream = nullptr;
  check_result(driver().stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
  for (int r = 0; r < group_.world; ++r)
    if (DevicePtr segment = arena_->mapped(r))
      driver().copy_to_device_async(segment + layout_.aborts + group_.rank * 4, &about, sizeof about, stream);
  driver().stream_synchronize(stream);
  driver().stream_destroy(stream);
}

namespace {

/// Rank `teller` has given up, because of rank `about`.
std::string abort_text(int teller, int about, int self) {
  if (teller == self) return "the group was aborted";
  if (about == teller) return cat("rank ", teller, " has failed");
  if (about == self) return cat("rank ", teller, " gave up: this rank did not arrive there in time, or disagreed");
  return cat("rank ", about, " did not arrive in time, or disagreed, at rank ", teller, ", which gave up");
}

std::string call_text(uint64_t call) {
  const auto [kind, direct, dtype, op, root, count] = abi::unpack_call(call);
  static constexpr const char* kExchanges[] = {"barrier", "all_gather", "broadcast", "gather", "scatter", "all_to_all"};
  std::string to = cat(root < 0 ? "" : cat(", root ", root), direct ? ", on registered memory" : "");
  switch (kind) {
    case CollectiveKind::kExchange:
      return cat(op < 6 ? kExchanges[op] : "?", count ? cat(" of ", count, " bytes") : "",
                 dtype < kNumDTypes ? cat(" of ", name(static_cast<DType>(dtype))) : "", to);
    case CollectiveKind::kSend:
      return cat("send of ", count, " bytes to rank ", root);
    case CollectiveKind::kReceive:
      return cat("receive of ", count, " bytes from rank ", root);
    default:
      break;
  }
  const char* what = kind == CollectiveKind::kAllReduce       ? "all_reduce"
                     : kind == CollectiveKind::kReduce        ? "reduce"
                     : kind == CollectiveKind::kReduceScatter ? "reduce_scatter"
                                                              : "?";
  return cat(what, " (", name(static_cast<Reduction>(op & ~kFactor)), op & kFactor ? " with a factor" : "", ") of ",
             count, " elements of ", dtype < kNumDTypes ? name(static_cast<DType>(dtype)) : "?", to);
}

}  // namespace

std::string CudaCollectives::describe(const abi::CollectiveError& e) const {
  const auto& [waited_for, expected, seen] = e.fault;
  const auto [wait, peer] = waited_for;
  const bool exchange = abi::unpack_call(e.own_call).kind == CollectiveKind::kExchange;
  const bool about_pair = exchange && (wait == abi::CollectiveWait::kSent || wait == abi::CollectiveWait::kExpected);
  std::string where = cat("group ", group_.name, ", rank ", group_.rank, ", collective number ", e.sequence, ", ",
                          call_text(about_pair ? abi::call_with_count(e.own_call, 0) : e.own_call), ": ");
  switch (wait) {
    case abi::CollectiveWait::kMismatch:
      return cat(where, "the ranks disagree: rank ", peer, " called ", call_text(e.peer_call));
    case abi::CollectiveWait::kPeerAbort:
      return cat(where, abort_text(peer, abi::rank_of_abort(seen), group_.rank));
    case abi::CollectiveWait::kWindow:
      return cat(where, "the ranks disagree: rank ", peer, " has its tensor in registered memory number ", seen,
                 ", this rank in number ", expected, " (all ranks pass tensors of the same empty or register call)");
    case abi::CollectiveWait::kSent:
      return cat(where, "the ranks disagree: rank ", peer, " sends ", abi::count_of_call(e.peer_call),
                 " bytes to this rank, which expects ", abi::count_of_call(e.own_call));
    case abi::CollectiveWait::kExpected:
      return cat(where, "the ranks disagree: rank ", peer, " expects ", abi::count_of_call(e.peer_call),
                 " bytes from this rank, which sends ", abi::count_of_call(e.own_call));
    case abi::CollectiveWait::kEnd:
      return cat(where, "rank ", peer, " did not end the collective within the time-out (CTA ", e.worker, ", epoch ",
                 e.epoch, ")");
    default:
      break;
  }
  const std::string who = peer < 0 ? "a rank (it is not known which)" : cat("rank ", peer);
  static constexpr const char* kWaits[] = {"call", "packet", "message", "free slot", "tile", "copy"};
  return cat(where, who, " did not arrive within the time-out (CTA ", e.worker, " waited for a ",
             static_cast<size_t>(wait) < std::size(kWaits) ? kWaits[static_cast<size_t>(wait)] : "?", ", expected ",
             expected, ", saw ", seen, ", epoch ", e.epoch, ")");
}

}  // namespace ark::comm
