// The collectives of torch.distributed between the GPUs of one host: kernels of csrc/device, launched on the caller's
// stream. Calls return when the kernel is in the stream; they may be captured into a CUDA graph.
//
// Every rank calls the same collectives in the same order (send and receive: both ends of a pair in the same order).
// Errors of the device (a rank that did not come, ranks that disagree) appear as DeviceError at the next call or
// poll(); the group is broken from then on.
#pragma once
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "comm/collective_source.h"
#include "comm/collective_tuning.h"
#include "comm/reduce.h"
#include "comm/symmetric_memory.h"
#include "comm/window.h"
#include "cuda/toolchain.h"
#include "device/abi/collective.h"

namespace ark::comm {

/// What an exchange is for: compared over the ranks, and the text of errors.
enum class ExchangeKind : uint8_t { kBarrier, kAllGather, kBroadcast, kGather, kScatter, kAllToAll };

struct CudaCollectivesOptions {
  uint32_t first_epoch = 2;  // tests start epochs and message counts close to a wrap
  uint32_t first_message = 0;
  bool early_launch = true;  // programmatic dependent launch
};

class CudaCollectives {
 public:
  static constexpr int kUntyped = 15;
  struct Call {
    cuda::Stream stream = nullptr;
    uint64_t sequence = 0;
    uint64_t timeout_ns = 0;
    int type = kUntyped;  // of what an exchange moves, compared over the ranks: a DType, or above these
    bool factor = false;  // of a reduction: its input has been multiplied by one, compared likewise
  };
  /// Waits for nobody. `store` outlives this. A group of one rank copies and launches nothing.
  CudaCollectives(Store& store, const GroupInfo& group, int device, std::shared_ptr<cuda::Toolchain> toolchain,
                  const CudaCollectivesOptions& options);
  /// Waits for the device.
  ~CudaCollectives();
  /// Tells the peers, in place of making one, that this rank's collectives go elsewhere: theirs throw UnsupportedError
  /// when they connect.
  static void refuse(Store& store, const GroupInfo& group, const std::string& why);

  /// Maps the memory of all ranks; waits for them until `deadline`. Throws UnsupportedError if one has refused: every
  /// rank hears of it before its first collective. Collectives do this by themselves; `sequence` is for the text of
  /// errors.
  void connect(Clock::time_point deadline, uint64_t sequence = 0);

  /// root < 0: all ranks get the result.
  void all_reduce(const void* in, void* out, uint64_t count, DType dtype, Reduction op, int root, const Call& call);
  /// in holds world * count elements.
  void reduce_scatter(const void* in, void* out, uint64_t count, DType dtype, Reduction op, const Call& call);
  /// The one output of an exchange, where every rank's part begins at the same place in the outputs of all the others.
  struct Output {
    void* data;
    uint64_t bytes;
    uint64_t own_part;  // offset of this rank's part
  };
  /// One part per rank. `bytes` goes into the comparison of the calls: what all ranks must agree on (0: nothing, then
  /// every pair compares). Ranks of an all-to-all may differ in whether they pass the size of the whole, or 0.
  void exchange(ExchangeKind kind, std::span<const abi::ExchangePart> parts, int root, uint64_t bytes, const Call& call,
                const Output& output = {});
  void barrier(const Call& call);
  void send(const void* data, uint64_t bytes, int to, const Call& call);
  void receive(void* data, uint64_t bytes, int from, const Call& call);

  /// Registered memory: collectives whose tensors lie in it move and reduce them in place (from a size on). Collective
  /// calls. A window lives until it is dropped, which every rank does for itself; collectives on it must have ended.
  std::shared_ptr<Window> make_window(size_t bytes, Clock::time_point deadline);
  std::shared_ptr<Window> register_window(void* own, size_t bytes, Clock::time_point deadline);
  void drop_window(int number);

  /// For kernels that call the device collectives themselves: all fields that do not depend on the operation. Waits for
  /// all ranks until `deadline`.
  abi::CollectiveParams params_for_kernels(Clock::time_point deadline, uint64_t timeout_ns);

  /// Throws DeviceError if a launch has failed. Never blocks.
  void poll();
  /// Ends the waits of all kernels of this rank, and of the peers; from then on poll() throws.
  void abort();
  /// Maps the memory of one rank, for send and receive; else as `connect`.
  void reach(int peer, Clock::time_point deadline, const std::string& what);

  int device() const { return gpu_.device; }
  uint64_t launches() const { return launches_; }
  /// For tests and benchmarks: forces an algorithm (where it fits) from now on; -1: by size. 3, registered memory, fits
  /// only where there is such.
  void force_algorithm(int algorithm) { forced_ = algorithm; }
  /// Likewise the CTAs of the rings and on registered memory, the same on all ranks; 0: as tuned.
  void force_workers(int workers) { forced_workers_ = workers; }

 private:
  void copy_alone(void* to, const void* from, uint64_t bytes, const Call& call);
  abi::CollectiveParams make_params(abi::CollectiveKind kind, const Call& call) const;
  /// CTAs of the rings for a tensor of so many bytes.
  int ring_workers(uint64_t bytes) const;
  int pair_workers(ExchangeKind kind, uint64_t pair, uint64_t bytes) const;
  void launch(const KernelKey& key, int grid, bool with_shared, abi::CollectiveParams& params, const Call& call);
  void point(abi::CollectiveKind kind, int peer, uint64_t bytes, abi::CollectiveParams& params, const Call& call);
  std::shared_ptr<Window> window_at(const void* data, uint64_t bytes) const;
  void keep_window(const std::shared_ptr<Window>& window);
  int direct_workers() const;
  bool takes_direct(uint64_t bytes, const SizeRange& range) const;
  /// On registered memory, if both tensors lie in it.
  bool reduce_direct(abi::CollectiveParams& params, uint64_t in_bytes, uint64_t out_bytes, DType dtype,
                     const Call& call);
  bool move_direct(abi::CollectiveParams& params, const Output& output, const Call& call);
  abi::Algorithm choose(uint64_t bytes, DType dtype) const;
  Clock::time_point deadline(const Call& call) const;
  std::string describe(const abi::CollectiveError& e) const;

  GroupInfo group_;
  cuda::GpuInfo gpu_;
  std::shared_ptr<cuda::Toolchain> toolchain_;
  CudaCollectivesOptions options_;
  abi::ArenaLayout layout_;
  std::unique_ptr<SymmetricMemory> arena_;
  cuda::DeviceMemory state_;
  cuda::PinnedMemory error_;
  bool connected_ = false;
  int forced_ = -1, forced_workers_ = 0;
  uint64_t launches_ = 0;
  std::atomic<bool> aborted_ = false;
  std::string failure_;
  std::mutex mutex_;
  struct Kernel {
    std::shared_ptr<cuda::LoadedModule> module;
    KernelSource source;
  };
  std::map<KernelKey, Kernel> kernels_;
  Store& store_;
  int num_windows_ = 0;  // ever made: the numbers of windows begin at 1
  std::map<cuda::DevicePtr, std::shared_ptr<Window>> windows_;
  mutable std::mutex windows_mutex_;
};

}  // namespace ark::comm
