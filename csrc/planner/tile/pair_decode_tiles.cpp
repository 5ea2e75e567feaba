#include "planner/tile/pair_decode_tiles.h"

#include "device/abi/variants.h"
#include "plan/early_reads.h"
#include "planner/draft.h"

namespace ark::planner {
namespace {

/// Seconds that all tiles take, by rounds of items of `at_once` tiles. Reckoned: a worker has its share of what memory
/// gives, and keys are as many as the cache has rows (a call reads those below its position alone).
double seconds_of(const abi::OpRecord& record, int at_once, const Machine& machine) {
  const abi::AttentionParams& p = record.params.attention;
  const int64_t items = (num_tiles(record) + at_once - 1) / at_once, workers = machine.num_workers;
  const double rounds = static_cast<double>((items + workers - 1) / workers);
  const double tile_bytes = 2.0 * p.keys * (p.head_dim + p.value_dim);
  const double bytes_seconds = at_once * tile_bytes * machine.num_workers / machine.read_bytes_per_second;
  return rounds * (machine.costs.decode_tile + bytes_seconds);
}

/// The rows from the position on are few. (A mask that differs by head has no table of ranges.)
bool is_bounded(const plan::Op& op) {
  return op.record.params.attention.causal != 0 || op.operands[abi::AttentionOperand::kRange].slot != abi::kNoSlot;
}

}  // namespace

void pair_decode_tiles(FusedGraph& graph, const Options& options) {
  for (FusedOp& op : graph.ops) {
    if (!plan::has_early_cache(op.op) || !is_bounded(op.op)) continue;
    abi::OpRecord& record = op.op.record;
    abi::AttentionParams& p = record.params.attention;
    if (p.parts != 1 || p.head_dim > abi::kMostPairedDim) continue;
    const double one = seconds_of(record, 1, options.machine), two = seconds_of(record, 2, options.machine);
    if (two <= options.machine.costs.pair_share * one) p.tiles_at_once = 2;
  }
}

}  // namespace ark::planner
