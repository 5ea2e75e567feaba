#include "planner/cost.h"

#include <algorithm>

#include "plan/kinds.h"
#include "planner/float_tiles.h"
#include "planner/tile_forms.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// What one tile takes of the machine: the table's numbers, but where sizes say more.
struct Cost {
  plan::Rates rates;
  bool tensor_cores;
};
Cost cost_of(const abi::OpRecord& record, const Costs& costs) {
  const plan::Kind& kind = plan::kind_of(record);
  constexpr int64_t kLongRow = 4096;  // walked again and again in memory
  if (record.kind == TaskKind::kRow && record.params.program.row_size > kLongRow) return {costs.long_row, false};
  if (record.kind == TaskKind::kAttentionSimple) {
    const int form = record.params.attention.tile_q;
    if (form == abi::kMmaQueries) return {costs.mma_attention, true};
    if (form == abi::kTiledQueriesF64) return {costs.double_attention, false};
  }
  return {costs.kinds[static_cast<size_t>(record.kind)], kind.engine == plan::Engine::kTensorCores};
}

bool is_arithmetic(Opcode op) {
  return op != Opcode::kRoot && op != Opcode::kConst && op != Opcode::kLoad && op != Opcode::kStore &&
         op != Opcode::kIndex && op != Opcode::kParameter;
}

/// Steps of k, then an epilogue that the next tile's products wait for.
double matmul_tile_seconds(const plan::Op& op, const std::vector<Program>& programs, const Costs& costs) {
  const abi::MatmulTileParams& p = op.record.params.matmul;
  int instructions = 0;
  for (const Instr& instr : programs[static_cast<size_t>(p.program)].instrs) instructions += is_arithmetic(instr.op);
  if (p.gated != 0) return gated_tile_seconds(costs, p.k, instructions);
  return tile_seconds(costs, tile_form(p), p.k, instructions);
}

/// What wgmma computes of a head for what there is of it: heads are padded to 64 or 128 columns.
double padding(const abi::OpRecord& record) {
  const plan::Kind& kind = plan::kind_of(record);
  const bool mapped = !kind.roles.empty() && kind.roles[abi::AttentionOperand::kQ].mapped;
  if (kind.family != plan::Family::kAttention || !mapped) return 1.0;
  const int dim = record.params.attention.head_dim;
  return (dim > 64 ? 128.0 : 64.0) / dim;
}

/// Keys that an average query of block `block` sees, where it sees keys up to its own position.
int64_t causal_keys(const abi::AttentionParams& p, int64_t block) {
  const int64_t query = std::min(block * p.tile_q + p.tile_q / 2, int64_t{p.queries});
  return std::clamp(query + p.causal_offset, int64_t{1}, int64_t{p.keys});
}

/// `bytes`: that the op moves in this rank's memory.
double tile_seconds_of(const plan::Op& op, double bytes, const std::vector<Program>& programs, const Machine& machine) {
  if (op.record.kind == TaskKind::kMatmulTile) return matmul_tile_seconds(op, programs, machine.costs);
  if (op.record.kind == TaskKind::kMatmulFloat) {
    const abi::MatmulTileParams& p = op.record.params.matmul;
    return float_tile_seconds(machine.costs, {p.tile_m, p.tile_n}, p.k);
  }
  const auto [rates, tensor_cores] = cost_of(op.record, machine.costs);
  const double flops = tensor_cores ? machine.tensor_flops : machine.simple_flops;
  const double seconds = std::max(bytes / (machine.read_bytes_per_second * rates.bytes),
                                  static_cast<double>(op.flops) * padding(op.record) / (flops * rates.flops));
  const double tiles = static_cast<double>(std::max<int64_t>(1, num_tiles(op.record)));
  return seconds * machine.num_workers / tiles + rates.seconds;  // one worker has 1 / num_workers of the machine
}

}  // namespace

