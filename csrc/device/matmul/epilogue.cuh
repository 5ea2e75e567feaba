// From wgmma accumulators to the epilogue program: a warp stages a chunk of its accumulators in shared memory, then
// runs the program over the chunk's vectors. The accumulators are registers, so the staging is written out per chunk;
// the program, which may be long, exists once or twice per kernel: it is executed once per tile, mostly from cold
// instruction caches, so that its size is time.
#pragma once
#include "device/abi/variants.h"
#include "device/matmul/epilogue_walk.cuh"

namespace ark::device {

/// The program over all chunks by vectors of V, every part of the code once: a small tile has one chunk or two, and a
/// stage of small tiles each instruction to fetch. Large tiles of the same kernel go this way too. Where operands take
/// few registers, those of a chunk's vectors are loaded at once.
template <int V, class Tile, int kRegisters>
ARK_DEVICE void run_vectors_once(const Tile& tile, const float (&acc)[kRegisters]) {
  using Walk = VectorWalk<Tile, V>;
  constexpr int kCount = Walk::kCount,
                kAhead = kCount <= 4 && sizeof(typename Walk::Inputs) * kCount <= 96 ? kCount : 1;
  const u32 staging = tile.staging(), line = Walk::Roots::first(staging);
  Walk here(tile), ahead = here;
  typename Walk::Inputs inputs[kAhead] = {};  // of the next vectors, in their order
#pragma unroll
  for (int u = 0; u < kAhead; ++u) ahead.load(u, inputs[u], false);
  int next = kAhead % kCount, chunks_ahead = kAhead / kCount;  // the vector to be loaded
  if (next == 0) ahead.advance();
#pragma unroll 1
  for (int chunk = 0; chunk < tile.chunks; ++chunk) {
    tile.stage(chunk, acc, staging);
#pragma unroll 1
    for (int u = 0; u < kCount; ++u) {
      here.run(u, inputs[0], here.roots(u, line));
#pragma unroll
      for (int i = 0; i + 1 < kAhead; ++i) inputs[i] = inputs[i + 1];
      // the last of `inputs` still holds those of the vector before this one
      if (chunks_ahead < tile.chunks) ahead.load(next, inputs[kAhead - 1], next > 0 || ahead.part_row != 0);
      if (++next == kCount) {
        next = 0;
        ++chunks_ahead;
        ahead.advance();
      }
    }
    here.advance();
  }
}

/// The program over all chunks by vectors of V, the next chunk staged while this one's last vector is computed. Where
/// operands take few registers, a vector's are loaded when the same
/// vector of the chunk before has been computed (a wait for memory per vector is longer than the rest); else one vector
/// ahead.
template <int V, class Tile, int kRegisters>
ARK_DEVICE void run_vectors_ahead(const Tile& tile, const float (&acc)[kRegisters]) {
  using Walk = VectorWalk<Tile, V>;
  constexpr int kCount = Walk::kCount;
  const u32 staging = tile.staging(), line = Walk::Roots::first(staging);
  Walk here(tile), ahead = here;
  tile.stage(0, acc, staging);
  if constexpr (kCount <= 4 && sizeof(typename Walk::Inputs) * kCount <= 64 && !Tile::kGated &&
                !reads_pairs<typename Tile::Program>()) {
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

template <int V, class Tile, int kRegisters>
ARK_DEVICE void run_vectors(const Tile& tile, const float (&acc)[kRegisters]) {
  if constexpr (Tile::kHasSmall)
    run_vectors_once<V>(tile, acc);
  else
    run_vectors_ahead<V>(tile, acc);
}

/// Vectors of V elements by coordinates and strides: lengths and operands of any kind.
template <int V, class Tile, int kRegisters>
ARK_DEVICE void run_strided(const Tile& tile, const float (&acc)[kRegisters]) {
  using Program = typename Tile::Program;
  using Layout = typename Tile::Layout;
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

/// How products of the kernel move the program's vectors; programs that do not say have code for every way.
template <class Program>
consteval u32 epilogue_ways() {
  if constexpr (requires { Program::kEpilogueWays; })
    return Program::kEpilogueWays;
  else
    return abi::kWholeVectors | abi::kTwoElements | abi::kSingleElements;
}

/// The program over a warpgroup's tile in the first way that fits the op; the last one that there is fits what is left.
template <class Tile, int kRegisters>
ARK_DEVICE void run_program(const Tile& tile, const float (&acc)[kRegisters]) {
  using Program = typename Tile::Program;
  constexpr u32 kWays = epilogue_ways<Program>();
  constexpr int V = Program::kVector;
  constexpr bool kWalks = Tile::kWalks, kTwo = V > 2 && kWalks && !reads_pairs<Program>();
  if constexpr ((kWays & abi::kWholeVectors) != 0) {
    if constexpr (kWalks) {
      if (kWays == abi::kWholeVectors || tile.template moves<V>()) return run_vectors<V>(tile, acc);
    } else {
      if (kWays == abi::kWholeVectors || tile.params().n % V == 0) return run_strided<V>(tile, acc);
    }
  }
  if constexpr ((kWays & abi::kTwoElements) != 0 && kTwo)
    if ((kWays & abi::kSingleElements) == 0 || tile.template moves<2>()) return run_vectors<2>(tile, acc);
  if constexpr ((kWays & abi::kSingleElements) != 0) run_strided<1>(tile, acc);
}

/// The epilogue of a warpgroup's tile: 64 rows, `columns` (128 or 256) columns; of a small tile half of the rows, 64
/// columns. kForms: TileForm bits.
template <class Programs, u32 kForms, int kRegisters>
ARK_DEVICE void run_epilogue(const Consumer& consumer, const Task& task, const float (&acc)[kRegisters],
                             const TilePlace& place, int columns) {
  const abi::MatmulTileParams& p = task.record->params.matmul;
  Programs::epilogue_tile(p.program, [&](auto program) __attribute__((always_inline)) {
    using Program = decltype(program);
    const ProgramContext context(task, p.first_operand, consumer.worker);
    auto run = [&]<u32 kForm>() __attribute__((always_inline)) {
      using Tile = WarpTile<Program, kForm>;
      const int used = (min(columns, p.n - place.column) + Tile::Layout::kColumns - 1) / Tile::Layout::kColumns;
      Tile tile{context, place};
      tile.chunks = used * tile.parts();
      run_program(tile, acc);
    };
    if constexpr (kForms == (kLargeTiles | kSmallTiles) && reads_pairs<Program>() && !reads_two_products<Program>())
      p.tile_m == abi::kSmallTile ? run.template operator()<kSmallTiles>() : run.template operator()<kLargeTiles>();
    else
      run.template operator()<kForms>();
  });
}

}  // namespace ark::device
