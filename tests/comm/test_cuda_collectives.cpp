// CUDA collectives: every operation, type, algorithm and alignment against the host's reduction, bit for bit; counters
// that wrap; ranks that disagree or do not come. Without a GPU the kernels are only compiled.
//   test_cuda_collectives [compile | check | time | workers] [world] [type to compile]
#include "comm/collective_tuning.h"
#include "support/collective_ranks.h"
#include "support/collective_values.h"

using namespace ark;
using namespace ark::test;

namespace {

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

/// bytes(from, to) of every pair; `whole`: what this rank says of all of its pairs together, if they are even.
void check_exchange(Rank& rank, const std::function<size_t(int, int)>& bytes, int algorithm, int shift, int round,
                    size_t whole = 0) {
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
  rank.collectives.exchange(ExchangeKind::kAllToAll, parts, -1, whole, rank.call());
  auto got = rank.download(rank.out() + shift, wanted.size());
  rank.collectives.poll();
  expect(got == wanted, cat("exchange round ", round, " algorithm ", algorithm, " shift ", shift, " rank ", rank.rank,
                            ": ", got == wanted ? "" : first_difference(got, wanted, 1)));
}

/// Ranks that know the exchange as even beside others that do not, or for which it is not.
void check_mixed_exchange(Rank& rank, size_t n, int algorithm, int shift, int round) {
  const size_t whole = n * rank.world;
  const bool says = (rank.rank + round) % 2 == 0;
  check_exchange(rank, [&](int, int) { return n; }, algorithm, shift, round, says ? whole : 0);
  check_exchange(
      rank, [&](int from, int to) { return from == 0 || to == 0 ? n : (from + to) % 3 * n; }, algorithm, shift, round,
      rank.rank == 0 ? whole : 0);
}

/// All-gather of one output.
void check_gather(Rank& rank, size_t bytes, int algorithm, int shift, bool in_place, int round) {
  rank.collectives.force_algorithm(algorithm);
  std::vector<unsigned char> sent, wanted;
  for (size_t i = 0; i < bytes; ++i) sent.push_back(pattern(rank.rank, 0, i, round));
  for (int r = 0; r < rank.world; ++r)
    for (size_t i = 0; i < bytes; ++i) wanted.push_back(pattern(r, 0, i, round));
  const cuda::DevicePtr out = rank.out() + shift, own = out + rank.rank * bytes,
                        in = in_place ? own : rank.in() + shift;
  rank.upload(in, sent.data(), bytes);
  rank.sync();
  std::vector<abi::ExchangePart> parts;
  for (int r = 0; r < rank.world; ++r)
    parts.push_back(
        {reinterpret_cast<unsigned char*>(in), reinterpret_cast<unsigned char*>(out + r * bytes), bytes, bytes});
  rank.collectives.exchange(ExchangeKind::kAllGather, parts, -1, bytes, rank.call(),
                            {reinterpret_cast<void*>(out), bytes * rank.world, rank.rank * bytes});
  auto got = rank.download(out, wanted.size());
  rank.collectives.poll();
  expect(got == wanted,
         cat("all_gather of ", bytes, " algorithm ", algorithm, " shift ", shift, in_place ? " in place" : "", " rank ",
             rank.rank, ": ", got == wanted ? "" : first_difference(got, wanted, 1)));
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

/// Every pair at once, each end on a stream of its own: long transfers are under way when short ones begin and end.
void check_all_pairs(Rank& rank, size_t largest, int round) {
  auto bytes = [&](int from, int to) { return (to - from + rank.world) % rank.world == 1 ? largest : 1000 * to + 17; };
  std::vector<cuda::Stream> streams(2 * rank.world, nullptr);
  auto begin = [&](int key) {
    cuda::ContextScope scope(rank.gpu.context);
    cuda::check_result(cuda::driver().stream_create(&streams[key], cuda::kStreamNonBlocking), "stream");
    auto call = rank.call();
    call.stream = streams[key];
    return call;
  };
  auto at = [&](cuda::DevicePtr base, int r) { return base + r * (kBuffer / rank.world / 16 * 16); };
  for (int r = 0; r < rank.world; ++r) {
    std::vector<unsigned char> data(bytes(rank.rank, r));
    for (size_t i = 0; i < data.size(); ++i) data[i] = pattern(rank.rank, r, i, round);
    rank.upload(at(rank.in(), r), data.data(), data.size());
    rank.sync();
  }
  for (int step = 1; step < rank.world; ++step) {
    const int to = (rank.rank + step) % rank.world, from = (rank.rank + rank.world - step) % rank.world;
    rank.collectives.send(reinterpret_cast<void*>(at(rank.in(), to)), bytes(rank.rank, to), to, begin(2 * to));
    rank.collectives.receive(reinterpret_cast<void*>(at(rank.out(), from)), bytes(from, rank.rank), from,
                             begin(2 * from + 1));
  }
  for (cuda::Stream stream : streams) {
    if (!stream) continue;
    cuda::ContextScope scope(rank.gpu.context);
    cuda::check_result(cuda::driver().stream_synchronize(stream), "stream_synchronize");
    cuda::driver().stream_destroy(stream);
  }
  rank.collectives.poll();
  for (int r = 0; r < rank.world; ++r) {
    if (r == rank.rank) continue;
    std::vector<unsigned char> wanted(bytes(r, rank.rank));
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = pattern(r, rank.rank, i, round);
    auto got = rank.download(at(rank.out(), r), wanted.size());
    expect(got == wanted, cat("all pairs, round ", round, ", ", r, " to ", rank.rank, ": ",
                              got == wanted ? "" : first_difference(got, wanted, 1)));
  }
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

/// Rank 1 sends a byte more to rank 0 than this expects: both may say so, who is not concerned hears of it later.
/// `even`: rank 0 knows the exchange as even.
void check_pair_mismatch(int world, size_t bytes, bool point, bool even = false) {
  std::atomic<int> said{0};
  run_ranks(world, cat(point ? "send" : "exchange", " of ", bytes, " bytes, of which one rank sends more"), {},
            [&](Rank& rank) {
              std::vector<abi::ExchangePart> parts(world);
              for (int r = 0; r < world; ++r)
                parts[r] = {reinterpret_cast<unsigned char*>(rank.in()), reinterpret_cast<unsigned char*>(rank.out()),
                            bytes + (rank.rank == 1 && r == 0), bytes};
              std::string text = "no error";
              try {
                const size_t whole = even && rank.rank == 0 ? bytes * world : 0;
                if (!point) rank.collectives.exchange(ExchangeKind::kAllToAll, parts, -1, whole, rank.call());
                if (point && rank.rank == 1)
                  rank.collectives.send(reinterpret_cast<void*>(rank.in()), bytes + 1, 0, rank.call());
                if (point && rank.rank == 0)
                  rank.collectives.receive(reinterpret_cast<void*>(rank.out()), bytes, 1, rank.call());
                rank.sync();
                rank.collectives.barrier(rank.call());
                rank.sync();
                rank.collectives.poll();
              } catch (const std::exception& error) {
                text = error.what();
              }
              const bool late = rank.rank > 1 && text.find("did not arrive") != text.npos;  // a pair talks alone
              expect(late || text.find("disagree") != text.npos || text.find("failed") != text.npos, text);
              const std::string here = cat("sends ", bytes + 1, " bytes to this rank, which expects ", bytes),
                                there = cat("expects ", bytes, " bytes from this rank, which sends ", bytes + 1);
              if (text.find(here) != text.npos || text.find(there) != text.npos) ++said;
              std::printf("  rank %d: %s\n", rank.rank, text.c_str());
            });
  expect(said > 0, cat("sizes of a pair differ: ", said.load(), " ranks said how"));
}

/// Tensors of different windows.
void check_other_window(int world) {
  run_ranks(world, "other window", {}, [&](Rank& rank) {
    auto deadline = Clock::now() + std::chrono::seconds(10);
    std::shared_ptr<Window> windows[] = {rank.collectives.make_window(1 << 20, deadline),
                                         rank.collectives.make_window(1 << 20, deadline)};
    rank.collectives.force_algorithm(3);
    auto* data = reinterpret_cast<void*>(windows[rank.rank == 1]->own());
    std::string text = "no error";
    try {
      rank.collectives.all_reduce(data, data, 1000, DType::kF32, Reduction::kSum, -1, rank.call());
      rank.sync();
      rank.collectives.poll();
    } catch (const std::exception& error) {
      text = error.what();
    }
    expect(text.find("disagree") != text.npos || text.find("failed") != text.npos, cat("other window: ", text));
    std::printf("  rank %d: %s\n", rank.rank, text.c_str());
  });
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
uint64_t one_shot_room(int world) { return kPacketSetBytes / world / 32 * 32; }
uint64_t two_shot_room(int world) { return one_shot_room(world) / 2 / 16 * 16 * world; }

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
        if (algorithm == 2 && dtype == DType::kBF16)
          check_reductions(rank, dtype, Reduction::kSum, (40u << 20) / size_bytes(dtype) + 3, 2, 0, true, -1, ++round);
      });
      if (!ok) break;
    }
  for (DType dtype : types)
    run_ranks(world, cat("registered memory, ", name(dtype)), {}, [&](Rank& rank) {
      rank.use_window();
      int round = 0;
      for (size_t count : {1, 7, 1000, 4099, 100'003, 1'000'000, 5'000'001}) {
        if (count > 1'000'000 && dtype != DType::kBF16) continue;
        check_reductions(rank, dtype, Reduction::kSum, count, 3, 0, false, -1, ++round);
        check_reductions(rank, dtype, Reduction::kMax, count, 3, 1, true, -1, ++round);
        check_reductions(rank, dtype, Reduction::kSum, count, 3, 0, false, world - 1, ++round);
        check_reductions(rank, dtype, Reduction::kAverage, count, -1, 0, true, -1, ++round);  // every algorithm mixed
        ++round;
        check_gather(rank, count, 3, static_cast<int>(count) % 3, round % 2 == 0, round);
        check_gather(rank, count, -1, 0, false, ++round);
      }
    });
  for (int algorithm : {-1, 2})
    run_ranks(world, cat("exchanges, algorithm ", algorithm), {}, [&](Rank& rank) {
      int round = 0;
      const size_t largest = kBuffer / (world / 4 * 6 + world % 4 * 3) - 16;  // what fits when pairs have 0 to 3 parts
      for (size_t n : {size_t{0}, size_t{1}, size_t{16}, size_t{1000}, size_t{70'001}, size_t{1} << 20,
                       std::min(size_t{9'000'000}, largest)})
        for (int shift : {0, 3}) {
          check_exchange(rank, [&](int, int) { return n; }, algorithm, shift, ++round);
          check_exchange(
              rank, [&](int from, int to) { return (from * 3 + to + 1) % 4 * n; }, algorithm, shift, ++round);
          check_mixed_exchange(rank, n, algorithm, shift, ++round);
        }
    });
  run_ranks(world, "numbers of workers", {}, [&](Rank& rank) {  // from 16 on with CTAs to spare
    int round = 0;
    const int ranks_of_gpu = (world + num_gpus() - 1) / num_gpus();
    for (int workers : {1, 2, 15, 16, 17, 31, 33, 63, 64}) {
      if (workers * ranks_of_gpu > 2 * abi::kMaxRingWorkers) continue;  // not all of them would be resident
      rank.collectives.force_workers(workers);
      for (size_t count : {size_t{100'003}, size_t{3'000'000}})
        check_reductions(rank, DType::kBF16, Reduction::kSum, count, 2, 0, count % 2 == 0, -1, ++round);
      check_exchange(rank, [&](int from, int to) { return (from + to) % 3 * 400'000; }, 2, 0, ++round);
    }
    rank.collectives.force_workers(0);
  });
  run_ranks(world, "send and receive", {}, [&](Rank& rank) {
    int round = 0;
    for (size_t n : {1, 16, 16384, 100'000, 5'000'000, 40'000'001}) check_points(rank, n, ++round);
    for (size_t n : {kBuffer / rank.world - 100, size_t{1000}, size_t{5'000'000}}) check_all_pairs(rank, n, ++round);
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
  for (size_t bytes : {1000, 3'000'000}) {
    for (bool point : {false, true}) check_pair_mismatch(world, bytes, point);
    check_pair_mismatch(world, bytes, false, true);
  }
  check_other_window(world);
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
    auto window = rank.collectives.make_window(2ull << 30, Clock::now() + std::chrono::seconds(10));
    for (uint64_t bytes = 1024; bytes <= (1ull << 30); bytes *= bytes < (1 << 20) ? 2 : 4)
      for (int algorithm : {0, 1, 2, 3}) {
        if (bytes > (algorithm == 0 ? one_shot_room(world) : algorithm == 1 ? two_shot_room(world) : 1ull << 30))
          continue;
        if (algorithm >= 2 && bytes < (64 << 10)) continue;
        auto* in = reinterpret_cast<unsigned char*>(algorithm == 3 ? window->own() : memory.address());
        auto* out = in + (1ull << 30);
        rank.collectives.force_algorithm(algorithm);
        const int n = bytes <= (4 << 20) ? 200 : bytes <= (64 << 20) ? 20 : 5;
        double s = seconds_of(rank, n, [&] {
          rank.collectives.all_reduce(in, out, bytes / 2, DType::kBF16, Reduction::kSum, -1, rank.call());
        });
        double gather = 0, scatter = 0;
        if (algorithm != 1) {
          rank.collectives.force_algorithm(algorithm >= 2 ? algorithm : -1);
          std::vector<abi::ExchangePart> parts;
          for (int r = 0; r < world; ++r)
            parts.push_back({in, out + r * (bytes / world), bytes / world, bytes / world});
          gather = seconds_of(rank, n, [&] {
            rank.collectives.exchange(ExchangeKind::kAllGather, parts, -1, bytes, rank.call(),
                                      {out, bytes, rank.rank * (bytes / world)});
          });
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

/// The rings by their number of CTAs.
void time_workers(int world) {
  std::atomic<int> ready{0};
  run_ranks(world, "workers", {}, [&](Rank& rank) {
    cuda::DeviceMemory memory(rank.gpu.context, 512ull << 20);
    for (++ready; ready < world;) std::this_thread::yield();
    auto* in = reinterpret_cast<unsigned char*>(memory.address());
    auto* out = in + (256ull << 20);
    rank.collectives.force_algorithm(2);
    for (uint64_t bytes = 1 << 20; bytes <= (256ull << 20); bytes *= 4)
      for (int workers : {16, 32, 48, 64}) {
        rank.collectives.force_workers(workers);
        std::vector<abi::ExchangePart> parts;
        for (int r = 0; r < world; ++r) parts.push_back({in, out + r * (bytes / world), bytes / world, bytes / world});
        const int n = bytes <= (4 << 20) ? 100 : 20;
        const double reduce = seconds_of(rank, n, [&] {
          rank.collectives.all_reduce(in, out, bytes / 2, DType::kBF16, Reduction::kSum, -1, rank.call());
        });
        const double gather = seconds_of(
            rank, n, [&] { rank.collectives.exchange(ExchangeKind::kAllGather, parts, -1, bytes, rank.call()); });
        const double scatter = seconds_of(rank, n, [&] {
          rank.collectives.reduce_scatter(in, out, bytes / 2 / world, DType::kBF16, Reduction::kSum, rank.call());
        });
        if (rank.rank == 0)
          std::printf("%10llu bytes, %2d CTAs: all_reduce %9.2f us, all_gather %9.2f us, reduce_scatter %9.2f us\n",
                      static_cast<unsigned long long>(bytes), workers, reduce * 1e6, gather * 1e6, scatter * 1e6);
      }
  });
}

void compile_all(int only, const std::string& type) {
  std::vector<KernelKey> keys{{KernelFamily::kPoint}};
  for (int world = 2; world <= abi::kMaxRanks; ++world) {
    if (world != (only ? only : 2)) continue;  // the others take a minute: on request
    keys.push_back({KernelFamily::kExchange, DType::kU8, world});
    keys.push_back({KernelFamily::kDirectMove, DType::kU8, world});
    for (int t = 0; t < kNumDTypes; ++t) {
      const DType dtype = static_cast<DType>(t);
      const bool usual = dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kI32 || dtype == DType::kU8 ||
                         dtype == DType::kF64;
      if (type.empty() ? !usual : name(dtype) != type) continue;
      keys.push_back({KernelFamily::kPackets, dtype, world});
      keys.push_back({KernelFamily::kRing, dtype, world});
      keys.push_back({KernelFamily::kDirectReduce, dtype, world});
    }
  }
  for (const KernelKey& key : keys) {
    KernelSource source = collective_source(key);
    cuda::CompileOutcome outcome = toolchain()->compiler.compile(source.text, "sm_90a");
    std::printf("%s %s world %d: %d registers, %d bytes spilled, %.2f s\n", source.entry.c_str(),
                std::string(name(key.dtype)).c_str(), key.world, outcome.cubin->registers, outcome.cubin->spill_bytes,
                outcome.seconds);
    expect(outcome.cubin->spill_bytes == 0, cat(source.entry, " spills"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  const int world = argc > 2 ? std::atoi(argv[2]) : 2;
  if (mode == "compile" || num_gpus() == 0) {
    if (toolchain()->compiler.nvrtc().problem().empty())
      compile_all(argc > 2 ? world : 0, argc > 3 ? argv[3] : "");
    else
      std::printf("skipped: no GPU and no NVRTC\n");
  } else if (mode == "time") {
    time_all(world);
  } else if (mode == "workers") {
    time_workers(world);
  } else {
    check_all(world);
  }
  if (failures) std::fprintf(stderr, "%d failures\n", failures.load());
  return failures ? 1 : 0;
}