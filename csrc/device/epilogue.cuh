// From wgmma accumulators to the epilogue program: a warp stages a chunk of its accumulators in shared memory, then
// runs the program over the chunk's vectors in a rolled loop. The accumulators are registers, so only the staging is
// written out per chunk; the program, which may be long, exists once per kernel.
#pragma once
#include "device/pipeline.cuh"
#include "device/program_support.cuh"
#include "device/ptx.cuh"

namespace ark::device {

inline constexpr int kChunkRows = 4, kChunkColumns = 128;
inline constexpr int kChunkBytes = kChunkRows * kChunkColumns * 4;  // per warp

/// A chunk is 4 rows of 128 f32, 512 bytes a row, its 16-byte granules exchanged by row so that neither the staging (2
/// values per lane) nor the reading (4 or 8 consecutive ones) meets bank conflicts.
ARK_DEVICE u32 chunk_granule(int row, int granule) {
  return static_cast<u32>(row * 512 + ((granule ^ (row * 2)) << 4));
}

/// Half of the lanes (low: 4 rows, high: the other 4) stage their values of rows 8 * kHalf .. + 7 and columns
/// 128 * kColumnBlock .. + 127 of a warpgroup's tile (64 x kRegisters * 2, wgmma's accumulator layout).
template <int kHalf, int kColumnBlock, int kRegisters>
ARK_DEVICE void stage_chunk(const float (&acc)[kRegisters], u32 staging, int lane) {
  const int row = (lane >> 2) & 3;
  const u32 line = staging + row * 512 + (lane & 1) * 8;
  const int swizzle = ((lane >> 1) & 1) ^ (row * 2);
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    constexpr int kFirst = kColumnBlock * 64 + kHalf * 2;
    shared_store_two(line + ((2 * j ^ swizzle) << 4), acc[kFirst + j * 4], acc[kFirst + j * 4 + 1]);
  }
}

/// The accumulators of V consecutive columns of one row of a staged chunk, as epilogue programs ask for them.
struct ChunkRoots {
  u32 staging;
  int row, column;  // in the chunk
  int pair_distance;

