// Storages, and the ops of pointwise, row and column groups.
#include "planner/fuse/emit.h"

#include <algorithm>

#include "base/check.h"
#include "base/unsupported.h"

namespace ark::planner {
namespace {

using ir::Node;
using ir::OpKind;

size_t hash_of(const Program& program) {
  size_t h = static_cast<size_t>(program.kind) * 31 + program.instrs.size();
  for (const Instr& i : program.instrs) {
    for (const int64_t x :
         {int64_t{static_cast<int>(i.op)}, int64_t{i.a}, int64_t{i.b}, int64_t{i.c}, int64_t{i.operand}, i.imm_int}) {
      h = h * 1000003 + static_cast<size_t>(x);
    }
  }
  return h;
}

}  // namespace

std::vector<int> Emitter::run() {
  make_storages();
  const int groups = static_cast<int>(state_.groups.size());
  emitted_.assign(state_.groups.size(), false);
  free_at_.resize(state_.groups.size() + 1);
  for (const Node& node : state_.graph.nodes) {
    if (node.op == OpKind::kView || node.op == OpKind::kCopyTo) continue;
    for (ir::ValueId v : node.outputs) {
      const auto o = static_cast<size_t>(v);
      if (state_.group_of[o] < 0 && state_.stored[o])
        free_at_[static_cast<size_t>(state_.first_reader[o])].push_back(v);
    }
  }
  for (int g = 0; g < groups; ++g) {
    free_value_ops(g);
    if (!emitted_[static_cast<size_t>(g)]) emit_group(g);
  }
  free_value_ops(groups);
  copies();
  outputs();
  return missing_;
}

std::vector<int> emit(State& state, FusedGraph& result) { return Emitter(state, result).run(); }

// ---- storages ----

StorageId Emitter::add_storage(DType dtype, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                               const std::string& name) {
  Storage storage;
  storage.dtype = dtype;
  storage.sizes = sizes;
  storage.strides = strides;
  storage.name = name;
  storage.num_elements = 1;
  for (size_t d = 0; d < sizes.size(); ++d) storage.num_elements += (sizes[d] - 1) * strides[d];
  if (product(sizes) == 0) storage.num_elements = 0;
  result_.storages.push_back(std::move(storage));
  writer_.push_back(-1);
  sliced_.push_back(false);
  return static_cast<StorageId>(result_.storages.size()) - 1;
}

void Emitter::make_storages() {
  state_.places.assign(state_.tensors.size(), Place{});
  state_.parts_of_node.assign(state_.graph.nodes.size(), -1);
  state_.parts.clear();
  for (size_t i = 0; i < state_.graph.inputs.size(); ++i) {
    const int v = state_.graph.inputs[i];
    const Tensor& t = state_.tensor(v);
    const StorageId id = add_storage(t.dtype, t.sizes, t.strides, state_.graph.values[static_cast<size_t>(v)].name);
    result_.storages.back().input = static_cast<int32_t>(i);
    result_.storages.back().immutable = true;
    state_.places[static_cast<size_t>(v)] = {id, t.strides, 0};
  }
  auto written = [&](int input) {
    result_.storages[static_cast<size_t>(state_.places[static_cast<size_t>(input)].storage)].immutable = false;
  };
  int exchanges = 0;
  std::map<int, int> exchange_of;  // per node: its number
  for (size_t i = 0; i < state_.graph.nodes.size(); ++i) {
    const Node& node = state_.graph.nodes[i];
    if (node.op == OpKind::kExchange) exchange_of[static_cast<int>(i)] = ++exchanges;
    if (node.op == OpKind::kCopyTo) written(state_.owner(node.inputs[0]));
    if (node.op == OpKind::kView || node.op == OpKind::kCopyTo) continue;
    for (ir::ValueId v : node.outputs) {
      if (!state_.stored[static_cast<size_t>(v)]) continue;
      if (state_.in_place[static_cast<size_t>(v)]) {
        written(state_.owner(node.inputs[0]));
        state_.places[static_cast<size_t>(v)] = state_.places[static_cast<size_t>(state_.owner(node.inputs[0]))];
        continue;
      }
      if (state_.slices[static_cast<size_t>(v)].of >= 0) continue;  // see place_slices
      const Tensor& t = state_.tensor(v);
      const StorageId id = add_storage(t.dtype, t.sizes, t.strides, state_.graph.values[static_cast<size_t>(v)].name);
      result_.storages.back().returned = t.output;
      if (is_received_part(state_, v)) {
        result_.storages.back().part = exchanges;
        result_.storages.back().source = node.attrs.map[static_cast<size_t>(t.out_index) - ir::num_ranks(node)];
      } else if (node.op == OpKind::kExchange) {
        result_.storages.back().exchange = exchanges;
        result_.storages.back().source = t.out_index;
        result_.storages.back().group = number_of_group(result_, node.attrs.group);
      } else if (joins_boxes(node)) {
        const int exchange = state_.tensor(node.inputs[0]).node;
        result_.storages.back().exchange = exchange_of[exchange];
        result_.storages.back().group = number_of_group(result_, state_.node(exchange).attrs.group);
      }
      state_.places[static_cast<size_t>(v)] = {id, t.strides, 0};
    }
    if (node.op == OpKind::kExchange) note_parts(node, exchanges);
  }
  place_slices();
}

/// What an uneven exchange sends to single ranks.
void Emitter::note_parts(const Node& exchange, int number) {
  for (size_t i = 0; i < exchange.attrs.ints.size(); ++i) {
    const int sent = exchange.inputs[ir::num_sent(exchange) + i];
    Storage& storage = result_.storages[static_cast<size_t>(state_.places[static_cast<size_t>(sent)].storage)];
    storage.part = number;
    storage.source = static_cast<int32_t>(exchange.attrs.ints[i]);
  }
}

/// A concatenation whose memory is that of an exchange's boxes.
bool Emitter::joins_boxes(const Node& node) const {
  return node.op == OpKind::kCat && state_.in_pieces[static_cast<size_t>(node.outputs[0])] &&
         is_box(state_, node.inputs[0]);
}

/// A slice lies in the memory of another value.
void Emitter::place_slices() {
  for (size_t v = 0; v < state_.slices.size(); ++v) {
    const Slice& slice = state_.slices[v];
    if (slice.of < 0) continue;
    const Place& whole = state_.places[static_cast<size_t>(slice.of)];
    state_.places[v] = {whole.storage, whole.strides, whole.offset + slice.offset};
    sliced_[static_cast<size_t>(whole.storage)] = true;
  }
}

void Emitter::outputs() {
  std::map<StorageId, int> fresh;
  for (ir::ValueId out : state_.graph.outputs) {
    const Tensor& t = state_.tensor(out);
    const Tensor& owner = state_.tensor(t.owner);
    plan::Output output;
    output.sizes = t.sizes;
    output.strides = t.strides;
    output.offset = t.offset;
    output.whole = t.offset == 0 && t.sizes == owner.sizes && t.strides == owner.strides;
    if (owner.input >= 0) {
      output.input = owner.input;
    } else {
      const StorageId id = state_.places[static_cast<size_t>(t.owner)].storage;
      const auto [found, added] = fresh.emplace(id, static_cast<int>(result_.fresh.size()));
      if (added) {
        result_.fresh.push_back({owner.dtype, owner.sizes, owner.strides});
        result_.fresh_storage.push_back(id);
      }
      output.fresh = found->second;
    }
    result_.outputs.push_back(std::move(output));
  }
}

// ---- what all ops share ----

abi::Operand Emitter::absent_operand() {
  abi::Operand x{};
  x.slot = abi::kNoSlot;
  x.vector = 1;
  x.index_operand = -1;
  return x;
}

int Emitter::add_program(const Program& program) {
  const size_t h = hash_of(program);
  const auto [begin, end] = program_numbers_.equal_range(h);
  for (auto it = begin; it != end; ++it) {
    if (result_.programs[static_cast<size_t>(it->second)] == program) return it->second;
  }
  result_.programs.push_back(program);
  program_numbers_.emplace(h, static_cast<int>(result_.programs.size()) - 1);
  return static_cast<int>(result_.programs.size()) - 1;
}

/// Appends the program's operands to the op; number of the first.
int Emitter::append(FusedOp& op, const BuiltProgram& built) {
  const int first = static_cast<int>(op.op.operands.size());
  for (size_t i = 0; i < built.operands.size(); ++i) {
    abi::Operand x = built.operands[i];
    if (x.index_operand >= 0) x.index_operand = static_cast<signed char>(x.index_operand + first);
    op.op.operands.push_back(x);
    op.access.push_back(built.access[i]);
  }
  return first;
}

void Emitter::set_program_op(FusedOp& op, abi::TaskKind kind, const BuiltProgram& built) {
  abi::OpRecord& record = op.op.record;
  record.kind = kind;
  std::fill(record.size, record.size + abi::kMaxDims, 1);
  std::copy(built.dims.begin(), built.dims.end(), record.size);
  abi::ProgramParams& p = record.params.program;
  p.first_operand = append(op, built);
  p.program = add_program(built.program);
  p.num_dims = built.program.num_dims;
  p.reduce_dims = built.program.reduce_dims;
  p.num_rows = p.row_size = 1;
  for (int d = 0; d < p.num_dims; ++d) {
    const bool reduced = kind == abi::TaskKind::kColumn ? d < p.reduce_dims : d >= p.num_dims - p.reduce_dims;
    (reduced ? p.row_size : p.num_rows) *= record.size[d];
  }
  op.op.programs = {p.program};
}

int64_t Emitter::touched_bytes(const FusedOp& op) const {
  std::map<std::pair<uint32_t, bool>, int64_t> per_storage;
  int64_t domain = 1;
  for (const int64_t size : op.op.record.size) domain *= std::max<int64_t>(1, size);
  for (size_t i = 0; i < op.op.operands.size(); ++i) {
    const abi::Operand& x = op.op.operands[i];
    if (x.slot == abi::kNoSlot || op.access[i] == Access::kParameters) continue;
    const Storage& storage = result_.storages[x.slot];
    const bool writes = op.access[i] != Access::kRead;
    int64_t elements = storage.num_elements;
    if (x.index_operand >= 0) elements = std::min(elements, domain);
    int64_t& bytes = per_storage[{x.slot, writes}];
    if (writes && sliced_[x.slot]) {  // each operand a slice of its own
      bytes += std::min(elements, domain) * size_bytes(storage.dtype);
    } else {
      bytes = elements * size_bytes(storage.dtype);
    }
  }
  int64_t sum = 0;
  for (const auto& [key, bytes] : per_storage) sum += bytes;
  return sum;
}

/// Names of the nodes that say what an op does, the main one first.
std::vector<std::string> Emitter::told_nodes(const std::vector<int>& nodes, int main_node) const {
  std::vector<std::string> names;
  if (main_node >= 0) names.push_back(state_.node(main_node).name);
  for (int i : nodes) {
    const Node& node = state_.node(i);
    const bool dull = node.op == OpKind::kFull || node.op == OpKind::kIota || is_copy_node(state_, i);
    if (i != main_node && !dull) names.push_back(node.name);
  }
  if (names.empty() && !nodes.empty()) names.push_back(state_.node(*nodes.begin()).name);
  return names;
}

static std::string joined_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names.size() > kShown && i == kShown - 1) {
      return text + "..+" + names.back();
    }
    text += (i > 0 ? "+" : "") + names[i];
  }
  return text;
}

