// ir::verify: one rule per op kind (docs/GRAPH_JSON.md has the table), then definitions, uses and views.
#include <algorithm>
#include <functional>

#include "base/check.h"
#include "ir/graph.h"

namespace ark::ir {
namespace {

using Shape = std::vector<Size>;

bool equal(const Size& a, const Size& b) { return a.expr == b.expr && (a.symbolic() || a.value == b.value); }
/// Symbolic sizes are compared only once they are numbers.
bool may_equal(const Size& a, const Size& b) { return a.symbolic() || b.symbolic() || a.value == b.value; }
bool is_one(const Size& s) { return !s.symbolic() && s.value == 1; }

/// Printed only when a message is needed.
struct Text {
  const Shape& shape;
};
Text text(const Shape& shape) { return {shape}; }
std::ostream& operator<<(std::ostream& out, const Text& text) {
  const char* separator = "[";
  for (const Size& s : text.shape) {
    s.symbolic() ? out << separator << 'e' << s.expr : out << separator << s.value;
    separator = ", ";
  }
  return out << (text.shape.empty() ? "[]" : "]");
}

class Verifier {
 public:
  explicit Verifier(const Graph& graph)
      : graph_(graph), defined_(graph.values.size(), false), posted_(graph.values.size(), false) {}

  void run() {
    inputs();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      node_ = &graph_.nodes[i];
      position_ = i;
      node();
      if (node_->op == OpKind::kPost) posted_[static_cast<size_t>(node_->outputs[0])] = true;
    }
    node_ = nullptr;
    for (ValueId id : graph_.outputs) require(is_defined(id), "output %", id, " is not defined");
    loop();
  }

 private:
  template <class... Args>
  void require(bool condition, const Args&... message) const {
    if (condition) [[likely]]
      return;
    std::string where = node_ ? cat("node ", position_, " (", name(node_->op), ' ', node_->name, "): ") : "";
    throw InternalError(cat("graph ", graph_.name, ": ", where, message...));
  }

  bool exists(ValueId id) const { return id >= 0 && static_cast<size_t>(id) < graph_.values.size(); }
  bool is_defined(ValueId id) const { return exists(id) && defined_[static_cast<size_t>(id)]; }
  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }
  const Value& in(size_t i) const { return value(node_->inputs[i]); }
  const Value& out(size_t i) const { return value(node_->outputs[i]); }
  size_t num_inputs() const { return node_->inputs.size(); }

  void inputs() {
    require(graph_.immutable.size() == graph_.inputs.size(), "expected ", graph_.inputs.size(),
            " immutable flags, got ", graph_.immutable.size());
    for (ValueId id : graph_.inputs) {
      require(exists(id), "input %", id, " of ", graph_.values.size(), " values");
      require(!is_defined(id), "input %", id, " is given twice");
      require(value(id).base < 0, "input %", id, " is a view");
      well_formed(id);
      defined_[static_cast<size_t>(id)] = true;
    }
  }

  void well_formed(ValueId id) const {
    const Value& v = value(id);
    require(v.sizes.size() == v.strides.size(), '%', id, " has ", v.sizes.size(), " sizes and ", v.strides.size(),
            " strides");
    require(v.base >= 0 || (!v.offset.symbolic() && v.offset.value == 0), '%', id,
            " owns its storage and has an offset");
    auto known = [&](const Size& s) { return s.expr < static_cast<int32_t>(graph_.exprs.size()); };
    bool all = std::all_of(v.sizes.begin(), v.sizes.end(), known) &&
               std::all_of(v.strides.begin(), v.strides.end(), known) && known(v.offset);
    require(all, '%', id, " names a size expression beyond ", graph_.exprs.size());
    for (const Size& s : v.sizes) require(s.symbolic() || s.value >= 0, '%', id, " has the sizes ", text(v.sizes));
    if (v.base >= 0) view_inside(id);
  }

