// The host target: binds a plan's ops once, then runs launches of it on CPU threads.
#include "targets/target.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/user_errors.h"
#include "targets/host/scheduler.h"
#include "targets/host/tasks/task.h"

namespace ark::targets {
namespace {

constexpr double kThreadWorthNs = 1e6;  // a thread costs about 50 us to start and join

class HostExecutable : public Executable {
 public:
  HostExecutable(plan::Plan plan, const HostOptions& options) : plan_(std::move(plan)), options_(options) {
    check(plan_.lists.size() <= static_cast<size_t>(plan_.num_workers), "plan '", plan_.name, "': ", plan_.lists.size(),
          " lists for ", plan_.num_workers, " workers");
    double cost_ns = 0;
    for (const plan::Op& op : plan_.ops) {
      tasks_.push_back(host::make_task(plan_, op, kernels_));
      cost_ns += tasks_.back()->cost_ns();
    }
    for (const auto& list : plan_.lists) check_list(list);
    check_loop();
    const int available =
        options.num_threads > 0 ? options.num_threads : static_cast<int>(std::thread::hardware_concurrency());
    num_threads_ = options.num_threads > 0
                       ? available
                       : std::clamp(static_cast<int>(cost_ns / kThreadWorthNs), 1, std::max(1, available));
    for (const auto& list : plan_.lists) trace_capacity_ += list.size();
  }

  const plan::Plan& plan() const override { return plan_; }
  size_t state_bytes() const override {
    return sizeof(abi::RunState) + static_cast<size_t>(plan_.num_counters) * abi::kCounterStride * sizeof(abi::u32);
  }
  size_t trace_capacity() const override { return trace_capacity_; }
  void poll() override {}

  void launch(const LaunchArgs& args) override {
    check<UserError>(args.slots.size() == plan_.buffers.size(), "plan '", plan_.name, "': ", args.slots.size(),
                     " addresses for ", plan_.buffers.size(), " slots");
    auto* state = static_cast<abi::RunState*>(plan_.world > 1 ? own_rank_state(plan_, args.ranks) : args.run_state);
    check<UserError>(state != nullptr, "plan '", plan_.name, "': a launch without a run state");
    if (args.iterations) begin_iterations(*args.iterations);
    std::vector<void*> slots(args.slots.begin(), args.slots.end());
    for (size_t i = 0; i < slots.size(); ++i) {
      const plan::Buffer& buffer = plan_.buffers[i];
      if (buffer.kind == plan::BufferKind::kConstant) slots[i] = plan_.buffers[i].data.data();
      if (plan::is_among_ranks(buffer.kind)) slots[i] = box_address(plan_, buffer, *args.ranks, state->epoch);
    }
    const host::LaunchOptions options{.slots = slots,
                                      .state = state,
                                      .trace = static_cast<abi::TraceRecord*>(args.trace),
                                      .seed = args.seed,
                                      .deadline_ns = plan_.world > 1 ? args.ranks->deadline_ns : options_.deadline_ns,
                                      .num_threads = num_threads_,
                                      .iterations = args.iterations,
                                      .ranks = plan_.world > 1 ? args.ranks : nullptr};
    std::unique_ptr<host::LaunchMemory> memory = take_memory();
    host::run_plan(plan_, tasks_, kernels_, options, *memory);
    give_memory(std::move(memory));
    const int failed = static_cast<int>(state->index_error) - 1;
    state->index_error = 0;
    if (failed < 0) return;
    const std::string iteration = args.iterations ? cat(", in iteration ", args.iterations->done - 1) : "";
    throw IndexOutOfRange(state->index_value, state->index_limit, plan_.ops[failed].name, iteration);
  }

 private:
  void check_loop() const {
    const plan::Loop& loop = plan_.loop;
    const bool any = std::ranges::any_of(plan_.lists, [](const auto& list) { return !list.empty(); });
    check(loop.carried.empty() || !any || loop.arrivals > 0, "plan '", plan_.name, "': a border of ", loop.arrivals,
          " arrivals");
    check(loop.go_slot < static_cast<int32_t>(plan_.buffers.size()), "plan '", plan_.name, "': a stop flag in slot ",
          loop.go_slot, " of ", plan_.buffers.size());
  }

  void begin_iterations(Iterations& iterations) const {
    iterations.done = 0;
    check_iterations(plan_, iterations);
  }

  void check_list(const std::vector<abi::WorkItem>& list) const {
    for (const abi::WorkItem& item : list) {
      check(item.op >= 0 && item.op < static_cast<int>(plan_.ops.size()), "plan '", plan_.name, "': work item of op ",
            item.op);
      const int64_t tiles = host::num_tiles(plan_.ops[item.op].record);
      check(item.first >= 0 && item.count > 0 && int64_t{item.first} + item.count <= tiles, "op '",
            plan_.ops[item.op].name, "': work item of tiles ", item.first, " + ", item.count, " of ", tiles);
    }
  }

  std::unique_ptr<host::LaunchMemory> take_memory() {
    const std::lock_guard lock(mutex_);
    if (memory_.empty()) return std::make_unique<host::LaunchMemory>();
    std::unique_ptr<host::LaunchMemory> memory = std::move(memory_.back());
    memory_.pop_back();
    return memory;
  }
  void give_memory(std::unique_ptr<host::LaunchMemory> memory) {
    const std::lock_guard lock(mutex_);
    memory_.push_back(std::move(memory));
  }

  plan::Plan plan_;
  HostOptions options_;
  const host::Kernels& kernels_ = host::best_kernels();
  std::vector<std::unique_ptr<host::Task>> tasks_;
  int num_threads_ = 1;
  size_t trace_capacity_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<host::LaunchMemory>> memory_;  // of launches that are over
};

}  // namespace

std::unique_ptr<Executable> make_host(plan::Plan plan, const HostOptions& options) {
  return std::make_unique<HostExecutable>(std::move(plan), options);
}

}  // namespace ark::targets
