// From wgmma accumulators to the epilogue program: a warp stages a chunk of its accumulators in shared memory, then
// runs the program over the chunk's vectors. The accumulators are registers, so the staging is written out per chunk;
// the program, which may be long, exists once or twice per kernel: it is executed once per tile, mostly from cold
// instruction caches, so that its size is time.
#pragma once
#include "device/pipeline.cuh"
#include "device/program_support.cuh"
#include "device/ptx.cuh"

namespace ark::device {

/// Programs that read accumulators of other columns (Root with a sign) say so; a pair lies within 128 columns.
template <class Program>
consteval bool reads_pairs() {
  if constexpr (requires { Program::kPairs; })
    return Program::kPairs;
  else
    return true;
}

/// A chunk of a warp's 16 rows: 8 rows of 64 columns, or 4 rows of 128 for programs that read pairs. A row takes 32
/// bytes more than its values, and granules of 16 bytes change places with their neighbour in every second group of 8:
/// neither the staging (2 values per lane) nor the reading (4 or 8 consecutive ones) meets bank conflicts.
template <bool kPairs>
struct Chunk {
  static constexpr int kRows = kPairs ? 4 : 8, kColumns = kPairs ? 128 : 64, kPitch = kColumns * 4 + 32;
  static constexpr int kBytes = kRows * kPitch;
  static_assert(kBytes * kConsumerWarps <= kScratchBytes);

  /// Chunks of the 16 rows, rows first.
  static ARK_DEVICE int row(int chunk) { return chunk % (16 / kRows) * kRows; }
  static ARK_DEVICE int column(int chunk) { return chunk / (16 / kRows) * kColumns; }

  static ARK_DEVICE u32 granule(u32 staging, int row, int number) {
    return staging + static_cast<u32>(row * kPitch + ((number ^ (number >> 3 & 1)) << 4));
  }

  /// Values of chunk kNumber from accumulators of a warpgroup's tile (64 x kRegisters * 2, wgmma's layout).
  template <int kNumber, int kRegisters>
  static ARK_DEVICE void stage(const float (&acc)[kRegisters], u32 staging, int lane) {
    constexpr int kHalf = (kPairs ? kNumber >> 1 : kNumber) & 1;
    constexpr int kFirst = (kPairs ? kNumber >> 2 : kNumber >> 1) * (kColumns / 2) + kHalf * 2;
    if (kPairs && (kNumber & 1) != lane >> 4) return;
    const u32 line = staging + (lane >> 2 & (kRows - 1)) * kPitch + (lane & 3) * 8, other = line ^ 16;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
      shared_store_two(((j & 4) != 0 ? other : line) + j * 32, acc[kFirst + j * 4], acc[kFirst + j * 4 + 1]);
  }

  /// The same for a number that is not a constant.
  template <int kNumber = 0, int kRegisters>
  static ARK_DEVICE void stage_any(int number, const float (&acc)[kRegisters], u32 staging, int lane) {
    if constexpr (kNumber < kRegisters * 32 / (kRows * kColumns)) {
      if (number == kNumber)
        stage<kNumber>(acc, staging, lane);
      else
        stage_any<kNumber + 1>(number, acc, staging, lane);
    }
  }
};

/// The accumulators of V consecutive columns of one row of a staged chunk, as epilogue programs ask for them.
template <class Chunk>
struct ChunkRoots {
  u32 staging;
  int row, column;  // in the chunk
  int pair_distance;

  template <int V>
  ARK_DEVICE void get(int, int sign, float (&value)[V]) const {
    const int first = sign == 0 ? column : (column + sign * pair_distance) & (Chunk::kColumns - 1);
    if constexpr (V == 8) {
      if (sign == 0 || (first & 7) == 0) {
        const u32 low = Chunk::granule(staging, row, first >> 2);
        load_four(&value[0], low);
        load_four(&value[4], low ^ 16);
        return;
      }
    }
    if constexpr (V == 4) {
      if (sign == 0 || (first & 3) == 0) {
        load_four(&value[0], Chunk::granule(staging, row, first >> 2));
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int c = (first + i) & (Chunk::kColumns - 1);
      value[i] = shared_load_float(Chunk::granule(staging, row, c >> 2) + (c & 3) * 4);
    }
  }

 private:
  static ARK_DEVICE void load_four(float* value, u32 shared) {
    float four[4];
    shared_load_four(four, shared);
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = four[i];
  }
};

/// Where a warpgroup's part of a tile lies in the product: 64 rows from `row`, columns from `column`.
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

consteval int count_bits(u32 bits) { return bits == 0 ? 0 : static_cast<int>(bits & 1) + count_bits(bits >> 1); }

/// What a warp does with its part of a tile, whatever the vectors.
template <class Program>
struct WarpTile {
  using Layout = Chunk<reads_pairs<Program>()>;
  static constexpr int kParts = 16 / Layout::kRows;  // chunks that share their columns
  static constexpr u32 kPlain = Program::kLoads | Program::kStores;
  // Three registers an operand that is walked over: few programs have more of them than registers are free.
  static constexpr bool kWalks = Program::kNumOperands <= 32 && count_bits(kPlain) <= 6;

