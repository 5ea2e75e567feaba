// The ops of values that belong to no group (computed from inputs alone, by whoever needs them) and of copies into
// inputs.
#include <algorithm>

#include "base/check.h"
#include "base/unsupported.h"
#include "planner/fuse/emit.h"

namespace ark::planner {
namespace {

using ir::Node;
using ir::OpKind;

constexpr int64_t kSmallValue =
    4096;  // elements up to which free values of one shape share an op though they share no operand

/// Dimensions by descending stride, and the coordinates that they give.
struct Domain {
  std::vector<int64_t> dims;
  Coords place;
  friend bool operator==(const Domain& a, const Domain& b) { return a.dims == b.dims && a.place == b.place; }
};

Domain domain_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  Domain domain;
  domain.place.resize(sizes.size());
  std::vector<size_t> order(sizes.size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = d;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  for (size_t d : order) {
    if (sizes[d] == 1) continue;
    domain.place[d] = dim_expr(static_cast<int>(domain.dims.size()), sizes[d]);
    domain.dims.push_back(sizes[d]);
  }
  if (domain.dims.empty()) domain.dims.push_back(1);
  return domain;
}

/// Whether the same element of both lies at a place of the domain: their sizes may differ in dimensions of size 1.
bool alike(const Domain& a, const Domain& b) {
  auto moving = [](const Domain& domain) {
    Coords result;
    for (const Expr& expr : domain.place)
      if (!expr.view().empty()) result.push_back(expr);
    return result;
  };
  return a.dims == b.dims && moving(a) == moving(b);
}

}  // namespace

// ---- free values ----

void Emitter::free_value_ops(int position) {
  std::vector<int> pending = std::move(free_at_[static_cast<size_t>(position)]);
  free_at_[static_cast<size_t>(position)].clear();
  while (!pending.empty()) {
    const Tensor& first = state_.tensor(pending[0]);
    const Domain domain = domain_of(first.sizes, first.strides);
    std::vector<int> batch, rest;
    for (int v : pending) {
      const Tensor& t = state_.tensor(v);
      constexpr size_t kMostStores = 4;
      const bool related =
          first.numel <= kSmallValue || share_leaf(pending[0], v) || share_concatenation(pending[0], v);
      const bool together = batch.empty() || (batch.size() < kMostStores && related && !depends_on(v, rest) &&
                                              domain_of(t.sizes, t.strides) == domain);
      (together ? batch : rest).push_back(v);
    }
    try {
      free_op(batch);
    } catch (const NeedStored& need) {
      missing_.push_back(need.owner);
    }
    pending = rest;
  }
}

/// Does the computation of a free value read one of `others`, stored values?
bool Emitter::depends_on(int value, const std::vector<int>& others) const {
  std::set<int> seen;
  std::vector<int> stack{value};
  while (!stack.empty() && !others.empty()) {
    const int v = stack.back();
    stack.pop_back();
    if (std::find(others.begin(), others.end(), v) != others.end()) return true;
    const Tensor& t = state_.tensor(v);
    const bool expands = v == value || (t.node >= 0 && !state_.stored[static_cast<size_t>(v)]);
    if (!expands || !seen.insert(v).second) continue;
    for (ir::ValueId input : state_.node(t.node).inputs) stack.push_back(state_.owner(input));
  }
  return false;
}

/// Do two free values read a tensor of their own size in common?
bool Emitter::share_leaf(int a, int b) const {
  auto leaves = [&](int value) {
    std::set<int> found;
    std::vector<int> stack{value};
    for (int budget = 64; budget > 0 && !stack.empty(); --budget) {
      const int v = stack.back();
      stack.pop_back();
      const Tensor& t = state_.tensor(v);
      if (v != value && !found.insert(v).second) continue;
      if (t.node < 0) continue;
      for (ir::ValueId input : state_.node(t.node).inputs) {
        if (state_.tensor(input).numel * 4 >= t.numel) stack.push_back(state_.owner(input));
      }
    }
    return found;
  };
  const std::set<int> mine = leaves(a);
  for (int v : leaves(b)) {
    if (mine.count(v) > 0) return true;
  }
  return false;
}

/// Do two values write the same concatenation, so far apart that vectors of both begin at the same coordinates? What is
/// sent keeps an op a piece: ranks compare these.
bool Emitter::share_concatenation(int a, int b) const {
  constexpr int64_t kVectorBytes = 16;
  const Slice &mine = state_.slices[static_cast<size_t>(a)], &other = state_.slices[static_cast<size_t>(b)];
  if (mine.of < 0 || mine.of != other.of) return false;
  const std::vector<Node>& nodes = state_.graph.nodes;
  return (mine.offset - other.offset) * size_bytes(state_.tensor(a).dtype) % kVectorBytes == 0 &&
         std::none_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.op == OpKind::kExchange; });
}

