// The device side of communication as kernels of a plan use it: a signal, all-reduces without leaving a kernel, send
// requests. Checked, and measured where there are two GPUs or more; without a GPU the kernels are only compiled.
//   test_collective_device [world]
#include "collective_ranks.h"
#include "device/dma_abi.h"

using namespace ark;
using namespace ark::test;

namespace {

/// Kernels that call the device side themselves: what a plan will do.
const char* kDeviceSource = R"(
#include "device/collective_kernel.cuh"
#include "device/dma.cuh"
using namespace ark::device;
using ark::abi::CollectiveParams;

// Signals to and fro between ranks 0 and 1.
extern "C" __global__ void ping(const __grid_constant__ CollectiveParams p, int n, u64* ns) {
  u32* own = reinterpret_cast<u32*>(p.out);
  u32* peer = reinterpret_cast<u32*>(const_cast<unsigned char*>(p.in));
  const u64 begin = global_time_ns();
  for (int i = 1; i <= n; i++) {
    if (p.rank == 0) store_relaxed_system(peer, i);
    Patience patience;
    while (load_relaxed_system(own) < static_cast<u32>(i))
      if (!patience.again(p, {CollectiveWait::kArrival, 1 - p.rank}, i, 0)) return;
    if (p.rank == 1) store_relaxed_system(peer, i);
  }
  *ns = global_time_ns() - begin;
}

// n all-reduces, each of the result of the one before, without leaving the kernel.
extern "C" __global__ void __launch_bounds__(256) loop(const __grid_constant__ CollectiveParams p, int n, u64* ns) {
  const u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  const u64 begin = global_time_ns();
  using AllReduce = OneShot<ElementOf<7>, WORLD, 1, FlaggedPacket>;  // boxes are used again in the same kernel
  AllReduce::Own own;
  AllReduce(p, 2, threads).in.load_many(own, thread, threads);
  for (int i = 0; i < n; i++) {
    const AllReduce all_reduce(p, 2 + i, threads);
    if (thread < all_reduce.limit) {
      all_reduce.push(thread, own);
      if (!all_reduce.take(thread, own, own)) return;
    }
  }
  if (thread < AllReduce(p, 2, threads).limit) AllReduce(p, 2, threads).out.store(own[0], thread);
  if (thread == 0) *ns = global_time_ns() - begin;
}

// One thread per CTA sends `n` requests of `bytes`, CTA by CTA through buffer 0 -> 1; the last tells the receiver.
extern "C" __global__ void dma(const ark::abi::DmaBuffer* buffers, u32 bytes, int n, u32* sent) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  DmaEngine engine(*reinterpret_cast<DmaShared*>(dynamic_shared), buffers, 2, sent);
  for (int i = 0; i < n; i++)
    engine.submit(ark::abi::make_request(0, 1, i * gridDim.x + blockIdx.x, bytes / 16, i + 1 == n ? 3 : 2));
  engine.flush();
}
)";

struct DeviceKernels {
  explicit DeviceKernels(const cuda::GpuInfo& gpu, int world) {
    const std::string text = cat("#define WORLD ", world, "\n", kDeviceSource);
    auto cubin = toolchain()->compiler.compile(text, gpu.arch).cubin;
    cuda::ContextScope scope(gpu.context);
    cuda::check_result(cuda::driver().module_load_data(&module, cubin->bytes.data()), "load");
    for (auto [name, to] : {std::pair{"ping", &ping}, {"loop", &loop}, {"dma", &dma}})
      cuda::check_result(cuda::driver().module_get_function(to, module, name), name);
    cuda::check_result(
        cuda::driver().function_set_attribute(dma, cuda::FunctionAttribute::kMaxDynamicSharedSizeBytes, 200 << 10),
        "shared");
  }
  cuda::Module module = nullptr;
  cuda::Function ping = nullptr, loop = nullptr, dma = nullptr;
};

void launch(Rank& rank, cuda::Function f, int grid, int block, int shared, std::vector<void*> arguments) {
  cuda::LaunchConfig config{};
  config.grid_x = grid;
  config.block_x = block;
  config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
  config.shared_bytes = shared;
  config.stream = rank.stream;
  cuda::ContextScope scope(rank.gpu.context);
  cuda::check_result(cuda::driver().launch_kernel(&config, f, arguments.data(), nullptr), "launch");
}

