// Concatenations that their pieces write (planner/fuse/pieces.h): which ops there are, and what each of them writes.
#include <algorithm>

#include "planner/planner.h"
#include "support/model_graph.h"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::ir;
using abi::TaskKind;
using ark::planner::FusedGraph;
using ark::planner::FusedOp;
using ark::test::expect;
using ark::test::finish;
using ark::test::Model;

namespace {

using Sizes = std::vector<int64_t>;
constexpr DType kBF16 = DType::kBF16;

ValueId joined(Model& m, const std::vector<ValueId>& parts, int64_t dim) {
  Sizes sizes = m.sizes(parts[0]);
  sizes[static_cast<size_t>(dim)] = 0;
  for (const ValueId part : parts) sizes[static_cast<size_t>(dim)] += m.sizes(part)[static_cast<size_t>(dim)];
  const ValueId out = m.value(m.dtype(parts[0]), sizes);
  m.node(OpKind::kCat, parts, {out}).attrs.dim = dim;
  return out;
}

/// "kind offset+offset" of every op: where in the last storage it writes.
std::string writes(const FusedGraph& graph) {
  std::string text;
  const auto last = static_cast<uint32_t>(graph.fresh_storage.at(0));
  for (const FusedOp& op : graph.ops) {
    text += cat(text.empty() ? "" : ", ", plan::kind_of(op.op.record).type);
    for (size_t x = 0; x < op.op.operands.size(); ++x)
      if (op.op.operands[x].slot == last && op.access[x] == plan::Access::kWrite)
        text += cat(" +", op.op.operands[x].offset);
  }
  return text;
}

std::string writes_of(Model& m, ValueId out) {
  m.graph.outputs.push_back(out);
  // Planned as a whole, the verifier has to find that nobody writes what another one does.
  planner::Options options;
  planner::make_plan(m.graph, options);
  return writes(planner::fuse(m.graph));
}

void expect_text(const std::string& got, const std::string& wanted, const std::string& what) {
  expect(got == wanted, cat(what, ": got '", got, "', expected '", wanted, "'"));
}

void inputs_are_copied() {
  Model m;
  const ValueId a = m.input(kBF16, {256, 768}), b = m.input(kBF16, {256, 769});
  expect_text(writes_of(m, joined(m, {a, b}, 1)), "Pointwise +0, Pointwise +768", "two inputs");
  Model n;
  const ValueId c = n.input(kBF16, {16, 70, 128}), d = n.input(kBF16, {16, 0, 128});
  const ValueId e = n.input(kBF16, {16, 31, 128});
  expect_text(writes_of(n, joined(n, {c, d, e}, 1)), "Pointwise +0, Pointwise +8960", "a piece of no elements");
}

void who_computes_a_piece_stores_it() {
  Model m;
  const ValueId a = m.input(kBF16, {256, 256}), w = m.input(kBF16, {256, 512}), b = m.input(kBF16, {256, 512});
  const ValueId product = m.matmul(a, w, kBF16);
  const ValueId scaled = m.binary(Opcode::kMul, b, b);
  expect_text(writes_of(m, joined(m, {product, scaled}, 1)), "MatmulTile +0, Pointwise +512", "a product");
}

void one_op_for_what_reads_the_same() {
  Model m;
  const ValueId x = m.input(kBF16, {4096, 128});
  const ValueId low = m.view(x, {4096, 64}, {128, 1}), high = m.view(x, {4096, 64}, {128, 1}, 64);
  expect_text(writes_of(m, joined(m, {m.unary(Opcode::kNeg, high), low}, 1)), "Pointwise +0 +64", "rotated halves");
}

void one_op_for_pieces_of_one_size() {
  Model m;
  std::vector<ValueId> parts;
  for (int i = 0; i < 5; ++i) parts.push_back(m.input(kBF16, {256, 512}));
  expect_text(writes_of(m, joined(m, parts, 1)), "Pointwise +0 +512 +1024 +1536, Pointwise +2048", "five inputs");
  Model odd;  // vectors of the two would begin at different columns
  const ValueId a = odd.input(kBF16, {256, 769}), b = odd.input(kBF16, {256, 769});
  expect_text(writes_of(odd, joined(odd, {a, b}, 1)), "Pointwise +0, Pointwise +769", "odd pieces of one size");
}

/// Pieces that are ops of their own share the workers.
void pieces_are_one_round() {
  Model m;
  const ValueId a = m.input(kBF16, {2048, 768}), b = m.input(kBF16, {2048, 769});
  m.graph.outputs.push_back(joined(m, {a, b}, 1));
  planner::Options options;
  const plan::Plan plan = planner::make_plan(m.graph, options);
  int tiles = 0;
  for (const plan::Op& op : plan.ops) tiles += op.record.grid[0] * op.record.grid[1] * op.record.grid[2];
  expect(plan.ops.size() == 2 && tiles <= options.machine.num_workers, cat(tiles, " tiles of ", plan.ops.size()));
}

void pointwise_nodes_go_along() {
  Model m;
  const ValueId a = m.input(kBF16, {256, 768}), b = m.input(kBF16, {256, 769}), bias = m.input(kBF16, {1537});
  const ValueId both = joined(m, {a, b}, 1);
  const ValueId gate = m.unary(Opcode::kSigmoid, m.pointwise(Opcode::kAdd, {both, bias}, kBF16, {256, 1537}));
  m.graph.outputs.push_back(m.binary(Opcode::kMul, both, gate));
  const FusedGraph graph = planner::fuse(m.graph);
  expect_text(writes(graph), "Pointwise +0, Pointwise +768", "an activation");
  for (const FusedOp& op : graph.ops)
    for (const Instr& in : graph.programs[static_cast<size_t>(op.op.record.params.program.program)].instrs)
      expect(in.op != Opcode::kWhere && in.op != Opcode::kLt, cat(op.op.name, " selects"));
}

void readers_wait_for_all() {
  Model m;
  const ValueId a = m.input(kBF16, {256, 256}), b = m.input(kBF16, {256, 320}), w = m.input(kBF16, {576, 256});
  m.graph.outputs.push_back(m.matmul(joined(m, {a, b}, 1), w, kBF16));
  const plan::Plan plan = planner::make_plan(m.graph, planner::Options{});
  expect(plan.ops.size() == 3, cat(plan.ops.size(), " ops"));
  expect(plan.ops.back().record.num_waits == 2, cat(plan.ops.back().record.num_waits, " waits"));
}

void what_stays_a_selection() {
  Model small;
  const ValueId a = small.input(kBF16, {64, 64}), b = small.input(kBF16, {64, 64});
  expect_text(writes_of(small, joined(small, {a, b}, 1)), "Pointwise +0", "small pieces");
  Model narrow;
  const ValueId c = narrow.input(kBF16, {65536, 2}), d = narrow.input(kBF16, {65536, 2});
  expect_text(writes_of(narrow, joined(narrow, {c, d}, 1)), "Pointwise +0", "columns");
  Model wide;
  const ValueId e = wide.input(kBF16, {512, 8192}), f = wide.input(kBF16, {512, 1});
  const ValueId g = wide.input(kBF16, {512, 8192});
  expect_text(writes_of(wide, joined(wide, {e, f, g}, 1)), "Pointwise +0, Pointwise +8192, Pointwise +8193",
              "a column between wide pieces");
}

}  // namespace

int main() {
  inputs_are_copied();
  who_computes_a_piece_stores_it();
  one_op_for_what_reads_the_same();
  one_op_for_pieces_of_one_size();
  pieces_are_one_round();
  pointwise_nodes_go_along();
  readers_wait_for_all();
  what_stays_a_selection();
  return finish("pieces");
}