void Emitter::free_op(const std::vector<int>& values) {
  const Tensor& first = state_.tensor(values[0]);
  if (first.numel == 0) return;
  const Domain domain = domain_of(first.sizes, first.strides);
  ProgramSpec spec;
  spec.dims = domain.dims;
  spec.computes = values;
  BuiltProgram built = build(state_, spec, [&](ProgramBuilder& builder) {
                         for (int v : values) builder.store(v, domain.place);
                       }).finish();
  if (built.operands.size() > kMaxOperands && values.size() > 1) {
    for (int v : values) free_op({v});
    return;
  }
  FusedOp op;
  set_program_op(op, abi::TaskKind::kPointwise, built);
  finish(std::move(op), built.nodes, -1);
}

// ---- copies into inputs ----

namespace {

/// One copy into an input.
struct Copied {
  int node;
  Domain domain;
  std::set<StorageId> reads;
  StorageId target;
};

using Batch = std::vector<size_t>;  // of items that share an op

/// Copies of one shape that read what the other writes share an op, and so do small ones.
std::vector<Batch> batches_of(const std::vector<Copied>& items) {
  std::vector<Batch> batches;
  for (size_t i = 0; i < items.size(); ++i) {
    bool placed = false;
    for (Batch& batch : batches) {
      if (!alike(items[batch[0]].domain, items[i].domain)) continue;
      std::set<StorageId> touched = items[i].reads;
      bool related = product(items[i].domain.dims) <= kSmallValue;
      for (size_t j : batch) {
        related |= items[i].reads.count(items[j].target) > 0 || items[j].reads.count(items[i].target) > 0;
        touched.insert(items[j].reads.begin(), items[j].reads.end());
      }
      if (!related || touched.size() + batch.size() + 1 > kMaxOperands) continue;
      batch.push_back(i);
      placed = true;
      break;
    }
    if (!placed) batches.push_back({i});
  }
  return batches;
}

/// The first of the batches that are left whose targets no other one of them reads; their number if there is none.
size_t first_ready(const std::vector<Copied>& items, const std::vector<Batch>& batches, const std::vector<bool>& done) {
  for (size_t b = 0; b < batches.size(); ++b) {
    if (done[b]) continue;
    bool ready = true;
    for (size_t other = 0; other < batches.size() && ready; ++other) {
      if (done[other] || other == b) continue;
      for (size_t i : batches[b]) {
        for (size_t j : batches[other]) ready = ready && items[j].reads.count(items[i].target) == 0;
      }
    }
    if (ready) return b;
  }
  return batches.size();
}

}  // namespace

