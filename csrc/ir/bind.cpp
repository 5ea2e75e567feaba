// ir::bind: every size expression becomes a number.
#include <algorithm>

#include "base/check.h"
#include "ir/graph.h"

namespace ark::ir {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

int64_t checked(bool overflow, int64_t value, size_t id) {
  check<UserError>(!overflow, "size expression ", id, " does not fit into 64 bits");
  return value;
}

int64_t evaluate(const SizeExpr& e, size_t id, std::span<const int64_t> symbols, const std::vector<int64_t>& known) {
  auto arg = [&](size_t i) { return known[static_cast<size_t>(e.args[i])]; };
  if (e.op == "const") return e.value;
  if (e.op == "sym") return symbols[static_cast<size_t>(e.value)];
  if (e.op == "neg") return checked(arg(0) == INT64_MIN, -arg(0), id);
  if (e.op == "floordiv" || e.op == "mod") {
    check<UserError>(arg(1) != 0, "size expression ", id, " divides by zero");
    int64_t quotient = floor_div(arg(0), arg(1));
    return e.op == "mod" ? arg(0) - quotient * arg(1) : quotient;
  }
  int64_t result = arg(0);
  for (size_t i = 1; i < e.args.size(); ++i) {
    bool overflow = false;
    if (e.op == "add") {
      overflow = __builtin_add_overflow(result, arg(i), &result);
    } else if (e.op == "mul") {
      overflow = __builtin_mul_overflow(result, arg(i), &result);
    } else {
      result = e.op == "min" ? std::min(result, arg(i)) : std::max(result, arg(i));
    }
    checked(overflow, result, id);
  }
  return result;
}

void check_expr(const Graph& graph, size_t id) {
  const SizeExpr& e = graph.exprs[id];
  size_t n = e.args.size();
  for (int32_t arg : e.args)
    check<UserError>(arg >= 0 && static_cast<size_t>(arg) < id, "size expression ", id, " uses expression ", arg);
  bool leaf = e.op == "const" || e.op == "sym", many = e.op == "add" || e.op == "mul" || e.op == "min" || e.op == "max";
  bool binary = e.op == "floordiv" || e.op == "mod";
  check<UserError>(leaf || many || binary || e.op == "neg", "size expression ", id, ": unknown operation ", e.op);
  bool arity = leaf ? n == 0 : many ? n >= 1 : binary ? n == 2 : n == 1;
  check<UserError>(arity, "size expression ", id, ": ", e.op, " with ", n, " arguments");
  bool in_range = e.op != "sym" || (e.value >= 0 && static_cast<size_t>(e.value) < graph.symbols.size());
  check<UserError>(in_range, "size expression ", id, ": symbol ", e.value, " of ", graph.symbols.size());
}

}  // namespace

Graph bind(const Graph& graph, std::span<const int64_t> symbols) {
  check<UserError>(symbols.size() == graph.symbols.size(), "graph ", graph.name, ": expected ", graph.symbols.size(),
                   " symbols, got ", symbols.size());
  std::vector<int64_t> known;
  known.reserve(graph.exprs.size());
  for (size_t i = 0; i < graph.exprs.size(); ++i) {
    check_expr(graph, i);
    known.push_back(evaluate(graph.exprs[i], i, symbols, known));
  }
  auto number = [&](Size& size) {
    if (!size.symbolic()) return;
    check<UserError>(static_cast<size_t>(size.expr) < known.size(), "size expression ", size.expr, " of ",
                     known.size());
    size = Size{known[static_cast<size_t>(size.expr)], -1};
  };
  Graph bound = graph;
  bound.symbols.clear();
  bound.exprs.clear();
  for (Value& value : bound.values) {
    for (Size& size : value.sizes) {
      number(size);
      check<UserError>(size.value >= 0, "value ", value.name, ": size ", size.value, " is negative");
    }
    for (Size& stride : value.strides) number(stride);
    number(value.offset);
  }
  for (Node& node : bound.nodes) {
    bool symbolic = node.attrs.start.symbolic();
    number(node.attrs.start);
    if (symbolic) node.attrs.imm_int = node.attrs.start.value;
  }
  return bound;
}

}  // namespace ark::ir
