// The device side of communication as kernels of a plan use it: a signal, all-reduces without leaving a kernel, send
// requests. Checked, and measured where there are two GPUs or more; without a GPU the kernels are only compiled.
//   test_collective_device [world]
#include <cmath>

#include "support/request_test.h"

using namespace ark;
using namespace ark::test;

namespace {

struct DeviceTest {
  Rank& rank;
  DeviceKernels& kernels;
  abi::CollectiveParams p;
  uint32_t first = 2;  // epoch of the next all-reduce; epochs of boxes that no launch has used

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

  /// n sums of `count` bf16 in place, each of the result before; {us of the slowest CTA, of the first}.
  std::pair<double, double> loop(uint64_t count, int n, int lanes) {
    const uint64_t zeros[2] = {0, 0};
    cuda::DevicePtr ns = rank.out();
    rank.upload(ns, zeros, sizeof zeros);
    rank.sync();
    p.count = count;
    p.in = p.out = reinterpret_cast<unsigned char*>(rank.in());
    const int warps = static_cast<int>((count + 3) / 4 + lanes - 1) / lanes, block = warps <= 128 * 2 ? 64 : 256;
    launch(rank, kernels.loop, (warps * 32 + block - 1) / block, block, 0, {&p, &first, &n, &lanes, &ns});
    first += n;
    auto got = numbers(ns, 2);
    rank.collectives.poll();
    meet();
    return {static_cast<double>(got[0]) / 1e3 / n, static_cast<double>(got[1]) / 1e3 / n};
  }

  /// Small whole numbers, whose sums grow by the number of ranks each time: every step shows in the bits.
  void check_sums(uint64_t count, int n, int lanes) {
    auto value = [](uint64_t i, int r) { return static_cast<float>((i * 7 + r * 3 + i / 64) % 32); };
    auto bf16 = [](float f) {
      uint32_t bits;
      std::memcpy(&bits, &f, 4);
      return static_cast<uint16_t>(bits >> 16);
    };
    std::vector<uint16_t> data(count + 8, 0x1234);
    for (uint64_t i = 0; i < count; ++i) data[i] = bf16(value(i, rank.rank));
    rank.upload(rank.in(), data.data(), data.size() * 2);
    loop(count, n, lanes);
    std::memcpy(data.data(), rank.download(rank.in(), data.size() * 2).data(), data.size() * 2);
    size_t wrong = 0;
    for (uint64_t i = 0; i < data.size(); ++i) {
      float sum = 0;
      for (int r = 0; r < p.world; ++r) sum += value(i, r);
      wrong += data[i] != (i < count ? bf16(std::ldexp(sum, (n - 1) * (p.world == 2 ? 1 : 2))) : 0x1234);
    }
    expect(wrong == 0, cat(wrong, " wrong sums of ", count, " after ", n, ", lanes ", lanes));
  }

  void all_reduce() {
    meet();
    for (uint64_t count : {1, 127, 4096, 4098, 16385})
      for (int n : {1, 2, 41})
        for (int lanes : {8, 32}) check_sums(count, n, lanes);
    std::vector<unsigned char> zeros(1 << 18);
    rank.upload(rank.in(), zeros.data(), zeros.size());
    for (uint64_t bytes : {1024, 8192, 32768, 65536, 131072})
      for (int lanes : {8, 32}) {
        auto [us, us_first] = loop(bytes / 2, 2000, lanes);
        if (rank.rank == 0)
          std::printf(
              "{\"case\": \"all-reduce inside a running kernel\", \"gpus\": %d, \"bytes\": %d, \"lanes\": %d, "
              "\"us\": %.3f, \"us, first CTA\": %.3f}\n",
              p.world, static_cast<int>(bytes), lanes, us, us_first);
      }
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
    if ((world & (world - 1)) == 0 && world <= 4) test.all_reduce();
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
