// Part of tile: operands of large matmuls that tensor maps cannot address (rows of 50257 bf16 elements that come from
// outside) are copied into padded rows, so that the product runs on the tensor cores: GPT-2's logit gradient, 154 MB,
// costs 0.1 ms to copy and 3.5 ms a product on the CUDA cores.
#pragma once
#include <vector>

#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Inserts copies in draft.graph, renumbers FusedOp::after, and makes the matmuls kMatmulTile or kMatmulFloat. No grid
/// may be set yet.
void align_operands(Draft& draft, const Options& options);

/// Storages that hold different values at different times: one copy would not do for all readers.
std::vector<bool> changing_storages(const FusedGraph& graph);
/// True when TMA can read the matmul operand: one of its dimensions contiguous, 16-byte strides and offset, a real
/// batch.
bool tma_addressable(const abi::Operand& x, int rows_dim, int k_dim, int64_t batch);
/// Of a product: all batches have one b, and follow each other as rows of a. Maps of both have one batch then. The
/// kernels of several ranks know it, for large tiles (split_by_boxes.h).
bool share_b(const FusedGraph& graph, const FusedOp& op);
/// Elements of the innermost dimension of a tensor of attention that may be moved at once.
signed char attention_vector(const abi::Operand& x);
/// Both operands of a product.
bool are_tma_addressable(const FusedGraph& graph, const FusedOp& op);

}  // namespace ark::planner
