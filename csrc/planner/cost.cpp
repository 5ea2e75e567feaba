#include "planner/cost.h"

#include <algorithm>

namespace ark::planner {
namespace {

using abi::TaskKind;

/// What a kind reaches of the machine's bandwidth and of its arithmetic (tensor cores or not), every worker at it.
/// Measured per item on an H200: Llama-3.2-1B decode and BERT-Large training, docs/PERFORMANCE.md.
struct Share {
  double bytes, flops;
  bool tensor_cores;
};
Share share_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kPointwise:
      return {0.45, 0.5, false};
    case TaskKind::kRow:
      return {0.22, 0.5, false};
    case TaskKind::kColumn:
      return {0.35, 0.5, false};
    case TaskKind::kMatmulRows:
      return {1.0, 0.5, true};
    case TaskKind::kMatmulTile:
      return {0.5, 0.52, true};
    case TaskKind::kMatmulSimple:
      return {0.3, 0.3, false};
    case TaskKind::kAttentionDecode:
      return {0.28, 0.3, true};
    case TaskKind::kAttentionForward:
      return {0.3, 0.25, true};
    case TaskKind::kAttentionBackwardRows:
      return {0.26, 0.5, false};
    case TaskKind::kAttentionBackward:
      return {0.3, 0.33, true};
    case TaskKind::kAttentionBackwardQuery:
      return {0.3, 0.30, true};
    default:
      return {0.3, 0.3, false};
  }
}

}  // namespace

double floor_seconds(const plan::Op& op, const Machine& machine) {
  const double rate = share_of(op.record.kind).tensor_cores ? machine.tensor_flops : machine.simple_flops;
  return std::max(static_cast<double>(op.bytes) / machine.read_bytes_per_second, static_cast<double>(op.flops) / rate);
}

double tile_seconds(const plan::Op& op, const Machine& machine) {
  const Share share = share_of(op.record.kind);
  const double rate = share.tensor_cores ? machine.tensor_flops : machine.simple_flops;
  const double seconds = std::max(static_cast<double>(op.bytes) / (machine.read_bytes_per_second * share.bytes),
                                  static_cast<double>(op.flops) / (rate * share.flops));
  const double tiles = static_cast<double>(std::max<int64_t>(1, num_tiles(op.record)));
  return seconds * machine.num_workers / tiles + kTileSeconds;  // one worker has 1 / num_workers of the machine
}

}  // namespace ark::planner
