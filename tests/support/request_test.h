// Send requests between ranks 0 and 1 through the engine of the device: checked at every notice, and measured.
#pragma once
#include "support/device_kernels.h"

namespace ark::test {

/// Where the two ranks of a test of requests have their buffers.
struct RequestTest {
  Rank& rank;
  DeviceKernels& kernels;
  abi::CollectiveParams p;
  cuda::DevicePtr here, there, flags;  // flags: their place behind the data
  uint32_t received = 0, sent = 0;     // so far

  /// The table of buffers, counts from 0.
  void agree() {
    const abi::DmaBuffer table[] = {buffer(here), buffer(there)};
    uint32_t zero = 0;
    rank.upload(rank.in(), table, sizeof table);
    rank.upload(rank.in() + 4096, &zero, 4);
    rank.upload(here + flags + 64, &zero, 4);
    rank.sync();
  }
  abi::DmaBuffer buffer(cuda::DevicePtr at) const {
    return {reinterpret_cast<unsigned char*>(at), 1u << 30, reinterpret_cast<uint32_t*>(at + flags + 64)};
  }

  /// Rank 0 sends, rank 1 looks at every message when it is told of it (or of a later one).
  void round(uint32_t number, uint32_t bytes, int n, int every, int alone) {
    uint32_t words = bytes / 4 * n, zero = 0, wrong = 0, count = 0;
    cuda::DevicePtr in = rank.in(), counter = rank.in() + 4096;
    if (rank.rank == 0) launch(rank, kernels.fill, 64, 256, 0, {&here, &words, &number});
    if (rank.rank == 1) rank.upload(rank.in() + 8192, &zero, 4);
    rank.collectives.barrier(rank.call());
    rank.sync();
    if (rank.rank == 0) {
      launch(rank, kernels.dma, 1, 1, 200 << 10, {&in, &bytes, &n, &every, &alone, &counter});
      std::memcpy(&count, rank.download(counter, 4).data(), 4);
      sent += n + alone;
      expect(count == sent, cat("sent count ", count, " of ", sent, ", messages of ", bytes));
    } else if (rank.rank == 1) {
      cuda::DevicePtr own = here + flags, told = own + 64, to = rank.in() + 8192;
      launch(rank, kernels.arrivals, 1, 256, 0, {&p, &here, &told, &received, &bytes, &n, &every, &number, &to});
      std::memcpy(&wrong, rank.download(to, 4).data(), 4);
      expect(wrong == 0, cat(wrong, " wrong words at their notice, messages of ", bytes, ", every ", every));
      received += n / every + alone;
    }
    rank.collectives.barrier(rank.call());
    rank.sync();
    if (rank.rank != 1) return;
    std::memcpy(&count, rank.download(here + flags + 64, 4).data(), 4);
    expect(count == received, cat("received count ", count, " of ", received, ", messages of ", bytes));
  }

  /// Messages of 8 KB against large ones; the last of a CTA tells the receiver, each the sender.
  void measure() {
    uint32_t words = 16 << 20, number = 99;
    if (rank.rank == 0) launch(rank, kernels.fill, 64, 256, 0, {&here, &words, &number});
    const std::pair<int, int> shapes[] = {{32, 1 << 20}, {1, 8192}, {4, 8192}, {8, 8192}, {16, 8192}, {32, 8192}};
    for (auto [ctas, size] : shapes) {
      received += 2 * ctas;
      if (rank.rank == 0) measure(ctas, size);
    }
    std::fflush(stdout);
    rank.collectives.barrier(rank.call());
    if (rank.rank != 1) return rank.sync();
    auto got = rank.download(here, 64 << 20);
    size_t wrong = 0;
    for (uint32_t i = 0; i < words; ++i) {
      uint32_t word;
      std::memcpy(&word, &got[i * 4], 4);
      wrong += word != (i + number * 40503u) * 2654435761u;
    }
    uint32_t count;
    std::memcpy(&count, rank.download(here + flags + 64, 4).data(), 4);
    expect(wrong == 0, cat(wrong, " wrong words sent by requests"));
    expect(count == received, cat("received count ", count, " of ", received));
  }
  void measure(int ctas, uint32_t bytes) {
    const uint64_t total = ctas == 1 ? 64u << 20 : 512u << 20;
    int n = static_cast<int>(total / ctas / bytes), every = n, alone = 0;
    cuda::DevicePtr in = rank.in(), counter = rank.in() + 4096;
    for (int repeat = 0; repeat < 2; ++repeat) {
      rank.sync();
      auto begin = Clock::now();
      launch(rank, kernels.dma, ctas, 1, 200 << 10, {&in, &bytes, &n, &every, &alone, &counter});
      rank.sync();
      double s = std::chrono::duration<double>(Clock::now() - begin).count();
      if (repeat)
        std::printf("{\"case\": \"send requests\", \"ctas\": %d, \"bytes\": %u, \"GB/s\": %.1f}\n", ctas, bytes,
                    static_cast<double>(n) * ctas * bytes / s / 1e9);
    }
  }
};

}  // namespace ark::test