void measure_device(int world) {
  std::atomic<int> ready{0}, done{0};
  std::vector<std::unique_ptr<SymmetricMemory>> shared(world);
  MapStore store;
  run_ranks(world, "device side", {}, [&](Rank& rank) {
    auto deadline = Clock::now() + std::chrono::seconds(20);
    DeviceKernels kernels(rank.gpu, world);
    SymmetricMemory memory(store, GroupInfo{rank.rank, world, "device"}, rank.gpu, "probe", (1u << 30) + 4096);
    memory.offer();
    const int peer = (rank.rank + 1) % world;
    auto p = rank.collectives.params_for_kernels(deadline, rank.timeout_ns);
    cuda::DevicePtr there = memory.of(peer, deadline), here = memory.own(), flags = 1u << 30;
    for (++ready; ready < world;) std::this_thread::yield();
    auto time_ns = [&] {
      auto bytes = rank.download(rank.out(), 8);
      uint64_t ns;
      std::memcpy(&ns, bytes.data(), 8);
      return ns;
    };
    cuda::DevicePtr ns = rank.out();
    int n = 10'000;
    p.kind = abi::CollectiveKind::kBarrier;
    p.in = reinterpret_cast<unsigned char*>(there + flags);
    p.out = reinterpret_cast<unsigned char*>(here + flags);
    if (rank.rank < 2 && world == 2) {
      launch(rank, kernels.ping, 1, 1, 0, {&p, &n, &ns});
      double us = time_ns() / 2e3 / n;
      if (rank.rank == 0) std::printf("{\"case\": \"signal, one way\", \"gpus\": 2, \"us\": %.3f}\n", us);
    }
    // All-reduce inside a running kernel; epochs 2.. of boxes that no launch has used.
    rank.collectives.barrier(rank.call());
    rank.sync();
    p = rank.collectives.params_for_kernels(deadline, rank.timeout_ns);
    n = 2000;
    uint32_t first = 0;
    for (uint64_t bytes : {1024, 8192, 32768, 65536, 131072}) {
      (void)first;
      p.count = bytes / 2;
      p.root = -1;
      p.in = p.out = reinterpret_cast<unsigned char*>(rank.in());
      p.op = abi::ReduceOp::kMax;
      const int threads = static_cast<int>(bytes / 8), block = threads <= 128 * 64 ? 64 : 256,
                grid = (threads + block - 1) / block;
      launch(rank, kernels.loop, grid, block, 0, {&p, &n, &ns});
      double us = time_ns() / 1e3 / n;
      rank.collectives.poll();
      if (rank.rank == 0)
        std::printf("{\"case\": \"all-reduce inside a running kernel\", \"gpus\": %d, \"bytes\": %llu, \"us\": %.3f}\n",
                    world, static_cast<unsigned long long>(bytes), us);
      rank.collectives.barrier(rank.call());
      rank.sync();
    }
    // The engine: rank 0 sends to rank 1.
    if (rank.rank == 0) {
      std::vector<unsigned char> data(64 << 20);
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i * 7 + (i >> 8) + (i >> 16));
      rank.upload(here, data.data(), data.size());
      std::vector<abi::DmaBuffer> table{
          {reinterpret_cast<unsigned char*>(here), 1u << 30, reinterpret_cast<uint32_t*>(here + flags + 64)},
          {reinterpret_cast<unsigned char*>(there), 1u << 30, reinterpret_cast<uint32_t*>(there + flags + 64)}};
      rank.upload(rank.in(), table.data(), table.size() * sizeof table[0]);
      cuda::DevicePtr buffers = rank.in(), sent = rank.in() + 4096;
      uint32_t zero = 0;
      rank.upload(sent, &zero, 4);
      for (auto [ctas, size] : {std::pair{32, 1 << 20}, {1, 8192}, {4, 8192}, {8, 8192}, {16, 8192}, {32, 8192}}) {
        uint32_t bytes = size;
        const uint64_t total = ctas == 1 ? 64u << 20 : 512u << 20;
        int count = static_cast<int>(total / ctas / bytes);
        for (int repeat = 0; repeat < 2; ++repeat) {
          rank.sync();
          auto begin = Clock::now();
          launch(rank, kernels.dma, ctas, 1, 200 << 10, {&buffers, &bytes, &count, &sent});
          rank.sync();
          double s = std::chrono::duration<double>(Clock::now() - begin).count();
          if (repeat)
            std::printf("{\"case\": \"send requests\", \"ctas\": %d, \"bytes\": %u, \"GB/s\": %.1f}\n", ctas, bytes,
                        static_cast<double>(count) * ctas * bytes / s / 1e9);
        }
      }
      std::fflush(stdout);
      done = 1;
    } else {
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (rank.rank == 1) {
        auto got = rank.download(here, 64 << 20);
        size_t wrong = 0;
        for (size_t i = 0; i < got.size(); ++i)
          wrong += got[i] != static_cast<unsigned char>(i * 7 + (i >> 8) + (i >> 16));
        expect(wrong == 0, cat(wrong, " wrong bytes sent by requests"));
        auto flag = rank.download(here + flags + 64, 4);
        uint32_t count;
        std::memcpy(&count, flag.data(), 4);
        expect(count == 2 * (32 + 1 + 4 + 8 + 16 + 32), cat("received count ", count));
      }
    }
    for (++done; done < world + 1;) std::this_thread::yield();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int world = argc > 1 ? std::atoi(argv[1]) : 2;
  if (num_gpus() >= world)
    measure_device(world);
  else if (toolchain()->compiler.nvrtc().problem().empty())
    toolchain()->compiler.compile(cat("#define WORLD ", world, "\n", kDeviceSource), "sm_90a");
  else
    std::printf("skipped: %d GPUs and no NVRTC\n", num_gpus());
  if (failures) std::fprintf(stderr, "%d failures\n", failures.load());
  return failures ? 1 : 0;
}
