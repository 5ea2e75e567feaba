#include "comm/dma_engine.h"

#include <cstring>

#include "base/check.h"
#include "comm/backoff.h"

namespace ark::comm {

using abi::SendRequest;

RequestRing::RequestRing(size_t capacity) : slots_(capacity) {
  check<UserError>(capacity > 0, "a request ring needs room for one request");
}

bool RequestRing::push(SendRequest request) {
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head_.load(std::memory_order_acquire) == slots_.size()) return false;
  slots_[tail % slots_.size()] = request.bits;
  tail_.store(tail + 1, std::memory_order_release);
  return true;
}

bool RequestRing::pop(SendRequest& request) {
  const uint64_t head = head_.load(std::memory_order_relaxed);
  if (head == tail_.load(std::memory_order_acquire)) return false;
  request.bits = slots_[head % slots_.size()];
  head_.store(head + 1, std::memory_order_release);
  return true;
}

SoftwareDmaEngine::SoftwareDmaEngine(std::span<const abi::DmaBuffer> buffers, size_t ring_capacity,
                                     Clock::duration patience)
    : buffers_(buffers.begin(), buffers.end()), patience_(patience), ring_(ring_capacity) {
  check<UserError>(buffers.size() <= abi::kMaxDmaBuffers, "at most ", abi::kMaxDmaBuffers, " buffers, got ",
                   buffers.size());
  thread_ = std::thread([this] { run(); });
}

SoftwareDmaEngine::~SoftwareDmaEngine() {
  closing_.store(true, std::memory_order_release);
  thread_.join();
}

void SoftwareDmaEngine::submit(SendRequest request) {
  for (uint32_t id : {source_of(request), destination_of(request)}) {
    check<UserError>(id < buffers_.size() && buffers_[id].address, "send request names buffer ", id, " of ",
                     buffers_.size());
    check<UserError>(offset_of(request) + length_of(request) <= buffers_[id].size_bytes, "send request for bytes [",
                     offset_of(request), ", ", offset_of(request) + length_of(request), ") of buffer ", id,
                     ", which has ", buffers_[id].size_bytes);
  }
  const abi::DmaBuffer& destination = buffers_[destination_of(request)];
  check<UserError>(!(flags_of(request) & abi::kDmaNotifyReceiver) || destination.received,
                   "send request notifies the receiver of buffer ", destination_of(request),
                   ", which counts no messages");
  if (ring_.push(request)) return;
  const auto deadline = Clock::now() + patience_;
  wait_until([&] { return ring_.push(request); },
             [&] {
               check<DeviceError>(Clock::now() < deadline, "a ring of ", ring_.capacity(), " send requests stays full");
             });
}

void SoftwareDmaEngine::run() {
  Backoff backoff;
  while (true) {
    const bool last = closing_.load(std::memory_order_acquire);  // before the look into the ring
    SendRequest request;
    if (!ring_.pop(request)) {
      if (last) return;
      backoff.pause([] {});
      continue;
    }
    backoff.reset();
    const abi::DmaBuffer& destination = buffers_[destination_of(request)];
    std::memcpy(destination.address + offset_of(request), buffers_[source_of(request)].address + offset_of(request),
                length_of(request));
    if (flags_of(request) & abi::kDmaNotifyReceiver)
      std::atomic_ref<abi::u32>(*destination.received).fetch_add(1, std::memory_order_release);
    if (flags_of(request) & abi::kDmaNotifySender) sent_.fetch_add(1, std::memory_order_release);
  }
}

void wait_received(const abi::DmaBuffer& buffer, uint32_t count, Clock::time_point deadline) {
  std::atomic_ref<abi::u32> received(*buffer.received);
  wait_until([&] { return static_cast<int32_t>(received.load(std::memory_order_acquire) - count) >= 0; },
             [&] {
               check<DeviceError>(Clock::now() < deadline, "a buffer has got ",
                                  received.load(std::memory_order_relaxed), " messages within the time-out, expected ",
                                  count);
             });
}

}  // namespace ark::comm
