// Sums of columns in parts (planner/tile/split_reductions.h): parts' results begin at whole vectors where they have 32
// columns and more, and the sums are those of fp64 to within what an addition after another loses.
#include <algorithm>
#include <cmath>

#include "planner/planner.h"
#include "planner/tile/split_reductions.h"
#include "support/graph_builder.h"
#include "support/plan_run.h"

using namespace ark;
using namespace ark::ir;
using ark::cat;
using ark::test::expect;

namespace {

using Sizes = std::vector<int64_t>;
using planner::Access;
using planner::FusedOp;
using enum DType;

template <class A, class B>
void expect_equal(const A& got, const B& wanted, const std::string& what) {
  expect(got == wanted, cat(what, ": got ", got, ", expected ", wanted));
}

struct Columns {
  int64_t rows;
  Sizes kept;
  DType dtype = kF32;
  bool padded = false;  // rows of the kept dimensions lie apart
  bool two = true;      // the largest elements beside the sums

  int64_t num_kept() const {
    int64_t n = 1;
    for (const int64_t size : kept) n *= size;
    return n;
  }
  DType summed() const { return dtype == kBF16 || dtype == kF16 ? kF32 : dtype; }
  std::string text() const {
    std::string text = cat(rows, " rows of");
    for (const int64_t size : kept) text += cat(" ", size);
    return text + cat(", ", name(dtype), ": ");
  }
};

/// Sums, and largest elements, over the rows.
Graph graph_of(const Columns& c) {
  test::GraphBuilder b;
  Sizes sizes = c.kept;
  sizes.insert(sizes.begin(), c.rows);
  Sizes memory = sizes;
  if (c.padded) memory.back() += 3;
  ValueId x = b.input(c.dtype, memory);
  if (c.padded) {
    const ValueId part = b.value(c.dtype, sizes, x);
    b.graph.values[static_cast<size_t>(part)].strides = b.graph.values[static_cast<size_t>(x)].strides;
    b.node(OpKind::kView, {x}, {part});
    x = part;
  }
  const auto reduce = [&](ReduceOp op, DType dtype) {
    const ValueId out = b.value(dtype, c.kept);
    Node& node = b.node(OpKind::kReduce, {x}, {out});
    node.attrs.dims = {0}, node.attrs.reduce = op;
    b.graph.outputs.push_back(out);
  };
  reduce(ReduceOp::kSum, c.summed());
  if (c.two) reduce(ReduceOp::kMax, c.dtype);
  verify(b.graph);
  return b.graph;
}

/// The operand moves whole vectors at every place that its strides lead to.
void expect_vectors(const abi::Operand& x, int dims, const std::string& what) {
  bool even = x.stride[dims - 1] == 1 && x.offset % x.vector == 0;
  for (int d = 0; d + 1 < dims; ++d) even = even && x.stride[d] % x.vector == 0;
  expect(even || x.vector == 1, cat(what, ": vectors of ", int{x.vector}, " elements"));
}

/// Where parts' results lie, and that every op that touches them goes there. Returns how many there are of a sum.
int64_t check_storages(const Columns& c) {
  planner::Draft draft;
  draft.graph = planner::fuse(graph_of(c));
  const size_t before = draft.graph.storages.size();
  planner::split_reductions(draft, {});
  const planner::FusedGraph& graph = draft.graph;
  const int64_t kept = c.num_kept(), step = kept < 32 ? kept : (kept + 7) / 8 * 8;
  int64_t parts = 1;
  for (size_t s = before; s < graph.storages.size(); ++s) {
    const planner::Storage& storage = graph.storages[s];
    const std::string what = c.text() + storage.name;
    expect_equal(storage.sizes.size(), size_t{2}, what + ": dimensions");
    parts = storage.sizes[0];
    expect_equal(storage.sizes[1], step, what + ": elements from part to part");
    expect_equal(storage.strides[0], step, what + ": stride of a part");
    expect_equal(storage.num_elements, parts * step, what + ": elements");
    std::vector<int> written(static_cast<size_t>(storage.num_elements));
    int64_t read = 0;
    for (const FusedOp& op : graph.ops)
      for (size_t i = 0; i < op.op.operands.size(); ++i) {
        const abi::Operand& x = op.op.operands[i];
        if (x.slot != s) continue;
        const int dims = op.op.record.params.program.num_dims;
        const bool writes = op.access[i] == Access::kWrite;
        const int part_dim = writes ? op.op.record.params.program.reduce_dims : 0;
        expect_equal(x.stride[part_dim], step, what + ": stride over parts in '" + op.op.name + "'");
        expect_vectors(x, dims, what + " in '" + op.op.name + "'");
        if (step % 8 == 0 && (c.kept.size() == 1 || c.kept.back() % 4 == 0))
          expect_equal(int{x.vector}, 16 / size_bytes(storage.dtype), what + ": vector in '" + op.op.name + "'");
        for (int64_t e = 0; e < op.op.record.size[part_dim] * kept; ++e) {
          int64_t at = x.offset + e / kept * x.stride[part_dim], rest = e % kept;
          for (int d = dims; d-- > part_dim + 1; rest /= op.op.record.size[d])
            at += rest % op.op.record.size[d] * x.stride[d];
          if (writes && at < storage.num_elements) ++written[static_cast<size_t>(at)];
          read += !writes && at == e / kept * step + e % kept;
        }
      }
    expect_equal(read, parts * kept, what + ": elements read");
    for (int64_t i = 0; i < storage.num_elements; ++i)
      if (written[static_cast<size_t>(i)] != (i % step < kept))
        return expect_equal(written[static_cast<size_t>(i)], int{i % step < kept}, cat(what, ": stores of ", i)), parts;
  }
  expect_equal(graph.storages.size() - before, parts > 1 ? size_t{c.two ? 2u : 1u} : 0, c.text() + "storages of parts");
  return parts;
}

void test_storages() {
  for (const DType dtype : {kBF16, kF32, kF64, kI64}) {
    for (const int64_t columns : {2, 5, 31, 32, 33, 101, 768, 769, 1001})
      expect(check_storages({3840, {columns}, dtype}) > 1, cat(columns, " columns have parts"));
    expect(check_storages({4099, {769}, dtype}) > 1, "a prime number of rows has parts");
    for (const Sizes& kept : std::vector<Sizes>{{3, 101}, {3, 104}, {5, 7}, {2, 8}, {3, 2, 33}})
      expect(check_storages({3840, kept, dtype, true}) > 1, "several kept dimensions");
  }
  expect_equal(check_storages({100, {769}}), int64_t{1}, "few rows have no parts");
  expect(check_storages({3840, {769}, kF32, false, false}) > 1, "sums alone");
}

/// In a plan: the op that reads the parts moves vectors, whose slot is aligned.
int64_t parts_in(const plan::Plan& plan, const std::string& what) {
  int64_t parts = 0;
  for (const plan::Op& op : plan.ops) {
    const abi::ProgramParams& p = op.record.params.program;
    if (op.record.kind != abi::TaskKind::kColumn || op.name.ends_with(".parts") || op.name.ends_with(".rest")) continue;
    for (const abi::Operand& x : op.operands) {
      const plan::Buffer& buffer = plan.buffers[x.slot];
      if (buffer.kind != plan::BufferKind::kArena) continue;
      parts = op.record.size[0];
      expect_equal(int{x.vector}, 4, what + "vector of the parts");
      expect_equal(x.stride[0] % 8, int64_t{0}, what + "elements from part to part, beyond whole sectors");
      expect_equal(buffer.arena_offset % 32, int64_t{0}, what + "place in the arena, beyond whole sectors");
      expect_equal(p.tile % 4, int64_t{0}, what + "columns of a tile, beyond whole vectors");
    }
  }
  return parts;
}

/// One sum in fp64, and by additions in fp32 one after another.
struct Sum {
  double exact = 0, largest = -INFINITY;
  float plain = 0;
  void add(double x) { exact += x, plain += static_cast<float>(x), largest = std::max(largest, x); }
};

void check_values(const Columns& c, int workers) {
  const Graph graph = graph_of(c);
  planner::Options options;
  options.machine.num_workers = workers;
  const plan::Plan plan = planner::make_plan(graph, options);
  const std::string what = c.text() + cat(workers, " workers, ");
  expect(parts_in(plan, what) >= 2, what + "no parts");
  test::PlanRun run(graph, plan, [](int64_t, bool) { return 0; }, 1.0);
  auto executable = targets::make_host(plan, {.num_threads = 2});
  std::vector<uint32_t> state(executable->state_bytes() / 4);
  const auto first = run.launch(*executable, state, 1), seen = run.launch(*executable, state, 2);
  expect(test::same_bits(first, seen), what + "other bits in another launch");
  const int64_t columns = c.num_kept();
  double error = 0, plain = 0;
  int wrong = 0;
  for (int64_t k = 0; k < columns; ++k) {
    Sum sum;
    for (int64_t row = 0; row < c.rows; ++row) sum.add(test::read_value(seen[0].data(), c.dtype, row * columns + k).f);
    error = std::max(error, std::abs(test::read_value(seen[1].data(), kF32, k).f - sum.exact));
    plain = std::max(plain, std::abs(double{sum.plain} - sum.exact));
    wrong += test::read_value(seen[2].data(), c.dtype, k).f != sum.largest;
  }
  expect(error <= 1.5 * plain, cat(what, "error ", error, ", of additions one after another ", plain));
  expect_equal(wrong, 0, what + "columns whose largest element is another");
}

}  // namespace

int main() {
  test_storages();
  for (const DType dtype : {kF32, kBF16})
    for (const int workers : {8, 132})
      for (const int64_t rows : {512, 1280, 1031}) check_values({rows, {769}, dtype}, workers);
  return test::finish("column parts");
}
