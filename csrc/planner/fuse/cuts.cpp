// Decides which values get memory. Groups are visited from the last to the first, so that everybody who reads a group
// is known; of the values that could be handed over, the cheapest set is taken, in bytes moved and ops started. What is
// not handed over is computed again by its readers. Matrix products, reductions and attentions are never computed
// again, except that the prologue of a few-row matmul may take over the rows that it reads.
#include <algorithm>
#include <map>
#include <unordered_set>

#include "base/check.h"
#include "planner/fuse/prologue_cost.h"
#include "planner/fuse/row_factor.h"
#include "planner/fuse/state.h"

namespace ark::planner {
namespace {

using ir::Node;
using ir::OpKind;

constexpr double kOpBytes = 4e6;  // an op costs about a microsecond of memory traffic (docs/notes)
constexpr double kBytesPerSecond = 4e12;
constexpr double kExpensiveBytes = 4;  // a transcendental function, in bytes of traffic per element
constexpr double kSmallTable = 65536;  // elements of a table whose functions are not computed twice
constexpr int kPrologue = 1 << 24;     // readers: groups, kPrologue + activation, kFree + value
constexpr int kFree = 1 << 28;

bool is_expensive(Opcode op) {
  switch (op) {
    case Opcode::kExp:
    case Opcode::kExp2:
    case Opcode::kExpm1:
    case Opcode::kLog:
    case Opcode::kLog2:
    case Opcode::kLog1p:
    case Opcode::kSin:
    case Opcode::kCos:
    case Opcode::kTan:
    case Opcode::kTanh:
    case Opcode::kSigmoid:
    case Opcode::kErf:
    case Opcode::kErfc:
    case Opcode::kPow:
    case Opcode::kAsin:
    case Opcode::kAcos:
    case Opcode::kAtan:
    case Opcode::kAtan2:
    case Opcode::kSinh:
    case Opcode::kCosh:
    case Opcode::kAsinh:
    case Opcode::kAcosh:
    case Opcode::kAtanh:
    case Opcode::kLgamma:
    case Opcode::kFmod:
    case Opcode::kRemainder:
      return true;
    default:
      return false;
  }
}

struct Demand {
  int value, reader;
};

/// What computing some values takes.
struct Walk {
  std::vector<int> leaves;  // owners that are read
  double compute = 0;       // in bytes
  bool reaches_anchor = false;
  bool reduces = false;  // through a reduction of rows
};

class Cutter {
 public:
  explicit Cutter(State& state) : state_(state), demands_(state.groups.size()), mark_(state.tensors.size(), 0) {
    state.stored.assign(state.tensors.size(), false);
    free_readers_.resize(state.tensors.size());
    state.first_reader.assign(state.tensors.size(), static_cast<int>(state.groups.size()));
  }

  void run() {
    for (int g = static_cast<int>(state_.groups.size()) - 1; g >= 0; --g) visit(g);
    free_values();
  }

 private:
  const Group& group(int g) const { return state_.groups[static_cast<size_t>(g)]; }
  bool stored(int v) const { return state_.stored[static_cast<size_t>(v)]; }
  static bool is_prologue(int reader) { return reader >= kPrologue && reader < kFree; }

  void demand(int value, int reader) {
    const int v = state_.owner(value);
    if (state_.is_input(v)) return;
    const int g = state_.group_of[static_cast<size_t>(v)];
    if (g == reader) return;
    const int kept_by = state_.kept_by[static_cast<size_t>(v)];
    // the prologue of the op that stores it comes before too
    if (g >= 0 && (reader_group(reader) < kept_by || (is_prologue(reader) && reader_group(reader) == kept_by))) {
      for (ir::ValueId input : inputs(v)) demand(input, reader);
    } else if (g >= 0) {
      demands_[static_cast<size_t>(g)].push_back({v, reader});
    } else {
      std::vector<int>& readers = free_readers_[static_cast<size_t>(v)];
      if (std::find(readers.begin(), readers.end(), reader) == readers.end()) readers.push_back(reader);
    }
  }

  /// Inputs of an owner's node that decide its elements.
  const std::vector<ir::ValueId>& inputs(int v) const { return state_.node(state_.tensor(v).node).inputs; }

