// The software engine of send requests: ranks that are threads over shared memory; every byte and count is checked.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/dma_engine.h"

using namespace ark;
using namespace ark::comm;

namespace {

std::atomic<int> failures{0};

void expect(bool ok, const std::string& what) {
  if (ok) return;
  failures.fetch_add(1);
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(20); }

void test_format() {
  for (uint32_t source : {0u, 7u, 255u})
    for (uint32_t piece : {0u, 12345u, 0xfffffu})
      for (uint32_t length : {1u, 512u, 0xfffffu}) {
        abi::SendRequest r = abi::make_request(source, 255 - source, piece, length, 3);
        expect(source_of(r) == source && destination_of(r) == 255 - source && length_of(r) == length * 16 &&
                   offset_of(r) == static_cast<uint64_t>(piece) * length * 16 && flags_of(r) == 3,
               cat("request ", source, " ", piece, " ", length));
      }
}

/// Rank r owns buffers 2 r (source) and 2 r + 1 (destination); it sends to its right neighbour, piece by piece in
/// random order, round after round; the receiver hands the buffer back by a message of its own.
void test_ring_of_ranks(int world, uint32_t piece_bytes, int pieces, int rounds) {
  std::vector<std::vector<unsigned char>> memory(2 * world, std::vector<unsigned char>(piece_bytes * pieces));
  std::vector<abi::u32> counts(2 * world * 32, 0);
  std::vector<abi::DmaBuffer> buffers;
  for (int i = 0; i < 2 * world; ++i) buffers.push_back({memory[i].data(), memory[i].size(), &counts[i * 32]});
  // A source's count is raised by the receiver's answer: "I have read it".
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        SoftwareDmaEngine engine(buffers, 64);
        std::mt19937 random(rank);
        const int right = (rank + 1) % world, left = (rank + world - 1) % world;
        uint32_t sent = 0;
        std::vector<int> order(pieces);
        for (int i = 0; i < pieces; ++i) order[i] = i;
        for (int round = 0; round < rounds; ++round) {
          if (round) wait_received(buffers[2 * rank], round, soon());
          for (size_t i = 0; i < memory[2 * rank].size(); ++i)
            memory[2 * rank][i] = static_cast<unsigned char>(rank * 31 + i * 7 + (i >> 8) + round);
          std::shuffle(order.begin(), order.end(), random);
          for (int piece : order) {
            engine.submit(abi::make_request(2 * rank, 2 * right + 1, piece, piece_bytes / 16, 3));
            ++sent;
          }
          wait_received(buffers[2 * rank + 1], static_cast<uint32_t>((round + 1) * pieces), soon());
          size_t wrong = 0;
          for (size_t i = 0; i < memory[2 * rank + 1].size(); ++i)
            wrong += memory[2 * rank + 1][i] != static_cast<unsigned char>(left * 31 + i * 7 + (i >> 8) + round);
          expect(wrong == 0, cat(wrong, " wrong bytes on rank ", rank, " in round ", round));
          while (engine.sent() != sent) std::this_thread::yield();
          engine.submit(abi::make_request(2 * rank + 1, 2 * left, 0, 0, abi::kDmaNotifyReceiver));
        }
      } catch (const std::exception& error) {
        expect(false, cat("rank ", rank, ": ", error.what()));
      }
    });
  for (auto& t : threads) t.join();
}

template <class Error>
void expect_throw(const std::function<void()>& body, const std::string& part) {
  try {
    body();
    expect(false, "no exception: " + part);
  } catch (const Error& error) {
    expect(std::string(error.what()).find(part) != std::string::npos, cat("text: ", error.what()));
  }
}

void test_bad_requests() {
  std::vector<unsigned char> memory(1024);
  abi::u32 count = 0;
  std::vector<abi::DmaBuffer> buffers{{memory.data(), 1024, &count}, {memory.data(), 512, &count}};
  SoftwareDmaEngine engine(buffers);
  expect_throw<UserError>([&] { engine.submit(abi::make_request(0, 2, 0, 1, 0)); }, "buffer 2 of 2");
  expect_throw<UserError>([&] { engine.submit(abi::make_request(0, 1, 1, 32, 0)); }, "[512, 1024) of buffer 1");
  expect_throw<DeviceError>([&] { wait_received(buffers[0], 1, Clock::now() + std::chrono::milliseconds(20)); },
                            "expected 1");
}

}  // namespace

/// A ring that stays full: submit gives up.
void test_full_ring() {
  std::vector<unsigned char> from(16 << 20), to(from.size());
  uint32_t received = 0;
  const abi::DmaBuffer buffers[2] = {{from.data(), from.size(), &received}, {to.data(), to.size(), &received}};
  SoftwareDmaEngine engine(buffers, 1, std::chrono::nanoseconds(0));
  const abi::SendRequest request = abi::make_request(0, 1, 0, 8 << 16, 0);
  try {
    for (int i = 0; i < 1000; ++i) engine.submit(request);
    expect(false, "a ring of one request never was full");
  } catch (const DeviceError& error) {
    expect(std::strstr(error.what(), "stays full") != nullptr, error.what());
  }
}

int main() {
  test_format();
  test_full_ring();
  for (int world : {2, 3, 4}) {
    test_ring_of_ranks(world, 8192, 32, 20);
    test_ring_of_ranks(world, 16, 100, 20);
  }
  test_bad_requests();
  if (failures) std::fprintf(stderr, "%d failures\n", failures.load());
  return failures ? 1 : 0;
}
