// The engine of send requests within a host: the bulk copy unit (TMA) of the SM that submits, driven by one thread. The
// SM's other threads compute on; many messages are in flight.
#pragma once
#include "device/dma_abi.h"
#include "device/signal.cuh"

namespace ark::device {

// In flight per SM: 16 SMs of 176 KB each cover the link's latency at its rate.
inline constexpr int kDmaStages = 22, kDmaStageBytes = 8192;

/// In shared memory, 128-byte aligned.
struct DmaShared {
  unsigned char data[kDmaStages][kDmaStageBytes];
  u64 loaded[kDmaStages];             // mbarriers
  abi::SendRequest ends[kDmaStages];  // the request whose last message lies here, else 0
  unsigned char* to[kDmaStages];
  u32 bytes[kDmaStages];
  abi::DmaBuffer buffers[abi::kMaxDmaBuffers];
};

/// One thread constructs, submits and flushes. Requests complete in order.
class DmaEngine {
 public:
  ARK_DEVICE DmaEngine(DmaShared& shared, const abi::DmaBuffer* buffers, int num_buffers, u32* sent)
      : shared_(shared), sent_(sent) {
    for (int i = 0; i < num_buffers; i++) shared_.buffers[i] = buffers[i];
    for (int i = 0; i < kDmaStages; i++) mbarrier_init(&shared_.loaded[i], 1);
    fence_mbarrier_init();
  }

  /// Starts a request; returns when its last message has a stage, which waits for older ones only.
  ARK_DEVICE void submit(abi::SendRequest request) {
    const abi::DmaBuffer& source = shared_.buffers[source_of(request)];
    const abi::DmaBuffer& destination = shared_.buffers[destination_of(request)];
    const u64 offset = offset_of(request);
    const u32 length = length_of(request);
    if (length == 0) {  // flags alone: after everything before
      flush();
      fence_system();
      if (raise(request)) atomicAdd(sent_, 1u);
      return;
    }
    for (u32 at = 0; at < length; at += kDmaStageBytes) {
      while (num_loading_ - num_done_ >= kDmaStages) advance();
      const int stage = num_loading_ % kDmaStages;
      const u32 bytes = min(static_cast<u32>(kDmaStageBytes), length - at);
      shared_.ends[stage] = at + bytes == length ? request : abi::SendRequest{0};
      shared_.to[stage] = destination.address + offset + at;
      shared_.bytes[stage] = bytes;
      mbarrier_arrive_expect(&shared_.loaded[stage], bytes);
      bulk_load(shared_address(shared_.data[stage]), source.address + offset + at, bytes, &shared_.loaded[stage]);
      ++num_loading_;
      if (num_loading_ - num_storing_ > kAhead) store_one();
    }
  }

  /// Until all submitted requests have been delivered and their flags raised.
  ARK_DEVICE void flush() {
    while (num_storing_ != num_loading_) store_one();
    bulk_wait<0>();
    complete(num_storing_);
  }

 private:
  ARK_DEVICE void advance() {
    if (num_storing_ != num_loading_) return store_one();
    bulk_wait<0>();
    complete(num_storing_);
  }
  ARK_DEVICE void store_one() {
    const int stage = num_storing_ % kDmaStages;
    while (!mbarrier_try_wait(&shared_.loaded[stage], num_storing_ / kDmaStages & 1)) {
    }
    bulk_store(shared_.to[stage], shared_address(shared_.data[stage]), shared_.bytes[stage]);
    bulk_commit();
    ++num_storing_;
    if (num_storing_ - num_done_ >= kPending) {
      bulk_wait<kPending / 2>();
      complete(num_storing_ - kPending / 2);
    }
  }
  /// The writes of all messages before number `end` are done: raises the flags of the requests that ended with them.
  ARK_DEVICE void complete(u32 end) {
    bool fenced = false;
    u32 num_sent = 0;
    for (; num_done_ != end; ++num_done_) {
      const abi::SendRequest request = shared_.ends[num_done_ % kDmaStages];
      if (flags_of(request) == 0) continue;
      if (!fenced) fence_system();
      fenced = true;
      num_sent += raise(request);
    }
    if (num_sent) atomicAdd(sent_, num_sent);
  }
  /// Tells the receiver; 1 if the sender is to be told.
  ARK_DEVICE u32 raise(abi::SendRequest request) {
    if (flags_of(request) & abi::kDmaNotifyReceiver)
      atomicAdd_system(shared_.buffers[destination_of(request)].received, 1u);
    return flags_of(request) & abi::kDmaNotifySender ? 1 : 0;
  }

  static constexpr u32 kPending = 16;  // messages under way to the peer before the oldest half is waited for
  static constexpr u32 kAhead = 6;     // messages being loaded ahead of the one to store
  DmaShared& shared_;
  u32* sent_;
  u32 num_loading_ = 0, num_storing_ = 0, num_done_ = 0;
};

}  // namespace ark::device
