// ir::Graph: bind, verify (every rule is broken once), text, JSON both ways and its speed. Programs' text.
#include <chrono>
#include <cmath>
#include <functional>

#include "ir/graph.h"
#include "support/check.h"
#include "support/graph_builder.h"

using namespace ark;
using namespace ark::ir;
using namespace ark::test;

namespace {

/// One node of every kind, all correct.
Graph every_kind() {
  GraphBuilder b;
  using enum DType;
  ValueId x = b.input(kBF16, {4, 8}), w = b.input(kBF16, {8, 16}), index = b.input(kI64, {4, 1});
  ValueId q = b.input(kBF16, {2, 4, 3, 8}), k = b.input(kBF16, {2, 2, 5, 8}), v = b.input(kBF16, {2, 2, 5, 6});
  ValueId mask = b.input(kBool, {2, 1, 3, 5}), scalar = b.input(kI64, {}), cache = b.input(kBF16, {10, 8});
  ValueId y = b.value(kBF16, {4, 16});
  b.node(OpKind::kMatmul, {x, w}, {y});
  ValueId sum = b.value(kF32, {4, 1});
  Node& reduce = b.node(OpKind::kReduce, {y}, {sum});
  reduce.attrs.dims = {1};
  reduce.attrs.keepdim = true;
  ValueId scaled = b.pointwise(Opcode::kMul, {y, sum}, kF32, {4, 16});
  ValueId flat = b.value(kF32, {64}, scaled);
  b.node(OpKind::kView, {scaled}, {flat});
  ValueId out = b.value(kBF16, {2, 4, 3, 6}), lse = b.value(kF32, {2, 4, 3});
  b.node(OpKind::kAttention, {q, k, v, mask}, {out, lse}).attrs.has_mask = true;
  ValueId dq = b.value(kBF16, {2, 4, 3, 8}), dk = b.value(kBF16, {2, 2, 5, 8}), dv = b.value(kBF16, {2, 2, 5, 6});
  b.node(OpKind::kAttentionBackward, {out, q, k, v, out, lse}, {dq, dk, dv});
  ValueId full = b.value(kF32, {});
  b.node(OpKind::kFull, {}, {full}).attrs.imm = INFINITY;
  ValueId iota = b.value(kI64, {8});
  b.node(OpKind::kIota, {}, {iota}).attrs.imm_int = 3;
  ValueId rows = b.value(kBF16, {4, 8});
  b.node(OpKind::kIndexLoad, {cache, index}, {rows}).attrs.map = {~0, 1};
  ValueId stored = b.value(kBF16, {10, 8});
  b.node(OpKind::kIndexStore, {cache, rows, index}, {stored}).attrs.map = {~0, 1};
  ValueId copied = b.value(kBF16, {10, 8}, cache);
  b.node(OpKind::kCopyTo, {cache, stored}, {copied});
  ValueId joined = b.value(kBF16, {14, 8});
  b.node(OpKind::kCat, {rows, stored}, {joined});
  ValueId padded = b.value(kBF16, {6, 9});
  b.node(OpKind::kPad, {rows}, {padded}).attrs.ints = {1, 1, 0, 1};
  ValueId noise = b.value(kF32, {6, 9});
  b.node(OpKind::kRand, {scalar, scalar}, {noise});
  ValueId bigger = b.pointwise(Opcode::kGt, {noise, full}, kBool, {6, 9});
  ValueId zeros = b.pointwise(Opcode::kCast, {iota}, kF32, {8});
  ValueId chosen = b.pointwise(Opcode::kWhere, {bigger, noise, full}, kF32, {6, 9});
  ValueId first = b.value(kF32, {4, 16}), second = b.value(kF32, {4, 16});
  b.node(OpKind::kExchange, {scaled}, {first, second}).attrs.group = "tensor";
  b.graph.outputs = {flat, out, dq, copied, joined, padded, chosen, zeros, second};
  b.graph.name = "every \"kind\"";
  return b.graph;
}

void broken(const char* part, const std::function<void(Graph&)>& change) {
  Graph graph = every_kind();
  change(graph);
  EXPECT_THROW(InternalError, verify(graph), part);
}

Node& find(Graph& graph, OpKind op, size_t skip = 0) {
  for (Node& node : graph.nodes)
    if (node.op == op && skip-- == 0) return node;
  throw std::runtime_error("no such node");
}
Value& output(Graph& graph, OpKind op, size_t i = 0) { return graph.values[find(graph, op).outputs[i]]; }

void test_verify() {
  verify(every_kind());
  using enum OpKind;
  broken("not defined before", [](Graph& g) { std::swap(g.nodes[0], g.nodes[1]); });
  broken("not defined before", [](Graph& g) { g.nodes[0].inputs[0] = 10'000; });
  broken("defined twice", [](Graph& g) { g.nodes.push_back(g.nodes[0]); });
  broken("output %", [](Graph& g) { g.outputs.push_back(-1); });
  broken("immutable flags", [](Graph& g) { g.immutable.pop_back(); });
  broken("given twice", [](Graph& g) { g.inputs[1] = g.inputs[0]; });
  broken("inputs, got 1", [](Graph& g) { find(g, kMatmul).inputs.pop_back(); });
  broken("x [16, 8]", [](Graph& g) { std::swap(g.values[1].sizes[0], g.values[1].sizes[1]); });
  broken("b: expected bf16, got f16", [](Graph& g) { g.values[1].dtype = DType::kF16; });
  broken("output: expected the sizes [4, 1]", [](Graph& g) { output(g, kReduce).sizes[1] = number(2); });
  broken("sum of bf16 -> i64", [](Graph& g) { output(g, kReduce).dtype = DType::kI64; });
  broken("dims must ascend", [](Graph& g) { find(g, kReduce).attrs.dims = {1, 0}; });
  broken("dims must ascend", [](Graph& g) { find(g, kReduce).attrs.dims = {-1}; });
  broken("do not broadcast", [](Graph& g) { output(g, kPointwise).sizes[1] = number(15); });
  broken("mul of bf16 f32 -> f64", [](Graph& g) { output(g, kPointwise).dtype = DType::kF64; });
  broken("is none of a pointwise", [](Graph& g) { find(g, kPointwise).attrs.opcode = Opcode::kLoad; });
  broken("gt of f32 f32 -> f32", [](Graph& g) { g.values[find(g, kPointwise, 1).outputs[0]].dtype = DType::kF32; });
  broken("where of", [](Graph& g) { find(g, kPointwise, 3).inputs[0] = find(g, kPointwise, 3).inputs[1]; });
  broken("reaches elements", [](Graph& g) { output(g, kView).offset = number(1); });
  broken("must be a view", [](Graph& g) { output(g, kView).base = -1; });
  broken("expected a view of", [](Graph& g) { find(g, kView).inputs[0] = find(g, kReduce).outputs[0]; });
  broken("storage", [](Graph& g) { output(g, kView).dtype = DType::kI32; });
  broken("must own", [](Graph& g) {
    output(g, kPointwise).base = find(g, kMatmul).outputs[0], output(g, kPointwise).dtype = DType::kBF16;
  });
  broken("k: expected", [](Graph& g) { g.values[4].sizes[3] = number(7); });
  broken("do not divide", [](Graph& g) { g.values[4].sizes[1] = g.values[5].sizes[1] = number(3); });
  broken("mask", [](Graph& g) { g.values[6].sizes[2] = number(2); });
  broken("logsumexp: expected f32", [](Graph& g) { output(g, kAttention, 1).dtype = DType::kBF16; });
  broken("gradient", [](Graph& g) { output(g, kAttentionBackward, 1).sizes[2] = number(4); });
  broken("map has 1", [](Graph& g) { find(g, kIndexLoad).attrs.map.pop_back(); });
  broken("map[0] = -2", [](Graph& g) { find(g, kIndexLoad).attrs.map[0] = ~1; });
  broken("index of type f32", [](Graph& g) { find(g, kIndexLoad).inputs[1] = find(g, kReduce).outputs[0]; });
  broken("along dim", [](Graph& g) { output(g, kCat).sizes[0] = number(13); });
  broken("dim 2", [](Graph& g) { find(g, kCat).attrs.dim = 2; });
  broken("expected 4 pads", [](Graph& g) { find(g, kPad).attrs.ints.pop_back(); });
  broken("expected the sizes [6, 10]", [](Graph& g) { find(g, kPad).attrs.ints = {1, 1, 1, 1}; });
  broken("seed", [](Graph& g) { find(g, kRand).inputs[0] = find(g, kIota).outputs[0]; });
  broken("no graph input", [](Graph& g) { find(g, kCopyTo).inputs[0] = find(g, kIndexStore).outputs[0]; });
  broken("lie where", [](Graph& g) { output(g, kCopyTo).strides[0] = number(7); });
  broken("each of several ranks, got 1", [](Graph& g) { find(g, kExchange).outputs.pop_back(); });
  broken("expected 1 or 2 inputs, got 3", [](Graph& g) {
    Node& exchange = find(g, kExchange);
    exchange.inputs.resize(3, exchange.inputs[0]);
  });
  broken("input: expected f32, got bf16", [](Graph& g) { find(g, kExchange).inputs[0] = find(g, kMatmul).outputs[0]; });
  broken("input: expected the sizes [4, 16]",
         [](Graph& g) { find(g, kExchange).inputs[0] = find(g, kView).outputs[0]; });
  broken("output: expected f32, got f64", [](Graph& g) { output(g, kExchange, 1).dtype = DType::kF64; });
  broken("strides of an output", [](Graph& g) { output(g, kExchange, 1).strides[0] = number(20); });
  broken("sizes and", [](Graph& g) { g.values[0].strides.pop_back(); });
  broken("size expression", [](Graph& g) { g.values[0].sizes[0] = expr(0); });
}

void test_bind() {
  GraphBuilder b;
  b.graph.symbols = {"batch", "seq"};
  b.graph.exprs = {{"sym", 0, {}},        {"sym", 1, {}},          {"const", -7, {}},  {"mul", 0, {0, 1}},
                   {"add", 0, {0, 1, 2}}, {"floordiv", 0, {2, 0}}, {"mod", 0, {2, 0}}, {"min", 0, {0, 1}},
                   {"max", 0, {0, 1}},    {"neg", 0, {2}}};
  for (int32_t id : {3, 7, 8, 9}) {
    ValueId v = b.input(DType::kF32, {1});
    b.graph.values[v].sizes[0] = expr(id);
  }
  ValueId iota = b.value(DType::kI64, {1});
  b.graph.values[iota].sizes[0] = expr(0);
  b.node(OpKind::kIota, {}, {iota}).attrs.start = expr(5);
  ValueId rest = b.value(DType::kI64, {1});
  b.node(OpKind::kIota, {}, {rest}).attrs.start = expr(6);
  verify(b.graph);
  const int64_t symbols[] = {3, 5};
  Graph bound = ir::bind(b.graph, symbols);
  verify(bound);
  EXPECT_EQ(bound.values[0].sizes[0].value, 15);
  EXPECT_EQ(bound.values[1].sizes[0].value, 3);
  EXPECT_EQ(bound.values[2].sizes[0].value, 5);
  EXPECT_EQ(bound.values[3].sizes[0].value, 7);
  EXPECT_EQ(bound.nodes[0].attrs.imm_int, -3);  // floor(-7 / 3)
  EXPECT_EQ(bound.nodes[1].attrs.imm_int, 2);   // -7 mod 3, as in Python
  EXPECT(!bound.values[0].sizes[0].symbolic());
  EXPECT_THROW(UserError, ir::bind(b.graph, std::span(symbols, 1)), "expected 2 symbols, got 1");
  const int64_t zero[] = {0, 5}, huge[] = {int64_t{1} << 40, int64_t{1} << 40}, negative[] = {-3, 5};
  EXPECT_THROW(UserError, ir::bind(b.graph, zero), "divides by zero");
  EXPECT_THROW(UserError, ir::bind(b.graph, huge), "64 bits");
  EXPECT_THROW(UserError, ir::bind(b.graph, negative), "is negative");
  b.graph.exprs[3].args[0] = 3;
  EXPECT_THROW(UserError, ir::bind(b.graph, symbols), "uses expression 3");
  b.graph.exprs[3] = {"pow", 0, {0, 1}};
  EXPECT_THROW(UserError, ir::bind(b.graph, symbols), "unknown operation pow");
  b.graph.exprs[3] = {"neg", 0, {0, 1}};
  EXPECT_THROW(UserError, ir::bind(b.graph, symbols), "neg with 2 arguments");
}

void test_json() {
  Graph graph = every_kind();
  graph.symbols = {"s0"};
  graph.exprs = {{"sym", 0, {}}};
  graph.values[0].sizes[0] = expr(0);
  find(graph, OpKind::kPad).attrs.imm = NAN;
  std::string text = to_json(graph);
  Graph back = from_json(text);
  EXPECT_EQ(to_json(back), text);
  EXPECT_EQ(to_string(back), to_string(graph));
  EXPECT(std::isnan(find(back, OpKind::kPad).attrs.imm));
  EXPECT_EQ(find(back, OpKind::kFull).attrs.imm, INFINITY);
  EXPECT_EQ(back.values[0].sizes[0].expr, 0);
  EXPECT_EQ(find(back, OpKind::kIndexLoad).attrs.map[0], -1);
  Graph small = from_json(R"({"values": [{"sizes": [{"expr": 0}], "strides": [1]}, {"dtype": "bf16"}],
    "nodes": [{"op": "full", "outputs": [1], "attrs": {"imm": "-inf"}}], "exprs": [{"op": "const", "value": 3}]})");
  EXPECT_EQ(small.nodes[0].attrs.imm, -INFINITY);
  EXPECT_EQ(small.nodes[0].attrs.scale, 1.0);
  EXPECT_EQ(name(small.values[1].dtype), name(DType::kBF16));
  EXPECT_THROW(UserError, from_json("[]"), "graph: expected object, got array");
  EXPECT_THROW(UserError, from_json(R"({"node": []})"), "graph: unknown key \"node\"");
  EXPECT_THROW(UserError, from_json(R"({"nodes": [{}, {"op": "mathmul"}]})"),
               "graph.nodes[1].op: unknown name \"mathmul\"");
  EXPECT_THROW(UserError, from_json(R"({"nodes": [{"attrs": {"dims": [1.5]}}]})"),
               "graph.nodes[0].attrs.dims[0]: expected integer, got number");
  EXPECT_THROW(UserError, from_json(R"({"values": [{"sizes": [{"exp": 1}]}]})"), "graph.values[0].sizes[0]");
  EXPECT_THROW(UserError, from_json(R"({"outputs": [3000000000]})"), "does not fit");
  EXPECT_THROW(UserError, from_json(R"({"nodes": [{"attrs": {"imm": "large"}}]})"), "expected number, got string");
}

/// A graph is handed over once per compilation: a few milliseconds for 2000 nodes.
void test_speed() {
  GraphBuilder b;
  ValueId x = b.input(DType::kBF16, {8, 512, 1024});
  for (int i = 0; i < 2000; ++i) x = b.pointwise(Opcode::kRelu, {x}, DType::kBF16, {8, 512, 1024});
  b.graph.outputs = {x};
  std::string text = to_json(b.graph);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    auto begin = std::chrono::steady_clock::now();
    Graph back = from_json(text);
    verify(back);
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    EXPECT_EQ(back.nodes.size(), size_t{2000});
  }
  std::printf("2000 nodes, %zu bytes of JSON: read and verified in %.2f ms\n", text.size(), best);
  EXPECT(best < 200);  // generous: sanitizers and busy machines
}

void test_text() {
  GraphBuilder b;
  ValueId x = b.input(DType::kBF16, {4, 8});
  b.graph.values[x].name = "x";
  ValueId y = b.pointwise(Opcode::kRelu, {x}, DType::kBF16, {4, 8});
  ValueId half = b.value(DType::kBF16, {2, 8}, y);
  b.graph.values[half].offset = number(16);
  b.node(OpKind::kView, {y}, {half});
  b.graph.outputs = {half};
  b.graph.name = "small";
  b.graph.nodes[0].module = "net.act";
  EXPECT_EQ(to_string(b.graph), R"(graph small
  input %0: bf16[4, 8] strides [8, 1]  # x
  %1: bf16[4, 8] strides [8, 1] = pointwise relu(%0)  # pointwise_0 in net.act
  %2: bf16[2, 8] strides [8, 1] offset 16 of %1 = view(%1)  # view_1
  return %2
)");
  Program p;
  p.kind = ProgramKind::kRow;
  p.num_dims = 2;
  p.reduce_dims = 1;
  p.num_operands = 2;
  p.instrs.resize(5);
  p.instrs[0] = {.op = Opcode::kLoad, .dtype = DType::kBF16, .operand = 0};
  p.instrs[1] = {.op = Opcode::kReduce, .a = 0, .aux = static_cast<int16_t>(ReduceOp::kMax)};
  p.instrs[2] = {.op = Opcode::kConst, .imm = 0.5};
  p.instrs[3] = {.op = Opcode::kFma, .a = 0, .b = 2, .c = 1};
  p.instrs[4] = {.op = Opcode::kStore, .dtype = DType::kBF16, .a = 3, .operand = 1};
  EXPECT_EQ(to_string(p), R"(row dims=2 reduce_dims=1 operands=2
  %0 = load.bf16 op0
  %1 = reduce.f32 max %0
  %2 = const.f32 0.5
  %3 = fma.f32 %0 %2 %1
  %4 = store.bf16 op1 <- %3
)");
  EXPECT_EQ(std::string(name(Opcode::kLogicalXor)), "logical_xor");
  EXPECT_EQ(std::string(name(Opcode::kNeg)), "neg");
  EXPECT_EQ(std::string(name(Opcode::kRelu)), "relu");
  EXPECT_EQ(std::string(name(Opcode::kLgamma)), "lgamma");
  EXPECT_EQ(std::string(name(Opcode::kAdd)), "add");
  EXPECT_EQ(std::string(name(Opcode::kEq)), "eq");
  EXPECT_EQ(std::string(name(Opcode::kWhere)), "where");
  EXPECT_EQ(std::string(name(Opcode::kRand)), "rand");
  EXPECT_EQ(std::string(name(ReduceOp::kArgMin)), "arg_min");
  EXPECT_EQ(std::string(name(OpKind::kCopyTo)), "copy_to");
  EXPECT_EQ(std::string(name(OpKind::kExchange)), "exchange");
  EXPECT_EQ(arity(Opcode::kRelu), 1);
  EXPECT_EQ(arity(Opcode::kCast), 1);
  EXPECT_EQ(arity(Opcode::kLogicalXor), 2);
  EXPECT_EQ(arity(Opcode::kFma), 3);
}

}  // namespace

int main() {
  test_verify();
  test_bind();
  test_json();
  test_speed();
  test_text();
  return test::result("graph");
}
