// How epilogue programs reach their operands: a lane walks over its vectors of a tile with one address per operand.
#pragma once
#include "device/matmul/epilogue_chunk.cuh"
#include "device/matmul/epilogue_join.cuh"

namespace ark::device {

/// Where a warpgroup's part of a tile lies in the product: 64 rows from `row`, columns from `column`; of a small tile 8
/// rows of every 16 from `row` on.
struct TilePlace {
  int batch, row, column;
};

/// Operands as a lane meets them that walks over its warp's 16 rows chunk by chunk: addresses instead of coordinates
/// and strides. Only operands that programs load or store by coordinates alone have one.
template <int kOperands>
struct WalkContext : ProgramContext {
  const unsigned char* at[kOperands];  // the lane's first vector of the chunk
  i32 row_bytes[kOperands];
  u32 spread = 0;      // bit i: operand i is the same in all columns
  bool again = false;  // what is the same in all rows has been loaded
  int step_row = 0;    // rows from the lane's first vector of the chunk to the current one

  ARK_DEVICE explicit WalkContext(const ProgramContext& c) : ProgramContext(c) {}
  template <class S>
  ARK_DEVICE S* address(int number) const {
    return reinterpret_cast<S*>(multiply_add_wide(step_row, row_bytes[number], reinterpret_cast<i64>(at[number])));
  }
};

template <int V, class S, int kDims, int kOperands>
ARK_DEVICE void load_operand(const WalkContext<kOperands>& c, int number, const i32 (&)[kDims], Vec<S, V>& out) {
  if (c.again && c.row_bytes[number] == 0) return;
  const S* p = c.template address<S>(number);
  if (V > 1 && (c.spread >> number & 1) != 0) {
    const S s = load_element(p);
    ARK_EACH out.v[i] = s;
  } else {
    load_vector(p, out);
  }
}
template <int V, class S, int kDims, int kOperands>
ARK_DEVICE void store_operand(const WalkContext<kOperands>& c, int number, const i32 (&)[kDims], const Vec<S, V>& in) {
  store_vector(c.template address<S>(number), in);
}
/// The walk is over the operand of the tile's batch.
template <class ByBatch, int V, class S, int kDims, int kOperands>
ARK_DEVICE void store_by_batch(const WalkContext<kOperands>& c, const i32 (&x)[kDims], const Vec<S, V>& in) {
  if (ByBatch::stores(x[0])) store_operand<V>(c, ByBatch::kOperand, x, in);
}

consteval int count_bits(u32 bits) { return bits == 0 ? 0 : static_cast<int>(bits & 1) + count_bits(bits >> 1); }

/// Tiles that a kernel's products have, bits.
enum TileForm : u32 { kLargeTiles = 1, kSmallTiles = 2 };

/// What a warp does with its part of a tile, whatever the vectors.
template <class ProgramOfTile, u32 kForms>
struct WarpTile {
  using Program = ProgramOfTile;
  static constexpr bool kGated = reads_two_products<Program>(), kHasSmall = (kForms & kSmallTiles) != 0;
  /// Pairs of small tiles lie within 64 columns; kernels with both forms have code of pairs for each (run_epilogue).
  using Layout = Chunk<reads_pairs<Program>() && !kGated && kForms != kSmallTiles, kGated>;
  static constexpr u32 kPlain = Program::kLoads | Program::kStores;
  // Three registers an operand that is walked over: few programs have more of them than registers are free.
  static constexpr bool kWalks = Program::kNumOperands <= 32 && count_bits(kPlain) <= 6;

  const ProgramContext& context;
  TilePlace place;
  int chunks;

