// What the parts of `fuse` share: the simplified graph as tensors, the groups that its nodes were put into, and which
// values get memory. Internal to planner/fuse.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "planner/fuse/affine.h"
#include "planner/fuse/fused.h"
#include "planner/options.h"

namespace ark::planner {

/// A value of the graph in numbers. Owners have owner == their own id.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  int owner = -1;
  int node = -1;      // that computes it, -1: a graph input
  int out_index = 0;  // which output of the node
  int input = -1;     // number of the graph input
  int64_t numel = 1;
  bool output = false;  // owner of a returned tensor
  // View map: owner's coordinates over this tensor's coordinates; computed at first use.
  enum class Map : uint8_t { kUnknown, kKnown, kNone };
  mutable Map map_state = Map::kUnknown;
  mutable Coords map;

  int64_t bytes() const { return numel * size_bytes(dtype); }
};

/// Where a stored value lies.
struct Place {
  StorageId storage = -1;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

enum class GroupKind : uint8_t {
  kPointwise,
  kRow,
  kColumn,
  kMatmul,
  kAttention,
  kAttentionBackward,
  kIndexStore,
  kScatterSum,
  kRowSelect,
  kRowDraw,
  kPieces  // no op: a concatenation that is there when all of its pieces are
};
/// Nothing else is computed along the op of such a group.
inline bool is_opaque(GroupKind kind) {
  return kind == GroupKind::kAttention || kind == GroupKind::kAttentionBackward || kind == GroupKind::kIndexStore ||
         kind == GroupKind::kScatterSum || kind == GroupKind::kRowSelect || kind == GroupKind::kRowDraw ||
         kind == GroupKind::kPieces;
}

/// The part of another value's memory in which a value lies.
struct Slice {
  int of = -1;         // owner, -1: the value has memory of its own
  int64_t offset = 0;  // of its first element
};

/// Nodes that one op computes (a matmul group may become several ops). Groups are numbered in an order in which
/// everything that a group reads is computed by earlier groups.
struct Group {
  GroupKind kind = GroupKind::kPointwise;
  std::vector<int> anchors;  // matmul, reduce, attention, index store nodes
  std::vector<int64_t>
      dims;  // iteration domain; row: kept, then reduced dimensions; column: reduced, then kept; matmul: b, m, n
  int reduce_dims = 0;
  std::vector<int64_t> x_sizes;  // row and column: sizes of the (first) reduced value, and where its dimensions went
  std::vector<int64_t> x_dims;   // dims that are reduced
  Coords x_place;                // x's coordinates over the domain; pointwise: of the first value
  std::vector<int> values;       // owners computed by the group, in order
  bool few_rows = false;         // matmul: kMatmulRows
  bool columns = false;          // few rows: weights [k][n]
  bool simple = false;           // matmul: kMatmulSimple or kMatmulFloat
  std::vector<std::pair<uint32_t, int64_t>> components;  // matmuls (bits of anchors) whose values meet; pair distance
  std::vector<int> index_stores;                         // index store nodes that the group's op runs along
  std::string sends_to;                                  // process group to whose ranks it sends; an op has one
};

struct State {
  ir::Graph graph;
  bool tensor_cores = true, few_rows = true;
  Machine machine;
  std::vector<Tensor> tensors;
  std::vector<std::vector<int>> users;  // per owner: nodes that read it or a view of it
  std::vector<int> group_of;            // per owner: group, -1: free (computed from inputs alone, by whoever needs it)
  std::vector<std::optional<Coords>>
      place;  // per owner: its coordinates over its group's domain; none: cannot be stored there
  std::vector<Group> groups;
  std::vector<int>
      kept_by;  // per owner: its group, where earlier groups compute it for themselves (late_sums.h), or -1
  std::vector<uint32_t> value_roots;  // per owner in a matmul group: anchors that it depends on
  // Decisions that survive a restart of the planning.
  std::vector<bool> forced;     // per owner: must be in memory
  std::vector<bool> no_claim;   // per owner: may not join the group of its operands
  std::vector<bool> in_place;   // per owner (index store): written over its destination
  std::vector<int> copied;      // owners that a CopyTo reads
  std::vector<bool> in_pieces;  // per owner (concatenation): written by its pieces (pieces.h)
  std::vector<Slice> slices;    // per owner: of a concatenation
  int restarts = 0;             // of the planning so far
  // Filled by the cuts.
  std::vector<bool> stored;        // per owner
  std::vector<int> first_reader;   // per free owner: first group that reads it
  std::vector<Place> places;       // per owner, once storages are known
  std::vector<int> parts_of_node;  // per node: index into `parts`, or -1
  struct Parts {
    StorageId out = -1, max_sum = -1, range = -1;
    int64_t parts = 1, rows = 1, value_dim = 1, positions_per_part = 256, keys = 0, kv_heads = 1, queries = 1;
    int64_t range_stride = 0;
  };
  std::vector<Parts> parts;

