#include "planner/tile/pair_decode_tiles.h"

#include "device/abi/variants.h"
#include "plan/early_reads.h"
#include "planner/draft.h"

namespace ark::planner {

void pair_decode_tiles(FusedGraph& graph, const Options& options) {
  for (FusedOp& op : graph.ops) {
    if (!plan::has_early_cache(op.op) || num_tiles(op.op.record) <= options.machine.num_workers) continue;
    abi::AttentionParams& p = op.op.record.params.attention;
    const bool bounded = p.causal != 0 || p.mask_kind != abi::MaskKind::kNone;
    if (p.parts == 1 && p.head_dim <= abi::kMostPairedDim && bounded) p.tiles_at_once = 2;
  }
}

}  // namespace ark::planner
