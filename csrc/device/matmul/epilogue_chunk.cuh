// How accumulators of wgmma reach the lanes that run an epilogue program: staged in shared memory chunk by chunk, read
// as vectors of one row.
#pragma once
#include "device/loop/pipeline.cuh"
#include "device/program/support.cuh"
#include "device/ptx/ptx.cuh"

namespace ark::device {

/// Programs that read accumulators of other columns (Root with a sign) say so; a pair lies within 128
/// columns, of small tiles within 64.
template <class Program>
consteval bool reads_pairs() {
  if constexpr (requires { Program::kPairs; })
    return Program::kPairs;
  else
    return true;
}

/// Programs of gated products, whose rows have the sums of both weights, say so.
template <class Program>
consteval bool reads_two_products() {
  if constexpr (requires { Program::kGated; })
    return Program::kGated;
  else
    return false;
}

/// A chunk of a warp's 16 rows: 8 rows of 64 columns, or 4 rows of 128 for programs that read pairs of large tiles. Of
/// gated products 4 rows of 64 columns, 64 sums of the first weight and behind them as many of the second. A row takes
/// 32 bytes more than its values, and granules of 16 bytes change places with their neighbour in every second group of
/// 8: neither the staging (2 values per lane) nor the reading (4 or 8 consecutive ones) meets bank conflicts.
template <bool kPairs, bool kGated = false>
struct Chunk {
  static_assert(!kPairs || !kGated);
  static constexpr int kRows = kPairs || kGated ? 4 : 8, kColumns = kPairs ? 128 : 64;
  static constexpr int kProducts = kGated ? 2 : 1, kProductBytes = kColumns * 4;
  static constexpr int kPitch = kProducts * kProductBytes + 32;
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
    const u32 line = lane_line(staging, lane);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
      shared_store_two(pair_at(line, j), acc[kFirst + j * 4], acc[kFirst + j * 4 + 1]);
  }
  /// Where the two values lie that a lane has of eight columns in wgmma's layout, from its row's first ones on.
  static ARK_DEVICE u32 lane_line(u32 staging, int lane) {
    return staging + (lane >> 2 & (kRows - 1)) * kPitch + (lane & 3) * 8;
  }
  static ARK_DEVICE u32 pair_at(u32 line, int eighth) { return ((eighth & 4) != 0 ? line ^ 16 : line) + eighth * 32; }

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
  ARK_DEVICE void get(int product, int sign, float (&value)[V]) const {
    const u32 from = staging + (Chunk::kProducts > 1 && product != 0 ? Chunk::kProductBytes : 0);
    const int first = sign == 0 ? column : (column + sign * pair_distance) & (Chunk::kColumns - 1);
    if constexpr (V == 8) {
      if (sign == 0 || (first & 7) == 0) {
        const u32 low = Chunk::granule(from, row, first >> 2);
        load_four(&value[0], low);
        load_four(&value[4], low ^ 16);
        return;
      }
    }
    if constexpr (V == 4) {
      if (sign == 0 || (first & 3) == 0) {
        load_four(&value[0], Chunk::granule(from, row, first >> 2));
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int c = (first + i) & (Chunk::kColumns - 1);
      value[i] = shared_load_float(Chunk::granule(from, row, c >> 2) + (c & 3) * 4);
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
  ARK_DEVICE void get(int product, int sign, float (&value)[kV]) const {
    static_assert(kV == V && V % 2 == 0);
    const u32 line = this->line + (Layout::kProducts > 1 && product != 0 ? Layout::kProductBytes : 0);
    if (sign != 0) {
      const int column = ((thread_index() & 31) % kPerRow * V + sign * pair_distance) & (Layout::kColumns - 1);
      if constexpr (V >= 4)
        if ((pair_distance & (V - 1)) == 0) return load_vector(value, Layout::granule(row_start(), 0, column >> 2));
      ARK_EACH {
        const int c = (column + i) & (Layout::kColumns - 1);
        value[i] = shared_load_float(Layout::granule(row_start(), 0, c >> 2) + (c & 3) * 4);
      }
      return;
    }
    if constexpr (V == 2)
      shared_load_two(value, line);
    else
      load_vector(value, line);
  }

 private:
  static ARK_DEVICE void load_vector(float (&value)[V], u32 at) {
    unrolled<V / 4>([&](auto i) __attribute__((always_inline)) {
      float four[4];
      shared_load_four(four, i.value == 0 ? at : at ^ 16);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[i.value * 4 + j] = four[j];
    });
  }
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

}  // namespace ark::device
