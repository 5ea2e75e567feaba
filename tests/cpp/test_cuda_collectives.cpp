// CUDA collectives between ranks that are threads of this process, spread over the GPUs that there are (one is enough):
// every operation, type, algorithm and alignment against the host's reduction, bit for bit; counters that wrap; ranks
// that disagree or do not come. Without a GPU the kernels are only compiled.
//   test_cuda_collectives [compile | check | time | device] [world]
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "base/check.h"
#include "comm/cuda_collectives.h"
#include "device/dma_abi.h"

using namespace ark;
using namespace ark::comm;

namespace {

std::atomic<int> failures{0};

void expect(bool ok, const std::string& what) {
  if (ok) return;
  if (failures.fetch_add(1) < 40) std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

class MapStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, Clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return values_.count(key) > 0; }))
      throw DeviceError(cat("the store has no ", key));
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

constexpr size_t kBuffer = 96u << 20;

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
  cuda::DevicePtr in() const { return memory.address(); }
  cuda::DevicePtr out() const { return memory.address() + kBuffer; }

  int rank, world;
  uint64_t sequence = 0, timeout_ns = 4'000'000'000;
  cuda::GpuInfo gpu;
  cuda::DeviceMemory memory;  // allocated first: an allocation may wait for the kernels of other ranks on this GPU
  CudaCollectives collectives;
  cuda::Stream stream = nullptr;
};

int num_gpus() {
  int count = 0;
  if (cuda::driver_problem().empty()) cuda::driver().device_get_count(&count);
  return count;
}

std::shared_ptr<cuda::Toolchain> toolchain() {
  static auto instance = std::make_shared<cuda::Toolchain>(cuda::Compiler::Options{
      .nvrtc_folders = {std::getenv("ARK_NVRTC") ? std::getenv("ARK_NVRTC") : "/usr/local/cuda/lib64"},
      .cache_folder = ""});
  return instance;
}

bool run_ranks(int world, const std::string& name, const CudaCollectivesOptions& options,
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

/// Values that sums and products of a few ranks hold without overflow to infinity; the same on every caller.
std::vector<unsigned char> data_of(int rank, size_t count, DType dtype, int round) {
  std::vector<unsigned char> bytes(count * size_bytes(dtype));
  std::mt19937 random(static_cast<unsigned>(rank * 7919 + round * 31 + static_cast<int>(dtype)));
  for (size_t i = 0; i < count; ++i) {
    const int small = static_cast<int>(random() % 201) - 100;
    unsigned char* at = bytes.data() + i * size_bytes(dtype);
    auto put = [&](auto v) { std::memcpy(at, &v, sizeof v); };
    switch (dtype) {
      case DType::kBool:
        put(static_cast<unsigned char>(small & 1));
        break;
      case DType::kU8:
        put(static_cast<unsigned char>(small));
        break;
      case DType::kI8:
        put(static_cast<signed char>(small));
        break;
      case DType::kI16:
        put(static_cast<int16_t>(small * 300));
        break;
      case DType::kI32:
        put(small * 20'000'000);
        break;
      case DType::kI64:
        put(static_cast<int64_t>(small) * 90'000'000'000'000'000);
        break;
      case DType::kF16:
        put(static_cast<_Float16>(small / 37.0f));
        break;
      case DType::kBF16: {
        float f = small / 37.0f;
        uint32_t bits;
        std::memcpy(&bits, &f, 4);
        put(static_cast<uint16_t>(bits >> 16));
        break;
      }
      case DType::kF32:
        put(small / 37.0f);
        break;
      case DType::kF64:
        put(small / 37.0);
        break;
    }
  }
  return bytes;
}

std::vector<unsigned char> reduced(int world, size_t first, size_t count, size_t all, DType dtype, Reduction op,
                                   int round) {
  std::vector<std::vector<unsigned char>> inputs;
  std::vector<const void*> sources;
  for (int r = 0; r < world; ++r) inputs.push_back(data_of(r, all, dtype, round));
  for (auto& i : inputs) sources.push_back(i.data() + first * size_bytes(dtype));
  std::vector<unsigned char> result(count * size_bytes(dtype));
  reduce(result.data(), sources, count, dtype, op);
  return result;
}

std::string first_difference(const std::vector<unsigned char>& a, const std::vector<unsigned char>& b, int width) {
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i] && wrong++ == 0) first = i;
  return cat(wrong, " wrong bytes, first at element ", first / width, " of ", a.size() / width);
}

