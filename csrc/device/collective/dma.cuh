// The engine of send requests within a host: the bulk copy unit (TMA) of the SM that submits, driven by one thread. The
// SM's other threads compute on; many messages are in flight.
#pragma once
#include "device/abi/dma.h"
#include "device/collective/signal.cuh"

namespace ark::device {

// 16 SMs with 176 KB each in flight cover the link's latency at its rate.
inline constexpr u32 kDmaStages = 22, kDmaStageBytes = 8192;
inline constexpr u32 kDmaOwed = 128;  // a power of two

/// A message on its way, everything at one address: the thread's instructions are what limits the rate.
struct DmaStage {
  unsigned char data[kDmaStageBytes];
  u32 message[4];  // where to (2 words), bytes, whether the sender is to be told
  u64 loaded;      // mbarrier
  u64 unused[13];
};

/// In shared memory, 128-byte aligned.
struct DmaShared {
  DmaStage stages[kDmaStages];
  u64 owed[kDmaOwed];  // receivers to be told: number of the message after the last, buffer << 32
  abi::DmaBuffer buffers[abi::kMaxDmaBuffers];
};

/// The party of the engine's waits: it has no group.
struct NobodyToTell {
  using Name = SignalName;
  ARK_DEVICE bool aborted() const { return false; }
  ARK_DEVICE bool hears(const abi::Fault<SignalName>&) const { return false; }
  ARK_DEVICE void fail(const abi::Fault<SignalName>&) const { __trap(); }
  ARK_DEVICE u64 look(u64 start, const SignalName& name, u32 expected, u32 seen, int patience) const {
    return look_up(*this, start, kPatienceNs * patience, {name, expected, seen});
  }
  static constexpr u64 kPatienceNs = 10'000'000'000;
};

/// One thread constructs, submits and flushes. Requests complete in order. What this SM itself wrote into a source
/// needs a fence_proxy_async before the request.
///
/// A stage is free again when its store has read it, long before the bytes have arrived; the arrival is waited for only
/// where a receiver is to be told of it, some messages later and for many at a time, because the fence before a notice
/// takes as long as several messages. What a request says besides its piece is kept from the one before.
class DmaEngine {
 public:
  ARK_DEVICE DmaEngine(DmaShared& shared, const abi::DmaBuffer* buffers, int num_buffers, u32* sent)
      : sent_(sent), begin_(opaque(shared_address(&shared))), load_at_(begin_), store_at_(begin_) {
    for (int i = 0; i < num_buffers; i++) shared.buffers[i] = buffers[i];
#pragma unroll 1
    for (u32 i = 0; i < kDmaStages; i++) mbarrier_init(begin_ + i * sizeof(DmaStage) + kLoaded, 1);
    fence_mbarrier_init();
  }

  /// Starts a request; returns when its last message has a stage, which waits for older ones only.
  ARK_DEVICE void submit(abi::SendRequest request) {
    if (((request.bits ^ kind_) & ~abi::kPieceBits) != 0) read_kind(request);
    const u64 offset = static_cast<u64>(piece_of(request)) * length_;
    if (plain_)
      send(offset, length_, sender_);
    else
      submit_any(request, offset);
  }

  /// Until all submitted requests have been delivered and their flags raised.
  ARK_DEVICE void flush() {
#pragma unroll 1
    for (; num_loading_ > 0; --num_loading_) store_one();
    bulk_wait<0>();
    tell_receivers(num_sent_);
    tell_sender();
  }

 private:
  ARK_DEVICE void read_kind(abi::SendRequest request) {
    kind_ = request.bits;
    from_ = shared_load_u64(buffer_at(source_of(request)));
    to_ = shared_load_u64(buffer_at(destination_of(request)));
    length_ = length_of(request);
    sender_ = flags_of(request) & abi::kDmaNotifySender ? 1 : 0;
    plain_ = length_ - 1 < kDmaStageBytes && (flags_of(request) & abi::kDmaNotifyReceiver) == 0;
  }
  ARK_DEVICE void submit_any(abi::SendRequest request, u64 offset) {
    if (length_ == 0) {  // flags alone: after everything before
      flush();
      fence_system();
      if (flags_of(request) & abi::kDmaNotifyReceiver) tell_receiver(destination_of(request));
      red_relaxed_add(sent_, sender_);
      return;
    }
#pragma unroll 1
    for (u32 left = length_; left > 0;) {
      const u32 bytes = min(kDmaStageBytes, left);
      left -= bytes;
      send(offset, bytes, left == 0 ? sender_ : 0);
      offset += bytes;
    }
    if ((flags_of(request) & abi::kDmaNotifyReceiver) == 0) return;
    if (owed_begin_ == owed_end_) owed_after_ = num_sent_;
    shared_store_u64(owed_at(owed_end_), static_cast<u64>(destination_of(request)) << 32 | num_sent_);
    ++owed_end_;
  }

