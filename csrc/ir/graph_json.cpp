// ir::to_json and from_json. The schema is docs/GRAPH_JSON.md.
#include "ir/graph.h"
#include "ir/names_json.h"

namespace ark::json {

using namespace ark::ir;

template <>
struct Enumerators<OpKind> {
  static constexpr int count = kNumOpKinds;
  static std::string_view name(OpKind op) { return ir::name(op); }
};

template <>
struct Custom<Size> {
  static void read(const Value& from, Size& to, const Path& path) {
    if (const int64_t* number = from.get_if<int64_t>()) {
      to = Size{*number, -1};
      return;
    }
    const Value* expr = from.find("expr");
    const Object* members = from.get_if<Object>();
    check<UserError>(expr && members->size() == 1, path, ": expected a number or {\"expr\": number}");
    json::read(*expr, to.expr, Path{&path, "expr"});
    check<UserError>(to.expr >= 0, path, ": expression ", to.expr, " is negative");
  }
  static void write(Writer& out, const Size& from) {
    if (!from.symbolic()) return out.value(from.value);
    out.begin_object();
    out.key("expr");
    out.value(static_cast<int64_t>(from.expr));
    out.end_object();
  }
  static bool is_default(const Size& x) { return !x.symbolic() && x.value == 0; }
};

template <>
struct Fields<SizeExpr> {
  static constexpr auto list =
      std::tuple{field("op", &SizeExpr::op), field("value", &SizeExpr::value), field("args", &SizeExpr::args)};
};
template <>
struct Fields<ir::Value> {
  using V = ir::Value;
  static constexpr auto list =
      std::tuple{field("name", &V::name),       field("dtype", &V::dtype),   field("sizes", &V::sizes),
                 field("strides", &V::strides), field("offset", &V::offset), field("base", &V::base)};
};
template <>
struct Fields<Attrs> {
  static constexpr auto list = std::tuple{
      field("opcode", &Attrs::opcode), field("reduce", &Attrs::reduce),     field("dims", &Attrs::dims),
      field("ints", &Attrs::ints),     field("map", &Attrs::map),           field("keepdim", &Attrs::keepdim),
      field("causal", &Attrs::causal), field("has_mask", &Attrs::has_mask), field("dim", &Attrs::dim),
      field("imm", &Attrs::imm),       field("scale", &Attrs::scale),       field("imm_int", &Attrs::imm_int),
      field("start", &Attrs::start),   field("step", &Attrs::step),         field("group", &Attrs::group),
      field("rounds", &Attrs::rounds), field("splits", &Attrs::splits)};
};
template <>
struct Fields<Node> {
  static constexpr auto list =
      std::tuple{field("op", &Node::op),       field("inputs", &Node::inputs), field("outputs", &Node::outputs),
                 field("attrs", &Node::attrs), field("name", &Node::name),     field("module", &Node::module)};
};
template <>
struct Fields<Loop> {
  static constexpr auto list = std::tuple{field("carried", &Loop::carried), field("go", &Loop::go)};
};
template <>
struct Fields<Graph> {
  static constexpr auto list = std::tuple{
      field("name", &Graph::name),       field("symbols", &Graph::symbols), field("exprs", &Graph::exprs),
      field("values", &Graph::values),   field("inputs", &Graph::inputs),   field("immutable", &Graph::immutable),
      field("outputs", &Graph::outputs), field("nodes", &Graph::nodes),     field("loop", &Graph::loop)};
};

}  // namespace ark::json

namespace ark::ir {

std::string to_json(const Graph& graph) {
  json::Writer out;
  json::write(out, graph);
  return out.take();
}

Graph from_json(const std::string& text) {
  Graph graph;
  json::read(json::parse(text), graph, json::Path{nullptr, "graph"});
  return graph;
}

}  // namespace ark::ir