void check_reductions(Rank& rank, DType dtype, Reduction op, size_t count, int algorithm, int shift, bool in_place,
                      int root, int round) {
  const int width = size_bytes(dtype), world = rank.world;
  rank.collectives.force_algorithm(algorithm);
  cuda::DevicePtr in = rank.in() + shift * width, out = in_place ? in : rank.out() + shift * width;
  auto mine = data_of(rank.rank, count, dtype, round);
  rank.upload(in, mine.data(), mine.size());
  rank.collectives.all_reduce(reinterpret_cast<void*>(in), reinterpret_cast<void*>(out), count, dtype, op, root,
                              rank.call());
  auto got = rank.download(out, mine.size());
  rank.collectives.poll();
  std::string what = cat(root < 0 ? "all_reduce " : "reduce ", name(op), " ", name(dtype), " x ", count, " algorithm ",
                         algorithm, " shift ", shift, in_place ? " in place" : "", " rank ", rank.rank, ": ");
  if (root < 0 || root == rank.rank) {
    auto wanted = reduced(world, 0, count, count, dtype, op, round);
    expect(got == wanted, cat(what, got == wanted ? "" : first_difference(got, wanted, width)));
  }
  if (root >= 0) return;
  const size_t part = count / world;
  rank.upload(in, mine.data(), mine.size());
  rank.collectives.reduce_scatter(reinterpret_cast<void*>(in), reinterpret_cast<void*>(rank.out()), part, dtype, op,
                                  rank.call());
  got = rank.download(rank.out(), part * width);
  rank.collectives.poll();
  auto wanted = reduced(world, part * rank.rank, part, count, dtype, op, round);
  expect(got == wanted, cat("reduce_scatter of ", what, got == wanted ? "" : first_difference(got, wanted, width)));
}

unsigned char pattern(int from, int to, size_t i, int round) {
  return static_cast<unsigned char>(from * 89 + to * 29 + i * 7 + (i >> 8) * 3 + round * 13);
}

/// bytes(from, to) of every pair.
void check_exchange(Rank& rank, const std::function<size_t(int, int)>& bytes, int algorithm, int shift, int round) {
  rank.collectives.force_algorithm(algorithm);
  std::vector<unsigned char> sent, wanted;
  std::vector<abi::ExchangePart> parts(rank.world);
  for (int r = 0; r < rank.world; ++r) {
    const size_t to = bytes(rank.rank, r), from = bytes(r, rank.rank);
    parts[r] = {reinterpret_cast<unsigned char*>(rank.in() + shift + sent.size()),
                reinterpret_cast<unsigned char*>(rank.out() + shift + wanted.size()), to, from};
    for (size_t i = 0; i < to; ++i) sent.push_back(pattern(rank.rank, r, i, round));
    for (size_t i = 0; i < from; ++i) wanted.push_back(pattern(r, rank.rank, i, round));
  }
  if (!sent.empty()) rank.upload(rank.in() + shift, sent.data(), sent.size());
  rank.sync();
  rank.collectives.exchange(ExchangeKind::kAllToAll, parts, -1, 0, rank.call());
  auto got = rank.download(rank.out() + shift, wanted.size());
  rank.collectives.poll();
  expect(got == wanted, cat("exchange round ", round, " algorithm ", algorithm, " shift ", shift, " rank ", rank.rank,
                            ": ", got == wanted ? "" : first_difference(got, wanted, 1)));
}

void check_points(Rank& rank, size_t bytes, int round) {
  std::vector<unsigned char> data(bytes), wanted(bytes);
  const int next = (rank.rank + 1) % rank.world, last = (rank.rank + rank.world - 1) % rank.world;
  for (size_t i = 0; i < bytes; ++i) data[i] = pattern(rank.rank, next, i, round);
  for (size_t i = 0; i < bytes; ++i) wanted[i] = pattern(last, rank.rank, i, round);
  rank.upload(rank.in(), data.data(), bytes);
  rank.sync();
  cuda::Stream second = nullptr;
  {
    cuda::ContextScope scope(rank.gpu.context);
    cuda::check_result(cuda::driver().stream_create(&second, cuda::kStreamNonBlocking), "stream");
  }
  auto other = rank.call();
  other.stream = second;
  rank.collectives.send(reinterpret_cast<void*>(rank.in()), bytes, next, rank.call());
  rank.collectives.receive(reinterpret_cast<void*>(rank.out()), bytes, last, other);
  rank.sync();
  std::swap(rank.stream, second);
  auto got = rank.download(rank.out(), bytes);
  std::swap(rank.stream, second);
  cuda::ContextScope scope(rank.gpu.context);
  cuda::driver().stream_destroy(second);
  rank.collectives.poll();
  expect(got == wanted,
         cat("send and receive of ", bytes, ": ", got == wanted ? "" : first_difference(got, wanted, 1)));
}

