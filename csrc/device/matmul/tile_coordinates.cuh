// Where the tile of a matrix product lies in it.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

struct TileCoordinates {
  int batch, row, column;
  ARK_DEVICE TileCoordinates(const abi::OpRecord& r, int tile) : TileCoordinates(r, abi::coordinates_of(r, tile)) {}
  ARK_DEVICE TileCoordinates(const abi::OpRecord& r, const abi::Coordinates& at) {
    batch = at.outer, row = at.middle * r.params.matmul.tile_m, column = at.inner * r.params.matmul.tile_n;
  }
  /// For loads. Where all batches share b, which plans of several ranks have (planner/tile/split_by_boxes.h), they are
  /// further rows of a: tensor maps have one batch then. Own rows are read by themselves.
  ARK_DEVICE void join_batches(const Task& task) {
    if constexpr (kRanks > 1)
      if (task.operand(abi::MatmulOperand::kB).stride[0] == 0) {
        const abi::MatmulTileParams& p = task.record->params.matmul;
        if (task.record->kind != abi::TaskKind::kMatmulTile || p.own_rows != abi::kTheseOwnRows) row += batch * p.m;
        batch = 0;
      }
  }
};

}  // namespace ark::device