void Emitter::copies() {
  std::vector<Copied> items;
  for (int i = 0; i < static_cast<int>(state_.graph.nodes.size()); ++i) {
    const Node& node = state_.node(i);
    if (node.op != OpKind::kCopyTo) continue;
    const int src = node.inputs[1];
    const Tensor& dst = state_.tensor(node.inputs[0]);
    const auto src_owner = static_cast<size_t>(state_.owner(src));
    const bool done = state_.in_place[src_owner] &&
                      state_.places[src_owner].storage == state_.places[static_cast<size_t>(dst.owner)].storage;
    if (done || dst.numel == 0) continue;
    Copied item{i, domain_of(dst.sizes, dst.strides), {}, state_.places[static_cast<size_t>(dst.owner)].storage};
    ProgramSpec spec;
    spec.dims = item.domain.dims;
    try {
      ProgramBuilder builder(state_, spec);
      builder.eval(src, builder.lift(item.domain.place));
      const BuiltProgram built = builder.finish();
      for (size_t k = 0; k < built.operands.size(); ++k) {
        if (built.access[k] == Access::kRead) item.reads.insert(static_cast<StorageId>(built.operands[k].slot));
      }
    } catch (const NeedStored& need) {
      missing_.push_back(need.owner);
      continue;
    }
    items.push_back(std::move(item));
  }
  // A batch that reads a target comes before the batch that writes it; so do the copies of one that is too wide.
  const auto emit = [&](const auto& self, const std::vector<Batch>& batches) -> void {
    std::vector<bool> done(batches.size(), false);
    for (size_t left = batches.size(); left > 0; --left) {
      const size_t next = first_ready(items, batches, done);
      if (next == batches.size()) {  // each reads what the other writes: one has to be in memory first
        for (size_t b = 0; b < batches.size(); ++b) {
          for (size_t i : batches[b]) {
            const int src = state_.owner(state_.node(items[i].node).inputs[1]);
            if (!done[b] && !state_.is_input(src)) missing_.push_back(src);
          }
        }
        check<UnsupportedError>(!missing_.empty(), "inputs that are copied to each other");
        return;
      }
      done[next] = true;
      std::vector<int> nodes;
      for (size_t i : batches[next]) nodes.push_back(items[i].node);
      try {
        if (copy_op(nodes)) continue;
        std::vector<Batch> single;
        for (size_t i : batches[next]) single.push_back({i});
        self(self, single);
      } catch (const NeedStored& need) {
        missing_.push_back(need.owner);
      }
    }
  };
  emit(emit, batches_of(items));
}

/// False, and no op, where several copies have too many operands for one.
bool Emitter::copy_op(const std::vector<int>& nodes) {
  const Tensor& first = state_.tensor(state_.node(nodes[0]).inputs[0]);
  const Domain domain = domain_of(first.sizes, first.strides);
  ProgramSpec spec;
  spec.dims = domain.dims;
  BuiltProgram built = build(state_, spec, [&](ProgramBuilder& builder) {
                         for (int i : nodes) {
                           const Node& node = state_.node(i);
                           const Tensor& dst = state_.tensor(node.inputs[0]);
                           const StorageId storage = state_.places[static_cast<size_t>(dst.owner)].storage;
                           const Coords place = domain_of(dst.sizes, dst.strides).place;
                           builder.copy(node.inputs[1], place, {storage, dst.strides, dst.offset});
                         }
                       }).finish();
  if (built.operands.size() > kMaxOperands && nodes.size() > 1) return false;
  // What is overwritten may be read in the same op only at the same place.
  for (size_t w = 0; w < built.operands.size(); ++w) {
    if (built.access[w] != Access::kWrite) continue;
    for (size_t r = 0; r < built.operands.size(); ++r) {
      const abi::Operand &x = built.operands[r], &y = built.operands[w];
      if (built.access[r] != Access::kRead || x.slot != y.slot) continue;
      const bool same = x.offset == y.offset && x.index_operand < 0 && y.index_operand < 0 &&
                        std::equal(x.stride, x.stride + abi::kMaxDims, y.stride);
      if (same) continue;
      for (int i : nodes) {  // what is computed can be in memory before
        const int src = state_.owner(state_.node(i).inputs[1]);
        if (!state_.is_input(src)) missing_.push_back(src);
      }
      const std::string& name = state_.node(nodes[0]).name;
      check_node(!missing_.empty(), name, "copy_ '", name, "' of an input to itself");
      return true;
    }
  }
  FusedOp op;
  set_program_op(op, abi::TaskKind::kPointwise, built);
  std::vector<int> computed = built.nodes;
  computed.insert(computed.end(), nodes.begin(), nodes.end());
  finish(std::move(op), computed, -1);
  return true;
}

}  // namespace ark::planner
