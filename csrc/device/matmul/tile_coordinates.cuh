// Where the tile of a matrix product lies in it.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

struct TileCoordinates {
  int batch, row, column;
  int batch_b;  // of operand b, which all batches may share
  ARK_DEVICE TileCoordinates(const Task& task, int tile) : TileCoordinates(*task.record, tile) {
    if (task.operand(abi::MatmulOperand::kB).stride[0] == 0) batch_b = 0;
  }
  ARK_DEVICE TileCoordinates(const abi::OpRecord& r, int tile) {
    const int rest = tile / r.grid[2];
    column = tile % r.grid[2] * r.params.matmul.tile_n;
    row = rest % r.grid[1] * r.params.matmul.tile_m;
    batch = batch_b = rest / r.grid[1];
  }
};

}  // namespace ark::device
