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

/// Runs the epilogue over a warp's staged chunk, whose first element is (batch, row0, column0) of an m x n product. The loads of
/// two vectors are in flight before the first is computed.
template <class Program, int V>
ARK_DEVICE void run_chunk(const ProgramContext& context, u32 staging, int batch, int row0, int column0) {
  const abi::MatmulTileParams& p = context.task.record->params.matmul;
  constexpr int kVectors = kChunkColumns / V;
#pragma unroll 1
  for (int i = thread_index() & 31; i < kChunkRows * kVectors; i += 64) {
    typename Program::template Inputs<V> inputs[2];
    i64 x[2][3];
    bool inside[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      x[u][0] = batch;
      x[u][1] = row0 + (i + u * 32) / kVectors;
      x[u][2] = column0 + (i + u * 32) % kVectors * V;
      inside[u] = x[u][1] < p.m && x[u][2] < p.n;
      if (inside[u]) Program::template load<V>(context, x[u], inputs[u]);
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const ChunkRoots roots{staging, (i + u * 32) / kVectors, (i + u * 32) % kVectors * V, p.pair_distance};
      if (inside[u]) Program::template run_loaded<V>(context, x[u], inputs[u], roots);
    }
  }
}

/// The epilogue of a warpgroup's tile: 64 rows from `row0`, `columns` (128 or 256) columns from `column0`.
template <class Programs, int kRegisters>
ARK_DEVICE void run_epilogue(const Consumer& consumer, const Task& task, const float (&acc)[kRegisters], int batch,
                             int row0, int column0, int columns) {
  const abi::MatmulTileParams& p = task.record->params.matmul;
  const int lane = consumer.lane();
  const u32 staging = shared_address(consumer.scratch()) + consumer.warp() * kChunkBytes;
#pragma unroll 1
  for (int chunk = 0; chunk < columns / 128 * 4; ++chunk) {
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
    const int row = row0 + (consumer.warp() & 3) * 16 + (chunk & 3) * 4, column = column0 + (chunk >> 2) * 128;
    if (row >= p.m || column >= p.n) continue;
    Programs::epilogue_tile(p.program, [&](auto program) {
      using Program = decltype(program);
      const ProgramContext context(task, p.first_operand, consumer.worker);
      if (Program::kVector > 1 && p.n % Program::kVector == 0)
        run_chunk<Program, Program::kVector>(context, staging, batch, row, column);
      else
        run_chunk<Program, 1>(context, staging, batch, row, column);
    });
  }
}

}  // namespace ark::device
