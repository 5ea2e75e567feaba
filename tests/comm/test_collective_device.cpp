// The device side of communication as kernels of a plan use it: a signal, send requests. Checked, and measured where
// there are two GPUs or more; without a GPU the kernels are only compiled.
//   test_collective_device [world]
#include "support/request_test.h"

using namespace ark;
using namespace ark::test;

namespace {

struct DeviceTest {
  Rank& rank;
  DeviceKernels& kernels;
  abi::CollectiveParams p;

  std::vector<uint64_t> numbers(cuda::DevicePtr at, int n) {
    std::vector<uint64_t> values(n);
    std::memcpy(values.data(), rank.download(at, n * 8).data(), n * 8);
    return values;
  }
  void meet() {
    rank.collectives.barrier(rank.call());
    rank.sync();
  }

  void signal(cuda::DevicePtr own, cuda::DevicePtr peer) {
    int n = 10'000;
    cuda::DevicePtr ns = rank.out();
    abi::CollectiveParams params = p;
    params.in = reinterpret_cast<unsigned char*>(peer);
    params.out = reinterpret_cast<unsigned char*>(own);
    launch(rank, kernels.ping, 1, 1, 0, {&params, &n, &ns});
    double us = static_cast<double>(numbers(ns, 1)[0]) / 2e3 / n;
    if (rank.rank == 0) std::printf("{\"case\": \"signal, one way\", \"gpus\": 2, \"us\": %.3f}\n", us);
  }
};

void test_device(int world) {
  std::atomic<int> ready{0}, done{0};
  MapStore store;
  run_ranks(world, "device side", {}, [&](Rank& rank) {
    auto deadline = Clock::now() + std::chrono::seconds(20);
    DeviceKernels kernels(rank.gpu, world);
    SymmetricMemory memory(store, GroupInfo{rank.rank, world, "device"}, rank.gpu, "probe", (1u << 30) + 4096);
    memory.offer();
    const cuda::DevicePtr there = memory.of((rank.rank + 1) % world, deadline), here = memory.own(), flags = 1u << 30;
    for (++ready; ready < world;) std::this_thread::yield();
    DeviceTest test{rank, kernels, rank.collectives.params_for_kernels(deadline, rank.timeout_ns)};
    if (world == 2) test.signal(here + flags, there + flags);
    RequestTest requests{rank, kernels, test.p, here, there, flags};
    requests.agree();
    uint32_t number = 1;
    for (auto [bytes, every, alone] : {std::tuple{16, 1, 1}, {528, 4, 2}, {8192, 1, 0}, {8192, 16, 1}, {24592, 2, 1}})
      requests.round(number++, bytes, bytes > 8192 ? 160 : 960, every, alone);
    requests.measure();
    for (++done; done < world;) std::this_thread::yield();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int world = argc > 1 ? std::atoi(argv[1]) : 2;
  if (num_gpus() >= world)
    test_device(world);
  else if (toolchain()->compiler.nvrtc().problem().empty())
    toolchain()->compiler.compile(cat("#define WORLD ", world, "\n", kDeviceSource), "sm_90a");
  else
    std::printf("skipped: %d GPUs and no NVRTC\n", num_gpus());
  if (failures) std::fprintf(stderr, "%d failures\n", failures.load());
  return failures ? 1 : 0;
}
