#include "planner/cost.h"

#include <algorithm>

namespace ark::planner {
namespace {

bool on_tensor_cores(abi::TaskKind kind) {
  switch (kind) {
    case abi::TaskKind::kMatmulTile:
    case abi::TaskKind::kMatmulRows:
    case abi::TaskKind::kAttentionForward:
    case abi::TaskKind::kAttentionBackward:
    case abi::TaskKind::kAttentionBackwardQuery:
    case abi::TaskKind::kAttentionDecode:
      return true;
    default:
      return false;
  }
}

}  // namespace

double floor_seconds(const plan::Op& op, const Machine& machine) {
  const double rate = on_tensor_cores(op.record.kind) ? machine.tensor_flops : machine.simple_flops;
  return std::max(static_cast<double>(op.bytes) / machine.read_bytes_per_second, static_cast<double>(op.flops) / rate);
}

double tile_seconds(const plan::Op& op, const Machine& machine) {
  const double tiles = static_cast<double>(std::max<int64_t>(1, num_tiles(op.record)));
  const double share = machine.num_workers / tiles;  // one worker has 1 / num_workers of the machine
  // Attention's two matmuls per block leave the tensor cores idle during the softmax: about 0.6 of the rate.
  const bool attention =
      op.record.kind >= abi::TaskKind::kAttentionDecode && op.record.kind != abi::TaskKind::kMaskRange;
  return floor_seconds(op, machine) * share / (attention ? 0.6 : 0.85) + kTileSeconds;
}

}  // namespace ark::planner
