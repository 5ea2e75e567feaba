// ir::to_string and the names of op kinds.
#include "base/check.h"
#include "ir/graph.h"

namespace ark::ir {

const char* name(OpKind op) {
  constexpr const char* kNames[] = {
      "view",       "pointwise",   "full",        "iota",       "reduce",   "matmul", "attention", "attention_backward",
      "index_load", "index_store", "scatter_sum", "row_select", "row_draw", "cat",    "pad",       "rand",
      "copy_to",    "exchange",    "post"};
  static_assert(std::size(kNames) == kNumOpKinds);
  return kNames[static_cast<int>(op)];
}

namespace {

std::string size_text(const Size& s) { return s.symbolic() ? cat('e', s.expr) : cat(s.value); }

template <class T, class Format>
std::string list(const T& items, Format format) {
  std::string out;
  for (const auto& item : items) out += cat(out.empty() ? "" : ", ", format(item));
  return out;
}

std::string expr_text(const Graph& graph, const SizeExpr& e) {
  if (e.op == "const") return cat(e.value);
  if (e.op == "sym") {
    bool known = e.value >= 0 && static_cast<size_t>(e.value) < graph.symbols.size();
    return known ? graph.symbols[static_cast<size_t>(e.value)] : cat("symbol ", e.value);
  }
  return cat(e.op, '(', list(e.args, [](int32_t a) { return cat('e', a); }), ')');
}

std::string value_text(const Graph& graph, ValueId id) {
  if (id < 0 || static_cast<size_t>(id) >= graph.values.size()) return cat("%", id, ": none");
  const Value& v = graph.values[static_cast<size_t>(id)];
  std::string out =
      cat('%', id, ": ", name(v.dtype), '[', list(v.sizes, size_text), "] strides [", list(v.strides, size_text), ']');
  if (v.offset.symbolic() || v.offset.value != 0) out += cat(" offset ", size_text(v.offset));
  if (v.base >= 0) out += cat(" of %", v.base);
  return out;
}

std::string attrs_text(const Node& node) {
  const Attrs& a = node.attrs;
  auto number = [](auto x) { return cat(x); };
  switch (node.op) {
    case OpKind::kPointwise:
      return cat(' ', name(a.opcode), a.rounds ? " rounds" : "");
    case OpKind::kFull:
      return cat(" imm ", a.imm, " imm_int ", a.imm_int);
    case OpKind::kIota:
      return cat(" start ", a.start.symbolic() ? size_text(a.start) : cat(a.imm_int), " step ", a.step);
    case OpKind::kReduce:
      return cat(' ', name(a.reduce), " dims [", list(a.dims, number), ']', a.keepdim ? " keepdim" : "");
    case OpKind::kAttention:
    case OpKind::kAttentionBackward:
      return cat(" scale ", a.scale, a.causal ? " causal" : "", a.has_mask ? " mask" : "");
    case OpKind::kIndexLoad:
    case OpKind::kIndexStore:
      return cat(" map [", list(a.map, number), ']');
    case OpKind::kScatterSum:
      return cat(" without ", a.imm_int);
    case OpKind::kCat:
      return cat(" dim ", a.dim);
    case OpKind::kPad:
      return cat(" pads [", list(a.ints, number), "] imm ", a.imm);
    case OpKind::kExchange:
      return cat(a.group.empty() ? "" : cat(" group ", a.group),
                 a.ints.empty() ? "" : cat(" parts to [", list(a.ints, number), ']'),
                 a.map.empty() ? "" : cat(" parts from [", list(a.map, number), ']'));
    default:
      return "";
  }
}

}  // namespace

std::string to_string(const Graph& graph) {
  std::string out = cat("graph ", graph.name, "\n");
  for (size_t i = 0; i < graph.exprs.size(); ++i) out += cat("  e", i, " = ", expr_text(graph, graph.exprs[i]), "\n");
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    ValueId id = graph.inputs[i];
    bool known = id >= 0 && static_cast<size_t>(id) < graph.values.size();
    out += cat("  input ", value_text(graph, id), i < graph.immutable.size() && graph.immutable[i] ? " immutable" : "",
               known ? cat("  # ", graph.values[static_cast<size_t>(id)].name) : "", "\n");
  }
  auto reg = [](ValueId id) { return cat('%', id); };
  for (const Node& node : graph.nodes) {
    out += cat("  ", list(node.outputs, [&](ValueId id) { return value_text(graph, id); }), " = ", name(node.op),
               attrs_text(node), '(', list(node.inputs, reg), ')', node.name.empty() ? "" : cat("  # ", node.name),
               node.module.empty() ? "" : cat(" in ", node.module), "\n");
  }
  if (graph.loop.any())
    out += cat("  loop carries inputs [", list(graph.loop.carried, [](int32_t i) { return cat(i); }), "], go ",
               graph.loop.go, "\n");
  return out + cat("  return ", list(graph.outputs, reg), "\n");
}

}  // namespace ark::ir
