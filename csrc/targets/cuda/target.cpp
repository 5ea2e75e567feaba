// The CUDA target: one cooperative launch of the generated kernel per run.
#include "targets/target.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "codegen/codegen.h"
#include "cuda/device.h"
#include "cuda/toolchain.h"
#include "device/abi/launch.h"
#include "targets/cuda/plan_image.h"
#include "targets/cuda/ranks.h"
#include "targets/cuda/tensor_map.h"

namespace ark::targets {
namespace {

using namespace ark::cuda;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

class CudaExecutable final : public Executable {
 public:
  CudaExecutable(plan::Plan plan, const CudaOptions& options, codegen::Source source, double source_seconds)
      : plan_(std::move(plan)),
        options_(options),
        deadline_ns_(options.deadline_ns),
        gpu_(open_gpu(options.device)),
        error_(gpu_.context, sizeof(abi::ErrorRecord)) {
    check(plan_.num_workers >= 1 && plan_.num_workers <= gpu_.multiprocessors, "the plan has ", plan_.num_workers,
          " workers, ", gpu_.name, " has ", gpu_.multiprocessors, " multiprocessors");
    options_.on_source = nullptr;  // who listens may not live as long
    info_.source_seconds = source_seconds;
    build(std::move(source));
    upload();
  }

  ~CudaExecutable() override {
    if (states_of_captures_.empty() && !captured_) return;
    // A captured graph may replay this kernel at any time: what it uses must outlive this object.
    new std::shared_ptr<LoadedModule>(module_);
    image_memory_.leak();
    error_.leak();
    for (auto& [key, memory] : states_of_captures_) memory.leak();
  }

  const plan::Plan& plan() const override { return plan_; }
  size_t state_bytes() const override { return state_size_bytes(plan_); }
  size_t trace_capacity() const override { return num_items_; }
  uint32_t generation() const override { return generation_.load(std::memory_order_acquire); }
  const BuildInfo& build_info() const override { return info_; }
  void set_deadline_ns(uint64_t deadline_ns) override { deadline_ns_.store(deadline_ns, std::memory_order_relaxed); }

  void init_state(void* state, void* stream) override {
    ContextScope scope(gpu_.context);
    auto address = reinterpret_cast<DevicePtr>(state);
    auto* cu_stream = static_cast<Stream>(stream);
    check_result(driver().memset_d8_async(address, 0, state_bytes(), cu_stream), "cuMemsetD8Async of a run state");
    if (plan_.maps.empty()) return;
    check_result(driver().copy_to_device_async(address + state_maps_offset(plan_), maps_.data(),
                                               maps_.size() * sizeof(TensorMap), cu_stream),
                 "cuMemcpyHtoDAsync of the tensor maps");
  }

  uint64_t capture_id(void* stream) const override {
    ContextScope scope(gpu_.context);
    CaptureStatus status = CaptureStatus::kNone;
    unsigned long long id = 0;
    check_result(driver().stream_capture_info(static_cast<Stream>(stream), &status, &id, nullptr, nullptr, nullptr),
                 "cuStreamGetCaptureInfo");
    return status == CaptureStatus::kActive ? id : 0;
  }

  void* captured_state(uint64_t capture_id, void* stream) override {
    std::lock_guard lock(mutex_);
    auto [found, inserted] = states_of_captures_.try_emplace({capture_id, stream});
    if (inserted) {
      found->second = DeviceMemory(gpu_.context, state_bytes());
      reset_captured_state(found->second);
    }
    return reinterpret_cast<void*>(found->second.address());
  }

