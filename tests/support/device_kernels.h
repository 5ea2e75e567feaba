// Kernels that use the device side of communication as a plan does, for the tests.
#pragma once
#include "device/abi/dma.h"
#include "support/collective_ranks.h"

namespace ark::test {

/// Kernels that call the device side themselves: what a plan will do.
inline const char* kDeviceSource = R"(
#include "device/collective/kernel.cuh"
#include "device/collective/dma.cuh"
using namespace ark::device;
using ark::abi::CollectiveParams;

// Signals to and fro between ranks 0 and 1.
extern "C" __global__ void ping(const __grid_constant__ CollectiveParams p, int n, u64* ns) {
  u32* own = reinterpret_cast<u32*>(p.out);
  u32* peer = reinterpret_cast<u32*>(const_cast<unsigned char*>(p.in));
  const u64 begin = global_time_ns();
  for (int i = 1; i <= n; i++) {
    if (p.rank == 0) store_relaxed_system(peer, i);
    const auto ready = [&] { return load_relaxed_system(own) >= static_cast<u32>(i); };
    if (!wait_for_peer(p, {CollectiveWait::kArrival, 1 - p.rank}, i, ready, [] { return 0u; })) return;
    if (p.rank == 1) store_relaxed_system(peer, i);
  }
  *ns = global_time_ns() - begin;
}

// One thread per CTA sends `n` requests of `bytes`, CTA by CTA through buffer 0 -> 1; the last and every `every`-th of
// a CTA tell the receiver. Then flags alone, `alone` times.
extern "C" __global__ void dma(const ark::abi::DmaBuffer* buffers, u32 bytes, int n, int every, int alone, u32* sent) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  DmaEngine engine(*reinterpret_cast<DmaShared*>(dynamic_shared), buffers, 2, sent);
  u32 piece = blockIdx.x;
  int next = every;
  for (int i = 1; i <= n; i++, piece += gridDim.x) {
    const bool tell = i == n || i == next;
    if (i == next) next += every;
    engine.submit(ark::abi::make_request(0, 1, piece, bytes / 16, tell ? 3 : 2));
  }
  for (int i = 0; i < alone; i++) engine.submit(ark::abi::make_request(0, 1, 0, 0, 3));
  engine.flush();
}

// What the words of a buffer are in a round.
ARK_DEVICE u32 word_of(u32 index, u32 round) { return (index + round * 40503u) * 2654435761u; }
extern "C" __global__ void fill(u32* words, u32 n, u32 round) {
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) words[i] = word_of(i, round);
}
// Looks at the bytes of a message as soon as the count says that it is there.
extern "C" __global__ void arrivals(const __grid_constant__ CollectiveParams p, const u32* words, const u32* received,
                                    u32 before, u32 bytes, int n, int every, u32 round, u32* wrong) {
  for (int i = 0; i < n; i++) {
    const u32 target = before + i / every + 1;
    const auto ready = [&] { return reached(load_acquire_system(received), target); };
    if (!wait_for_peer(p, {CollectiveWait::kArrival, 0}, target, ready, [] { return 0u; })) {
      atomicAdd(wrong, 1u << 20);
      return;
    }
    for (u32 k = threadIdx.x; k < bytes / 4; k += blockDim.x) {
      const u32 index = i * (bytes / 4) + k;
      if (load_relaxed(words + index) != word_of(index, round)) atomicAdd(wrong, 1u);
    }
  }
}
)";

struct DeviceKernels {
  explicit DeviceKernels(const cuda::GpuInfo& gpu, int world) {
    const std::string text = cat("#define WORLD ", world, "\n", kDeviceSource);
    auto cubin = toolchain()->compiler.compile(text, gpu.arch).cubin;
    cuda::ContextScope scope(gpu.context);
    cuda::check_result(cuda::driver().module_load_data(&module, cubin->bytes.data()), "load");
    for (auto [name, to] : {std::pair{"ping", &ping}, {"dma", &dma}, {"fill", &fill}, {"arrivals", &arrivals}})
      cuda::check_result(cuda::driver().module_get_function(to, module, name), name);
    cuda::check_result(
        cuda::driver().function_set_attribute(dma, cuda::FunctionAttribute::kMaxDynamicSharedSizeBytes, 200 << 10),
        "shared");
  }
  cuda::Module module = nullptr;
  cuda::Function ping = nullptr, dma = nullptr, fill = nullptr, arrivals = nullptr;
};

inline void launch(Rank& rank, cuda::Function f, int grid, int block, int shared, std::vector<void*> arguments) {
  cuda::LaunchConfig config{};
  config.grid_x = grid;
  config.block_x = block;
  config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
  config.shared_bytes = shared;
  config.stream = rank.stream;
  cuda::ContextScope scope(rank.gpu.context);
  cuda::check_result(cuda::driver().launch_kernel(&config, f, arguments.data(), nullptr), "launch");
}

}  // namespace ark::test
