// Where the tile of a matrix product lies in it.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

struct TileCoordinates {
  int batch, row, column;
  ARK_DEVICE TileCoordinates(const abi::OpRecord& r, int tile) {
    const int rest = tile / r.grid[2];
    column = tile % r.grid[2] * r.params.matmul.tile_n;
    row = rest % r.grid[1] * r.params.matmul.tile_m;
    batch = rest / r.grid[1];
  }
};

}  // namespace ark::device
