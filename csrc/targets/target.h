// A target turns a plan into something that runs: cuda (one cooperative kernel) or host (the same plan on CPU threads).
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "targets/rank_memory.h"

namespace ark::cuda {
struct Toolchain;
}

namespace ark::codegen {
struct Kernel;
}

namespace ark::targets {

/// Several iterations of a plan (plan::Loop) in one launch. On cuda `look_up` is not asked, and nobody knows how many
/// ran when the launch returns.
struct Iterations {
  int64_t most = 1;  // none run where the flag says so at once, or where this is 0
  /// Asked now and then by the thread that launches. What it throws ends the launch after the iteration that runs, and
  /// then leaves it. May be null.
  std::function<void()> look_up{};
  int64_t done = 0;  // result, also where the launch throws; -1: not known
};

struct LaunchArgs {
  std::span<void* const> slots;  // one address per Plan::buffers entry (constants may be null: the target owns them)
  void* run_state = nullptr;     // state_bytes() long, in the target's memory, initialised by init_state()
  void* stream = nullptr;        // CUstream (cuda)
  void* trace = nullptr;         // abi::TraceRecord[trace_capacity()] in the target's memory, or null
  uint64_t seed = 0;             // host: order in which ready workers are picked
  Iterations* iterations = nullptr;   // null: one, whatever the stop flag says
  const RankMemory* ranks = nullptr;  // plans with exchanges: run state and boxes lie there, `run_state` is not used
};

/// How an executable came to be; nothing of it is needed to run.
struct BuildInfo {
  double source_seconds = 0, compile_seconds = 0, load_seconds = 0;
  int compiles = 0, disk_hits = 0, memory_hits = 0;  // exactly one of the three is 1 (cuda)
  int registers = 0, spill_bytes = 0, smem_bytes = 0;
  std::string source, log;
};

/// Thread-safe: two threads may launch at once, with run states of their own.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual const plan::Plan& plan() const = 0;
  virtual size_t state_bytes() const = 0;
  virtual size_t trace_capacity() const = 0;
  /// Starts the launch (cuda: asynchronous, on the stream; host: returns when done). Throws DeviceError when a deadline
  /// passed in an earlier launch (cuda) or in this one (host).
  virtual void launch(const LaunchArgs& args) = 0;
  /// Throws DeviceError if an earlier launch failed; never blocks.
  virtual void poll() = 0;

  /// Makes memory of state_bytes() bytes a run state; cuda: ordered on the stream.
  virtual void init_state(void* state, void* stream) {
    (void)stream;
    std::memset(state, 0, state_bytes());
  }
  /// Grows whenever a launch has failed: run states that were initialised before must be initialised again.
  virtual uint32_t generation() const { return 0; }
  /// Number of the capture that the stream takes part in, 0 if none.
  virtual uint64_t capture_id(void* stream) const {
    (void)stream;
    return 0;
  }
  /// A run state that belongs to the launches of one capture on one stream and lives as long as a replay may.
  virtual void* captured_state(uint64_t capture_id, void* stream) {
    (void)capture_id, (void)stream;
    return nullptr;
  }
  /// Longest time that one wait of a later launch may take (cuda).
  virtual void set_deadline_ns(uint64_t deadline_ns) { (void)deadline_ns; }
  virtual const BuildInfo& build_info() const {
    static const BuildInfo kNone{};
    return kNone;
  }
};

/// That the plan can run so many times in a launch. Throws UserError.
void check_iterations(const plan::Plan& plan, const Iterations& iterations);

struct HostOptions {
  int num_threads = 0;  // 0: one per core
  uint64_t deadline_ns = 5'000'000'000;
};
struct CudaOptions {
  int device = 0;
  uint64_t deadline_ns = 5'000'000'000;
  bool trace = false;  // compile the tracing variant
  std::shared_ptr<cuda::Toolchain>
      toolchain;  // compiler, cubins and loaded modules that executables share; null: its own
  std::shared_ptr<const codegen::Kernel> kernel;      // that other plans share; null: one of the plan's own
  plan::KernelNumbers numbers;                        // the plan's code in it
  std::function<void(const std::string&)> on_source;  // told of the source before it is compiled; may be null
};

std::unique_ptr<Executable> make_host(plan::Plan plan, const HostOptions& options);
std::unique_ptr<Executable> make_cuda(plan::Plan plan, const CudaOptions& options);

/// Multiprocessors of a CUDA device: the most workers that a plan may have there. Throws DeviceError without a driver.
int cuda_multiprocessors(int device);

}  // namespace ark::targets