  void launch(const LaunchArgs& args) override {
    if (args.iterations) begin_iterations(*args.iterations);
    if (plan_.world > 1)
      begin_with_ranks(args);
    else
      poll();
    // The kernel's parameter has room for slot_capacity_ addresses; the largest is 31 KB, so it lives on the stack.
    alignas(16) unsigned char params[sizeof(abi::LaunchParams<abi::kSlotCapacities[2], abi::kMostPlanGroups>)];
    fill(params, args);
    LaunchAttribute attribute{};
    attribute.id = LaunchAttributeId::kCooperative;
    attribute.value.cooperative = 1;
    LaunchConfig config{};
    config.grid_x = static_cast<unsigned>(plan_.num_workers);
    config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
    config.block_x = abi::kThreads;
    config.shared_bytes = static_cast<unsigned>(info_.smem_bytes);
    config.stream = static_cast<Stream>(args.stream);
    config.attributes = &attribute;
    config.num_attributes = 1;
    void* pointers[] = {params};
    ContextScope scope(gpu_.context);
    check_result(driver().launch_kernel(&config, module_->function(), pointers, nullptr), "cuLaunchKernelEx");
  }

  void poll() override {
    auto* record = static_cast<abi::ErrorRecord*>(error_.host());
    if (std::atomic_ref<abi::u32>(record->set).load(std::memory_order_acquire) == 0) [[likely]]
      return;
    std::lock_guard lock(mutex_);
    abi::ErrorRecord seen = *record;
    if (!seen.set) return;  // another thread was first
    std::memset(record, 0, sizeof *record);
    if (seen.set == abi::kErrorIndex) throw DeviceError(describe_index(seen));
    // States of streams are initialised again by their owner, in stream order. Those of captured graphs are ours, and
    // no stream is known that orders us after the replay: the failing launch ends within one more deadline by itself.
    for (auto& [key, memory] : states_of_captures_) reset_captured_state(memory);
    generation_.fetch_add(1, std::memory_order_acq_rel);
    throw DeviceError(describe(seen));
  }

 private:
  void begin_iterations(Iterations& iterations) const {
    iterations.done = -1;
    check_iterations(plan_, iterations);
  }

  /// What ended an earlier launch ends those of all ranks.
  void begin_with_ranks(const LaunchArgs& args) {
    std::byte* state = own_rank_state(plan_, args.ranks);
    set_deadline_ns(args.ranks->deadline_ns);
    try {
      poll();
    } catch (const DeviceError& error) {
      give_up_all(*args.ranks, error.what());
      throw;
    }
    if (args.ranks->fresh && !maps_.empty())
      upload_and_wait(gpu_.context, reinterpret_cast<DevicePtr>(state) + maps_offset_, maps_.data(),
                      maps_.size() * sizeof(TensorMap));
    if (capture_id(args.stream) != 0) captured_.store(true, std::memory_order_relaxed);
  }

  void build(codegen::Source source) {
    info_.smem_bytes = source.smem_bytes;
    slot_capacity_ = source.slot_capacity, groups_ = source.groups;
    check<UnsupportedError>(plan_.buffers.size() <= static_cast<size_t>(slot_capacity_), "the plan has ",
                            plan_.buffers.size(), " buffers, one launch carries at most ", slot_capacity_);
    if (!options_.toolchain) options_.toolchain = std::make_shared<Toolchain>(Compiler::Options{});
    CompileOutcome outcome = options_.toolchain->compiler.compile(source.text, gpu_.arch);
    info_.compile_seconds = outcome.seconds;
    info_.compiles = outcome.origin == CubinOrigin::kCompiled;
    info_.disk_hits = outcome.origin == CubinOrigin::kDisk;
    info_.memory_hits = outcome.origin == CubinOrigin::kMemory;
    info_.registers = outcome.cubin->registers;
    info_.spill_bytes = outcome.cubin->spill_bytes;
    info_.log = outcome.cubin->log;
    const auto begin = Clock::now();
    module_ = options_.toolchain->modules.get(gpu_, *outcome.cubin, source.entry, source.smem_bytes);
    info_.load_seconds = seconds_since(begin);
    info_.source = std::move(source.text);
  }