bool sees_triangle(const plan::Op& op) {
  const TaskKind kind = op.record.kind;
  const bool backward = kind == TaskKind::kAttentionBackward || kind == TaskKind::kAttentionBackwardQuery;
  if (kind != TaskKind::kAttentionForward && kind != TaskKind::kAttentionSimple && !backward) return false;
  const abi::AttentionParams& p = op.record.params.attention;
  const size_t mask = backward ? int{abi::AttentionGradOperand::kMask} : int{abi::AttentionOperand::kMask};
  const size_t range = backward ? int{abi::AttentionGradOperand::kRange} : int{abi::AttentionOperand::kRange};
  // Without a range of keys blocks that the mask hides are computed like others.
  if (kind == TaskKind::kAttentionSimple && op.operands[range].slot == abi::kNoSlot) return p.causal != 0;
  return p.causal != 0 || (p.mask_kind == abi::MaskKind::kBool && op.operands[mask].stride[2] != 0);
}

std::vector<double> tile_weights(const plan::Op& op) {
  if (!sees_triangle(op)) return {};
  const abi::AttentionParams& p = op.record.params.attention;
  // Key blocks of the backward kind: the queries from them on.
  const bool by_keys = op.record.kind == TaskKind::kAttentionBackward;
  std::vector<double> weights(static_cast<size_t>(op.record.grid[abi::GridAxis::kBlock]));
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto block = static_cast<int64_t>(i);
    const int64_t seen = by_keys ? std::max<int64_t>(1, p.queries - block * p.tile_k) : causal_keys(p, block);
    sum += weights[i] = static_cast<double>(seen);
  }
  for (double& weight : weights) weight = weight * static_cast<double>(weights.size()) / sum;
  return weights;
}

double floor_seconds(const plan::Op& op, const Machine& machine) {
  const double rate = plan::kind_of(op.record).engine == plan::Engine::kFloat ? machine.float_flops
                      : cost_of(op.record, machine.costs).tensor_cores        ? machine.tensor_flops
                                                                              : machine.simple_flops;
  return std::max(static_cast<double>(op.bytes) / machine.read_bytes_per_second, static_cast<double>(op.flops) / rate);
}

double tile_seconds(const plan::Op& op, const std::vector<Program>& programs, const Machine& machine) {
  return tile_seconds_of(op, static_cast<double>(op.bytes), programs, machine);
}

double tile_seconds(const FusedGraph& graph, const FusedOp& op, const Machine& machine) {
  const double tiles = static_cast<double>(std::max<int64_t>(1, num_tiles(op.op.record)));
  const double sent = sent_bytes(graph, op), local = std::max(0.0, static_cast<double>(op.op.bytes) - sent);
  return std::max(tile_seconds_of(op.op, local, graph.programs, machine),
                  sent / (tiles * machine.worker_link_bytes_per_second));
}

/// One of `world` boxes is the rank's own. One op sends all of an exchange (verify/exchanges.cpp).
double sent_bytes(const FusedGraph& graph, const FusedOp& op) {
  const int32_t group = group_sent_to(graph, op);
  if (group < 0) return 0;
  const int32_t world = world_of(graph, group);
  double bytes = 0;
  for (size_t x = 0; x < op.access.size(); ++x) {
    const uint32_t slot = op.op.operands[x].slot;
    if (op.access[x] != Access::kWrite || slot == abi::kNoSlot) continue;
    const Storage& storage = graph.storages[slot];
    const int64_t boxes = storage.joined_boxes() ? world : 1;
    if (storage.exchange >= 0) bytes += static_cast<double>(storage.num_elements / boxes * size_bytes(storage.dtype));
  }
  return bytes * (world - 1) / world;
}

double link_seconds(const FusedGraph& graph, const FusedOp& op, const Machine& machine) {
  return sent_bytes(graph, op) / machine.link_bytes_per_second;
}

}  // namespace ark::planner