  template <int V>
  ARK_DEVICE void get(int, int sign, float (&value)[V]) const {
    const int first = (column + sign * pair_distance) & (kChunkColumns - 1);
    if constexpr (V == 8) {
      if ((first & 7) == 0) {
        // Odd groups of 4 lanes read the upper half first: otherwise 8 lanes meet in 4 of the 8 groups of banks.
        const int v = first >> 3, flip = (v >> 2) & 1;
        float a[4], b[4];
        shared_load_four(a, staging + chunk_granule(row, 2 * v + flip));
        shared_load_four(b, staging + chunk_granule(row, 2 * v + (flip ^ 1)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          value[i] = flip ? b[i] : a[i];
          value[4 + i] = flip ? a[i] : b[i];
        }
        return;
      }
    }
    if constexpr (V == 4) {
      if ((first & 3) == 0) {
        shared_load_four(value, staging + chunk_granule(row, first >> 2));
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int c = (first + i) & (kChunkColumns - 1);
      value[i] = shared_load_float(staging + chunk_granule(row, c >> 2) + (c & 3) * 4);
    }
  }
};

/// Where a warp's chunks lie in the product, and its walk over them.
struct ChunkWalk {
  const ProgramContext& context;
  u32 staging;
  int batch, row0, column0;  // of the warp's 16 rows and the tile's first column
  int m, n, pair_distance;

  ARK_DEVICE int row_of(int chunk) const { return row0 + (chunk & 3) * kChunkRows; }
  ARK_DEVICE int column_of(int chunk) const { return column0 + (chunk >> 2) * kChunkColumns; }
  ARK_DEVICE bool whole(int chunk) const {
    return row_of(chunk) + kChunkRows <= m && column_of(chunk) + kChunkColumns <= n;
  }
  /// Vector number `index` of a chunk.
  template <int V>
  struct At {
    int row, column;  // in the chunk
    i32 x[3];
    ARK_DEVICE At(const ChunkWalk& w, int chunk, int index)
        : row(index / (kChunkColumns / V)),
          column(index % (kChunkColumns / V) * V),
          x{w.batch, w.row_of(chunk) + row, w.column_of(chunk) + column} {}
  };
  template <class Program, int V>
  ARK_DEVICE void run_one(const At<V>& at, const typename Program::template Inputs<V>& inputs) const {
    Program::template run_loaded<V>(context, at.x, inputs, ChunkRoots{staging, at.row, at.column, pair_distance});
  }

  /// Loads and runs this lane's vectors of a whole chunk: vectors u * 32 + lane.
  template <class Program, int V, int kCount>
  ARK_DEVICE void load(int chunk, typename Program::template Inputs<V> (&inputs)[kCount]) const {
#pragma unroll
    for (int u = 0; u < kCount; ++u)
      Program::template load<V>(context, At<V>(*this, chunk, u * 32 + (thread_index() & 31)).x, inputs[u]);
  }
  template <class Program, int V, int kCount>
  ARK_DEVICE void run(int chunk, const typename Program::template Inputs<V> (&inputs)[kCount]) const {
#pragma unroll
    for (int u = 0; u < kCount; ++u)
      run_one<Program, V>(At<V>(*this, chunk, u * 32 + (thread_index() & 31)), inputs[u]);
  }
  /// A chunk that crosses the product's edge, or columns that do not come in vectors (V = 1): one after the other.
  template <class Program, int V>
  ARK_DEVICE void run_edge(int chunk) const {
#pragma unroll 1
    for (int i = thread_index() & 31; i < kChunkRows * kChunkColumns / V; i += 32) {
      const At<V> at(*this, chunk, i);
      if (at.x[1] >= m || at.x[2] >= n) continue;
      typename Program::template Inputs<V> inputs;
      Program::template load<V>(context, at.x, inputs);
      run_one<Program, V>(at, inputs);
    }
  }
};

template <int kRegisters>
ARK_DEVICE void stage_any(int chunk, const float (&acc)[kRegisters], u32 staging) {
  const int lane = thread_index() & 31;
  __syncwarp();  // the chunk before has been read
  if ((chunk & 1) == lane >> 4) {
    switch (chunk >> 1) {
      case 0:
        stage_chunk<0, 0>(acc, staging, lane);
        break;
      case 1:
        stage_chunk<1, 0>(acc, staging, lane);
        break;
      case 2:
        if constexpr (kRegisters > 64) stage_chunk<0, 1>(acc, staging, lane);
        break;
      default:
        if constexpr (kRegisters > 64) stage_chunk<1, 1>(acc, staging, lane);
        break;
    }
  }
  __syncwarp();
}

/// The program over all chunks; the next chunk's operands are on their way while one is computed, if they fit in
/// registers.
template <class Program, int V, int kRegisters>
ARK_DEVICE void run_vectors(const ChunkWalk& walk, const float (&acc)[kRegisters], int chunks) {
  constexpr int kCount = kChunkRows * kChunkColumns / V / 32;
  using Inputs = typename Program::template Inputs<V>;
  constexpr bool kAhead = sizeof(Inputs) * kCount <= 64;
  Inputs inputs[kCount], next[kCount];
  if (kAhead && walk.whole(0)) walk.template load<Program, V>(0, inputs);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    stage_any(chunk, acc, walk.staging);
    if (kAhead && chunk + 1 < chunks && walk.whole(chunk + 1)) walk.template load<Program, V>(chunk + 1, next);
    if (walk.whole(chunk)) {
      if (!kAhead) walk.template load<Program, V>(chunk, inputs);
      walk.template run<Program, V>(chunk, inputs);
    } else {
      walk.template run_edge<Program, V>(chunk);
    }
    if constexpr (kAhead) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) inputs[u] = next[u];
    }
  }
}

/// The epilogue of a warpgroup's tile: 64 rows from `row0`, `columns` (128 or 256) columns from `column0`.
template <class Programs, int kRegisters>
ARK_DEVICE void run_epilogue(const Consumer& consumer, const Task& task, const float (&acc)[kRegisters], int batch,
                             int row0, int column0, int columns) {
  const abi::MatmulTileParams& p = task.record->params.matmul;
  const int chunks = (min(columns, p.n - column0) + kChunkColumns - 1) / kChunkColumns * 4;
  Programs::epilogue_tile(p.program, [&](auto program) {
    using Program = decltype(program);
    const ProgramContext context(task, p.first_operand, consumer.worker);
    const ChunkWalk walk{context, shared_address(consumer.scratch()) + consumer.warp() * kChunkBytes,
                         batch,   row0 + (consumer.warp() & 3) * 16,
                         column0, p.m,
                         p.n,     p.pair_distance};
    if (Program::kVector > 1 && p.n % Program::kVector == 0) {
      run_vectors<Program, Program::kVector>(walk, acc, chunks);
    } else {
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        stage_any(chunk, acc, walk.staging);
        walk.template run_edge<Program, 1>(chunk);
      }
    }
  });
}

}  // namespace ark::device