  bool is_anchor(int v) const {
    const OpKind op = state_.node(state_.tensor(v).node).op;
    if (op == OpKind::kAttention)
      return state_.group_of[static_cast<size_t>(v)] >= 0 && group(state_.group(v)).kind == GroupKind::kAttention;
    return op == OpKind::kMatmul || op == OpKind::kReduce || op == OpKind::kAttentionBackward ||
           op == OpKind::kScatterSum || op == OpKind::kRowSelect || op == OpKind::kRowDraw ||
           (op == OpKind::kIndexStore && !is_select_store(state_, state_.node(state_.tensor(v).node)));
  }

  /// Walks back from `values` within group g to values outside of it and to `stops`.
  Walk walk(const std::vector<int>& values, int g, const std::vector<int>& stops, bool through_rows) {
    Walk result;
    ++stamp_;
    std::vector<int> stack = values;
    while (!stack.empty()) {
      const int v = stack.back();
      stack.pop_back();
      int64_t& seen = mark_[static_cast<size_t>(v)];
      if (seen == stamp_) continue;
      seen = stamp_;
      const bool own = std::find(values.begin(), values.end(), v) != values.end();
      const bool outside = state_.is_input(v) || state_.group_of[static_cast<size_t>(v)] != g ||
                           (g < 0 && !own && state_.forced[static_cast<size_t>(v)]);
      if (outside || std::find(stops.begin(), stops.end(), v) != stops.end()) {
        result.leaves.push_back(v);
        continue;
      }
      expand(v, g, through_rows, result, stack);
    }
    return result;
  }

  void expand(int v, int g, bool through_rows, Walk& result, std::vector<int>& stack) {
    const Tensor& t = state_.tensor(v);
    const Node& node = state_.node(t.node);
    if (is_anchor(v)) {
      const bool row = g >= 0 && group(g).kind == GroupKind::kRow && node.op == OpKind::kReduce;
      result.reduces |= row;
      if (!(through_rows && row)) {
        result.reaches_anchor = true;
        if (node.op == OpKind::kMatmul || node.op == OpKind::kAttention) return;
      }
    }
    if (node.op == OpKind::kAttention) return;  // combined from parts
    if (node.op == OpKind::kPointwise && is_expensive(node.attrs.opcode))
      result.compute += kExpensiveBytes * static_cast<double>(t.numel);
    if (node.op == OpKind::kRand) result.compute += 4 * kExpensiveBytes * static_cast<double>(t.numel);
    for (ir::ValueId input : node.inputs) stack.push_back(state_.owner(input));
  }

  double leaf_bytes(int v, double domain) const {
    const Tensor& t = state_.tensor(v);
    // A gathered table is not read as a whole.
    return std::min(static_cast<double>(t.bytes()), domain * size_bytes(t.dtype));
  }

  double bytes_of(const Walk& walk, double domain) const {
    double sum = walk.compute;
    for (int v : walk.leaves) {
      if (state_.is_input(v) || state_.group_of[static_cast<size_t>(v)] >= 0 || state_.forced[static_cast<size_t>(v)]) {
        sum += leaf_bytes(v, domain);
      } else {
        sum += free_bytes(v, domain);
      }
    }
    return sum;
  }

  /// Bytes that computing a free value reads.
  double free_bytes(int v, double domain, int depth = 0) const {
    const Tensor& t = state_.tensor(v);
    if (state_.is_input(v) || state_.forced[static_cast<size_t>(v)] || depth > 12) return leaf_bytes(v, domain);
    double sum = 0;
    for (ir::ValueId input : inputs(v)) sum += free_bytes(state_.owner(input), domain, depth + 1);
    return std::min(sum, 4 * static_cast<double>(t.bytes()));
  }