  ARK_DEVICE const abi::MatmulTileParams& params() const { return context.task.record->params.matmul; }
  /// Where operand number `i` lies for this tile.
  template <int i>
  ARK_DEVICE const abi::Operand& operand() const {
    if constexpr (requires { typename Program::ByBatch; })
      if constexpr (i == Program::ByBatch::kOperand) return context.operand(Program::ByBatch::operand(place.batch));
    return context.operand(i);
  }
  /// 64 x 64 elements, of which both warpgroups have sums (epilogue_join.cuh).
  ARK_DEVICE bool small() const {
    return kGated || kForms == kSmallTiles || (kForms != kLargeTiles && params().tile_m == abi::kSmallTile);
  }
  /// Chunks that share their columns.
  ARK_DEVICE int parts() const { return (small() ? 8 : 16) / Layout::kRows; }
  ARK_DEVICE int warp_row() const { return place.row + (thread_index() >> 5 & 3) * 16; }
  ARK_DEVICE u32 staging() const {
    return shared_address(context.worker.shared.scratch) + ((thread_index() >> 5) - 4) * Layout::kBytes;
  }
  template <int kRegisters>
  ARK_DEVICE void stage(int chunk, const float (&acc)[kRegisters], u32 staging) const {
    if (small()) return stage_joined<Layout>(chunk, acc, staging);
    if constexpr (!kGated && kForms != kSmallTiles) {
      __syncwarp();  // the chunk before has been read
      Layout::stage_any(chunk, acc, staging, thread_index() & 31);
      __syncwarp();
    }
  }
  /// Whether all operands that are walked over can be moved by V elements.
  template <int V>
  ARK_DEVICE bool moves() const {
    bool fits = params().n % V == 0;
    unrolled<Program::kNumOperands>([&](auto i) __attribute__((always_inline)) {
      if constexpr ((kPlain >> i.value & 1) != 0) {
        const abi::Operand& o = operand<i.value>();
        const bool spread = (Program::kStores >> i.value & 1) == 0 && o.stride[2] == 0;
        fits = fits && (spread || o.vector >= moved_at_once<V>(o.dtype)) &&
               (o.stride[1] + (1 << 27)) >> 28 == 0;  // a row in bytes fits 32 bits
      }
    });
    return fits;
  }
};

/// A lane's walk over the vectors of V elements of its warp's chunks, rows first.
template <class Tile, int V>
struct VectorWalk {
  using Program = typename Tile::Program;
  using Layout = typename Tile::Layout;
  using Inputs = typename Program::template Inputs<V>;
  using Roots = LineRoots<Layout, V>;
  static constexpr int kPerRow = Layout::kColumns / V, kStepRows = 32 / kPerRow, kCount = Layout::kRows / kStepRows;

  const Tile& tile;
  WalkContext<Program::kNumOperands> context;
  int rows, columns;  // of the product from the lane's first vector in these columns on
  int part_row = 0;   // of the chunk in its 16 rows

  ARK_DEVICE explicit VectorWalk(const Tile& t) : tile(t), context(t.context) {
    const i32 x[3] = {t.place.batch, t.warp_row() + (thread_index() & 31) / kPerRow,
                      t.place.column + thread_index() % kPerRow * V};
    rows = t.params().m - x[1];
    columns = t.params().n - x[2];
    each([&](auto i, const abi::Operand& o) __attribute__((always_inline)) {
      const int size = element_bytes(o.dtype);
      context.at[i.value] = reinterpret_cast<const unsigned char*>(o.offset) + element_offset(o, x) * size;
      context.row_bytes[i.value] = static_cast<i32>(o.stride[1]) * size;
      if (o.stride[2] == 0) context.spread |= 1u << i.value;
    });
  }
  ARK_DEVICE void advance() {
    part_row += Layout::kRows;
    if (part_row < 16) return;
    part_row = 0;
    columns -= Layout::kColumns;
    each([&](auto i, const abi::Operand& o) __attribute__((always_inline)) {
      context.at[i.value] += static_cast<i32>(o.stride[2]) * element_bytes(o.dtype) * Layout::kColumns;
    });
  }
  /// Vector number `step` of the chunk. `again`: the inputs hold those of rows before it in the same columns.
  ARK_DEVICE void load(int step, Inputs& inputs, bool again) {
    if (!move(step)) return;
    context.again = again;
    const i32 x[3] = {tile.place.batch, tile.params().m - rows + context.step_row, tile.params().n - columns};
    Program::template load<V>(context, x, inputs);
  }
  ARK_DEVICE Roots roots(int step, u32 line) const {
    return {line + static_cast<u32>(step) * kStepRows * Layout::kPitch, tile.params().pair_distance};
  }
  template <class AnyRoots>
  ARK_DEVICE void run(int step, const Inputs& inputs, const AnyRoots& roots) {
    if (!move(step)) return;
    const i32 x[3] = {tile.place.batch, tile.params().m - rows + context.step_row, tile.params().n - columns};
    Program::template run_loaded<V>(context, x, inputs, roots);
  }

 private:
  /// Whether the vector lies in the product.
  ARK_DEVICE bool move(int step) {
    context.step_row = part_row + step * kStepRows;
    return context.step_row < rows && columns > 0;
  }
  template <class F>
  ARK_DEVICE void each(F&& f) {
    unrolled<Program::kNumOperands>([&](auto i) __attribute__((always_inline)) {
      if constexpr ((Tile::kPlain >> i.value & 1) != 0) f(i, tile.template operand<i.value>());
    });
  }
};

}  // namespace ark::device
