// Which operands of an op may be read before its waits (plan::Op::early), written here and nowhere else.
#pragma once
#include "planner/fuse/fused.h"

namespace ark::planner {

/// Contract: after the last pass that changes ops or operands, before order_ops. Afterwards the bit of an operand that
/// an op only reads is set where it is a graph's input that no op of the launch writes. Decode attention whose keys and
/// values are inputs that ops before it write only from a row on that a scalar says (cache_rows.h) has that scalar as
/// its position, with its bits and theirs; so have the ops that combine its parts. No op writes the scalar before
/// these.
///
/// What an op writes after it was read could be read early just as well; of weights that is not measured.
void early_reads(FusedGraph& graph);

}  // namespace ark::planner