/// An op with too many operands: values at even distances among its nodes go to memory, and fusion starts again. Pieces
/// of concatenations first, as their readers share nothing; then values that the op only computes on the way; then
/// values of the group, which is cut there.
void Emitter::cut(const FusedOp& op, const std::vector<int>& nodes) {
  constexpr int kCutRestarts = 100;  // later the op is left to ATen, the others stay
  std::vector<int> pieces, passing, own;
  for (int i : nodes) {
    const Node& node = state_.node(i);
    const bool reduces = node.op == OpKind::kReduce;
    if ((node.op != OpKind::kPointwise && node.op != OpKind::kCat && !reduces) || is_copy_node(state_, i)) continue;
    const int owner = state_.owner(node.outputs[0]);
    const auto o = static_cast<size_t>(owner);
    if (state_.group_of[o] >= 0) {
      if (!state_.no_claim[o] && i != nodes.back()) own.push_back(owner);
    } else if (!state_.forced[o] && !state_.stored[o] && !reduces) {
      (node.op == OpKind::kCat ? pieces : passing).push_back(owner);
    }
  }
  const std::vector<int>& values = !pieces.empty() ? pieces : !passing.empty() ? passing : own;
  if (values.empty() || state_.restarts >= kCutRestarts)
    throw TooLong(cat("op '", op.op.name, "'"), "operands", static_cast<int64_t>(op.op.operands.size()), kMaxOperands,
                  op.op.node);
  const size_t parts = std::min(op.op.operands.size() / kMaxOperands, values.size()) + 1;
  for (size_t part = 1;; ++part) {
    const int cut = values[values.size() * part / parts];
    // What is in memory already, joins no group any more.
    if (state_.group_of[static_cast<size_t>(cut)] >= 0) state_.forced[static_cast<size_t>(cut)] = true;
    if (part + 1 == parts) throw NeedStored{cut};
    missing_.push_back(cut);
  }
}

