// The software engine of send requests: ranks that are threads over shared memory; every byte and count is checked.
#include <cstring>
#include <functional>

#include "support/request_ring.h"

using namespace ark;
using namespace ark::comm;
using namespace ark::test;

namespace {

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

void test_ring_of_threads(int world, const RingShape& shape) {
  std::vector<std::vector<unsigned char>> memory(2 * world, std::vector<unsigned char>(shape.bytes()));
  std::vector<abi::u32> counts(2 * world * 32, 0);
  std::vector<abi::DmaBuffer> buffers;
  for (int i = 0; i < 2 * world; ++i) buffers.push_back({memory[i].data(), memory[i].size(), &counts[i * 32]});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        play_ring(rank, world, buffers, shape);
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
  buffers[1].received = nullptr;
  SoftwareDmaEngine mute(buffers);
  expect_throw<UserError>([&] { mute.submit(abi::make_request(0, 1, 0, 1, 1)); }, "buffer 1, which counts no messages");
  mute.submit(abi::make_request(0, 1, 0, 1, 0));
  expect_throw<UserError>([&] { SoftwareDmaEngine(std::vector(300, buffers[0])); }, "at most 256 buffers, got 300");
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
  for_each_ring(test_ring_of_threads);
  test_bad_requests();
  if (failures) std::fprintf(stderr, "%d failures\n", failures.load());
  return failures ? 1 : 0;
}