void check_mismatch(int world) {
  MapStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      Rank rank(store, r, world, r % num_gpus(), toolchain(), {}, "mismatch");
      std::string text = "no error";
      try {
        auto* p = reinterpret_cast<void*>(rank.in());
        rank.collectives.all_reduce(p, p, r == 1 ? 5 : 4, DType::kF32, Reduction::kSum, -1, rank.call());
        rank.sync();
        rank.collectives.poll();
      } catch (const std::exception& error) {
        text = error.what();
      }
      expect(text.find("disagree") != text.npos || text.find("failed") != text.npos, cat("mismatch: ", text));
      std::printf("  rank %d: %s\n", r, text.c_str());
    });
  for (auto& t : threads) t.join();
}

void check_missing(int world) {
  MapStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      Rank rank(store, r, world, r % num_gpus(), toolchain(), {}, "missing");
      rank.timeout_ns = 500'000'000;
      rank.collectives.connect(Clock::now() + std::chrono::seconds(10));
      if (r == 1) {
        std::this_thread::sleep_for(std::chrono::seconds(2));
        return;
      }
      std::string text = "no error";
      try {
        auto* p = reinterpret_cast<void*>(rank.in());
        rank.collectives.all_reduce(p, p, 4 << 20, DType::kF32, Reduction::kSum, -1, rank.call());
        rank.sync();
        rank.collectives.poll();
      } catch (const std::exception& error) {
        text = error.what();
      }
      expect(text.find("rank 1 did not arrive") != text.npos || text.find("failed") != text.npos,
             cat("missing: ", text));
      std::printf("  rank %d: %s\n", r, text.c_str());
    });
  for (auto& t : threads) t.join();
}

/// Bytes of 16-byte packets that fit.
uint64_t one_shot_room(int world) { return world == 2 ? 4 << 20 : 256 << 10; }
uint64_t two_shot_room(int world) { return world == 2 ? 4 << 20 : world * (256ull << 10); }