  int64_t rows_of(int activation) const {
    const Tensor& t = state_.tensor(activation);
    return t.sizes.empty() ? 1 : t.numel / std::max<int64_t>(1, t.sizes.back());
  }
  /// A function of others: a sum in another type, or its square.
  bool follows_from(int v, const std::vector<int>& others) const {
    if (state_.is_input(v) || state_.tensor(v).node < 0 || inputs(v).empty()) return false;
    return std::all_of(inputs(v).begin(), inputs(v).end(), [&](ir::ValueId input) {
      const int source = state_.owner(input);
      return source != v && std::find(others.begin(), others.end(), source) != others.end();
    });
  }
  /// The type in which a reader gets a value: of a cast to a wider one, that of its source, which is what is stored.
  DType read_dtype(int v) const {
    const Tensor& t = state_.tensor(v);
    if (state_.is_input(v) || t.node < 0) return t.dtype;
    const Node& node = state_.node(t.node);
    if (node.op != OpKind::kPointwise || node.attrs.opcode != Opcode::kCast) return t.dtype;
    const int source = state_.owner(inputs(v).front());
    return size_bytes(state_.tensor(source).dtype) < size_bytes(t.dtype) ? read_dtype(source) : t.dtype;
  }
  /// What a prologue of several rows costs beyond its bytes: every worker computes all of it.
  double prologue_bytes(const Walk& walk, int activation) const {
    const Tensor& t = state_.tensor(activation);
    const int64_t k = t.sizes.empty() ? 1 : t.sizes.back();
    if (walk.leaves.size() == 1 && walk.leaves.front() == activation) return 0;
    PrologueReads reads;
    for (int v : walk.leaves) {
      const Tensor& leaf = state_.tensor(v);
      if (leaf.numel >= std::max<int64_t>(k, 2) && !follows_from(v, walk.leaves)) reads.add(read_dtype(v));
    }
    const RowReduction reduction = walk.reduces ? row_reduction(state_, activation, walk.leaves) : RowReduction::kNone;
    return kBytesPerSecond * prologue_seconds(state_.machine.costs, rows_of(activation), k, reads, reduction);
  }

  // ---- groups ----

  void visit(int g) {
    const Group& x = group(g);
    std::vector<Demand>& demands = demands_[static_cast<size_t>(g)];
    const bool opaque = is_opaque(x.kind);
    std::vector<int> chosen;
    bool must_run = !x.index_stores.empty();
    for (int v : x.values) {
      bool wanted = state_.forced[static_cast<size_t>(v)] || state_.kept_by[static_cast<size_t>(v)] == g;
      if (!wanted && (opaque || is_index_store(v))) {
        wanted = std::any_of(demands.begin(), demands.end(), [&](const Demand& d) { return d.value == v; });
        wanted |= state_.in_place[static_cast<size_t>(v)];
      }
      if (wanted) chosen.push_back(v);
    }
    if (opaque) {
      const bool in_parts =
          x.kind == GroupKind::kAttention && x.values.size() == 1;  // its output belongs to the next group
      if (in_parts) return propagate_own(g, chosen);
      if (chosen.empty() && demands.empty()) return;
      if (x.kind == GroupKind::kAttention && std::find(chosen.begin(), chosen.end(), x.values[1]) == chosen.end())
        chosen.push_back(x.values[1]);
      for (const Demand& d : demands) {
        if (std::find(chosen.begin(), chosen.end(), d.value) == chosen.end()) chosen.push_back(d.value);
      }
    } else {
      choose(g, demands, must_run, chosen);
    }
    if (chosen.empty() && !must_run) return propagate_readers(g, demands, chosen);
    for (int v : chosen) state_.stored[static_cast<size_t>(v)] = true;
    propagate_readers(g, demands, chosen);
    propagate_own(g, chosen);
  }

  /// A store that runs along the group's op. One that selects is computed by whoever needs it, like any other value.
  bool is_index_store(int v) const {
    const int made_by = state_.tensor(v).node;
    if (made_by < 0) return false;  // an input
    const Node& node = state_.node(made_by);
    if (node.op != OpKind::kIndexStore || state_.place[static_cast<size_t>(v)]) return false;
    return state_.in_place[static_cast<size_t>(v)] || !is_select_store(state_, node);
  }

  struct Reading {
    int reader;
    std::vector<int> values;
  };

