// Pointwise items one of whose operands is contiguous along the last but one dimension and begins anywhere: tiles of it
// go through shared memory, by 16-byte pieces as they lie. A thread takes rows whose vectors begin at the same columns,
// so that eight places are worked out once for a strip of rows; from there on an element is one load and half a
// permutation. Two tiles are on their way while one is computed, one barrier each.
#pragma once
#include "device/program/pointwise_row_walk.cuh"
#include "device/program/window_tiles.cuh"

namespace ark::device {

/// Holds what lies in no window.
template <class P>
struct BesideWindow {
  const SlotContext<P> c;
};
template <int V, class S, int kDims, class P>
ARK_DEVICE void hold_operand(const BesideWindow<P>& b, int number, const i32 (&x)[kDims], HeldVector<S, V>& out) {
  if (P::transposed_size(number) == 0) hold_operand<V, S, kDims>(b.c, number, x, out);
}

/// Takes that, and elements of windows.
template <class P>
struct OfWindow {
  const SlotContext<P> c;
  const unsigned char* row;
  const i32 (&place)[P::kVector];
};
template <int V, class S, class P>
ARK_DEVICE void take_operand(const OfWindow<P>& w, int number, const HeldVector<S, V>& held, Vec<S, V>& out) {
  if (P::transposed_size(number) == 0) return take_operand<V, S>(w.c, number, held, out);
  ARK_EACH out.v[i] = *reinterpret_cast<const S*>(w.row + w.place[i]);
}

/// Programs that read one transposed operand, and whose vectors are held before they are taken.
template <class P>
constexpr ARK_DEVICE bool has_windows() {
  int count = 0;
  for (int i = 0; i < P::kNumOperands; ++i) count += P::transposed_size(i) != 0;
  return count == 1 && kWalksRows<P>;
}

/// Rows [first, last) of the flattened dimensions before the last.
template <class P>
class PointwiseWindows {
 public:
  static constexpr int V = P::kVector, kLast = P::kDims - 1, kSize = P::kTransposedBytes, kDepth = 3, kAtOnce = 2;
  using Places = BlockPlaces<P, V, ProgramContext>;
  using Tiles = WindowTiles<kSize, V>;
  static_assert(kDepth * Tiles::kBytes <= kScratchBytes);

  ARK_DEVICE PointwiseWindows(Consumer& consumer, const SlotContext<P>& c, i64 first, i64 last)
      : consumer_(consumer),
        context_(c),
        places_(c, first, last),
        tiles_(min(last - first, static_cast<i64>(c.task.record->size[kLast - 1])),
               (places_.size + V - 1) / V + places_.slots),
        pieces_(tiles_, consumer.thread()),
        rows_(tiles_, consumer.thread()),
        walk_(StripWalk(*c.task.record, kLast - 1, first, last, tiles_.rows), tiles_.count) {}

  ARK_DEVICE void run() {
    WindowWalk ahead = walk_;
    i64 address = 0;  // of the strip that `ahead` is in
    const auto next = [](int slot) { return slot + 1 == kDepth ? 0 : slot + 1; };
    const auto stage_next = [&](int slot) {
      if (!ahead.done()) stage(ahead, slot, address), ahead.next();
      copy_async_commit();  // a group a tile, empty behind the last
    };
#pragma unroll
    for (int i = 0; i + 1 < kDepth; ++i) stage_next(i);
    int slot = 0, free = kDepth - 1;
#pragma unroll 1
    for (; !walk_.done(); walk_.next()) {
      if (walk_.tile == 0) begin_strip();
      Pair pair;
      hold(0, pair);
      copy_async_wait<kDepth - 2>();
      consumer_.sync();  // the tile is there, and everybody has left the one before, whose memory is free
      stage_next(free);
      compute(slot, pair);
      slot = next(slot);
      free = next(free);
    }
    copy_async_wait<0>();
  }

 private:
  struct Pair {
    i32 x[kAtOnce][P::kDims];
    SlotPart part[kAtOnce];
    typename P::template HeldInputs<V> held[kAtOnce];
  };

