// How exchanges are planned: which op sends, which reads, where boxes lie, in which order; and one plan as text.
#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_graphs.h"

using namespace ark;
using namespace ark::test;

namespace {

plan::Plan plan_of(const Graph& graph, int max_slots = 3840) {
  planner::Options options;
  options.machine.num_workers = 6;
  options.max_slots = max_slots;
  return planner::make_plan(graph, options);
}

/// "kind" per op; + after it: it sends; - before it: it reads boxes.
std::string outline(const plan::Plan& plan) {
  std::string out;
  for (const plan::Op& op : plan.ops) {
    bool reads = false, sends = false;
    for (const abi::Operand& x : op.operands) {
      if (x.slot == abi::kNoSlot) continue;
      reads |= plan::is_read_box(plan.buffers[x.slot].kind);
      sends |= plan.buffers[x.slot].kind == plan::BufferKind::kBoxOut;
    }
    out += cat(out.empty() ? "" : " ", reads ? "-" : "", plan::name(op.record.kind), sends ? "+" : "");
  }
  return out;
}

/// Sent by the op that computes, summed by the op that reads.
void test_fusion() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {96, 48}), w = b.input(DType::kF32, {48, 160}), r = b.input(DType::kF32, {96, 160});
  ValueId h = b.binary(Opcode::kAdd, b.all_reduce(b.unary(Opcode::kRelu, b.matmul(x, w))), r);
  EXPECT_EQ(outline(plan_of(b.finish({b.norm(h)}, "norm"))), "matmul_float+ -row");

  ExchangeBuilder rows(2);
  x = rows.input(DType::kF32, {1, 64}), w = rows.input(DType::kF32, {48, 64});
  ValueId w2 = rows.input(DType::kF32, {64, 48});
  ValueId y = rows.all_reduce(rows.linear(rows.all_reduce(rows.linear(x, w)), w2));
  EXPECT_EQ(outline(plan_of(rows.finish({y}, "rows"))), "matmul_rows+ -matmul_rows+ -pointwise");

  ExchangeBuilder own(2);  // the own value is read beside what the others send
  x = own.input(DType::kF32, {512, 64});
  ValueId sums = own.row_sum(x, 1, false);
  y = own.binary(Opcode::kSub, sums, own.all_reduce(sums));
  EXPECT_EQ(outline(plan_of(own.finish({y}, "own"))), "row+ -pointwise");

  ExchangeBuilder views(2);  // parts of a value go from an op of their own
  x = views.input(DType::kF32, {96, 48}), w = views.input(DType::kF32, {48, 160});
  EXPECT_EQ(outline(plan_of(views.finish({views.reduce_scatter(views.matmul(x, w))}, "views"))),
            "matmul_float pointwise+ -pointwise");

  ExchangeBuilder twice(2);  // an exchange of boxes is another op, and so is an equal exchange
  x = twice.input(DType::kF32, {8, 8});
  y = twice.binary(Opcode::kAdd, twice.all_reduce(x), twice.all_reduce(x));
  EXPECT_EQ(outline(plan_of(twice.finish({y, twice.exchange({twice.exchange({x})[1]})[0]}, "twice"))),
            "pointwise+ pointwise+ pointwise+ -pointwise -pointwise+ -pointwise");
}

/// Layers with a residual: who reads a sum first stores it with the residual, in the op of its norm. Nobody else reads
/// the boxes, so that the ops of the last layer are as large as those of the first.
void test_residuals() {
  constexpr int kLayers = 5;
  for (int world : {2, 8}) {
    ExchangeBuilder b(world);
    ValueId x = b.input(DType::kF32, {48, 64});
    for (int l = 0; l < kLayers; ++l) {
      ValueId w1 = b.input(DType::kF32, {64, 32}), w2 = b.input(DType::kF32, {32, 64});
      ValueId y = b.matmul(b.unary(Opcode::kRelu, b.matmul(b.norm(x), w1)), w2);
      x = b.binary(Opcode::kAdd, x, b.all_reduce(y));
    }
    const plan::Plan plan = plan_of(b.finish({x}, "residuals"));
    std::string expected = "row";
    for (int l = 0; l < kLayers; ++l)
      expected += cat(" matmul_float matmul_float+ ", l + 1 < kLayers ? "-row" : "-pointwise");
    EXPECT_EQ(outline(plan), expected);
    std::vector<int> readers(plan.buffers.size(), 0);
    for (const plan::Op& op : plan.ops) {
      EXPECT(op.operands.size() <= static_cast<size_t>(world + 3));
      for (const abi::Operand& operand : op.operands) readers[operand.slot] += operand.slot != abi::kNoSlot;
    }
    for (size_t slot = 0; slot < readers.size(); ++slot)
      if (plan.buffers[slot].kind == plan::BufferKind::kBox) EXPECT_EQ(readers[slot], 1);
  }
}

