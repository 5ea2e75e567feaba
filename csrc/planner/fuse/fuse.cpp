// The driver: simplify, then group, choose what gets memory and emit, again from the start whenever a value turns out
// to need memory.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/unsupported.h"
#include "planner/fuse/empty.h"
#include "planner/fuse/joined_boxes.h"
#include "planner/fuse/late_sums.h"
#include "planner/fuse/pieces.h"
#include "planner/fuse/sends_apart.h"
#include "planner/fuse/simplify.h"
#include "planner/fuse/state.h"

namespace ark::planner {
namespace {

using ir::Node;
using ir::OpKind;

std::vector<int64_t> numbers(const std::vector<ir::Size>& sizes) {
  std::vector<int64_t> result;
  result.reserve(sizes.size());
  for (const ir::Size& s : sizes) result.push_back(s.value);
  return result;
}

void read_tensors(State& state) {
  const ir::Graph& graph = state.graph;
  state.tensors.resize(graph.values.size());
  state.users.resize(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const ir::Value& value = graph.values[v];
    Tensor& t = state.tensors[v];
    t.dtype = value.dtype;
    t.sizes = numbers(value.sizes);
    t.strides = numbers(value.strides);
    t.offset = value.offset.value;
    t.owner = value.base >= 0 ? value.base : static_cast<int>(v);
    t.numel = product(t.sizes);
  }
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    state.tensors[static_cast<size_t>(graph.inputs[i])].input = static_cast<int>(i);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      Tensor& t = state.tensors[static_cast<size_t>(node.outputs[k])];
      t.node = static_cast<int>(i);
      t.out_index = static_cast<int>(k);
    }
    if (node.op == OpKind::kView) continue;
    for (size_t k = node.op == OpKind::kCopyTo ? 1 : 0; k < node.inputs.size(); ++k) {
      std::vector<int>& users = state.users[static_cast<size_t>(state.owner(node.inputs[k]))];
      if (users.empty() || users.back() != static_cast<int>(i)) users.push_back(static_cast<int>(i));
    }
  }
  for (ir::ValueId out : graph.outputs) state.tensors[static_cast<size_t>(state.owner(out))].output = true;
}

bool is_copy_result(const State& state, int value) {
  const int node = state.tensor(value).node;
  return node >= 0 && state.node(node).op == OpKind::kCopyTo;
}

/// What must be in memory whatever the fusion.
void force(State& state) {
  auto force_value = [&](int owner) { state.forced[static_cast<size_t>(owner)] = true; };
  auto force_source = [&](int value) { force_value(strided_source(state, value).owner); };
  for (ir::ValueId out : state.graph.outputs) force_value(state.owner(out));
  for (const Node& node : state.graph.nodes) {
    for (ir::ValueId input : node.inputs) {
      const bool written = node.op == OpKind::kCopyTo && input == node.inputs[0];
      check_node(written || !is_copy_result(state, input), node.name, "node '", node.name,
                 "' reads the result of a copy_");
    }
    if (node.op == OpKind::kMatmul) {
      const MatmulShape shape = matmul_shape(state, node);
      if (shape.way != MatmulWay::kRows && shape.way != MatmulWay::kColumns) force_value(shape.a.owner);
      force_value(shape.b.owner);
    } else if (node.op == OpKind::kAttention || node.op == OpKind::kAttentionBackward ||
               node.op == OpKind::kScatterSum) {
      for (ir::ValueId input : node.inputs) force_source(input);
    } else if (node.op == OpKind::kRowSelect || node.op == OpKind::kRowDraw) {
      for (ir::ValueId input : node.inputs) force_source(input);
      if (node.outputs.size() >= 2)  // later rounds of a select read the distances; a draw stores all that it finds
        for (ir::ValueId out : node.outputs) force_value(out);
    } else if (node.op == OpKind::kExchange) {
      for (ir::ValueId box : node.outputs) force_value(box);
      for (size_t i = ir::num_sent(node); i < node.inputs.size(); ++i) force_value(node.inputs[i]);
    } else if (node.op == OpKind::kCopyTo) {
      const int src = state.owner(node.inputs[1]);
      // A value that depends on inputs alone is computed again by the store at the end.
      if (!state.is_input(src) && !state.in_place[static_cast<size_t>(src)]) state.copied.push_back(src);
    }
  }
}

}  // namespace

