// The engine of send requests in software: a thread that drains a request ring and copies through memory that the ranks
// of a host share. The request format and the flags are those of csrc/device/collective/dma.cuh (docs/DMA.md); an
// engine that posts RDMA writes takes this one's place behind the same ring.
#pragma once
#include <atomic>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "comm/store.h"
#include "device/abi/dma.h"

namespace ark::comm {

/// One producer, one consumer. Lies in plain memory; the device could write it as well.
class RequestRing {
 public:
  explicit RequestRing(size_t capacity);
  /// False when the ring is full.
  bool push(abi::SendRequest request);
  bool pop(abi::SendRequest& request);
  size_t capacity() const { return slots_.size(); }

 private:
  std::vector<uint64_t> slots_;
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) std::atomic<uint64_t> tail_{0};
};

class SoftwareDmaEngine {
 public:
  /// `buffers` as this rank reaches them; entries without address are not usable. They outlive the engine.
  SoftwareDmaEngine(std::span<const abi::DmaBuffer> buffers, size_t ring_capacity = 1024,
                    Clock::duration patience = std::chrono::seconds(30));
  /// Delivers what is in the ring, then ends.
  ~SoftwareDmaEngine();
  SoftwareDmaEngine(const SoftwareDmaEngine&) = delete;
  SoftwareDmaEngine& operator=(const SoftwareDmaEngine&) = delete;

  /// One thread. Checks the request (UserError: unknown buffer, bytes outside of one), waits for room in the ring
  /// (DeviceError when there is none for as long as the engine's patience).
  void submit(abi::SendRequest request);
  /// Requests with kDmaNotifySender that have been delivered; may wrap.
  uint32_t sent() const { return sent_.load(std::memory_order_acquire); }

 private:
  void run();
  std::vector<abi::DmaBuffer> buffers_;
  Clock::duration patience_;
  RequestRing ring_;
  std::atomic<uint32_t> sent_{0};
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

/// Until `buffer` has got `count` messages (acquire: their bytes are there). Throws DeviceError at the deadline.
void wait_received(const abi::DmaBuffer& buffer, uint32_t count, Clock::time_point deadline);

}  // namespace ark::comm
