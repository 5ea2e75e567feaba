// Words that carry their own flag: a 16-bit element in the upper half, the lower half of the launch's number (epoch +
// 1; in a loop the iteration's) in the lower. Which operands come in them, and why that is safe:
// planner/flag_words.h. Loads are only issued by load_operand; ready_operand looks at what has come and asks again for
// what is old.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

/// How an element lies in memory.
template <class S>
struct Flagged {
  u32 word;
};
template <class S, bool kFlagged>
struct Stored {
  using type = S;
};
template <class S>
struct Stored<S, true> {
  using type = Flagged<S>;
};

template <class S>
ARK_DEVICE float widen(Flagged<S> x) {
  return widen(S{static_cast<unsigned short>(x.word >> 16)});
}

ARK_DEVICE u32 flag_of(const ProgramContext& c) { return (c.task.epoch(c.worker.epoch) + 1) & 0xffff; }

template <class S, int kDims>
ARK_DEVICE u32* flagged_address(const ProgramContext& c, int number, const i32 (&x)[kDims]) {
  const abi::Operand& o = c.operand(number);
  return reinterpret_cast<u32*>(o.offset) + element_offset(o, x);
}

template <int V, class S, int kDims>
ARK_DEVICE void load_operand(const ProgramContext& c, int number, const i32 (&x)[kDims], Vec<Flagged<S>, V>& out) {
  const u32* from = flagged_address<S>(c, number, x);
  if constexpr (V % 4 == 0) {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const uint4 words = load_relaxed4(from + i);
      out.v[i].word = words.x;
      out.v[i + 1].word = words.y;
      out.v[i + 2].word = words.z;
      out.v[i + 3].word = words.w;
    }
  } else {
    ARK_EACH out.v[i].word = load_relaxed(from + i);
  }
}

/// All words are of this launch; else they have been asked for again.
template <int V, class S, int kDims>
ARK_DEVICE bool ready_operand(const ProgramContext& c, int number, const i32 (&x)[kDims], Vec<Flagged<S>, V>& in) {
  const u32 flag = flag_of(c);
  u32 wrong = 0;
  ARK_EACH wrong |= (in.v[i].word ^ flag) & 0xffff;
  if (wrong == 0) return true;
  load_operand<V>(c, number, x, in);
  return false;
}
template <int V, class S, int kDims>
ARK_DEVICE bool ready_operand(const ProgramContext&, int, const i32 (&)[kDims], Vec<S, V>&) {
  return true;
}

template <class Ready>
ARK_DEVICE void wait_until_ready(const ProgramContext& c, Ready ready) {
  c.worker.waiter.spin(
      ready, [] { return 0u; }, WaitName{c.task.record->op, c.task.first, abi::kWaitFlaggedWords}, flag_of(c),
      kTilePatience);
}

template <int V, bool kFlagged, class S, int kDims>
ARK_DEVICE void store_flagged(const ProgramContext& c, int number, const i32 (&x)[kDims], const Vec<S, V>& in) {
  if constexpr (kFlagged) {
    u32* to = flagged_address<S>(c, number, x);
    ARK_EACH store_relaxed(to + i, static_cast<u32>(in.v[i].bits) << 16 | flag_of(c));
  } else {
    store_operand<V>(c, number, x, in);
  }
}

}  // namespace ark::device