  void choose(int g, const std::vector<Demand>& demands, bool must_run, std::vector<int>& chosen) {
    std::map<int, Reading> readings;
    for (const Demand& d : demands) {
      if (std::find(chosen.begin(), chosen.end(), d.value) != chosen.end()) continue;
      Reading& r = readings[d.reader];
      r.reader = d.reader;
      if (std::find(r.values.begin(), r.values.end(), d.value) == r.values.end()) r.values.push_back(d.value);
    }
    if (readings.empty()) return;
    std::vector<int> candidates;
    for (int v : group(g).values) {
      if (state_.place[static_cast<size_t>(v)] && std::find(chosen.begin(), chosen.end(), v) == chosen.end())
        candidates.push_back(v);
    }
    const double domain = static_cast<double>(product(group(g).dims));
    const bool for_prologues = std::any_of(readings.begin(), readings.end(), [&](const auto& reading) {
      return is_prologue(reading.first) && rows_of(reading.first - kPrologue) > 1;
    });
    auto cost = [&](const std::vector<int>& set) {
      double sum = 0;
      for (const auto& [reader, reading] : readings) {
        const Walk w = walk(reading.values, g, set, is_prologue(reader));
        if (w.reaches_anchor) return -1.0;
        sum += bytes_of(w, domain);
        if (is_prologue(reader)) sum += prologue_bytes(w, reader - kPrologue);
      }
      if (set.empty() && !must_run) return sum;
      sum += bytes_of(walk(set, g, {}, true), domain);
      for (int v : set) sum += static_cast<double>(state_.tensor(v).bytes());
      if (group(g).kind != GroupKind::kMatmul)
        sum += for_prologues ? kBytesPerSecond * state_.machine.costs.row_op : kOpBytes;
      return sum;
    };
    std::vector<int> best = chosen;
    double best_cost = cost(chosen);
    auto consider = [&](const std::vector<int>& set) {
      const double c = cost(set);
      if (c >= 0 && (best_cost < 0 || c <= best_cost)) {
        best_cost = c;
        best = set;
      }
    };
    for (int v : candidates) {
      std::vector<int> set = chosen;
      set.push_back(v);
      consider(set);
    }
    std::vector<int> all = chosen;
    for (const auto& [reader, reading] : readings) {
      for (int v : reading.values) {
        if (std::find(all.begin(), all.end(), v) == all.end()) all.push_back(v);
      }
    }
    const bool storable = std::all_of(all.begin(), all.end(), [&](int v) {
      return state_.place[static_cast<size_t>(v)].has_value() || is_index_store(v);
    });
    if (storable && all.size() > chosen.size() + 1) consider(all);
    if (best_cost < 0) fall_back(g, readings, best);
    chosen = best;
  }

  /// No single value separates the readers: take the anchors themselves with whatever else is demanded.
  void fall_back(int g, const std::map<int, Reading>& readings, std::vector<int>& chosen) {
    for (int v : group(g).values) {
      if (is_anchor(v) && state_.place[static_cast<size_t>(v)] &&
          std::find(chosen.begin(), chosen.end(), v) == chosen.end()) {
        chosen.push_back(v);
      }
    }
    for (const auto& [reader, reading] : readings) {
      const Walk w = walk(reading.values, g, chosen, false);
      check(!w.reaches_anchor, "group ", g, " has readers that cannot be served");
    }
  }

  void propagate_readers(int g, const std::vector<Demand>& demands, const std::vector<int>& chosen) {
    std::map<int, std::vector<int>> by_reader;
    for (const Demand& d : demands) by_reader[d.reader].push_back(d.value);
    for (const auto& [reader, values] : by_reader) {
      const Walk w = walk(values, g, chosen, is_prologue(reader));
      for (int v : w.leaves) {
        if (std::find(chosen.begin(), chosen.end(), v) == chosen.end()) demand(v, reader);
      }
    }
  }