  const ProgramContext& context;
  TilePlace place;
  int chunks;

  ARK_DEVICE const abi::MatmulTileParams& params() const { return context.task.record->params.matmul; }
  ARK_DEVICE int warp_row() const { return place.row + (thread_index() >> 5 & 3) * 16; }
  ARK_DEVICE u32 staging() const {
    return shared_address(context.worker.shared.scratch) + ((thread_index() >> 5) - 4) * Layout::kBytes;
  }
  template <int kRegisters>
  ARK_DEVICE void stage(int chunk, const float (&acc)[kRegisters], u32 staging) const {
    __syncwarp();  // the chunk before has been read
    Layout::stage_any(chunk, acc, staging, thread_index() & 31);
    __syncwarp();
  }
  /// Whether all operands that are walked over can be moved by V elements.
  template <int V>
  ARK_DEVICE bool moves() const {
    bool fits = params().n % V == 0;
    unrolled<Program::kNumOperands>([&](auto i) __attribute__((always_inline)) {
      if constexpr ((kPlain >> i.value & 1) != 0) {
        const abi::Operand& o = context.operand(i.value);
        const bool spread = (Program::kStores >> i.value & 1) == 0 && o.stride[2] == 0;
        fits = fits && (spread || o.vector >= min(V, 16 / element_bytes(o.dtype))) &&
               (o.stride[1] + (1 << 27)) >> 28 == 0;  // a row in bytes fits 32 bits
      }
    });
    return fits;
  }
};

/// Accumulators of vectors of a lane, by the address of its first one in the staged chunk.
template <class Layout, int V>
struct LineRoots {
  u32 line;
  int pair_distance;
  static constexpr int kPerRow = Layout::kColumns / V;

  static ARK_DEVICE u32 first(u32 staging) {
    const int lane = thread_index() & 31, column = lane % kPerRow * V;
    return Layout::granule(staging, lane / kPerRow, column >> 2) + (column & 3) * 4;
  }
  template <int kV>
  ARK_DEVICE void get(int, int sign, float (&value)[kV]) const {
    static_assert(kV == V && V % 2 == 0);
    if (sign != 0) {
      const int column = ((thread_index() & 31) % kPerRow * V + sign * pair_distance) & (Layout::kColumns - 1);
      ARK_EACH {
        const int c = (column + i) & (Layout::kColumns - 1);
        value[i] = shared_load_float(Layout::granule(row_start(), 0, c >> 2) + (c & 3) * 4);
      }
      return;
    }
    if constexpr (V == 2) return shared_load_two(value, line);
    unrolled<V / 4>([&](auto i) __attribute__((always_inline)) {
      float four[4];
      shared_load_four(four, i.value == 0 ? line : line ^ 16);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[i.value * 4 + j] = four[j];
    });
  }

 private:
  ARK_DEVICE u32 row_start() const { return line - (first(0) - (thread_index() & 31) / kPerRow * Layout::kPitch); }
};

/// The accumulators of one vector, already read from the staged chunk.
template <int V>
struct LoadedRoots {
  float value[V];
  template <class Roots>
  ARK_DEVICE explicit LoadedRoots(const Roots& roots) {
    roots.get(0, 0, value);
  }
  ARK_DEVICE void get(int, int, float (&out)[V]) const { ARK_EACH out[i] = value[i]; }
  template <int kV>
  ARK_DEVICE void get(int number, int sign, float (&out)[kV]) const {
    static_assert(kV == V);
    get(number, sign, out);
  }
};

/// A lane's walk over the vectors of V elements of its warp's chunks, rows first.
template <class Program, int V>
struct VectorWalk {
  using Tile = WarpTile<Program>;
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
      if constexpr ((Tile::kPlain >> i.value & 1) != 0) f(i, context.operand(i.value));
    });
  }
};

