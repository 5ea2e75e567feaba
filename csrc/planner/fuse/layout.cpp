// Intermediate matrices whose rows are not a multiple of 16 bytes get padded rows, so that TMA can read
// them (logits and their gradients: a vocabulary is often odd).
#include <algorithm>

#include "planner/fuse/state.h"

namespace ark::planner {
namespace {

constexpr int64_t kRowBytes = 16;
constexpr int64_t kWorthPadding = 1 << 16;  // elements below which the simple kind is as good

/// Row-major strides with padded rows, or empty when the owner is not row-major or its rows are fine.
std::vector<int64_t> padded_strides(const Tensor& owner) {
  const size_t rank = owner.sizes.size();
  if (rank < 2 || owner.numel < kWorthPadding || owner.strides != contiguous_strides(owner.sizes)) return {};
  const int64_t element = size_bytes(owner.dtype), row = owner.sizes[rank - 1];
  if (row * element % kRowBytes == 0 || row < kRowBytes) return {};
  std::vector<int64_t> sizes = owner.sizes;
  sizes[rank - 1] = (row * element + kRowBytes - 1) / kRowBytes * kRowBytes / element;
  return contiguous_strides(sizes);
}

/// The view's strides and offset when its owner has other strides; false when it then is no strided view.
bool follow(const State& state, int view, const std::vector<int64_t>& owner_strides, Tensor& changed) {
  const Coords* map = view_map(state, view);
  if (map == nullptr) return false;
  const std::optional<Expr> linear = linearize(*map, owner_strides, 0);
  if (!linear) return false;
  changed.offset = linear->constant;
  for (size_t d = 0; d < changed.sizes.size(); ++d) {
    if (changed.sizes[d] > 1) changed.strides[d] = 0;
  }
  for (const Term& term : linear->view()) {
    if (!term.pure()) return false;
    changed.strides[static_cast<size_t>(term.dim)] = term.coef;
  }
  return true;
}

}  // namespace

void pad_rows(State& state) {
  std::vector<bool> operand(state.tensors.size(), false);
  for (const ir::Node& node : state.graph.nodes) {
    if (node.op != ir::OpKind::kMatmul) continue;
    const DType dtype = state.tensor(node.inputs[0]).dtype;
    if (dtype != DType::kBF16 && dtype != DType::kF16 && dtype != DType::kF32) continue;
    for (const ir::ValueId input : node.inputs) operand[static_cast<size_t>(strided_source(state, input).owner)] = true;
  }
  std::vector<std::vector<int>> views(state.tensors.size());
  for (size_t v = 0; v < state.tensors.size(); ++v) {
    const int owner = state.tensors[v].owner;
    if (owner != static_cast<int>(v) && operand[static_cast<size_t>(owner)])
      views[static_cast<size_t>(owner)].push_back(static_cast<int>(v));
  }
  for (size_t v = 0; v < state.tensors.size(); ++v) {
    Tensor& owner = state.tensors[v];
    if (!operand[v] || owner.input >= 0 || owner.output || owner.node < 0 || state.in_place[v]) continue;
    if (is_box(state, static_cast<int>(v))) continue;  // written by others in the layout of another box
    const std::vector<int64_t> strides = padded_strides(owner);
    if (strides.empty()) continue;
    std::vector<Tensor> changed;
    bool all = true;
    for (int view : views[v]) {
      changed.push_back(state.tensor(view));
      all = all && follow(state, view, strides, changed.back());
    }
    if (!all) continue;
    owner.strides = strides;
    for (size_t i = 0; i < views[v].size(); ++i) state.tensors[static_cast<size_t>(views[v][i])] = changed[i];
  }
}

}  // namespace ark::planner
