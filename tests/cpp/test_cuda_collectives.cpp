// CUDA collectives between ranks that are threads of this process, spread over the GPUs that there are (one is enough):
// every operation, type, algorithm and alignment against the host's reduction, bit for bit; counters that wrap; ranks
// that disagree or do not come. Without a GPU the kernels are only compiled.
//   test_cuda_collectives [compile | check | time] [world]
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

void check_all(int world) {
  const std::vector<DType> types = {DType::kBF16, DType::kF32, DType::kI32, DType::kU8, DType::kF64};
  for (int algorithm : {0, 1, 2})
    for (DType dtype : types) {
      bool ok = run_ranks(world, cat("reductions, algorithm ", algorithm, ", ", name(dtype)), {}, [&](Rank& rank) {
        int round = 0;
        for (size_t count : {1, 7, 1000, 4099, 100'003, 1'000'000}) {
          if (count * size_bytes(dtype) * (is_float(dtype) && dtype != DType::kF64 ? 1 : 2) >
              (algorithm == 0   ? kPacketSetBytes / world
               : algorithm == 1 ? kPacketSetBytes / 2 - 4096
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
        if (bytes > (algorithm == 0   ? kPacketSetBytes / world
                     : algorithm == 1 ? kPacketSetBytes / 2 - 4096
                                      : 1ull << 30))
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

void compile_all() {
  std::vector<KernelKey> keys{{KernelFamily::kPoint}};
  for (int world : {2, 3, 4}) {
    keys.push_back({KernelFamily::kExchange, DType::kU8, world});
    for (DType t : {DType::kBF16, DType::kF32, DType::kI32, DType::kU8, DType::kF64}) {
      keys.push_back({KernelFamily::kPackets, t, world});
      keys.push_back({KernelFamily::kRing, t, world});
    }
  }
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
      compile_all();
    else
      std::printf("skipped: no GPU and no NVRTC\n");
  } else if (mode == "time") {
    time_all(world);
  } else {
    check_all(world);
  }
  if (failures) std::fprintf(stderr, "%d failures\n", failures.load());
  return failures ? 1 : 0;
}
