// A target turns a plan into something that runs: cuda (one cooperative kernel) or host (the same plan on CPU threads).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "planner/plan.h"

namespace ark::targets {

struct LaunchArgs {
  std::span<void* const> slots;  // one address per Plan::buffers entry (constants may be null: the target owns them)
  void* run_state = nullptr;     // zeroed once by its owner; state_bytes() long, in the target's memory
  void* stream = nullptr;        // CUstream (cuda)
  void* trace = nullptr;         // abi::TraceRecord[trace_capacity()] in the target's memory, or null
  uint64_t seed = 0;             // host: order in which ready workers are picked
};

class Executable {
 public:
  virtual ~Executable() = default;
  virtual const plan::Plan& plan() const = 0;
  virtual size_t state_bytes() const = 0;
  virtual size_t trace_capacity() const = 0;
  /// Starts the launch (cuda: asynchronous, on the stream; host: returns when done). Throws DeviceError when a deadline passed
  /// in an earlier launch (cuda) or in this one (host).
  virtual void launch(const LaunchArgs& args) = 0;
  /// Throws DeviceError if an earlier launch failed; never blocks.
  virtual void poll() = 0;
};

struct HostOptions {
  int num_threads = 0;  // 0: one per core
  uint64_t deadline_ns = 5'000'000'000;
};
struct CudaOptions {
  int device = 0;
  uint64_t deadline_ns = 5'000'000'000;
  bool trace = false;  // compile the tracing variant
};

std::unique_ptr<Executable> make_host(plan::Plan plan, const HostOptions& options);
std::unique_ptr<Executable> make_cuda(plan::Plan plan, const CudaOptions& options);

}  // namespace ark::targets
