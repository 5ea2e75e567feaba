// Pointwise items some of whose operands are contiguous along the last but one dimension: these are copied tile by tile
// into shared memory as they lie, 16 bytes at a time, and read from there. All others are read, and results are
// written, as in other items. One barrier a tile; the copies of the next one or two tiles are under way meanwhile.
#pragma once
#include "device/abi/transposed_tile.h"
#include "device/program/support.cuh"
#include "device/program/transposed_places.cuh"

namespace ark::device {

/// A context whose operands of mask `active` are read from a tile.
template <class P>
struct TransposedContext : ProgramContext {
  static constexpr int kRows = abi::transposed_rows(P::kTransposedBytes);
  u32 active = 0;
  i32 columns = 0;  // that a tile has room for
  const unsigned char* tile = nullptr;
  i32 row = 0, column = 0;  // coordinates of the tile's first element

  ARK_DEVICE explicit TransposedContext(const ProgramContext& c) : ProgramContext(c) {}

  /// Bytes of the longest tile.
  static constexpr ARK_DEVICE int most_bytes() {
    int bytes = 0;
    for (int i = 0; i < P::kNumOperands; ++i)
      if (P::transposed_size(i) != 0)
        bytes += abi::transposed_bytes(abi::kTransposedColumns + abi::kTransposedReach, kRows, P::transposed_size(i));
    return bytes;
  }
  /// Where operand `number` begins in a tile's memory; of all operands: how long that is.
  ARK_DEVICE i32 place(int number) const {
    i32 at = 0;
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i)
      if (i < number && P::transposed_size(i) != 0) at += abi::transposed_bytes(columns, kRows, P::transposed_size(i));
    return at;
  }
};

/// V elements of operand `number` at x, out of the tile if it goes through tiles.
template <int V, class S, int kDims, class P>
ARK_DEVICE void load_operand(const TransposedContext<P>& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  if (P::transposed_size(number) == 0 || (c.active >> number & 1) == 0)
    return load_operand<V, S, kDims>(static_cast<const ProgramContext&>(c), number, x, out);
  const TransposedElements<sizeof(S), TransposedContext<P>::kRows> elements(c.operand(number), x, c.row, c.column);
  const unsigned char* part = c.tile + c.place(number);
  ARK_EACH out.v[i] = *reinterpret_cast<const S*>(part + elements.place(i));
}

/// Operands of the record that go through tiles, as a mask; 0 where the item is not made of whole rows.
template <class P>
ARK_DEVICE u32 transposed_operands(const ProgramContext& c, i64 total) {
  constexpr int kLast = P::kDims - 1;
  const abi::OpRecord& r = *c.task.record;
  const i64 tile = r.params.program.tile;
  if (r.size[kLast] < abi::kLeastTransposed || r.size[kLast - 1] < abi::kLeastTransposed) return 0;
  if (tile < total && tile % r.size[kLast] != 0) return 0;
  u32 active = 0;
#pragma unroll
  for (int i = 0; i < P::kNumOperands; ++i) {
    if (P::transposed_size(i) == 0) continue;
    const abi::Operand& o = c.operand(i);
    const bool is_there = o.slot != abi::kNoSlot && o.index_operand < 0;
    if (is_there && o.stride[kLast - 1] == 1 && o.stride[kLast] != 1 && o.stride[kLast] != 0) active |= 1u << i;
  }
  return active;
}

/// An item of whole rows.
template <class P>
class PointwiseTransposed {
 public:
  static constexpr int V = P::kVector, kLast = P::kDims - 1;
  using Context = TransposedContext<P>;
  using Places = TransposedPlaces<P, V, ProgramContext>;
  static constexpr int kRows = Context::kRows, kColumns = abi::kTransposedColumns;

  ARK_DEVICE PointwiseTransposed(Consumer& consumer, const ProgramContext& c, u32 active, i64 begin, i64 end, i64 total)
      : consumer_(consumer), places_(c, begin, end, total), context_(c) {
    const abi::OpRecord& r = *c.task.record;
    size_ = static_cast<i32>(r.size[kLast]);
    walk_ = {divide_by_size(r, kLast, begin), divide_by_size(r, kLast, end), static_cast<i32>(r.size[kLast - 1]), size_,
             kRows};
    context_.active = active;
    context_.columns = places_.by_rows ? kColumns + abi::kTransposedReach : kColumns;
    bytes_ = context_.place(P::kNumOperands);
    static_assert(2 * Context::most_bytes() <= kScratchBytes);
  }

  ARK_DEVICE void run() {
    if (3 * bytes_ <= kScratchBytes)
      run_deep<3>();
    else
      run_deep<2>();
  }