  void propagate_own(int g, const std::vector<int>& chosen) {
    const Group& x = group(g);
    std::vector<int> start = chosen;
    for (int i : x.index_stores) {
      for (size_t k = 1; k < state_.node(i).inputs.size(); ++k) start.push_back(state_.owner(state_.node(i).inputs[k]));
    }
    if (x.kind == GroupKind::kIndexStore || x.kind == GroupKind::kPieces) {
      for (ir::ValueId input : state_.node(x.anchors[0]).inputs) demand(input, g);
      return;
    }
    if (x.kind == GroupKind::kAttention || x.kind == GroupKind::kAttentionBackward ||
        x.kind == GroupKind::kScatterSum || x.kind == GroupKind::kRowSelect || x.kind == GroupKind::kRowDraw) {
      for (ir::ValueId input : state_.node(x.anchors[0]).inputs) demand(strided_source(state_, input).owner, g);
      return;
    }
    std::erase_if(start, [&](int v) { return is_index_store(v); });
    for (int v : walk(start, g, {}, true).leaves) demand(v, g);
    if (x.kind != GroupKind::kMatmul) return;
    for (int i : x.anchors) {
      const Node& node = state_.node(i);
      const MatmulShape shape = matmul_shape(state_, node);
      demand(shape.b.owner, g);
      if (x.few_rows) {
        const int a = state_.owner(node.inputs[0]);
        demand(a, kPrologue + a);
      } else {
        demand(shape.a.owner, g);
      }
    }
  }

  // ---- values that depend on no group ----

  int reader_group(int reader) const {
    if (reader >= kFree) return state_.first_reader[static_cast<size_t>(reader - kFree)];
    if (reader >= kPrologue) {
      int first = static_cast<int>(state_.groups.size());
      for (int g = 0; g < static_cast<int>(state_.groups.size()); ++g) {
        if (group(g).few_rows && state_.owner(state_.node(group(g).anchors[0]).inputs[0]) == reader - kPrologue)
          return g;
      }
      return first;
    }
    return reader;
  }

  void free_values() {
    // Backwards in the order of nodes: a value's readers are known before it.
    for (size_t i = state_.graph.nodes.size(); i-- > 0;) {
      const Node& node = state_.graph.nodes[i];
      if (node.op == OpKind::kView || node.op == OpKind::kCopyTo) continue;
      for (ir::ValueId v : node.outputs) {
        if (state_.group_of[static_cast<size_t>(v)] < 0) free_value(v);
      }
    }
  }

  void free_value(int v) {
    const auto& readers = free_readers_[static_cast<size_t>(v)];
    const bool forced = state_.forced[static_cast<size_t>(v)];
    if (readers.empty() && !forced) return;
    int first = static_cast<int>(state_.groups.size());
    for (int reader : readers) first = std::min(first, reader_group(reader));
    state_.first_reader[static_cast<size_t>(v)] = first;
    if (!forced && !worth_storing(v, readers)) {
      for (int reader : readers) {
        for (ir::ValueId input : inputs(v)) demand(input, reader);
      }
      return;
    }
    state_.stored[static_cast<size_t>(v)] = true;
    // The slices of one value are one reader: they read different elements.
    const int whole = state_.slices[static_cast<size_t>(v)].of, reader = whole >= 0 ? whole : v;
    state_.first_reader[static_cast<size_t>(reader)] =
        std::min(state_.first_reader[static_cast<size_t>(reader)], first);
    for (ir::ValueId input : inputs(v)) demand(input, kFree + reader);
  }

  bool worth_storing(int v, const std::vector<int>& readers) {
    const OpKind op = state_.node(state_.tensor(v).node).op;
    if (op == OpKind::kFull || op == OpKind::kIota) return false;
    const Tensor& t = state_.tensor(v);
    const Walk w = walk({v}, -1, {}, false);
    double widest = 0;
    for (int reader : readers) {
      if (reader < kPrologue) widest = std::max(widest, static_cast<double>(product(group(reader).dims)));
    }
    const double numel = static_cast<double>(t.numel), count = static_cast<double>(readers.size());
    const double own = static_cast<double>(t.bytes());
    // Functions of a table that is read by many elements (rotary cosines) are worth an op, however small.
    if (w.compute > 0 && (widest >= 4 * numel || (count >= 2 && numel <= kSmallTable))) return true;
    double leaves = w.compute;
    for (int leaf : w.leaves) leaves += leaf_bytes(leaf, numel);
    return count * leaves > leaves + (1 + count) * own + kOpBytes;
  }

  State& state_;
  std::vector<std::vector<Demand>> demands_;
  std::vector<std::vector<int>> free_readers_;
  std::vector<int64_t> mark_;
  int64_t stamp_ = 0;
};

}  // namespace

void choose_stored(State& state) { Cutter(state).run(); }

}  // namespace ark::planner
