// What a rank does in the tests of send requests on the host, whether it is a thread or a process.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/dma_engine.h"

namespace ark::test {

using comm::Clock;

inline std::atomic<int> failures{0};

inline void expect(bool ok, const std::string& what) {
  if (ok) return;
  failures.fetch_add(1);
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

inline Clock::time_point soon() { return Clock::now() + std::chrono::seconds(20); }

struct RingShape {
  uint32_t piece_bytes;
  int pieces, rounds;
  size_t bytes() const { return static_cast<size_t>(piece_bytes) * pieces; }
};

/// What every kind of rank has to pass: 2 to 4 of them, many small pieces, few that are long enough to see a count
/// raised before its bytes.
template <class TestRing>
void for_each_ring(TestRing test_ring) {
  for (int world : {2, 3, 4})
    for (const RingShape& shape : {RingShape{8192, 32, 20}, RingShape{16, 100, 20}, RingShape{1 << 20, 3, 8}})
      test_ring(world, shape);
}

/// Rank r owns buffers 2 r (source) and 2 r + 1 (destination), each of shape.bytes(). It sends to its right neighbour,
/// piece by piece in random order, round after round; the receiver hands the buffer back by a message of its own, which
/// raises the source's count: "I have read it".
inline void play_ring(int rank, int world, std::span<const abi::DmaBuffer> buffers, const RingShape& shape) {
  comm::SoftwareDmaEngine engine(buffers, 64);
  std::mt19937 random(rank);
  const int right = (rank + 1) % world, left = (rank + world - 1) % world;
  const abi::DmaBuffer &source = buffers[2 * rank], &destination = buffers[2 * rank + 1];
  auto value = [](int from, size_t i, int round) {
    return static_cast<unsigned char>(from * 31 + i * 7 + (i >> 8) + round);
  };
  uint32_t sent = 0;
  std::vector<int> order(shape.pieces);
  for (int i = 0; i < shape.pieces; ++i) order[i] = i;
  for (int round = 0; round < shape.rounds; ++round) {
    if (round) comm::wait_received(source, round, soon());
    for (size_t i = 0; i < shape.bytes(); ++i) source.address[i] = value(rank, i, round);
    std::shuffle(order.begin(), order.end(), random);
    for (int piece : order) {
      engine.submit(abi::make_request(2 * rank, 2 * right + 1, piece, shape.piece_bytes / 16, 3));
      ++sent;
    }
    comm::wait_received(destination, static_cast<uint32_t>((round + 1) * shape.pieces), soon());
    size_t wrong = 0;
    for (size_t i = 0; i < shape.bytes(); ++i) wrong += destination.address[i] != value(left, i, round);
    expect(wrong == 0, cat(wrong, " wrong bytes on rank ", rank, " in round ", round));
    for (const auto end = soon(); engine.sent() != sent && Clock::now() < end;) std::this_thread::yield();
    expect(engine.sent() == sent, cat("rank ", rank, ": ", engine.sent(), " of ", sent, " messages sent"));
    engine.submit(abi::make_request(2 * rank + 1, 2 * left, 0, 0, abi::kDmaNotifyReceiver));
  }
}

}  // namespace ark::test
