// The engine of send requests within a host: the bulk copy unit (TMA) of the SM that submits, driven by one thread. The
// SM's other threads compute on; many messages are in flight.
#pragma once
#include "device/dma_abi.h"
#include "device/signal.cuh"

namespace ark::device {

// 16 SMs with 176 KB each in flight cover the link's latency at its rate.
inline constexpr int kDmaStages = 22, kDmaStageBytes = 8192;
inline constexpr u32 kDmaEnds = 64;  // a power of two; messages that have been stored and may still owe a notice

/// In shared memory, 128-byte aligned.
struct DmaShared {
  unsigned char data[kDmaStages][kDmaStageBytes];
  u64 loaded[kDmaStages];  // mbarriers
  unsigned char* to[kDmaStages];
  u32 bytes[kDmaStages];
  abi::SendRequest ends[kDmaEnds];  // by message: the request whose last message it is, else 0
  abi::DmaBuffer buffers[abi::kMaxDmaBuffers];
};

/// One thread constructs, submits and flushes. Requests complete in order.
///
/// A stage is free again when its store has read it, long before the bytes have arrived; the arrival is waited for only
/// where a receiver is to be told of it, some messages later and for many at a time, because the fence before a notice
/// takes as long as several messages.
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
      notify_receiver(request);
      notify_sender(request);
      return;
    }
    const unsigned char* from = source.address + offset;
    unsigned char* to = destination.address + offset;
    for (u32 left = length; left > 0;) {
      const u32 bytes = min(static_cast<u32>(kDmaStageBytes), left);
      left -= bytes;
      if (num_loading_ - num_storing_ >= kAhead) store_one();
      const int stage = load_stage_;
      shared_.ends[num_loading_ % kDmaEnds] = left == 0 ? request : abi::SendRequest{0};
      shared_.to[stage] = to;
      shared_.bytes[stage] = bytes;
      mbarrier_arrive_expect(&shared_.loaded[stage], bytes);
      bulk_load(shared_address(shared_.data[stage]), from, bytes, &shared_.loaded[stage]);
      from += bytes;
      to += bytes;
      ++num_loading_;
      load_stage_ = stage + 1 == kDmaStages ? 0 : stage + 1;
    }
  }

  /// Until all submitted requests have been delivered and their flags raised.
  ARK_DEVICE void flush() {
    while (num_storing_ != num_loading_) store_one();
    bulk_wait<0>();
    complete(num_storing_);
  }

 private:
  ARK_DEVICE void store_one() {
    const int stage = store_stage_;
    while (!mbarrier_try_wait(&shared_.loaded[stage], store_phase_)) {
    }
    bulk_store(shared_.to[stage], shared_address(shared_.data[stage]), shared_.bytes[stage]);
    bulk_commit();
    const abi::SendRequest request = shared_.ends[num_storing_ % kDmaEnds];
    ++num_storing_;
    store_stage_ = stage + 1 == kDmaStages ? 0 : stage + 1;
    if (store_stage_ == 0) store_phase_ ^= 1;
    bulk_wait_read<kReading - 1>();
    notify_sender(request);  // the source has been read
    if (flags_of(request) & abi::kDmaNotifyReceiver) ++num_owed_;
    if (num_storing_ - num_done_ < 2 * kLag) return;
    if (num_owed_) bulk_wait<kLag>();
    complete(num_storing_ - kLag);
  }
  /// The writes of all messages before number `end` are done, if any of them owes a notice.
  ARK_DEVICE void complete(u32 end) {
    if (num_owed_) {
      bool fenced = false;
      for (; num_done_ != end; ++num_done_) {
        const abi::SendRequest request = shared_.ends[num_done_ % kDmaEnds];
        if ((flags_of(request) & abi::kDmaNotifyReceiver) == 0) continue;
        if (!fenced) fence_system();
        fenced = true;
        notify_receiver(request);
        --num_owed_;
      }
    }
    num_done_ = end;
  }
  ARK_DEVICE void notify_receiver(abi::SendRequest request) {
    if (flags_of(request) & abi::kDmaNotifyReceiver)
      atomicAdd_system(shared_.buffers[destination_of(request)].received, 1u);
  }
  ARK_DEVICE void notify_sender(abi::SendRequest request) {
    if (flags_of(request) & abi::kDmaNotifySender) atomicAdd(sent_, 1u);
  }

  static constexpr u32 kReading = 4;  // stages that stores may still be reading
  static constexpr u32 kAhead = kDmaStages - kReading;
  static constexpr u32 kLag = 16;  // messages under way to the peer whose arrival nobody waits for
  static_assert(kAhead + 2 * kLag < kDmaEnds);
  DmaShared& shared_;
  u32* sent_;
  u32 num_loading_ = 0, num_storing_ = 0, num_done_ = 0;  // messages loaded, stored, and done with
  u32 num_owed_ = 0;                                      // receivers to be told of messages that are stored
  int load_stage_ = 0, store_stage_ = 0;
  u32 store_phase_ = 0;
};

}  // namespace ark::device
