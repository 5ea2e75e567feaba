// Ranks of a CUDA group that are threads of one process, spread over the GPUs that there are (one is enough).
#pragma once
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "base/check.h"
#include "comm/cuda_collectives.h"
#include "support/map_store.h"

namespace ark::test {

using namespace ark::comm;

inline std::atomic<int> failures{0};

inline void expect(bool ok, const std::string& what) {
  if (ok) return;
  if (failures.fetch_add(1) < 40) std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

inline constexpr size_t kBuffer = 96u << 20;

/// What a rank works with: its collectives, a stream and buffers.
class Rank {
 public:
  Rank(MapStore& store, int rank, int world, int device, std::shared_ptr<cuda::Toolchain> toolchain,
       const CudaCollectivesOptions& options, const std::string& name)
      : rank(rank),
        world(world),
        gpu(cuda::open_gpu(device)),
        memory(gpu.context, 2 * kBuffer),
        collectives(store, GroupInfo{rank, world, name}, device, std::move(toolchain), options) {
    cuda::ContextScope scope(gpu.context);
    cuda::check_result(cuda::driver().stream_create(&stream, cuda::kStreamNonBlocking), "stream");
  }
  ~Rank() {
    cuda::ContextScope scope(gpu.context);
    cuda::driver().stream_destroy(stream);
  }
  CudaCollectives::Call call() { return {stream, sequence++, timeout_ns}; }
  void sync() {
    cuda::ContextScope scope(gpu.context);
    cuda::check_result(cuda::driver().stream_synchronize(stream), "stream_synchronize");
  }
  void upload(cuda::DevicePtr to, const void* from, size_t bytes) {
    cuda::ContextScope scope(gpu.context);
    cuda::check_result(cuda::driver().copy_to_device_async(to, from, bytes, stream), "upload");
  }
  std::vector<unsigned char> download(cuda::DevicePtr from, size_t bytes) {
    sync();  // a copy to pageable memory that waits for a kernel keeps the other ranks of this process from launching
    std::vector<unsigned char> result(bytes);
    cuda::ContextScope scope(gpu.context);
    cuda::check_result(cuda::driver().copy_to_host_async(result.data(), from, bytes, stream), "download");
    sync();
    return result;
  }
  cuda::DevicePtr in() const { return window ? window->own() : memory.address(); }
  cuda::DevicePtr out() const { return in() + kBuffer; }
  /// in() and out() lie in registered memory from now on.
  void use_window() { window = collectives.make_window(2 * kBuffer, Clock::now() + std::chrono::seconds(10)); }

  int rank, world;
  uint64_t sequence = 0, timeout_ns = 4'000'000'000;
  cuda::GpuInfo gpu;
  cuda::DeviceMemory memory;  // allocated first: an allocation may wait for the kernels of other ranks on this GPU
  CudaCollectives collectives;
  cuda::Stream stream = nullptr;
  std::shared_ptr<Window> window;
};

inline int num_gpus() {
  int count = 0;
  if (cuda::driver_problem().empty()) cuda::driver().device_get_count(&count);
  return count;
}

inline std::shared_ptr<cuda::Toolchain> toolchain() {
  static auto instance = std::make_shared<cuda::Toolchain>(cuda::Compiler::Options{
      .nvrtc_folders = {std::getenv("ARK_NVRTC") ? std::getenv("ARK_NVRTC") : "/usr/local/cuda/lib64"},
      .cache_folder = ""});
  return instance;
}

inline bool run_ranks(int world, const std::string& name, const CudaCollectivesOptions& options,
                      const std::function<void(Rank&)>& body) {
  MapStore store;
  const int gpus = num_gpus(), before = failures;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < world; ++r)
    ranks.push_back(std::make_unique<Rank>(store, r, world, r % gpus, toolchain(), options, name));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      try {
        body(*ranks[r]);
      } catch (const std::exception& error) {
        expect(false, cat(name, " rank ", r, ": ", error.what()));
      }
    });
  for (auto& thread : threads) thread.join();
  std::printf("%s world %d: %s\n", name.c_str(), world, failures == before ? "ok" : "FAILED");
  std::fflush(stdout);
  return failures == before;
}

}  // namespace ark::test
