// All-reduces one after the other inside a running kernel: a thread keeps its packet in registers and makes the
// addresses once, a warp goes on together. Between two of them lie a signal's latency and little else.
#pragma once
#include "device/collective/packet.cuh"

namespace ark::device {

/// One flagged packet of every thread; whole warps construct it and call.
template <class E, int kWorld, ReduceOp kOp>
class ResidentAllReduce {
 public:
  /// `packet` of the tensor. A thread that does not own it only goes along (and reads what the owner reads).
  ARK_DEVICE ResidentAllReduce(const CollectiveParams& p, u32 epoch, u32 packet, bool owns)
      : p_(p), epoch_(epoch), rank_(static_cast<int>(opaque(p.rank))), owns_(owns) {
    const Boxes<FlaggedPacket> boxes(p, epoch, 0, 1);
#pragma unroll
    for (int i = 0; i < kWorld - 1; i++) {
      to_[i] = boxes.box((rank_ + 1 + i) % kWorld, rank_, packet);
      at_[i] = boxes.box(rank_, i + (i >= rank_ ? 1 : 0), packet);
    }
    const i64 set = static_cast<i64>(p.layout.packet_set_bytes);
    other_set_ = epoch & 1 ? -set : set;
  }

  /// False when a peer did not come; the error is set then.
  ARK_DEVICE bool step(u32 (&own)[2]) {
#pragma unroll
    for (int i = 0; i < kWorld - 1; i++) {
      if (owns_) FlaggedPacket::send(to_[i], own, epoch_);
      to_[i] += other_set_;
    }
    u32 got[kWorld - 1][2];
    if (!receive(got)) return false;
    u32 w[kWorld][2];
#pragma unroll
    for (int r = 0; r < kWorld; r++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        w[r][i] = r < rank_ ? got[r < kWorld - 1 ? r : 0][i] : got[r > 0 ? r - 1 : 0][i];
        w[r][i] = r == rank_ ? own[i] : w[r][i];
      }
    reduce_as<E, kOp>(own, w);
#pragma unroll
    for (int i = 0; i < kWorld - 1; i++) at_[i] += other_set_;
    other_set_ = -other_set_;
    epoch_ = next_epoch(epoch_);
    return true;
  }

 private:
  using Raw = u32[kWorld - 1][4];
  /// Two polls are under way at a time; a warp whose lanes went on one by one would send and poll in pieces (measured:
  /// 0.88 us together, 0.95 with one poll, 2.6 in pieces).
  ARK_DEVICE bool receive(u32 (&got)[kWorld - 1][2]) {
    Raw first, second;
    load(first);
    load(second);
    u32 missing = 0;
    SignalName name{CollectiveWait::kPacket, -1};
    const auto arrived = [&] {
      if (all_arrived(first)) return unpack(got, first);
      load(first);
      if (all_arrived(second)) return unpack(got, second);
      missing = missing_of(second);
      const int i = __ffs(missing) - 1;
      name.peer = i + (i >= rank_ ? 1 : 0);
      load(second);
      return false;
    };
    return poll<64>(Warp{p_, missing}, arrived, [] { return 0u; }, name, epoch_, 1);
  }
  /// The party of a warp: all lanes go on, or none.
  struct Warp {
    using Name = SignalName;
    const CollectiveParams& p;
    const u32& missing;  // by peer; 0: this lane has everything
    ARK_DEVICE u64 look(u64 start, const SignalName& name, u32 expected, u32 seen, int patience) const {
      if (missing != 0) start = GroupRank{p}.look(start, name, expected, seen, patience);
      return __all_sync(~0u, start != kGiveUp) ? start : kGiveUp;
    }
  };
  ARK_DEVICE void load(Raw& raw) const {
#pragma unroll
    for (int i = 0; i < kWorld - 1; i++) load_packet(raw[i], at_[i]);
  }
  ARK_DEVICE u32 missing_of(const Raw& raw) const {
    u32 missing = 0;
#pragma unroll
    for (int i = 0; i < kWorld - 1; i++) missing |= FlaggedPacket::arrived(raw[i], epoch_) ? 0 : 1u << i;
    return owns_ ? missing : 0;
  }
  ARK_DEVICE bool all_arrived(const Raw& raw) const { return __all_sync(~0u, missing_of(raw) == 0); }
  ARK_DEVICE static bool unpack(u32 (&got)[kWorld - 1][2], const Raw& raw) {
#pragma unroll
    for (int i = 0; i < kWorld - 1; i++) FlaggedPacket::unpack(got[i], raw[i]);
    return true;
  }

  const CollectiveParams& p_;
  u32 epoch_;
  int rank_;
  bool owns_;
  unsigned char *to_[kWorld - 1], *at_[kWorld - 1];  // the peers' boxes, in turn from here; one's own, by rank
  i64 other_set_;
};

}  // namespace ark::device
