// How consumer warps share a tile of an fp32 product, and how its sums reach the epilogue program: a warp stages 8 of
// its 32 lines in shared memory; warps that have summed parts of k share these lines and add the parts in their order.
#pragma once
#include "device/abi/variants.h"
#include "device/matmul/tile_coordinates.cuh"
#include "device/program/support.cuh"

namespace ark::device {

inline constexpr int kFloatStep = 32;          // of k
inline constexpr u32 kFloatBlockBytes = 8192;  // 64 rows of an operand x 32 k
inline constexpr int kFloatLines = 8;          // that a warp stages at once
inline constexpr int kFloatPitch = 64 + 8;     // of a line: 4 lines of 8 neighbours lie in 32 banks
inline constexpr int kFloatStagedBytes = kFloatLines * kFloatPitch * 4;
static_assert(kFloatStagedBytes * kConsumerWarps <= kScratchBytes && kFloatStep * 128 * 4 == kPageBytes);

ARK_DEVICE int float_steps(const abi::MatmulTileParams& p) { return (p.k + kFloatStep - 1) / kFloatStep; }

/// A warp's share of a tile: 32 rows from `row`, 64 columns from `column`, of k the part number `part` of `parts`.
struct FloatShare {
  int row, column, part, parts, areas, lane;  // areas: shares of 32 x 64 in the tile

  ARK_DEVICE FloatShare(const abi::MatmulTileParams& p, int warp, int lane_number) : lane(lane_number) {
    const int high = p.tile_m / 64;  // tiles are 64 or 128 high and wide: shifts in the place of divisions
    row = (warp & (high * 2 - 1)) * 32;
    column = (warp >> high & (p.tile_n / 64 - 1)) * 64;
    areas = high * 2 * (p.tile_n / 64);
    parts = kConsumerWarps / areas;
    part = warp / areas;
  }
  // Lanes 4 x 8, so that in every 16 lanes loads of A meet 2 places, loads of B 8, and neighbours by 1 or by 2 the
  // same.
  ARK_DEVICE int lane_row() const { return (lane >> 4 << 1) | (lane & 1); }
  ARK_DEVICE int lane_column() const { return lane >> 1 & 7; }
};

/// V neighbours of a staged line, the parts added up.
struct FloatRoots {
  u32 line;  // address, of part 0
  int column, pair_distance, parts;
  u32 stride;  // bytes between parts

  template <int V>
  ARK_DEVICE void get(int, int sign, float (&value)[V]) const {
    ARK_EACH value[i] = 0.0f;
    for (int p = 0; p < parts; ++p) add(line + p * stride, sign, value);
  }

 private:
  template <int V>
  ARK_DEVICE void add(u32 from, int sign, float (&value)[V]) const {
    if constexpr (V % 4 == 0) {
      if (sign == 0) {
        unrolled<V / 4>([&](auto q) __attribute__((always_inline)) {
          float four[4];
          shared_load_four(four, from + (column + q.value * 4) * 4);
#pragma unroll
          for (int i = 0; i < 4; ++i) value[q.value * 4 + i] += four[i];
        });
        return;
      }
    }
    ARK_EACH value[i] += shared_load_float(from + ((column + i + sign * pair_distance) & 63) * 4);
  }
};

/// kLayouts: those (device/abi/variants.h) of the products that end in the program.
template <class Program, u32 kLayouts>
struct FloatEpilogue {
  const Consumer& consumer;
  const Task& task;
  const FloatShare& share;
  const TileCoordinates place;

  ARK_DEVICE void run(const float (&sum)[8][8]) const {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    const ProgramContext context(task, p.first_operand, consumer.worker);
    const bool vectors = Program::kVector > 1 && p.n % Program::kVector == 0;
#pragma unroll 1
    for (int q = 0; q < 4; ++q) {
      together();  // what was staged has been read
      stage_any<0>(q, sum);
      together();
      if (vectors)
        run_lines<Program::kVector>(context, q);
      else
        run_lines<1>(context, q);
    }
  }

 private:
  // Known to the compiler where all layouts agree.
  ARK_DEVICE bool trans_a() const {
    return (kLayouts & ~abi::kLayoutsRowsA) == 0 ||
           ((kLayouts & abi::kLayoutsRowsA) != 0 && task.record->params.matmul.a_k_major == 0);
  }
  ARK_DEVICE bool trans_b() const {
    return (kLayouts & ~abi::kLayoutsRowsB) == 0 ||
           ((kLayouts & abi::kLayoutsRowsB) != 0 && task.record->params.matmul.b_k_major == 0);
  }
  /// Among those who share lines; all warps of a worker have tiles of the same kind.
  ARK_DEVICE void together() const {
    if (share.parts > 1)
      consumer.sync();
    else
      __syncwarp();
  }
  ARK_DEVICE u32 staged(int warp) const {
    return shared_address(consumer.scratch()) + static_cast<u32>(warp * kFloatStagedBytes);
  }

  /// Sums [2 q, 2 q + 2) of each lane: line (lane's row, which of the two).
  template <int kQuarter>
  ARK_DEVICE void stage_any(int q, const float (&sum)[8][8]) const {
    if constexpr (kQuarter < 4) {
      if (q != kQuarter) return stage_any<kQuarter + 1>(q, sum);
      const bool neighbours = trans_b();  // two times four columns, or eight that are 8 apart
      const u32 line =
          staged(consumer.warp()) + share.lane_row() * kFloatPitch * 4 + share.lane_column() * (neighbours ? 16 : 4);
      stage_line(line, neighbours, sum[kQuarter * 2]);
      stage_line(line + 4 * kFloatPitch * 4, neighbours, sum[kQuarter * 2 + 1]);
    }
  }
  static ARK_DEVICE void stage_line(u32 line, bool neighbours, const float (&s)[8]) {
    if (neighbours) {
      shared_store_four(line, s[0], s[1], s[2], s[3]);
      shared_store_four(line + 128, s[4], s[5], s[6], s[7]);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) shared_store_float(line + j * 32, s[j]);
    }
  }
  /// Which of the warp's 32 rows line `line` of quarter q is.
  ARK_DEVICE int row_of(int q, int line) const {
    return trans_a() ? q / 2 * 16 + (line & 3) * 4 + q % 2 * 2 + line / 4 : q * 8 + line;
  }

  template <int V>
  ARK_DEVICE void run_lines(const ProgramContext& context, int q) const {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    constexpr int kPerLine = 64 / V;
    const int lines = kFloatLines / share.parts, first = share.part * lines, area = consumer.warp() % share.areas;
#pragma unroll 1
    for (int i = share.lane; i < lines * kPerLine; i += 32) {
      const int line = first + i / kPerLine, column = i % kPerLine * V;
      const i32 x[3] = {place.batch, place.row + share.row + row_of(q, line), place.column + share.column + column};
      if (x[1] >= p.m || x[2] >= p.n) continue;
      Program::template run<V>(context, x,
                               FloatRoots{staged(area) + line * kFloatPitch * 4, column, p.pair_distance, share.parts,
                                          static_cast<u32>(share.areas * kFloatStagedBytes)});
    }
  }
};

}  // namespace ark::device