  static constexpr ARK_DEVICE int number() {
    int found = 0;
    for (int i = 0; i < P::kNumOperands; ++i) found = P::transposed_size(i) != 0 ? i : found;
    return found;
  }
  ARK_DEVICE unsigned char* memory(int slot) const { return consumer_.scratch() + slot * Tiles::kBytes; }
  ARK_DEVICE i32 first_column(i32 tile) const { return (tile * tiles_.slots - places_.slots) * V; }
  /// Address of the strip's first row in the domain's first column.
  ARK_DEVICE i64 strip_address(const StripWalk& strip, i32 (&x)[P::kDims]) const {
    unflatten<0, kLast - 1>(*context_.task.record, strip.outer, x);
    x[kLast - 1] = strip.row;
    x[kLast] = 0;
    return static_cast<i64>(context_.base[number()]) + context_.place(number(), x) * kSize;
  }

  ARK_DEVICE void stage(const WindowWalk& at, int slot, i64& address) const {
    i32 x[P::kDims];
    if (at.tile == 0) address = strip_address(at.strip, x);
    const i32 first = first_column(at.tile), rows = at.strip.count();
    const i32 columns = min((tiles_.slots + places_.slots) * V, places_.size - first);
    const u32 to = shared_address(memory(slot)) + pieces_.piece * 16;
    i32 c = pieces_.column;
    while (first + c < 0) c += pieces_.step;
#pragma unroll 1
    for (; c < columns; c += pieces_.step) {
      const i64 column = address + multiply_add_wide(first + c, context_.stride[number()][kLast], 0) * kSize;
      if (pieces_.is_there(column, rows))
        copy_async(to + tiles_.place(c), reinterpret_cast<const void*>(pieces_.from(column)), 16);
    }
  }

  ARK_DEVICE void begin_strip() {
    const u32 column_bytes = static_cast<u32>(context_.stride[number()][kLast]) * kSize;
    const u32 address = static_cast<u32>(strip_address(walk_.strip, x_));
    if (rows_.first < walk_.strip.count()) x_[kLast - 1] += rows_.first;
    shift_ = places_.shift(x_);
    rows_.settle(tiles_, shift_, address + static_cast<u32>(first_column(0)) * column_bytes, column_bytes);
  }

  /// The thread's rows from the `begin`-th on: where they are, and what they read beside the window.
  ARK_DEVICE void hold(i32 begin, Pair& pair) const {
    unrolled<kAtOnce>([&](auto k) __attribute__((always_inline)) {
      auto& x = pair.x[k.value];
#pragma unroll
      for (int d = 0; d < P::kDims; ++d) x[d] = x_[d];
      const i32 step = (begin + k.value) * rows_.step;
      x[kLast - 1] += step;
      x[kLast] = first_column(walk_.tile) + rows_.slot * V + shift_;
      const SlotPart part = pair.part[k.value] = places_.part(x[kLast], rows_.first + step < walk_.strip.count());
      if (part.low < part.high) P::template hold<V>(BesideWindow<P>{context_.of(part)}, x, pair.held[k.value]);
    });
  }

  ARK_DEVICE void compute(int slot, Pair& pair) const {
    const unsigned char* tile = memory(slot);
    i32 begin = 0;
#pragma unroll 1
    for (;;) {
      typename P::template Inputs<V> in[kAtOnce];
      unrolled<kAtOnce>([&](auto k) __attribute__((always_inline)) {
        const SlotPart part = pair.part[k.value];
        if (part.low >= part.high) return;
        const unsigned char* row = tile + (begin + k.value) * rows_.step * kSize;
        P::template take<V>(OfWindow<P>{context_.of(part), row, rows_.place}, pair.held[k.value], in[k.value]);
      });
      unrolled<kAtOnce>([&](auto k) __attribute__((always_inline)) {
        const SlotPart part = pair.part[k.value];
        if (part.low < part.high) P::template run_loaded<V>(context_.of(part), pair.x[k.value], in[k.value], NoRoots{});
      });
      begin += kAtOnce;
      if (rows_.first + begin * rows_.step >= walk_.strip.count()) return;
      hold(begin, pair);
    }
  }

  Consumer& consumer_;
  const SlotContext<P>& context_;
  const Places places_;
  const Tiles tiles_;
  const WindowPieces<kSize, V> pieces_;
  WindowRows<kSize, V> rows_;
  WindowWalk walk_;
  i32 x_[P::kDims] = {};  // the thread's first row in the strip
  i32 shift_ = 0;         // from slots to its vectors
};

}  // namespace ark::device