void Emitter::finish(FusedOp op, std::vector<int> nodes, int main_node) {
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  const int representative = main_node >= 0 ? main_node : nodes.empty() ? -1 : nodes.back();
  const std::vector<std::string> told = told_nodes(nodes, main_node);
  op.op.name = joined_names(told);
  if (!told.empty()) op.op.node = told.front();
  if (representative >= 0) op.op.module = state_.node(representative).module;
  op.op.bytes = touched_bytes(op);
  op.spread_rows = std::any_of(nodes.begin(), nodes.end(), [&](int n) { return state_.node(n).attrs.of_part; });
  op.op.record.op = static_cast<int>(result_.ops.size());
  op.op.record.num_operands = static_cast<int>(op.op.operands.size());
  op.op.record.record_bytes = static_cast<int>(sizeof(abi::OpRecord) + op.op.operands.size() * sizeof(abi::Operand));
  if (op.op.operands.size() > kMaxOperands) cut(op, nodes);
  for (size_t i = 0; i < op.access.size(); ++i) {
    const bool writes = op.access[i] == Access::kWrite || op.access[i] == Access::kReadWrite;
    const uint32_t slot = op.op.operands[i].slot;
    if (writes && slot != abi::kNoSlot && !sliced_[slot]) writer_[slot] = static_cast<int>(result_.ops.size());
  }
  result_.ops.push_back(std::move(op));
}