  /// One message: the load now, the store when it has come and kAhead others are under way behind it.
  ARK_DEVICE void send(u64 offset, u32 bytes, u32 sender) {
    if (num_loading_ == kAhead)
      store_one();
    else
      ++num_loading_;
    const u64 to = to_ + offset;
    mbarrier_arrive_expect(load_at_ + kLoaded, bytes);
    bulk_load(load_at_, reinterpret_cast<const void*>(from_ + offset), bytes, load_at_ + kLoaded);
    shared_store4(load_at_ + kMessage, {static_cast<u32>(to), static_cast<u32>(to >> 32), bytes, sender});
    load_at_ = after(load_at_);
    ++num_sent_;
  }
  ARK_DEVICE void store_one() {
    const uint4 message = shared_load4(store_at_ + kMessage);
    if (!mbarrier_try_wait(store_at_ + kLoaded, phase_)) wait_loaded();
    bulk_store(reinterpret_cast<void*>(static_cast<u64>(message.y) << 32 | message.x), store_at_, message.z);
    bulk_commit();
    store_at_ = after(store_at_);
    if (store_at_ == begin_) phase_ ^= 1;
    told_ += message.w;  // the source has been read
    if (++group_ == kGroup) end_group();
  }
  /// A load that never ends (the peer's memory is gone) ends the kernel: there is nobody to tell.
  ARK_DEVICE void wait_loaded() {
    poll<1024>(
        NobodyToTell{}, [&] { return mbarrier_try_wait(store_at_ + kLoaded, phase_); }, [] { return 0u; },
        {CollectiveWait::kLoad, -1}, 1, 1);
  }
  ARK_DEVICE void end_group() {
    group_ = 0;
    bulk_wait_read<kReading>();
    if (told_) tell_sender();
    if (owed_begin_ == owed_end_) return;
    const u32 stored = num_sent_ - num_loading_ + 1;
    if (static_cast<i32>(stored - owed_after_ - 2 * kLag) < 0) return;
    bulk_wait<kLag>();
    tell_receivers(stored - kLag);
  }

  ARK_DEVICE void tell_sender() {
    red_relaxed_add(sent_, told_);
    told_ = 0;
  }
  /// The writes of all messages before number `end` are done.
  ARK_DEVICE void tell_receivers(u32 end) {
    if (owed_begin_ == owed_end_) return;
    fence_system();
#pragma unroll 1
    for (; owed_begin_ != owed_end_; ++owed_begin_) {
      const u64 owed = shared_load_u64(owed_at(owed_begin_));
      owed_after_ = static_cast<u32>(owed);
      if (static_cast<i32>(end - owed_after_) < 0) return;
      tell_receiver(static_cast<u32>(owed >> 32));
    }
  }
  ARK_DEVICE void tell_receiver(u32 buffer) {
    atomicAdd_system(reinterpret_cast<u32*>(shared_load_u64(buffer_at(buffer) + offsetof_received())), 1u);
  }

  ARK_DEVICE u32 after(u32 stage) const {
    return stage == begin_ + (kDmaStages - 1) * sizeof(DmaStage) ? begin_ : stage + sizeof(DmaStage);
  }
  ARK_DEVICE u32 owed_at(u32 i) const { return begin_ + kOwedAt + i % kDmaOwed * 8; }
  ARK_DEVICE u32 buffer_at(u32 i) const { return begin_ + kBuffersAt + i * sizeof(abi::DmaBuffer); }
  ARK_DEVICE static constexpr u32 offsetof_received() { return sizeof(abi::DmaBuffer) - 8; }

  static constexpr u32 kMessage = kDmaStageBytes, kLoaded = kMessage + 16;  // in a stage
  static constexpr u32 kOwedAt = kDmaStages * sizeof(DmaStage), kBuffersAt = kOwedAt + kDmaOwed * 8;
  static_assert(sizeof(DmaStage) == kDmaStageBytes + 128 && sizeof(DmaShared) == kBuffersAt + 256 * 24);
  static constexpr u32 kGroup = 4;    // messages between two looks at what has been read and who is to be told
  static constexpr u32 kReading = 4;  // stages that stores may still be reading then
  static constexpr u32 kAhead = kDmaStages - kReading - (kGroup - 1);
  static constexpr u32 kLag = 16;  // messages under way to the peer whose arrival nobody waits for
  static_assert(kDmaStages + 2 * kLag + kGroup < kDmaOwed);
  u32* sent_;
  u32 begin_, load_at_, store_at_;  // the stages: the first, of the next load, of the next store
  u32 phase_ = 0;                   // of the next store's mbarrier
  u64 kind_ = ~0ull, from_ = 0, to_ = 0;
  u32 length_ = 0, sender_ = 0;
  bool plain_ = false;  // a message of its own that no receiver hears of
  u32 num_loading_ = 0, num_sent_ = 0, group_ = 0, told_ = 0;
  u32 owed_begin_ = 0, owed_end_ = 0, owed_after_ = 0;  // of `owed`; number after the first message that owes
};

}  // namespace ark::device