 private:
  template <int kDepth>
  ARK_DEVICE void run_deep() {
    abi::TransposedWalk ahead = walk_;
    int slot = 0;
    const auto next = [](int s) { return s + 1 == kDepth ? 0 : s + 1; };
    const auto stage_next = [&](int s) {
      if (!ahead.done()) stage(ahead, s), ahead.next();
      copy_async_commit();  // a group a tile, empty behind the last
    };
#pragma unroll
    for (int i = 0; i + 1 < kDepth; ++i) stage_next(i);
    int free = kDepth - 1;
#pragma unroll 1
    for (; !walk_.done(); walk_.next()) {
      copy_async_wait<kDepth - 2>();
      consumer_.sync();  // the tile is there, and everybody has left the one before, whose memory is free
      stage_next(free);
      compute(slot);
      slot = next(slot);
      free = next(free);
    }
    copy_async_wait<0>();
  }

  ARK_DEVICE unsigned char* memory(int slot) const { return consumer_.scratch() + slot * bytes_; }

  /// Asks for a tile's pieces.
  ARK_DEVICE void stage(const abi::TransposedWalk& at, int slot) {
    i32 x[P::kDims] = {};
    unflatten<0, P::kDims - 1>(*context_.task.record, at.row, x);
    x[kLast] = at.column;
    const i32 columns = min(context_.columns, size_ - at.column), rows = at.count();
    unrolled<P::kNumOperands>([&](auto k) __attribute__((always_inline)) {
      constexpr int kNumber = decltype(k)::value, kSize = P::transposed_size(kNumber);
      if constexpr (kSize != 0) {
        if ((context_.active >> kNumber & 1) == 0) return;
        const abi::Operand& o = context_.operand(kNumber);
        const TransposedPieces<kSize, kRows> pieces(o.offset + element_offset(o, x) * kSize, o.stride[kLast] * kSize,
                                                    rows);
        const u32 part = shared_address(memory(slot) + context_.place(kNumber));
#pragma unroll 1
        for (int n = consumer_.thread(); n < columns * pieces.kOfColumn; n += kConsumerThreads) {
          const auto piece = pieces.at(n);
          if (piece.is_there) copy_async(part + piece.to, reinterpret_cast<const void*>(piece.from), 16);
        }
      }
    });
  }

  ARK_DEVICE void compute(int slot) {
    i32 x[P::kDims] = {};
    unflatten<0, P::kDims - 1>(*context_.task.record, walk_.row, x);
    context_.tile = memory(slot);
    context_.row = x[kLast - 1];
    context_.column = walk_.column;
    const Places places{places_, x[kLast - 1], walk_.count(), walk_.column, size_};
    if (places.in_vectors()) {
      run_places<V>(Places::kVectors, x,
                    [&](int n, i32(&at)[P::kDims]) __attribute__((always_inline)) { return places.vector_at(n, at); });
      if (places.has_ends())
        run_places<1>(Places::kEnds, x,
                      [&](int n, i32(&at)[P::kDims]) __attribute__((always_inline)) { return places.end_at(n, at); });
    } else {
      run_places<1>(Places::kElements, x,
                    [&](int n, i32(&at)[P::kDims]) __attribute__((always_inline)) { return places.element_at(n, at); });
    }
  }

  /// Elements, or vectors of `kLength` of them, at the places of the tile; `first`: coordinates of its first row.
  template <int kLength, class Place>
  ARK_DEVICE void run_places(int count, const i32 (&first)[P::kDims], const Place& place) {
    constexpr int kUnroll = kLength > 1 && P::kUnroll > 1 ? 2 : 1;
#pragma unroll 1
    for (int n = consumer_.thread(); n < count; n += kUnroll * kConsumerThreads) {
      i32 x[kUnroll][P::kDims];
      bool is_there[kUnroll];
      typename P::template Inputs<kLength> in[kUnroll];
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(k)::value;
#pragma unroll
        for (int d = 0; d < P::kDims; ++d) x[kNumber][d] = first[d];
        const int at = n + kNumber * kConsumerThreads;
        is_there[kNumber] = at < count && place(at, x[kNumber]);
        if (is_there[kNumber]) P::template load<kLength>(context_, x[kNumber], in[kNumber]);
      });
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(k)::value;
        if (is_there[kNumber]) P::template run_loaded<kLength>(context_, x[kNumber], in[kNumber], NoRoots{});
      });
    }
  }

  Consumer& consumer_;
  const PointwisePlaces<P, V, ProgramContext> places_;
  Context context_;
  abi::TransposedWalk walk_{};
  i32 size_ = 0;   // of a row
  i32 bytes_ = 0;  // of a tile
};

}  // namespace ark::device