// ---- groups ----

void Emitter::emit_group(int g) {
  const Group& group = state_.groups[static_cast<size_t>(g)];
  const bool in_parts = group.kind == GroupKind::kAttention && group.values.size() == 1;
  const bool wanted = !group.index_stores.empty() || in_parts ||
                      std::any_of(group.values.begin(), group.values.end(),
                                  [&](int v) { return state_.stored[static_cast<size_t>(v)]; });
  if (!wanted) return;
  if (group.kind == GroupKind::kPieces) {  // by now all of them have been stored
    writer_[static_cast<size_t>(state_.places[static_cast<size_t>(group.values[0])].storage)] =
        static_cast<int>(result_.ops.size()) - 1;
    return;
  }
  for (int v : group.values) {
    const auto o = static_cast<size_t>(v);
    const bool elementwise = !is_received_part(state_, v) && group.kind != GroupKind::kAttention &&
                             group.kind != GroupKind::kAttentionBackward && group.kind != GroupKind::kScatterSum &&
                             group.kind != GroupKind::kRowSelect && group.kind != GroupKind::kRowDraw &&
                             state_.node(state_.tensor(v).node).op != OpKind::kIndexStore;
    if (elementwise && state_.stored[o] && !state_.place[o]) missing_.push_back(v);
  }
  try {
    switch (group.kind) {
      case GroupKind::kPointwise:
      case GroupKind::kRow:
      case GroupKind::kColumn:
        return program_group(g);
      case GroupKind::kMatmul:
        return matmul_group(g);
      case GroupKind::kAttention:
        return attention_group(g);
      case GroupKind::kAttentionBackward:
        return attention_backward_group(g);
      case GroupKind::kIndexStore:
        return index_store_group(g);
      case GroupKind::kScatterSum:
        return scatter_sum_group(g);
      case GroupKind::kRowSelect:
        return row_select_group(g);
      case GroupKind::kRowDraw:
        return row_draw_group(g);
      case GroupKind::kPieces:
        return;
    }
  } catch (const NeedStored& need) {
    missing_.push_back(need.owner);
  }
}

void Emitter::program_group(int g) {
  const Group& group = state_.groups[static_cast<size_t>(g)];
  if (product(group.dims) == 0 && group.reduce_dims == 0) return;
  ProgramSpec spec;
  spec.group = g;
  spec.dims = group.dims;
  spec.reduce_dims = group.reduce_dims;
  spec.kind = group.kind == GroupKind::kRow      ? ProgramKind::kRow
              : group.kind == GroupKind::kColumn ? ProgramKind::kColumn
                                                 : ProgramKind::kPointwise;
  BuiltProgram built = build(state_, spec, [&](ProgramBuilder& builder) {
                         for (int v : group.values) {
                           if (state_.stored[static_cast<size_t>(v)] && state_.place[static_cast<size_t>(v)]) {
                             builder.store(v, *state_.place[static_cast<size_t>(v)]);
                           }
                         }
                         for (int i : group.index_stores) builder.index_store(i, source_place(i));
                       }).finish();
  FusedOp op;
  const abi::TaskKind kind = group.kind == GroupKind::kRow      ? abi::TaskKind::kRow
                             : group.kind == GroupKind::kColumn ? abi::TaskKind::kColumn
                                                                : abi::TaskKind::kPointwise;
  set_program_op(op, kind, built);
  finish(std::move(op), built.nodes, -1);
}

/// Coordinates of an index store's source over the domain of the group that computes it.
Coords Emitter::source_place(int node) const {
  const int src = state_.node(node).inputs[1];
  const Tensor& t = state_.tensor(src);
  const Coords& owner_place = *state_.place[static_cast<size_t>(t.owner)];
  if (t.owner == src) return owner_place;
  const std::optional<Expr> linear = linearize(owner_place, state_.tensor(t.owner).strides, 0);
  check(linear.has_value(), "source of index store '", state_.node(node).name, "'");
  return *delinearize(*linear, t.sizes, t.strides);
}

}  // namespace ark::planner