  void upload() {
    ContextScope scope(gpu_.context);  // a thread's first work may be this: autograd's, which compiles a backward
    auto begin = Clock::now();
    PlanImage image = lay_out(plan_, options_.numbers);
    image_memory_ = DeviceMemory(gpu_.context, image.bytes.size());
    DevicePtr base = image_memory_.address();
    maps_ = encode_maps(plan_, base);
    if (!maps_.empty()) std::memcpy(image.bytes.data() + image.maps, maps_.data(), maps_.size() * sizeof(TensorMap));
    image_memory_.upload(0, image.bytes.data(), image.bytes.size());
    num_items_ = image.num_items;
    maps_offset_ = state_maps_offset(plan_);
    loop_offset_ = state_loop_offset(plan_);
    header_.records = reinterpret_cast<const unsigned char*>(base + image.records);
    header_.items = reinterpret_cast<const abi::WorkItem*>(base + image.items);
    header_.list_begin = reinterpret_cast<const abi::i32*>(base + image.list_begin);
    header_.patches = reinterpret_cast<const abi::TensorMapPatch*>(base + image.patches);
    header_.poison = reinterpret_cast<const abi::PoisonRange*>(base + image.poison);
    header_.num_poison = static_cast<abi::i32>(image.num_poison);
    header_.error = reinterpret_cast<abi::ErrorRecord*>(error_.device());
    header_.num_workers = plan_.num_workers;
    header_.world = 1;
    header_.num_maps = header_.num_patches = static_cast<abi::i32>(plan_.maps.size());
    for (size_t i = 0; i < plan_.buffers.size(); ++i)
      if (plan_.buffers[i].kind == plan::BufferKind::kConstant) constants_.push_back({i, base + image.constants[i]});
    info_.load_seconds += seconds_since(begin);
  }

  void fill(unsigned char* params, const LaunchArgs& args) const {
    check(args.slots.size() == plan_.buffers.size(), "launch with ", args.slots.size(), " slots of a plan with ",
          plan_.buffers.size());
    abi::LaunchHeader header = header_;
    header.deadline_ns = deadline_ns_.load(std::memory_order_relaxed);
    auto* state = static_cast<unsigned char*>(args.run_state);
    if (plan_.world > 1) {
      add_ranks(header, plan_, *args.ranks);
      state = reinterpret_cast<unsigned char*>(header.peers[args.ranks->rank]);
    }
    header.state = reinterpret_cast<abi::RunState*>(state);
    header.counters = reinterpret_cast<abi::u32*>(state + sizeof(abi::RunState));
    header.maps = plan_.maps.empty() ? nullptr : state + maps_offset_;
    header.trace = static_cast<abi::TraceRecord*>(args.trace);
    std::memcpy(params, &header, sizeof header);
    unsigned char* slots = params + sizeof header;
    static_assert(sizeof(void*) == sizeof(abi::u64));
    std::memcpy(slots, args.slots.data(), args.slots.size() * sizeof(abi::u64));
    for (const auto& [slot, address] : constants_)
      std::memcpy(slots + slot * sizeof(abi::u64), &address, sizeof address);
    if (plan_.world > 1) add_boxes(slots, plan_, *args.ranks);
    unsigned char* behind_slots = slots + static_cast<size_t>(slot_capacity_) * sizeof(abi::u64);
    if (groups_ > 1) add_groups(behind_slots + sizeof(abi::LoopLaunch), header, plan_, args.ranks, groups_);
    if (plan_.loop.carried.empty()) return;
    const abi::LoopLaunch loop = loop_launch(state, args);
    std::memcpy(behind_slots, &loop, sizeof loop);
  }

  abi::LoopLaunch loop_launch(unsigned char* state, const LaunchArgs& args) const {
    abi::LoopLaunch loop{};
    loop.state = reinterpret_cast<abi::LoopState*>(state + loop_offset_);
    loop.arrivals = plan_.loop.arrivals;
    loop.most = args.iterations ? args.iterations->most : 1;
    if (args.iterations && plan_.loop.go_slot >= 0)
      loop.go = static_cast<const unsigned char*>(args.slots[static_cast<size_t>(plan_.loop.go_slot)]);
    return loop;
  }

  /// Of a loop's error: the iteration.
  std::string iteration_text(const abi::ErrorRecord& e) const {
    return plan_.loop.carried.empty() ? "" : cat(", iteration ", e.iteration);
  }

