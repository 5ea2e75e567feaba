#include "planner/fuse/sends_apart.h"

#include <algorithm>

namespace ark::planner {
namespace {

/// To other ranks, of one exchange: 24 us of the link, what goes on in the background
/// (Machine::background_send_seconds, which fusion does not know).
constexpr int64_t kLeastBytes = int64_t{8} << 20;
/// Of a product: several m blocks of each rank, several n blocks. No other numbers were tried.
constexpr int64_t kLeastRows = 256, kLeastColumns = 512;

bool is_read_by_product(const State& state, int value, int64_t world) {
  return std::ranges::any_of(state.users[static_cast<size_t>(value)], [&](int user) {
    const ir::Node& node = state.node(user);
    if (node.op != ir::OpKind::kMatmul) return false;
    const Tensor& out = state.tensor(node.outputs[0]);
    const size_t dims = out.sizes.size();
    return out.sizes[dims - 2] >= kLeastRows * world && out.sizes[dims - 1] >= kLeastColumns &&
           state.owner(node.inputs[0]) == value;
  });
}

}  // namespace

void send_apart(State& state, const std::vector<Pieces>& boxes) {
  for (const Pieces& joined : boxes) {
    const ir::Node& exchange = state.node(state.tensor(joined.pieces[0]).node);
    const auto world = static_cast<int64_t>(exchange.outputs.size());
    const int sent = state.owner(exchange.inputs[0]);
    const Tensor& value = state.tensor(exchange.inputs[0]);
    const bool run = value.strides == contiguous_strides(value.sizes) && size_bytes(value.dtype) >= 2;
    if (!run || exchange.inputs.size() != 1 || state.tensor(joined.pieces[0]).bytes() * (world - 1) < kLeastBytes)
      continue;
    if (!is_read_by_product(state, joined.value, world)) continue;
    if (!state.is_input(sent)) state.forced[static_cast<size_t>(sent)] = true;
    for (const int box : joined.pieces) state.no_claim[static_cast<size_t>(box)] = true;
  }
}

}  // namespace ark::planner