  void view_inside(ValueId id) const {
    const Value& v = value(id);
    require(is_defined(v.base), '%', id, " is a view of %", v.base, ", which is not defined");
    const Value& owner = value(v.base);
    require(owner.base < 0, '%', id, " is a view of %", v.base, ", which is itself a view");
    require(owner.dtype == v.dtype, '%', id, " is ", name(v.dtype), ", its storage ", name(owner.dtype));
    int64_t low = 0, high = 0, begin = 0, end = 0;
    if (!extent(v, low, high) || !extent(owner, begin, end)) return;
    require(high < low || (low >= 0 && high <= end), '%', id, " reaches elements ", low, " to ", high,
            " of a storage of ", end + 1);
  }

  /// First and last element reached; high < low when empty. False when a size is symbolic.
  static bool extent(const Value& v, int64_t& low, int64_t& high) {
    if (v.offset.symbolic()) return false;
    int64_t lo = v.offset.value, hi = v.offset.value;
    bool empty = false;
    for (size_t d = 0; d < v.sizes.size(); ++d) {
      if (v.sizes[d].symbolic() || v.strides[d].symbolic()) return false;
      empty |= v.sizes[d].value == 0;
      (v.strides[d].value < 0 ? lo : hi) += (v.sizes[d].value - 1) * v.strides[d].value;
    }
    low = empty ? 0 : lo;
    high = empty ? -1 : hi;
    return true;
  }

  void node() {
    for (ValueId id : node_->inputs) require(is_defined(id), "input %", id, " is not defined before");
    for (ValueId id : node_->outputs) {
      require(exists(id), "output %", id, " of ", graph_.values.size(), " values");
      require(!is_defined(id), "output %", id, " is defined twice");
      well_formed(id);
      bool view = node_->op == OpKind::kView || node_->op == OpKind::kCopyTo;
      require(view == (value(id).base >= 0), "output %", id, view ? " must be a view" : " must own its storage");
      defined_[static_cast<size_t>(id)] = true;
    }
    rule();
  }