  void reset_captured_state(const DeviceMemory& memory) const {
    std::string zeros(state_bytes(), '\0');
    if (!maps_.empty())
      std::memcpy(zeros.data() + state_maps_offset(plan_), maps_.data(), maps_.size() * sizeof(TensorMap));
    memory.upload(0, zeros.data(), zeros.size());
  }

  std::string op_name(int op) const {
    return op >= 0 && static_cast<size_t>(op) < plan_.ops.size() ? plan_.ops[op].name : "?";
  }

  std::string describe_index(const abi::ErrorRecord& e) const {
    return cat("index ", e.index_value, " is out of range for size ", e.index_limit, ": graph ", plan_.name,
               iteration_text(e), ", op ", e.fault.name.op, " (", op_name(e.fault.name.op),
               "). Such reads gave NaN or 0, such writes were dropped.");
  }

  /// What a wait that is not for a counter was for: see device/abi/wait.h.
  std::string awaited(const abi::WaitName& name) const {
    static constexpr const char* kOther[] = {"a loaded page",
                                             "a free page",
                                             "a record",
                                             "tensor maps",
                                             "the other loader",
                                             "flagged words",
                                             "the consumers of an item",
                                             "the end of an iteration"};
    if (name.counter >= 0) return counter_text(plan_, name.counter);
    const auto place = static_cast<size_t>(-1 - static_cast<int64_t>(name.counter));
    return place < std::size(kOther) ? kOther[place] : "?";
  }

  std::string describe(const abi::ErrorRecord& e) const {
    if (plan_.world > 1)
      if (const std::string text = describe_ranks(plan_, e); !text.empty()) return text;
    const auto& [name, expected, seen] = e.fault;
    double deadline_ms = static_cast<double>(deadline_ns_.load(std::memory_order_relaxed)) / 1e6;
    return cat("a wait of the loop kernel passed its deadline of ", deadline_ms, " ms: graph ", plan_.name,
               iteration_text(e), ", rank ", e.rank, ", worker ", e.worker, ", op ", name.op, " (", op_name(name.op),
               "), tile ", name.tile, ", ", awaited(name), ": expected ", expected, ", saw ", seen, ".",
               plan_.world > 1 ? " A rank that has not sent in time may be what held it up." : "",
               " The outputs of that run are not valid.");
  }

  plan::Plan plan_;
  CudaOptions options_;
  std::atomic<uint64_t> deadline_ns_;
  GpuInfo gpu_;
  PinnedMemory error_;
  BuildInfo info_;
  int slot_capacity_ = 0, groups_ = 1;
  size_t num_items_ = 0;
  size_t maps_offset_ = 0, loop_offset_ = 0;  // in a run state; worked out once (it takes a walk over the plan)
  std::shared_ptr<LoadedModule> module_;
  DeviceMemory image_memory_;
  std::vector<TensorMap> maps_;
  abi::LaunchHeader header_{};
  std::vector<std::pair<size_t, DevicePtr>> constants_;
  std::atomic<uint32_t> generation_{0};
  std::atomic<bool> captured_{false};  // with ranks: a graph may launch it
  std::mutex mutex_;                   // of the states below and of the reset after an error
  std::map<std::pair<uint64_t, void*>, DeviceMemory> states_of_captures_;
};

}  // namespace

std::unique_ptr<Executable> make_cuda(plan::Plan plan, const CudaOptions& options) {
  const auto begin = Clock::now();
  const codegen::SourceOptions how{.trace = options.trace};
  codegen::Source source = options.kernel ? codegen::generate(*options.kernel, how) : codegen::generate(plan, how);
  const double seconds = seconds_since(begin);
  if (options.on_source) options.on_source(source.text);
  return std::make_unique<CudaExecutable>(std::move(plan), options, std::move(source), seconds);
}

int cuda_multiprocessors(int device) { return open_gpu(device).multiprocessors; }

}  // namespace ark::targets