  const ir::Node& node(int i) const { return graph.nodes[static_cast<size_t>(i)]; }
  /// Of the node that computes the value; empty: it is an input.
  std::string node_name(int value) const { return tensor(value).node < 0 ? "" : node(tensor(value).node).name; }
  const Tensor& tensor(int v) const { return tensors[static_cast<size_t>(v)]; }
  int owner(int v) const { return tensors[static_cast<size_t>(v)].owner; }
  bool is_input(int v) const { return tensors[static_cast<size_t>(v)].input >= 0; }
  int group(int v) const { return group_of[static_cast<size_t>(owner(v))]; }
};

/// Owner's coordinates over the view's, or null when they are not expressions.
const Coords* view_map(const State& state, int view);

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes);
int64_t product(const std::vector<int64_t>& sizes);

// The parts, in order. Those that find that a value has to be in memory after all say so by NeedStored; fuse then
// starts again.

/// Planning failed because `owner` is not in memory.
struct NeedStored {
  int owner;
};

/// inplace.cpp: which index stores and copies happen in place.
void find_in_place(State& state);
/// layout.cpp: strides of intermediates that tensor cores read.
void pad_rows(State& state);
/// groups.cpp: group_of, place, groups.
void make_groups(State& state);
/// reduce_domain.cpp: where the result of a reduction lies when its operand lies at `x_place`;
Coords kept_place(const ir::Node& node, const Coords& x_place);
/// kind, dims, reduce_dims and x_... of the group of a reduction of `x`.
void set_reduce_domain(const Tensor& x, const ir::Node& node, Group& group);
/// cuts.cpp: stored.
void choose_stored(State& state);
/// emit.cpp: ops, storages, programs. Returns the owners that turned out to need memory; the result is good when
/// there are none.
std::vector<int> emit(State& state, FusedGraph& result);

/// Node that only moves: reads another value at other coordinates.
bool is_copy_node(const State& state, int node);
/// What an exchange sends to rank `out_index` of `output`, one of its outputs.
inline int sent_value(const State& state, int output) {
  const Tensor& t = state.tensor(output);
  const ir::Node& node = state.node(t.node);
  return node.inputs[ir::num_sent(node) == 1 ? 0 : static_cast<size_t>(t.out_index)];
}
/// What a rank has posted to this one: an output of an exchange behind its boxes.
inline bool is_received_part(const State& state, int value) {
  const Tensor& t = state.tensor(value);
  return t.node >= 0 && state.node(t.node).op == ir::OpKind::kExchange &&
         static_cast<size_t>(t.out_index) >= ir::num_ranks(state.node(t.node));
}
inline bool is_box(const State& state, int value) {
  const Tensor& t = state.tensor(value);
  return t.node >= 0 && state.node(t.node).op == ir::OpKind::kExchange;
}

/// Index store whose every element has at most one candidate: a select instead of a scatter.
bool is_select_store(const State& state, const ir::Node& node);

/// The matmuls of group `g` whose epilogue stores the value of `owner`: those that it depends on; of one computed from
/// adopted values alone (`depends` is empty), those that store the first of them.
inline uint32_t roots_of(const State& state, int owner, int g, uint32_t depends) {
  for (ir::ValueId input : state.node(state.tensor(owner).node).inputs)
    if (depends == 0 && state.group(input) == g) depends = state.value_roots[static_cast<size_t>(state.owner(input))];
  return depends;
}

/// The operand of a matmul or an attention: strides over `dims` (the value's own dimensions), traced through views and
/// copies to a value that can be (or is) in memory.
struct StridedSource {
  int owner = -1;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};
StridedSource strided_source(const State& state, int value);
/// The same without looking through copies.
StridedSource direct_source(const State& state, int value);

/// How a matmul node is computed.
enum class MatmulWay : uint8_t { kRows, kColumns, kTile, kFloat, kSimple };
struct MatmulShape {
  int64_t batch = 1, m = 1, n = 1, k = 1;
  DType dtype = DType::kF32;
  StridedSource a, b;  // strides over (b, m, k) and (b, k, n)
  MatmulWay way = MatmulWay::kSimple;
};
MatmulShape matmul_shape(const State& state, const ir::Node& node);

/// Attention by kAttentionDecode / Forward / Simple.
enum class AttentionWay : uint8_t { kDecode, kForward, kSimple };
AttentionWay attention_way(const State& state, const ir::Node& node);
int64_t attention_parts(const State& state, const ir::Node& node);
/// So many keys are worth a part of decode attention: at most 128 KB, eight pages of the ring's twelve.
inline int64_t positions_per_part(int64_t head_dim) { return head_dim <= 128 ? 256 : 128; }

}  // namespace ark::planner