  /// Inputs that a loop carries, or that say whether it goes on, are stored by the graph.
  void loop() const {
    const Loop& loop = graph_.loop;
    require(loop.any() || loop.go < 0, "input ", loop.go, " says whether a loop goes on that carries nothing");
    for (int32_t input : loop.carried) stored_input(input, "a loop carries");
    if (loop.go < 0) return;
    const Value& go = value(stored_input(loop.go, "a stop flag is"));
    bool two = go.sizes.size() == 1 && may_equal(go.sizes[0], Size{2, -1});
    require(go.dtype == DType::kBool && two, "input ", loop.go, ", a stop flag, is ", name(go.dtype), ' ',
            text(go.sizes), ", expected two bools");
  }
  ValueId stored_input(int32_t input, const char* what) const {
    bool known = input >= 0 && static_cast<size_t>(input) < graph_.inputs.size();
    require(known, what, " input ", input, " of ", graph_.inputs.size());
    ValueId owner = graph_.inputs[static_cast<size_t>(input)];
    bool stored = std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
      return node.op == OpKind::kCopyTo && (node.inputs[0] == owner || value(node.inputs[0]).base == owner);
    });
    require(stored, what, " input ", input, ", which no node stores");
    return owner;
  }

  void counts(size_t least, size_t most, size_t outputs) const {
    bool good = num_inputs() >= least && num_inputs() <= most;
    require(good, "expected ", least, " to ", most, " inputs, got ", num_inputs());
    require(node_->outputs.size() == outputs, "expected ", outputs, " outputs, got ", node_->outputs.size());
  }

  void rule() const {
    constexpr size_t kMany = 1 << 20;
    switch (node_->op) {
      case OpKind::kView:
        return counts(1, 1, 1), view();
      case OpKind::kPointwise:
        return pointwise();
      case OpKind::kFull:
        return counts(0, 0, 1);
      case OpKind::kIota:
        return counts(0, 0, 1), require(out(0).sizes.size() == 1, "expected rank 1");
      case OpKind::kReduce:
        return counts(1, 1, 1), reduce();
      case OpKind::kMatmul:
        return counts(2, 2, 1), matmul();
      case OpKind::kAttention:
        return counts(3u + node_->attrs.has_mask, 3u + node_->attrs.has_mask, 2), attention();
      case OpKind::kAttentionBackward:
        return counts(6u + node_->attrs.has_mask, 6u + node_->attrs.has_mask, 3), attention_backward();
      case OpKind::kIndexLoad:
        return counts(1, kMany, 1), index_load();
      case OpKind::kIndexStore:
        return counts(2, kMany, 1), index_store();
      case OpKind::kScatterSum:
        return counts(2, 2, 1), scatter_sum();
      case OpKind::kRowSelect:
        return counts(2, 2, 1), row_select();
      case OpKind::kRowDraw:
        return counts(3, 3, 2), row_draw();
      case OpKind::kCat:
        return counts(1, kMany, 1), concatenate();
      case OpKind::kPad:
        return counts(1, 1, 1), pad();
      case OpKind::kRand:
        return counts(2, 2, 1), rand();
      case OpKind::kCopyTo:
        return counts(2, 2, 1), copy_to();
      case OpKind::kExchange:
        return exchange();
      case OpKind::kPost:
        return counts(1, 1, 1), post();
    }
    require(false, "unknown op ", static_cast<int>(node_->op));
  }

  void same_shape(const Shape& expected, const Shape& actual, const char* what) const {
    bool good =
        expected.size() == actual.size() && std::equal(expected.begin(), expected.end(), actual.begin(), may_equal);
    require(good, what, ": expected the sizes ", text(expected), ", got ", text(actual));
  }
  void same_dtype(DType expected, DType actual, const char* what) const {
    require(expected == actual, what, ": expected ", name(expected), ", got ", name(actual));
  }
  void broadcasts(const Shape& from, const Shape& to, const char* what) const {
    bool good = from.size() <= to.size();
    for (size_t i = 0; good && i < from.size(); ++i) {
      const Size &f = from[from.size() - 1 - i], &t = to[to.size() - 1 - i];
      good = is_one(f) || may_equal(f, t);
    }
    require(good, what, ": the sizes ", text(from), " do not broadcast to ", text(to));
  }

  void view() const {
    ValueId owner = in(0).base < 0 ? node_->inputs[0] : in(0).base;
    require(out(0).base == owner, "expected a view of %", owner, ", got one of %", out(0).base);
  }

  void pointwise() const {
    Opcode op = node_->attrs.opcode;
    bool known = (op >= Opcode::kCast && op <= Opcode::kFma) || op == Opcode::kCheckIndex;
    require(known, "opcode ", name(op), " is none of a pointwise node");
    size_t n = static_cast<size_t>(arity(op));
    counts(n, n, 1);
    for (size_t i = 0; i < n; ++i) broadcasts(in(i).sizes, out(0).sizes, "input");
    pointwise_types(op, n);
  }

  void pointwise_types(Opcode op, size_t n) const {
    DType result = out(0).dtype;
    auto expect = [&](bool good) {
      if (good) return;
      std::string types;
      for (size_t i = 0; i < n; ++i) types += cat(name(in(i).dtype), ' ');
      require(false, name(op), " of ", types, "-> ", name(result));
    };
    auto computes = [&](size_t i) { return compute_type(in(i).dtype); };
    if (op == Opcode::kCast) return;
    if (op >= Opcode::kEq && op <= Opcode::kGe) return expect(result == DType::kBool && computes(0) == computes(1));
    if (op == Opcode::kIsNan || op == Opcode::kIsInf) return expect(result == DType::kBool);
    bool logical = op == Opcode::kLogicalNot || (op >= Opcode::kLogicalAnd && op <= Opcode::kLogicalXor);
    if (logical) {
      expect(result == DType::kBool);
      for (size_t i = 0; i < n; ++i) expect(computes(i) == DType::kBool);
      return;
    }
    bool bits = op == Opcode::kBitNot || (op >= Opcode::kAnd && op <= Opcode::kShr);
    if (bits || op == Opcode::kCheckIndex) expect(!is_float(result));
    if (op == Opcode::kWhere) expect(in(0).dtype == DType::kBool);
    for (size_t i = op == Opcode::kWhere ? 1 : 0; i < n; ++i) expect(computes(i) == compute_type(result));
  }

  void reduce() const {
    const Attrs& a = node_->attrs;
    auto rank = static_cast<int64_t>(in(0).sizes.size());
    bool ascending = std::is_sorted(a.dims.begin(), a.dims.end(), std::less_equal<>());
    bool in_range = a.dims.empty() || (a.dims.front() >= 0 && a.dims.back() < rank);
    require(ascending && in_range, "dims must ascend within 0 to ", rank - 1);
    Shape expected;
    for (int64_t d = 0; d < rank; ++d) {
      bool reduced = std::find(a.dims.begin(), a.dims.end(), d) != a.dims.end();
      if (!reduced) expected.push_back(in(0).sizes[static_cast<size_t>(d)]);
      if (reduced && a.keepdim) expected.push_back(Size{1, -1});
    }
    same_shape(expected, out(0).sizes, "output");
    DType from = in(0).dtype, to = out(0).dtype;
    bool arg = a.reduce == ReduceOp::kArgMax || a.reduce == ReduceOp::kArgMin;
    bool logical = a.reduce == ReduceOp::kAny || a.reduce == ReduceOp::kAll;
    bool types = arg       ? to == DType::kI64
                 : logical ? from == DType::kBool && to == from
                           : compute_type(from) == compute_type(to);
    require(types, name(a.reduce), " of ", name(from), " -> ", name(to));
    bool one_or_all = a.dims.size() == 1 || static_cast<int64_t>(a.dims.size()) == rank;
    require(!arg || one_or_all, name(a.reduce), " over ", a.dims.size(), " of ", rank, " dims");
  }

  void matmul() const {
    const Shape &a = in(0).sizes, &b = in(1).sizes;
    require(a.size() == b.size() && (a.size() == 2 || a.size() == 3), "expected two matrices or two batches, got ",
            text(a), " and ", text(b));
    size_t r = a.size();
    require(may_equal(a[r - 1], b[r - 2]) && (r == 2 || may_equal(a[0], b[0])), "got ", text(a), " x ", text(b));
    Shape expected = a;
    expected[r - 1] = b[r - 1];
    same_shape(expected, out(0).sizes, "output");
    same_dtype(in(0).dtype, in(1).dtype, "b");
    require(is_float(in(0).dtype) == is_float(out(0).dtype), name(in(0).dtype), " -> ", name(out(0).dtype));
  }

  void qkv(const Value& q, const Value& k, const Value& v, const Value* mask) const {
    require(q.sizes.size() == 4 && k.sizes.size() == 4 && v.sizes.size() == 4, "expected q, k, v of rank 4");
    same_shape({q.sizes[0], k.sizes[1], k.sizes[2], q.sizes[3]}, k.sizes, "k");
    same_shape({q.sizes[0], k.sizes[1], k.sizes[2], v.sizes[3]}, v.sizes, "v");
    same_dtype(q.dtype, k.dtype, "k");
    same_dtype(q.dtype, v.dtype, "v");
    const Size &h = q.sizes[1], &g = k.sizes[1];
    bool divides = h.symbolic() || g.symbolic() || (g.value > 0 && h.value % g.value == 0);
    require(divides, g.value, " kv heads do not divide ", h.value, " heads");
    if (!mask) return;
    broadcasts(mask->sizes, {q.sizes[0], h, q.sizes[2], k.sizes[2]}, "mask");
    require(mask->dtype == DType::kBool || is_float(mask->dtype), "mask of type ", name(mask->dtype));
  }

  void attention() const {
    const Value &q = in(0), &v = in(2);
    qkv(q, in(1), v, node_->attrs.has_mask ? &in(3) : nullptr);
    same_shape({q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]}, out(0).sizes, "out");
    same_shape({q.sizes[0], q.sizes[1], q.sizes[2]}, out(1).sizes, "logsumexp");
    same_dtype(q.dtype, out(0).dtype, "out");
    same_dtype(DType::kF32, out(1).dtype, "logsumexp");
  }

  void attention_backward() const {
    const Value &q = in(1), &k = in(2), &v = in(3);
    qkv(q, k, v, node_->attrs.has_mask ? &in(6) : nullptr);
    Shape o = {q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]};
    same_shape(o, in(0).sizes, "dout");
    same_shape(o, in(4).sizes, "out");
    same_shape({o[0], o[1], o[2]}, in(5).sizes, "logsumexp");
    same_dtype(DType::kF32, in(5).dtype, "logsumexp");
    for (size_t i = 0; i < 3; ++i) {
      same_shape(in(i + 1).sizes, out(i).sizes, "gradient");
      same_dtype(in(i + 1).dtype, out(i).dtype, "gradient");
    }
  }

  void indices(size_t first, const Shape& domain, const Shape& indexed) const {
    const auto& map = node_->attrs.map;
    require(map.size() == indexed.size(), "map has ", map.size(), " entries, expected ", indexed.size());
    size_t count = num_inputs() - first;
    for (size_t d = 0; d < map.size(); ++d) {
      bool good = map[d] >= 0 ? static_cast<size_t>(map[d]) < domain.size() : static_cast<size_t>(~map[d]) < count;
      require(good, "map[", d, "] = ", map[d], " with rank ", domain.size(), " and ", count, " indices");
    }
    for (size_t i = first; i < num_inputs(); ++i) {
      require(in(i).dtype == DType::kI32 || in(i).dtype == DType::kI64, "index of type ", name(in(i).dtype));
      broadcasts(in(i).sizes, domain, "index");
    }
  }

  void index_load() const {
    indices(1, out(0).sizes, in(0).sizes);
    same_dtype(in(0).dtype, out(0).dtype, "output");
  }

  void scatter_sum() const {
    const Value &src = in(0), &index = in(1);
    require(src.sizes.size() == 2 && out(0).sizes.size() == 2, "ranks ", src.sizes.size(), " and ", out(0).sizes.size(),
            ", expected 2 and 2");
    require(index.dtype == DType::kI32 || index.dtype == DType::kI64, "index of type ", name(index.dtype));
    require(is_float(src.dtype), "sum of type ", name(src.dtype));
    same_shape({src.sizes[0]}, index.sizes, "index");
    same_shape({out(0).sizes[0], src.sizes[1]}, out(0).sizes, "output");
    same_dtype(src.dtype, out(0).dtype, "output");
  }

  void row_select() const {
    const Value &distance = in(0), &bound = in(1);
    require(distance.sizes.size() == 2, "rank ", distance.sizes.size(), ", expected 2");
    require(distance.dtype == DType::kF32, "distances of type ", name(distance.dtype));
    require(bound.dtype == DType::kI64 || bound.dtype == DType::kF32, "bound of type ", name(bound.dtype));
    require(out(0).dtype == DType::kI64, "output of type ", name(out(0).dtype));
    same_shape({distance.sizes[0]}, bound.sizes, "bound");
    same_shape({distance.sizes[0]}, out(0).sizes, "output");
  }

  void row_draw() const {
    const Value &values = in(0), &noise = in(1), &share = in(2);
    require(values.sizes.size() == 2, "rank ", values.sizes.size(), ", expected 2");
    for (size_t i = 0; i < 3; ++i) require(in(i).dtype == DType::kF32, "input ", i, " of type ", name(in(i).dtype));
    require(out(0).dtype == DType::kI64, "tokens of type ", name(out(0).dtype));
    require(out(1).dtype == DType::kF32, "sums of type ", name(out(1).dtype));
    same_shape(values.sizes, noise.sizes, "noise");
    same_shape({values.sizes[0]}, share.sizes, "share");
    for (size_t i = 0; i < 2; ++i) same_shape({values.sizes[0]}, out(i).sizes, "output");
  }

  void index_store() const {
    indices(2, in(1).sizes, in(0).sizes);
    same_dtype(in(0).dtype, in(1).dtype, "src");
    same_dtype(in(0).dtype, out(0).dtype, "output");
    same_shape(in(0).sizes, out(0).sizes, "output");
  }

  void concatenate() const {
    size_t rank = out(0).sizes.size();
    int64_t dim = node_->attrs.dim, total = 0;
    bool numbers = true;
    require(dim >= 0 && static_cast<size_t>(dim) < rank, "dim ", dim, " of rank ", rank);
    auto d = static_cast<size_t>(dim);
    for (size_t i = 0; i < num_inputs(); ++i) {
      same_dtype(out(0).dtype, in(i).dtype, "input");
      require(in(i).sizes.size() == rank, "input of rank ", in(i).sizes.size(), ", expected ", rank);
      Shape expected = out(0).sizes;
      expected[d] = in(i).sizes[d];
      same_shape(expected, in(i).sizes, "input");
      numbers &= !expected[d].symbolic();
      total += expected[d].value;
    }
    if (numbers)
      require(may_equal(out(0).sizes[d], Size{total, -1}), "the inputs have ", total, " along dim ", dim,
              ", the output ", text(out(0).sizes));
  }

  void pad() const {
    const auto& ints = node_->attrs.ints;
    const Shape& from = in(0).sizes;
    same_dtype(in(0).dtype, out(0).dtype, "output");
    require(ints.size() == 2 * from.size(), "expected ", 2 * from.size(), " pads, got ", ints.size());
    Shape expected = from;
    for (size_t d = 0; d < from.size(); ++d) {
      if (expected[d].symbolic())
        expected[d] = d < out(0).sizes.size() ? out(0).sizes[d] : expected[d];
      else
        expected[d].value += ints[2 * d] + ints[2 * d + 1];
    }
    same_shape(expected, out(0).sizes, "output");
  }

  void rand() const {
    for (size_t i = 0; i < 2; ++i) {
      same_dtype(DType::kI64, in(i).dtype, "seed or offset");
      require(in(i).sizes.empty(), "seed or offset of the sizes ", text(in(i).sizes));
    }
    same_dtype(DType::kF32, out(0).dtype, "output");
  }

  void exchange() const {
    const auto& to = node_->attrs.ints;
    const auto& from = node_->attrs.map;
    require(num_inputs() > to.size() && node_->outputs.size() > from.size(), "expected more than parts");
    const std::string& splits = node_->attrs.splits;
    require(splits.empty() || splits == "even" || splits == "uneven" || splits == "met", "splits that are '", splits,
            "'");
    const size_t world = num_ranks(*node_), sent = num_sent(*node_);
    require(world >= 2, "expected an output for each of several ranks, got ", world);
    require(sent == 1 || (sent == world && to.empty() && from.empty()), "expected 1 or ", world, " inputs, got ", sent);
    require(increasing(to, world) && increasing(from, world), "parts for or of ranks that are not in order below ",
            world);
    for (size_t i = sent; i < num_inputs(); ++i)
      require(posted_[static_cast<size_t>(node_->inputs[i])], "input ", i, " is no part that was posted");
    for (size_t i = 0; i < sent; ++i) {
      same_dtype(out(0).dtype, in(i).dtype, "input");
      same_shape(out(0).sizes, in(i).sizes, "input");
    }
    // The box that a rank writes is one of its peer's, who reads it by the layout of another output.
    for (size_t i = 1; i < world; ++i) {
      same_dtype(out(0).dtype, out(i).dtype, "output");
      same_shape(out(0).sizes, out(i).sizes, "output");
      same_shape(out(0).strides, out(i).strides, "strides of an output");
    }
  }

  template <class Numbers>
  static bool increasing(const Numbers& ranks, size_t world) {
    return std::ranges::adjacent_find(ranks, std::greater_equal<>()) == ranks.end() &&
           std::ranges::all_of(ranks, [&](auto r) { return r >= 0 && static_cast<size_t>(r) < world; });
  }

  void post() const {
    same_dtype(in(0).dtype, out(0).dtype, "output");
    same_shape(in(0).sizes, out(0).sizes, "output");
    require(out(0).base < 0, "a part that is a view");
  }

  void copy_to() const {
    const Value &dst = in(0), &result = out(0);
    ValueId owner = dst.base < 0 ? node_->inputs[0] : dst.base;
    bool is_input = std::find(graph_.inputs.begin(), graph_.inputs.end(), owner) != graph_.inputs.end();
    require(is_input, "the destination belongs to %", owner, ", which is no graph input");
    require(result.base == owner, "expected a view of %", owner, ", got one of %", result.base);
    same_dtype(dst.dtype, in(1).dtype, "source");
    same_shape(dst.sizes, in(1).sizes, "source");
    same_shape(dst.sizes, result.sizes, "output");
    bool same_place = std::equal(dst.strides.begin(), dst.strides.end(), result.strides.begin(), equal) &&
                      equal(dst.offset, result.offset);
    require(same_place, "the output must lie where the destination does");
  }

  const Graph& graph_;
  std::vector<bool> defined_, posted_;
  const Node* node_ = nullptr;
  size_t position_ = 0;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph).run(); }

}  // namespace ark::ir