void check_all(int world) {
  const std::vector<DType> types = {DType::kBF16, DType::kF32, DType::kI32, DType::kU8, DType::kF64};
  for (int algorithm : {0, 1, 2})
    for (DType dtype : types) {
      bool ok = run_ranks(world, cat("reductions, algorithm ", algorithm, ", ", name(dtype)), {}, [&](Rank& rank) {
        int round = 0;
        for (size_t count : {1, 7, 1000, 4099, 30'001, 100'003, 1'000'000}) {
          if (count * size_bytes(dtype) * (is_float(dtype) && dtype != DType::kF64 ? 1 : 2) >
              (algorithm == 0   ? one_shot_room(world)
               : algorithm == 1 ? two_shot_room(world)
                                : kBuffer))
            continue;
          check_reductions(rank, dtype, Reduction::kSum, count, algorithm, 0, false, -1, ++round);
          check_reductions(rank, dtype, Reduction::kMax, count, algorithm, 1, true, -1, ++round);
          check_reductions(rank, dtype, Reduction::kAverage, count, algorithm, 0, true, -1, ++round);
          check_reductions(rank, dtype, Reduction::kSum, count, algorithm, 0, false, world - 1, ++round);
        }
        if (algorithm == 2)
          check_reductions(rank, dtype, Reduction::kSum, (40u << 20) / size_bytes(dtype) + 3, 2, 0, true, -1, ++round);
      });
      if (!ok) break;
    }
  for (int algorithm : {-1, 2})
    run_ranks(world, cat("exchanges, algorithm ", algorithm), {}, [&](Rank& rank) {
      int round = 0;
      for (size_t n : {0, 1, 16, 1000, 70'001, 1 << 20, 9'000'000})
        for (int shift : {0, 3}) {
          check_exchange(rank, [&](int, int) { return n; }, algorithm, shift, ++round);
          check_exchange(
              rank, [&](int from, int to) { return (from * 3 + to + 1) % 4 * n; }, algorithm, shift, ++round);
        }
    });
  run_ranks(world, "send and receive", {}, [&](Rank& rank) {
    int round = 0;
    for (size_t n : {1, 16, 16384, 100'000, 5'000'000, 40'000'001}) check_points(rank, n, ++round);
  });
  CudaCollectivesOptions wrap;
  wrap.first_epoch = 0xfffffff0u;
  wrap.first_message = 0xfffffff0u;
  run_ranks(world, "counters that wrap", wrap, [&](Rank& rank) {
    for (int round = 0; round < 40; ++round) {
      check_reductions(rank, DType::kF32, Reduction::kSum, 5000, round % 3, 0, false, -1, round);
      check_exchange(
          rank, [&](int from, int to) { return (from + to + round) % 3 * 40'000; }, round % 2 ? 2 : -1, 0, round);
    }
  });
  check_mismatch(world);
  check_missing(world);
}

double seconds_of(Rank& rank, int launches, const std::function<void()>& body) {
  body();
  rank.sync();
  auto begin = Clock::now();
  for (int i = 0; i < launches; ++i) body();
  rank.sync();
  return std::chrono::duration<double>(Clock::now() - begin).count() / launches;
}

void time_all(int world) {
  std::atomic<int> ready{0};
  run_ranks(world, "times", {}, [&](Rank& rank) {
    cuda::DeviceMemory memory(rank.gpu.context, 2ull << 30);
    for (++ready; ready < world;) std::this_thread::yield();
    auto* in = reinterpret_cast<unsigned char*>(memory.address());
    auto* out = in + (1ull << 30);
    for (uint64_t bytes = 1024; bytes <= (1ull << 30); bytes *= bytes < (1 << 20) ? 2 : 4)
      for (int algorithm : {0, 1, 2}) {
        if (bytes > (algorithm == 0 ? one_shot_room(world) : algorithm == 1 ? two_shot_room(world) : 1ull << 30))
          continue;
        if (algorithm == 2 && bytes < (64 << 10)) continue;
        rank.collectives.force_algorithm(algorithm);
        const int n = bytes <= (4 << 20) ? 200 : bytes <= (64 << 20) ? 20 : 5;
        double s = seconds_of(rank, n, [&] {
          rank.collectives.all_reduce(in, out, bytes / 2, DType::kBF16, Reduction::kSum, -1, rank.call());
        });
        double gather = 0, scatter = 0;
        if (algorithm != 1) {
          rank.collectives.force_algorithm(algorithm == 2 ? 2 : -1);
          std::vector<abi::ExchangePart> parts;
          for (int r = 0; r < world; ++r)
            parts.push_back({in, out + r * (bytes / world), bytes / world, bytes / world});
          gather = seconds_of(
              rank, n, [&] { rank.collectives.exchange(ExchangeKind::kAllGather, parts, -1, bytes, rank.call()); });
          scatter = seconds_of(rank, n, [&] {
            rank.collectives.reduce_scatter(in, out, bytes / 2 / world, DType::kBF16, Reduction::kSum, rank.call());
          });
        }
        if (rank.rank == 0) {
          std::printf(
              "%10llu bytes, algorithm %d: all_reduce %9.2f us, bus %6.1f GB/s; all_gather %9.2f us, reduce_scatter "
              "%9.2f us\n",
              static_cast<unsigned long long>(bytes), algorithm, s * 1e6, bytes / s * 2 * (world - 1) / world / 1e9,
              gather * 1e6, scatter * 1e6);
          std::fflush(stdout);
        }
      }
  });
}

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
  using AllReduce = OneShot<ElementOf<7>, WORLD, 1>;
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
    std::string text = kDeviceSource;
    text = "#define WORLD " + std::to_string(world) + "\n" + text;
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
      const int threads = static_cast<int>(bytes / 16), block = threads <= 128 * 64 ? 64 : 256,
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

void compile_all(int only) {
  std::vector<KernelKey> keys{{KernelFamily::kPoint}};
  for (int world : {2, 3, 4}) {
    if (only ? world != only : world != 2) continue;  // the others take a minute: on request
    keys.push_back({KernelFamily::kExchange, DType::kU8, world});
    for (DType t : {DType::kBF16, DType::kF32, DType::kI32, DType::kU8, DType::kF64}) {
      keys.push_back({KernelFamily::kPackets, t, world});
      keys.push_back({KernelFamily::kRing, t, world});
    }
  }
  toolchain()->compiler.compile(std::string("#define WORLD 2\n") + kDeviceSource, "sm_90a");
  for (const KernelKey& key : keys) {
    KernelSource source = collective_source(key);
    cuda::CompileOutcome outcome = toolchain()->compiler.compile(source.text, "sm_90a");
    std::printf("%s %s world %d: %d registers, %d bytes spilled, %.2f s\n", source.entry.c_str(),
                std::string(name(key.dtype)).c_str(), key.world, outcome.cubin->registers, outcome.cubin->spill_bytes,
                outcome.seconds);
    expect(key.world > 4 || outcome.cubin->spill_bytes == 0, cat(source.entry, " spills"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  const int world = argc > 2 ? std::atoi(argv[2]) : 2;
  if (mode == "compile" || num_gpus() == 0) {
    if (toolchain()->compiler.nvrtc().problem().empty())
      compile_all(argc > 2 ? world : 0);
    else
      std::printf("skipped: no GPU and no NVRTC\n");
  } else if (mode == "device") {
    measure_device(world);
  } else if (mode == "time") {
    time_all(world);
  } else {
    check_all(world);
  }
  if (failures) std::fprintf(stderr, "%d failures\n", failures.load());
  return failures ? 1 : 0;
}