namespace {

/// Groups in the order in which they come first.
void note_groups(const ir::Graph& graph, FusedGraph& result) {
  for (const Node& node : graph.nodes) {
    if (node.op != OpKind::kExchange) continue;
    const auto world = static_cast<int32_t>(ir::num_ranks(node));
    if (result.world == 1) result.group = node.attrs.group, result.world = world;
    const int32_t known = number_of_group(result, node.attrs.group);
    if (known < 0) result.more_groups.push_back({.name = node.attrs.group, .world = world});
    check<UnsupportedError>(known < 0 || world_of(result, known) == world, "exchanges of group '", node.attrs.group,
                            "' between ", known < 0 ? 0 : world_of(result, known), " and between ", world, " ranks");
    result.splits += node.attrs.splits.empty() ? '-' : node.attrs.splits[0];
  }
  const bool alike = result.splits.find_first_not_of('-') == std::string::npos;  // else ranks meet, of a group
  check<UnsupportedError>(alike || result.more_groups.empty(), "exchanges for which ranks meet in a graph with ",
                          result.more_groups.size() + 1, " groups");
}

}  // namespace

int32_t number_of_group(const FusedGraph& graph, const std::string& name) {
  if (graph.group == name) return 0;
  for (size_t i = 0; i < graph.more_groups.size(); ++i)
    if (graph.more_groups[i].name == name) return static_cast<int32_t>(i) + 1;
  return -1;
}

int32_t group_sent_to(const FusedGraph& graph, const FusedOp& op) {
  if (graph.world == 1) return -1;
  for (size_t x = 0; x < op.access.size(); ++x) {
    const uint32_t slot = op.op.operands[x].slot;
    if (op.access[x] == Access::kWrite && slot != abi::kNoSlot && graph.storages[slot].exchange >= 0)
      return graph.storages[slot].group;
  }
  return -1;
}

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<int64_t>(1, sizes[d]);
  }
  return strides;
}

const Coords* view_map(const State& state, int view) {
  const Tensor& t = state.tensor(view);
  if (t.map_state == Tensor::Map::kUnknown) {
    t.map_state = Tensor::Map::kNone;
    const Tensor& owner = state.tensor(t.owner);
    Coords coords;
    coords.reserve(t.sizes.size());
    for (size_t d = 0; d < t.sizes.size(); ++d) coords.push_back(dim_expr(static_cast<int>(d), t.sizes[d]));
    const std::optional<Expr> linear = linearize(coords, t.strides, t.offset);
    std::optional<Coords> map;
    if (linear) map = delinearize(*linear, owner.sizes, owner.strides);
    if (map) {
      t.map = std::move(*map);
      t.map_state = Tensor::Map::kKnown;
    }
  }
  return t.map_state == Tensor::Map::kKnown ? &t.map : nullptr;
}

/// What follows from the graph alone.
void read(State& state) {
  state.tensors.clear(), state.users.clear(), state.copied.clear();
  read_tensors(state);
  state.forced.assign(state.tensors.size(), false);
  state.no_claim.assign(state.tensors.size(), false);
  state.in_pieces.assign(state.tensors.size(), false);
  state.slices.assign(state.tensors.size(), Slice{});
  find_in_place(state);
  if (state.tensor_cores) pad_rows(state);
  force(state);
}