/// The program over all chunks by vectors of V. Where operands take few registers, a vector's are loaded when the same
/// vector of the chunk before has been computed (a wait for memory per vector is longer than the rest); else one vector
/// ahead.
template <class Program, int V, int kRegisters>
ARK_DEVICE void run_vectors(const WarpTile<Program>& tile, const float (&acc)[kRegisters]) {
  using Walk = VectorWalk<Program, V>;
  constexpr int kCount = Walk::kCount;
  const u32 staging = tile.staging(), line = Walk::Roots::first(staging);
  Walk here(tile), ahead = here;
  tile.stage(0, acc, staging);
  if constexpr (kCount <= 4 && sizeof(typename Walk::Inputs) * kCount <= 64 && !reads_pairs<Program>()) {
    typename Walk::Inputs inputs[kCount] = {};
#pragma unroll
    for (int u = 0; u < kCount; ++u) ahead.load(u, inputs[u], false);
#pragma unroll 1
    for (int chunk = 0; chunk < tile.chunks; ++chunk) {
      ahead.advance();
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        const LoadedRoots<V> roots(here.roots(u, line));
        // The next chunk may be staged as soon as this one's last values are in registers.
        if (u + 1 == kCount && chunk + 1 < tile.chunks) tile.stage(chunk + 1, acc, staging);
        here.run(u, inputs[u], roots);
        if (chunk + 1 < tile.chunks) ahead.load(u, inputs[u], ahead.part_row != 0);
      }
      here.advance();
    }
  } else {
    typename Walk::Inputs inputs;
    ahead.load(0, inputs, false);
#pragma unroll 1
    for (int chunk = 0; chunk < tile.chunks; ++chunk) {
#pragma unroll 1
      for (int u = 0; u < kCount; ++u) {
        here.run(u, inputs, here.roots(u, line));
        const bool last = u + 1 == kCount;
        if (last) ahead.advance();
        if (!last || chunk + 1 < tile.chunks) ahead.load(last ? 0 : u + 1, inputs, !last || ahead.part_row != 0);
      }
      here.advance();
      if (chunk + 1 < tile.chunks) tile.stage(chunk + 1, acc, staging);
    }
  }
}

/// Vectors of V elements by coordinates and strides: lengths and operands of any kind.
template <class Program, int V, int kRegisters>
ARK_DEVICE void run_strided(const WarpTile<Program>& tile, const float (&acc)[kRegisters]) {
  using Layout = typename WarpTile<Program>::Layout;
  constexpr int kPerRow = Layout::kColumns / V;
  const u32 staging = tile.staging();
#pragma unroll 1
  for (int chunk = 0; chunk < tile.chunks; ++chunk) {
    tile.stage(chunk, acc, staging);
    const int row0 = tile.warp_row() + Layout::row(chunk), column0 = tile.place.column + Layout::column(chunk);
#pragma unroll 1
    for (int i = thread_index() & 31; i < Layout::kRows * kPerRow; i += 32) {
      const int row = i / kPerRow, column = i % kPerRow * V;
      const i32 x[3] = {tile.place.batch, row0 + row, column0 + column};
      if (x[1] >= tile.params().m || x[2] >= tile.params().n) continue;
      typename Program::template Inputs<V> inputs;
      Program::template load<V>(tile.context, x, inputs);
      Program::template run_loaded<V>(tile.context, x, inputs,
                                      ChunkRoots<Layout>{staging, row, column, tile.params().pair_distance});
    }
  }
}

/// The epilogue of a warpgroup's tile: 64 rows, `columns` (128 or 256) columns.
template <class Programs, int kRegisters>
ARK_DEVICE void run_epilogue(const Consumer& consumer, const Task& task, const float (&acc)[kRegisters],
                             const TilePlace& place, int columns) {
  const abi::MatmulTileParams& p = task.record->params.matmul;
  Programs::epilogue_tile(p.program, [&](auto program) __attribute__((always_inline)) {
    using Program = decltype(program);
    using Tile = WarpTile<Program>;
    const ProgramContext context(task, p.first_operand, consumer.worker);
    const int used = (min(columns, p.n - place.column) + Tile::Layout::kColumns - 1) / Tile::Layout::kColumns;
    const Tile tile{context, place, used * Tile::kParts};
    if constexpr (Tile::kWalks && Program::kVector > 1) {
      if (tile.template moves<Program::kVector>()) return run_vectors<Program, Program::kVector>(tile, acc);
      if constexpr (Program::kVector > 2 && !reads_pairs<Program>())  // rows of even length
        if (tile.template moves<2>()) return run_vectors<Program, 2>(tile, acc);
    } else if constexpr (Program::kVector > 1) {
      if (p.n % Program::kVector == 0) return run_strided<Program, Program::kVector>(tile, acc);
    }
    run_strided<Program, 1>(tile, acc);
  });
}

}  // namespace ark::device
