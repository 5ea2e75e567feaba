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

/// Where a warp's chunks lie in the product, and its walk over them.
template <class Program>
struct ChunkWalk {
  using Layout = Chunk<reads_pairs<Program>()>;

  const ProgramContext& context;
  int batch, row0, column0, chunks;  // of the warpgroup's 64 rows and the tile's first column

  // Cheap to compute or to load again: registers are what the accumulators leave.
  ARK_DEVICE const abi::MatmulTileParams& params() const { return context.task.record->params.matmul; }
  ARK_DEVICE int warp_row() const { return row0 + (thread_index() >> 5 & 3) * 16; }
  ARK_DEVICE u32 staging() const {
    return shared_address(context.worker.shared.scratch) + ((thread_index() >> 5) - 4) * Layout::kBytes;
  }
  ARK_DEVICE bool whole(int chunk) const {
    return chunk < chunks && warp_row() + Layout::row(chunk) + Layout::kRows <= params().m &&
           column0 + Layout::column(chunk) + Layout::kColumns <= params().n;
  }
  /// Vector number `index` of a chunk.
  template <int V>
  struct At {
    int row, column;  // in the chunk
    i32 x[3];
    ARK_DEVICE At(const ChunkWalk& w, int chunk, int index)
        : row(index / (Layout::kColumns / V)),
          column(index % (Layout::kColumns / V) * V),
          x{w.batch, w.warp_row() + Layout::row(chunk) + row, w.column0 + Layout::column(chunk) + column} {}
  };
  template <int V>
  ARK_DEVICE void load(int chunk, int index, typename Program::template Inputs<V>& inputs) const {
    Program::template load<V>(context, At<V>(*this, chunk, index).x, inputs);
  }
  /// A lane's vectors of a whole chunk.
  template <class Inputs, int kCount>
  ARK_DEVICE void load_all(int chunk, Inputs (&inputs)[kCount]) const {
#pragma unroll
    for (int u = 0; u < kCount; ++u)
      load<Layout::kRows * Layout::kColumns / kCount / 32>(chunk, u * 32 + (thread_index() & 31), inputs[u]);
  }
  template <int V>
  ARK_DEVICE void run(int chunk, int index, const typename Program::template Inputs<V>& inputs) const {
    const At<V> at(*this, chunk, index);
    Program::template run_loaded<V>(context, at.x, inputs,
                                    ChunkRoots<Layout>{staging(), at.row, at.column, params().pair_distance});
  }
  /// Any chunk, one vector after the other; those outside the product are left out.
  template <int V>
  ARK_DEVICE void run_edge(int chunk) const {
#pragma unroll 1
    for (int i = thread_index() & 31; i < Layout::kRows * Layout::kColumns / V; i += 32) {
      const At<V> at(*this, chunk, i);
      if (at.x[1] >= params().m || at.x[2] >= params().n) continue;
      typename Program::template Inputs<V> inputs;
      Program::template load<V>(context, at.x, inputs);
      run<V>(chunk, i, inputs);
    }
  }
  template <int kRegisters>
  ARK_DEVICE void stage(int chunk, const float (&acc)[kRegisters]) const {
    __syncwarp();  // the chunk before has been read
    Layout::stage_any(chunk, acc, staging(), thread_index() & 31);
    __syncwarp();
  }
};

/// The program over all chunks. Where operands take few registers, a vector's are loaded when the same vector of the
/// chunk before has been computed (a wait for memory per vector is longer than the rest); else vector by vector.
template <class Program, int V, int kRegisters>
ARK_DEVICE void run_vectors(const ChunkWalk<Program>& walk, const float (&acc)[kRegisters]) {
  using Layout = typename ChunkWalk<Program>::Layout;
  using Inputs = typename Program::template Inputs<V>;
  constexpr int kCount = Layout::kRows * Layout::kColumns / V / 32;
  constexpr bool kAhead = sizeof(Inputs) * kCount <= 48;
  if constexpr (kAhead) {
    Inputs inputs[kCount] = {};
    if (walk.whole(0)) walk.load_all(0, inputs);
#pragma unroll 1
    for (int chunk = 0; chunk < walk.chunks; ++chunk) {
      walk.stage(chunk, acc);
      const bool next = walk.whole(chunk + 1);
      if (!walk.whole(chunk)) {
        walk.template run_edge<V>(chunk);
        if (next) walk.load_all(chunk + 1, inputs);
        continue;
      }
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        const int index = u * 32 + (thread_index() & 31);
        walk.template run<V>(chunk, index, inputs[u]);
        if (next) walk.template load<V>(chunk + 1, index, inputs[u]);
      }
    }
  } else {
    Inputs inputs;
    bool loaded = walk.whole(0);
    if (loaded) walk.template load<V>(0, thread_index() & 31, inputs);
#pragma unroll 1
    for (int vector = 0; vector < walk.chunks * kCount; ++vector) {
      const int chunk = vector / kCount, u = vector % kCount;
      if (u == 0) walk.stage(chunk, acc);
      if (!loaded) {
        if (u == 0) walk.template run_edge<V>(chunk);
      } else {
        walk.template run<V>(chunk, u * 32 + (thread_index() & 31), inputs);
      }
      loaded = walk.whole((vector + 1) / kCount);
      if (loaded)
        walk.template load<V>((vector + 1) / kCount, (vector + 1) % kCount * 32 + (thread_index() & 31), inputs);
    }
  }
}

/// The epilogue of a warpgroup's tile: 64 rows from `row0`, `columns` (128 or 256) columns from `column0`.
template <class Programs, int kRegisters>
ARK_DEVICE void run_epilogue(const Consumer& consumer, const Task& task, const float (&acc)[kRegisters], int batch,
                             int row0, int column0, int columns) {
  const abi::MatmulTileParams& p = task.record->params.matmul;
  Programs::epilogue_tile(p.program, [&](auto program) __attribute__((always_inline)) {
    using Program = decltype(program);
    using Layout = typename ChunkWalk<Program>::Layout;
    const ProgramContext context(task, p.first_operand, consumer.worker);
    const int used = (min(columns, p.n - column0) + Layout::kColumns - 1) / Layout::kColumns;
    const ChunkWalk<Program> walk{context, batch, row0, column0, used * (16 / Layout::kRows)};
    if (Program::kVector > 1 && p.n % Program::kVector == 0) {
      run_vectors<Program, Program::kVector>(walk, acc);
    } else {
#pragma unroll 1
      for (int chunk = 0; chunk < walk.chunks; ++chunk) {
        walk.stage(chunk, acc);
        walk.template run_edge<1>(chunk);
      }
    }
  });
}

}  // namespace ark::device