namespace {

/// What few-row products read of their weights, and what the others multiply, in seconds on a large GPU.
struct ProductTimes {
  double few = 0, many = 0;
};
ProductTimes product_times(const ir::Graph& graph) {
  constexpr double kBytesPerSecond = 4e12, kFlopsPerSecond = 7e14;
  ProductTimes times;
  for (const Node& node : graph.nodes) {
    if (node.op != OpKind::kMatmul) continue;
    const ir::Value& b = graph.values[static_cast<size_t>(node.inputs[1])];
    const std::vector<int64_t> a = numbers(graph.values[static_cast<size_t>(node.inputs[0])].sizes);
    const int64_t rows = a[a.size() - 2], weights = product(numbers(b.sizes));
    const bool half = b.dtype == DType::kBF16 || b.dtype == DType::kF16;
    if (a.size() == 2 && rows <= (half ? abi::kMostFewRows : abi::kMostFewFloatRows))
      times.few += static_cast<double>(weights * size_bytes(b.dtype)) / kBytesPerSecond;
    else
      times.many += 2.0 * static_cast<double>(rows) * static_cast<double>(weights) / kFlopsPerSecond;
  }
  return times;
}

/// Loaders of few-row products take registers (codegen/codegen.cpp) that attention's backward needs, and its forward
/// beside large products: there they must be worth a thousandth of the time. (A forward of BERT-Large in training,
/// whose two products of ten rows read 2 MB, has 80 bytes of spills with them and none without.)
bool has_room_for_few_rows(const ir::Graph& graph) {
  constexpr int64_t kDecodeRows = 16;
  bool tiled = false;
  for (const Node& node : graph.nodes) {
    if (node.op == OpKind::kAttentionBackward) return false;
    if (node.op != OpKind::kAttention) continue;
    const ir::Value &q = graph.values[static_cast<size_t>(node.inputs[0])],
                    &k = graph.values[static_cast<size_t>(node.inputs[1])];
    const bool half = q.dtype == DType::kBF16 || q.dtype == DType::kF16;  // others use no tensor cores
    tiled = tiled || (half && q.sizes[2].value * q.sizes[1].value > kDecodeRows * k.sizes[1].value);
  }
  if (!tiled) return true;
  const ProductTimes times = product_times(graph);
  return times.few * 1000 >= times.many;
}

}  // namespace

FusedGraph fuse(ir::Graph bound_graph, const Options& options) {
  State state;
  state.graph = simplify(std::move(bound_graph), options.machine.num_workers);
  check_empty(state.graph);
  state.tensor_cores = options.tensor_cores;
  state.few_rows = options.few_rows && has_room_for_few_rows(state.graph);
  state.machine = options.machine;
  read(state);
  const std::vector<Pieces> boxes = joined_boxes(state);
  if (const std::vector<Pieces> pieces = split_concatenations(state, boxes); !pieces.empty()) {
    read(state);
    place_pieces(state, pieces);
  }
  place_pieces(state, boxes);
  if (options.background) send_apart(state, boxes);
  constexpr int kMaxRestarts = 200;
  for (;; ++state.restarts) {
    check<UnsupportedError>(state.restarts < kMaxRestarts, "graph '", state.graph.name, "' cannot be cut into ops");
    make_groups(state);
    bool more = false;
    for (int src : state.copied) {
      const auto o = static_cast<size_t>(src);
      more |= state.group_of[o] >= 0 && !state.forced[o];
      if (state.group_of[o] >= 0) state.forced[o] = true;
    }
    if (more) continue;  // what is forced joins other groups
    keep_sums(state);
    choose_stored(state);
    FusedGraph result;
    note_groups(state.graph, result);
    std::vector<int> missing = emit(state, result);
    if (missing.empty()) return result;
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    for (int owner : missing) {
      const auto o = static_cast<size_t>(owner);
      const std::string& name = state.graph.values[o].name;
      check_node(!state.forced[o] || !state.no_claim[o], state.node_name(owner), "value '", name,
                 "' cannot be computed where it is needed");
      if (state.forced[o]) state.no_claim[o] = true;
      state.forced[o] = true;
    }
  }
}

}  // namespace ark::planner
