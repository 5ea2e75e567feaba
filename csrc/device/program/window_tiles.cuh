// Tiles of a transposed operand in shared memory, whatever its alignment (pointwise_windows.cuh): of each column the
// aligned 16-byte pieces that the strip's rows lie in, its window. tests/codegen/test_window_tiles.cpp walks items.
#pragma once
#include "device/program/transposed_blocks.cuh"

namespace ark::device {

inline constexpr i32 kNone = 1 << 30;  // a column or row behind all others

/// Tiles of a strip of rows, one behind the other along the rows' vectors. Elements of kSize bytes, vectors of V of
/// them; rows whose distance divides by V have their vectors at the same columns, and are a class.
template <int kSize, int V>
struct WindowTiles {
  static constexpr int kThreads = 256, kBytes = 9552;  // of a tile: three of them in 28 KB
  static constexpr int kMostPieces = 9;
  static constexpr int kMostRows = (16 * (kMostPieces - 1) / kSize + 1) / V * V;
  static constexpr int kEven = V * kSize < 16 ? 16 / (V * kSize) : 1;
  static_assert(kMostRows > 0);

  i32 rows;    // of a strip: whole classes
  i32 pieces;  // of a window
  i32 slots;   // vectors of a row that begin in a tile; as many columns are whole pieces further in every row
  i32 count;   // tiles of a strip
  i32 parts;   // that the rows of a class are divided into, each a thread's

  ARK_DEVICE WindowTiles(i64 of_item, i32 vectors) {
    const i32 all = static_cast<i32>(of_item), strips = (all + kMostRows - 1) / kMostRows;
    rows = (max((all + strips - 1) / max(strips, 1), 1) + V - 1) / V * V;
    pieces = ((rows - 1) * kSize + 15) / 16 + 1;
    const i32 fit = min(kThreads / V, kBytes / (place(V))-1), wanted = (vectors + kEven - 1) / kEven * kEven;
    slots = max(min(fit, wanted) / kEven * kEven, kEven);
    count = (vectors + slots - 1) / slots;
    parts = max(min(kThreads / (slots * V), rows / V), 1);
  }
  /// Where a column's window begins. 16 bytes more every V columns: lanes that read columns V apart meet other banks.
  ARK_DEVICE i32 place(i32 column) const {
    return column * pieces * 16 + static_cast<i32>(static_cast<u32>(column) / V) * 16;
  }
};

/// What a thread copies of every tile: one piece of every `step`-th column.
template <int kSize, int V>
struct WindowPieces {
  i32 piece, column, step;

  ARK_DEVICE WindowPieces(const WindowTiles<kSize, V>& tiles, i32 thread) {
    column = thread / tiles.pieces;
    piece = thread - column * tiles.pieces;
    step = WindowTiles<kSize, V>::kThreads / tiles.pieces;
    if (column >= step) column = kNone;
  }
  /// Where the piece of a column lies whose first row has this address.
  ARK_DEVICE i64 from(i64 first) const { return (first & ~static_cast<i64>(15)) + piece * 16; }
  /// Whether one of so many rows is in it.
  ARK_DEVICE bool is_there(i64 first, i32 rows) const {
    return piece * 16 < (static_cast<i32>(first) & 15) + rows * kSize;
  }
};

/// What a thread computes of every tile: one vector of each of its rows, which are all of one class.
template <int kSize, int V>
struct WindowRows {
  i32 slot, first, step;  // the vector; the first row of the strip, and from one to the next
  i32 place[V] = {};      // bytes of the tile where the first row's elements lie

  ARK_DEVICE WindowRows(const WindowTiles<kSize, V>& tiles, i32 thread) {
    const i32 rest = thread / tiles.slots, part = rest / V;
    slot = thread - rest * tiles.slots;
    first = part < tiles.parts ? rest % V + part * V : kNone;
    step = V * tiles.parts;
  }
  /// `shift`: columns from the slot to the vector. `address`: the low bits of where the strip's first row lies in the
  /// first column of its first tile; `column_bytes`: from column to column. The same for all tiles of the strip.
  ARK_DEVICE void settle(const WindowTiles<kSize, V>& tiles, i32 shift, u32 address, u32 column_bytes) {
    const i32 row = first < tiles.rows ? first * kSize : 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const i32 column = slot * V + shift + i;
      place[i] = tiles.place(column) + row + static_cast<i32>((address + static_cast<u32>(column) * column_bytes) & 15);
    }
  }
};

/// The tiles of an item's strips in turn.
struct WindowWalk {
  StripWalk strip;
  i32 tile = 0, tiles;

  ARK_DEVICE WindowWalk(const StripWalk& first, i32 of_strip) : strip(first), tiles(of_strip) {}
  ARK_DEVICE bool done() const { return strip.done(); }
  ARK_DEVICE void next() {
    if (++tile == tiles) tile = 0, strip.next();
  }
};

}  // namespace ark::device
