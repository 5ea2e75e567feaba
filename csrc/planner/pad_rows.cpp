#include "planner/pad_rows.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "planner/footprint.h"

namespace ark::planner {
namespace {

struct Use {
  int op, operand;
};

bool is_half(const abi::Operand& x) {
  return x.dtype == static_cast<short>(DType::kBF16) || x.dtype == static_cast<short>(DType::kF16);
}

/// The row length of a matmul operand in elements if it is what keeps TMA from addressing it, else 0.
int64_t misaligned_row(const abi::Operand& x, int dim_a, int dim_b) {
  const int64_t unit = 16 / size_bytes(static_cast<DType>(x.dtype));
  const int inner = x.stride[dim_a] == 1 ? dim_a : dim_b, outer = inner == dim_a ? dim_b : dim_a;
  if (x.stride[inner] != 1 || x.stride[outer] <= 1) return 0;
  return x.stride[outer] % unit != 0 ? x.stride[outer] : 0;
}

/// The operand with rows of `padded` instead of `row` elements; none when it does not walk the storage by rows.
std::optional<abi::Operand> with_rows(const abi::Operand& x, const std::vector<OperandDim>& dims, int64_t row,
                                      int64_t padded) {
  abi::Operand y = x;
  const int64_t begin = x.offset % row;
  y.offset = x.offset / row * padded + begin;
  int64_t low = begin, high = begin;
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t stride = dims[d].stride;
    if (stride % row == 0) {
      y.stride[d] = stride / row * padded;
    } else {
      (stride < 0 ? low : high) += (dims[d].size - 1) * stride;
    }
  }
  if (low < 0 || high >= row) return std::nullopt;
  return y;
}

}  // namespace

void pad_rows(Draft& draft) {
  FusedGraph& graph = draft.graph;
  std::vector<std::vector<Use>> uses(graph.storages.size());
  std::vector<int64_t> wanted(graph.storages.size(), 0);  // row length to get rid of
  for (int i = 0; i < static_cast<int>(graph.ops.size()); ++i) {
    const FusedOp& op = graph.ops[i];
    for (int x = 0; x < static_cast<int>(op.access.size()); ++x) {
      if (op.access[x] == Access::kParameters || op.op.operands[x].slot == abi::kNoSlot) continue;
      uses[op.op.operands[x].slot].push_back({i, x});
    }
    const bool matmul =
        op.op.record.kind == abi::TaskKind::kMatmulTile || op.op.record.kind == abi::TaskKind::kMatmulSimple;
    if (!matmul || !is_half(op.op.operands[0]) || !is_half(op.op.operands[1])) continue;
    for (int x = 0; x < 2; ++x) {
      const int64_t row = misaligned_row(op.op.operands[x], x == 0 ? 1 : 2, x == 0 ? 2 : 1);
      if (row > 0) wanted[op.op.operands[x].slot] = row;
    }
  }
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    Storage& storage = graph.storages[s];
    const int64_t row = wanted[s];
    if (row == 0 || storage.input >= 0 || storage.returned || storage.num_elements % row != 0) continue;
    const int64_t unit = 128 / size_bytes(storage.dtype), padded = (row + unit - 1) / unit * unit;
    std::vector<abi::Operand> changed;
    for (const Use& use : uses[s]) {
      const plan::Op& op = graph.ops[use.op].op;
      if (is_indirect(op, graph.programs, use.operand)) break;
      const auto operand =
          with_rows(op.operands[use.operand], operand_dims(op, graph.programs, use.operand), row, padded);
      if (!operand) break;
      changed.push_back(*operand);
    }
    if (changed.size() != uses[s].size()) continue;
    for (size_t u = 0; u < changed.size(); ++u) graph.ops[uses[s][u].op].op.operands[uses[s][u].operand] = changed[u];
    storage.num_elements = storage.num_elements / row * padded;
    for (int64_t& stride : storage.strides) {
      if (stride % row == 0) stride = stride / row * padded;
    }
  }
}

}  // namespace ark::planner