/// All ranks have the exchanges in the graph's order, though the path behind the second one is longer.
void test_order() {
  ExchangeBuilder b(3);
  ValueId x = b.input(DType::kF32, {64, 64}), w = b.input(DType::kF32, {64, 64});
  ValueId first = b.all_reduce(x), y = b.all_reduce(w);
  for (int i = 0; i < 4; ++i) y = b.matmul(y, w);
  const plan::Plan plan = plan_of(b.finish({first, y}, "order"));
  std::vector<int> inputs;
  for (const plan::Op& op : plan.ops)
    for (const abi::Operand& operand : op.operands)
      if (op.record.arrive_rank_stride[0] != 0 && plan.buffers[operand.slot].kind == plan::BufferKind::kInput)
        inputs.push_back(plan.buffers[operand.slot].index);
  EXPECT_EQ(inputs.size(), size_t{2});
  EXPECT(inputs == std::vector<int>({0, 1}));
}

/// Rows of 257 floats would be padded for the tensor maps of a product; boxes have one layout for all ranks.
void test_layout() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {512, 257}), w = b.input(DType::kF32, {257, 64});
  const std::vector<ValueId> boxes = b.exchange({b.unary(Opcode::kRelu, x)});
  ValueId sum = b.binary(Opcode::kAdd, b.matmul(boxes[0], w), b.full(1));
  const plan::Plan plan = plan_of(b.finish({sum, boxes[1]}, "layout"));
  for (const plan::Buffer& buffer : plan.buffers)
    if (buffer.kind == plan::BufferKind::kBox) EXPECT_EQ(buffer.size_bytes, 512 * 257 * 4);
}

/// Few addresses: the arena becomes one buffer, and slots have other numbers.
void test_few_slots() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {64, 64}), w = b.input(DType::kF32, {64, 64});
  for (int i = 0; i < 3; ++i) x = b.norm(b.all_reduce(b.matmul(b.matmul(x, w), w)));
  const Graph graph = b.finish({x}, "few slots");
  const plan::Plan many = plan_of(graph), few = plan_of(graph, 16);
  EXPECT(many.buffers.size() > 16);
  EXPECT(few.buffers.size() <= 16);
  for (const plan::Buffer& buffer : few.buffers)
    if (buffer.kind == plan::BufferKind::kBoxOut)
      EXPECT_EQ(few.buffers[static_cast<size_t>(buffer.twin)].index, buffer.index);
  EXPECT_EQ(outline(few), outline(many));
}

void test_text() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {4, 8});
  const plan::Plan plan = plan_of(b.finish({b.all_reduce(x)}, "sum"));
  const std::string text = plan::to_string(plan);
  for (const char* line :
       {"group 'tensor' of 2 ranks, boxes of 512 bytes, twice\n", ": box from rank 0 at 0, 128 bytes\n",
        ": box from rank 1 at 256, 128 bytes\n", ": box out to rank 1, twin of slot ",
        "target 1, last 1, all ranks, 1 apart\n", "-> counter 0, all ranks, 1 apart\n"})
    if (text.find(line) == std::string::npos) test::fail(cat("expected \"", line, "\" in\n", text), __FILE__, __LINE__);
  EXPECT_EQ(plan::to_json(plan::from_json(plan::to_json(plan))), plan::to_json(plan));
  ExchangeBuilder none(2);
  x = none.input(DType::kF32, {4, 8});
  const std::string json = plan::to_json(plan_of(none.finish({none.unary(Opcode::kNeg, x)}, "none")));
  for (const char* key : {"rank_stride", "group", "world", "box", "twin"}) EXPECT(json.find(key) == std::string::npos);
}

void test_groups() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {4, 4});
  ValueId y = b.all_reduce(x), z = b.all_reduce(y);
  for (Node& node : b.graph.nodes)
    if (node.op == OpKind::kExchange && node.inputs[0] == y) node.attrs.group = "data";
  const plan::Plan plan = plan_of(b.finish({z}, "two groups"));
  EXPECT_EQ(plan.more_groups.size(), size_t{1});
  EXPECT_EQ(plan.more_groups[0].name, std::string("data"));
  EXPECT(!plan::pack(plan).records.empty());
}

}  // namespace

int main() {
  test_fusion();
  test_residuals();
  test_order();
  test_layout();
  test_few_slots();
  test_text();
  test_groups();
  return test::result("exchanges");
}
