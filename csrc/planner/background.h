// Ops that may send in the background: those that do nothing but copy (device/loop/background.cuh).
#pragma once
#include "planner/fuse/fused.h"

namespace ark::planner {

/// It copies runs of elements to boxes, as they are: each operand but the boxes is followed by those that it is copied
/// to.
bool copies_to_boxes(const FusedGraph& graph, const FusedOp& op);

/// The same, and all operands may be moved by 16 bytes. Once alignments are known (tile/align_operands.h).
bool may_send_in_background(const FusedGraph& graph, const FusedOp& op);

/// Bytes of an element of the boxes that an exchange writes: the same on all ranks, whatever they compute it from.
int64_t sent_element_bytes(const FusedGraph& graph, const FusedOp& op);

/// Elements of a tile of such an op: 32 KB. After a tile come a fence and an addition on every rank, before it looks at
/// its record and its waits; a row block is there sooner the more workers send parts of it (notes/collectives.md).
inline int64_t background_tile(int64_t element_bytes) { return 32768 / element_bytes; }

/// Of such an op: whether some rank reads what it has sent to itself. Products with own rows (tile/own_rows.h) do not.
bool own_box_is_read(const FusedGraph& graph, const FusedOp& sender);

}  // namespace ark::planner
