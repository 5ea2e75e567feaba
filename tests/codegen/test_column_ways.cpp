// The ways of column ops that a kernel has (codegen/column_ways.h) are those that their tiles take on the device,
// wherever the slots lie; a kernel serves no op that takes another.
#include <functional>
#include <random>
#include <set>

#include "codegen/codegen.h"
#include "codegen/program_analysis.h"
#include "cuda_compile/plans.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/column_tiles.h"
#include "support/graph_builder.h"

using namespace ark;
using namespace ark::abi;
using cuda_compile::ProgramBuilder;
using test::ColumnTiles;

namespace {

using Sizes = std::vector<int64_t>;
using enum DType;

/// Sums of what the loads give together.
Program sums(const std::vector<DType>& loads, int dims = 2, int reduce_dims = 1, int count = 1, bool gathers = false,
             bool places = false) {
  const int read = static_cast<int>(loads.size());
  ProgramBuilder b(ProgramKind::kColumn, dims, reduce_dims, read + count);
  int value = -1;
  for (int i = 0; i < read; ++i) {
    const int loaded = b.load(i, loads[static_cast<size_t>(i)], gathers && i == 0 ? b.index(0) : -1);
    value = value < 0 ? loaded : b.op(Opcode::kAdd, value, loaded);
  }
  for (int i = 0; i < count; ++i) {
    const auto op = places ? ReduceOp::kArgMax : i % 2 == 0 ? ReduceOp::kSum : ReduceOp::kMax;
    const DType type = places ? kI64 : kF32;
    b.store(read + i, type, b.reduce(op, value, type), true);
  }
  return b.program;
}

struct Tensor {
  DType dtype = kBF16;
  Sizes strides;
  int64_t offset = 0;
};

/// What the planner may say of a tensor whose slot begins at a multiple of 16 bytes.
signed char vector_of(const Tensor& t, const Sizes& sizes) {
  int vector = t.strides.back() == 1 ? 16 / size_bytes(t.dtype) : 1;
  const auto even = [&](int64_t n) { return n % vector == 0; };
  for (size_t d = 0; d + 1 < sizes.size(); ++d)
    while (sizes[d] > 1 && !even(t.strides[d])) vector /= 2;
  while (!even(t.offset)) vector /= 2;
  return static_cast<signed char>(vector);
}

/// `tile` columns of the kept dimensions of `sizes`; stores are dense.
plan::Op column_op(const Program& program, const Sizes& sizes, const std::vector<Tensor>& loads, int64_t tile,
                   int64_t split = 0) {
  plan::Op op;
  op.name = "sum";
  op.record.kind = TaskKind::kColumn;
  std::fill(op.record.size, op.record.size + kMaxDims, 1);
  std::copy(sizes.begin(), sizes.end(), op.record.size);
  ProgramParams& p = op.record.params.program;
  p = {};
  p.num_dims = program.num_dims, p.reduce_dims = program.reduce_dims;
  p.num_rows = p.row_size = 1;
  for (int d = 0; d < p.num_dims; ++d) (d < p.reduce_dims ? p.row_size : p.num_rows) *= op.record.size[d];
  p.tile = tile, p.split = split > 0 ? split : p.row_size;
  std::vector<Tensor> all = loads;
  Tensor stored{kF32, Sizes(sizes.size(), 0)};
  int64_t step = 1;
  for (int d = p.num_dims; d-- > p.reduce_dims; step *= op.record.size[d])
    stored.strides[static_cast<size_t>(d)] = step;
  for (const Instr& in : program.instrs) stored.dtype = in.op == Opcode::kStore ? in.dtype : stored.dtype;
  all.resize(static_cast<size_t>(program.num_operands), stored);
  for (const Tensor& t : all) {
    Operand o{};
    o.dtype = static_cast<short>(t.dtype), o.vector = vector_of(t, sizes), o.index_operand = -1, o.offset = t.offset;
    std::copy(t.strides.begin(), t.strides.end(), o.stride);
    op.operands.push_back(o);
  }
  return op;
}

plan::Plan plan_of(const Program& program, const std::vector<plan::Op>& ops) {
  plan::Plan plan;
  plan.programs = {program};
  plan.ops = ops;
  return plan;
}

codegen::Kernel kernel_of(const plan::Plan& plan) {
  const plan::Plan* const plans[] = {&plan};
  return codegen::make_kernel(plans);
}

/// Calls with addresses of the operands' slots: all that differ by 16 bytes within the longest vector.
void each_place(const plan::Op& op, const std::function<void(const std::vector<int64_t>&)>& use) {
  constexpr uint64_t kPlaces = 4, kMost = 256;
  uint64_t count = 1;
  for (size_t i = 0; i < op.operands.size() && count < kMost; ++i) count *= kPlaces;
  for (uint64_t number = 0; number < count; ++number) {
    std::vector<int64_t> bases;
    for (size_t i = 0; i < op.operands.size(); ++i)
      bases.push_back(4096 + static_cast<int64_t>((number >> (2 * i % 8)) % kPlaces) * 16);
    use(bases);
  }
}

struct Found {
  bool right = true;   // by these ways every column goes where it goes by all of them
  uint32_t taken = 0;  // by all of them
};
Found device(const codegen::ColumnShape& shape, const plan::Op& op, uint32_t ways) {
  const size_t first = static_cast<size_t>(op.record.params.program.first_operand);
  const std::vector<Operand> operands(op.operands.begin() + static_cast<int64_t>(first),
                                      op.operands.begin() + static_cast<int64_t>(first) + shape.num_operands);
  Found found;
  each_place(op, [&](const std::vector<int64_t>& bases) {
    const std::vector<uint32_t> all = ColumnTiles(shape, op.record, operands, bases, kAllColumnWays).run();
    for (const uint32_t way : all) {
      found.taken |= way;
      EXPECT(way != 0 && (way & test::kWrongWay) == 0);
    }
    found.right = found.right && ColumnTiles(shape, op.record, operands, bases, ways).run() == all;
  });
  return found;
}

codegen::ColumnShape shape_of(const Program& program) { return codegen::ProgramAnalysis(program).column_shape(); }

std::string describe(const plan::Op& op) {
  const ProgramParams& p = op.record.params.program;
  std::string text = cat("sizes");
  for (int d = 0; d < p.num_dims; ++d) text += cat(" ", op.record.size[d]);
  text += cat(", ", p.reduce_dims, " reduced, tile ", p.tile, ", split ", p.split);
  for (const Operand& o : op.operands) {
    text += cat("; ", name(static_cast<DType>(o.dtype)), " x", int{o.vector}, " at ", o.offset, " by");
    for (int d = 0; d < p.num_dims; ++d) text += cat(" ", o.stride[d]);
  }
  return text;
}

/// The kernel of this op has what its tiles take; `exact`: and nothing else, so that a way less is missed.
uint32_t check_op(const Program& program, const plan::Op& op, bool exact, uint32_t ways) {
  const codegen::ColumnShape shape = shape_of(program);
  const Found found = device(shape, op, ways);
  if (!found.right || (found.taken & ~ways) != 0)
    test::fail(cat("ways ", ways, ", the device takes ", found.taken, ": ", describe(op)), __FILE__, __LINE__);
  if (!exact) return found.taken;
  if (found.taken != ways)
    test::fail(cat("ways ", ways, " are more than the device takes, ", found.taken, ": ", describe(op)), __FILE__,
               __LINE__);
  for (uint32_t way = 1; way <= kAllColumnWays; way *= 2)
    if ((ways & way) != 0 && device(shape, op, ways & ~way).right)
      test::fail(cat("ways ", ways, " without ", way, " do as well: ", describe(op)), __FILE__, __LINE__);
  return found.taken;
}

struct Case {
  std::string name;
  Program program;
  plan::Op op;
  uint32_t ways;
  bool exact = true;  // some places of the slots need each of these ways
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, uint32_t ways, const Program& program, const Sizes& sizes,
                       const std::vector<Tensor>& loads,
                       int64_t tile) { all.push_back({name, program, column_op(program, sizes, loads, tile), ways}); };
  const Program one = sums({kBF16}), two = sums({kBF16, kBF16}), mixed = sums({kBF16, kF32}),
                six = sums({kBF16}, 2, 1, 5), kept = sums({kBF16}, 3), arg = sums({kBF16}, 2, 1, 1, false, true),
                gather = sums({kBF16}, 2, 1, 1, true);
  add("aligned", kColumnWhole, one, {512, 1024}, {{kBF16, {1024, 1}}}, 256);
  add("aligned, an end", kColumnWhole | kColumnSingle, one, {512, 1028}, {{kBF16, {1032, 1}}}, 256);
  add("off alignment", kColumnSlots, one, {512, 769}, {{kBF16, {769, 1}}}, 256);
  add("off alignment by its begin", kColumnSlots, one, {512, 1024}, {{kBF16, {1024, 1}, 3}}, 256);
  add("off alike", kColumnSlots, two, {512, 769}, {{kBF16, {769, 1}}, {kBF16, {777, 1}, 8}}, 256);
  add("off in two ways", kColumnSlotsAsking, two, {512, 769}, {{kBF16, {769, 1}}, {kBF16, {770, 1}}}, 256);
  add("off, with a value a row", kColumnSlotsAsking, two, {512, 769}, {{kBF16, {769, 1}}, {kBF16, {1, 0}}}, 256);
  add("off, vectors of 16 and 32 bytes", kColumnSlots | kColumnSlotsAsking, mixed, {512, 769},
      {{kBF16, {769, 1}}, {kF32, {769, 1}}}, 256);
  add("the first aligned", kColumnAsking, two, {512, 1024}, {{kBF16, {1024, 1}}, {kBF16, {1025, 1}}}, 256);
  add("the first aligned by 16 bytes", kColumnAsking | kColumnSlotsAsking, sums({kF32, kBF16}), {512, 1024},
      {{kF32, {1024, 1}}, {kBF16, {1025, 1}}}, 256);
  add("aligned, vectors of 16 and 32 bytes", kColumnWhole, mixed, {512, 1024}, {{kBF16, {1024, 1}}, {kF32, {1024, 1}}},
      256);
  add("one long run of few", kColumnFolded, one, {4099, 5}, {{kBF16, {5, 1}}}, 32);
  add("a short run of few", kColumnFolded, one, {33, 5}, {{kBF16, {5, 1}}}, 5);
  add("few, padded", kColumnAsking, one, {4099, 8}, {{kBF16, {9, 1}}}, 32);
  add("few, two runs", kColumnFolded, two, {4099, 5}, {{kBF16, {5, 1}}, {kBF16, {5, 1}, 8}}, 32);
  // whether runs begin alike is asked of every tile
  add("few, two runs apart", kColumnFolded | kColumnSingle, two, {4099, 5}, {{kBF16, {5, 1}}, {kBF16, {5, 1}, 1}}, 32);
  all.back().exact = false;
  add("few, runs of 16 and 32 bytes", kColumnFolded | kColumnSingle, mixed, {4099, 5},
      {{kBF16, {5, 1}}, {kF32, {5, 1}}}, 32);
  add("few of long rows", kColumnSingle, kept, {33, 6, 5}, {{kBF16, {30, 5, 1}}}, 10);
  add("two runs a tile, an end of one", kColumnFolded | kColumnSingle, kept, {33, 3, 5}, {{kBF16, {5, 165, 1}}}, 10);
  add("places of few", kColumnSingle, arg, {4099, 5}, {{kBF16, {5, 1}}}, 32);
  add("places", kColumnAsking | kColumnSingle, arg, {64, 20}, {{kBF16, {20, 1}}}, 32);
  add("rows of columns, off", kColumnSlots, kept, {64, 3, 101}, {{kBF16, {303, 101, 1}}}, 101);
  add("spread", kColumnAsking, one, {512, 1024}, {{kBF16, {2048, 2}}}, 256);
  add("gathered", kColumnAsking, gather, {512, 1024}, {{kBF16, {1024, 1}, 1}}, 256);
  add("gathered, an end", kColumnAsking | kColumnSingle, gather, {512, 1021}, {{kBF16, {1021, 1}}}, 256);
  add("far apart", kColumnAsking, one, {4, 1024}, {{kBF16, {int64_t{1} << 30, 1}}}, 256);
  add("far apart, off", kColumnSlotsAsking, one, {4, 1024}, {{kBF16, {int64_t{1} << 30, 1}, 1}}, 256);
  add("five sums", kColumnWhole, six, {512, 772}, {{kBF16, {772, 1}}}, 256);
  add("one sum of the same", kColumnSlots, one, {512, 772}, {{kBF16, {772, 1}}}, 256);
  add("five sums, off", kColumnSlots, six, {512, 769}, {{kBF16, {769, 1}}}, 256);
  add("no columns", 0, one, {512, 0}, {{kBF16, {0, 1}}}, 256);
  return all;
}

uint32_t own_ways(const codegen::Kernel& kernel) { return kernel.code[0].column_ways; }

void named_cases() {
  uint32_t met = 0;
  for (const Case& c : cases()) {
    const plan::Plan plan = plan_of(c.program, {c.op});
    const uint32_t ways = own_ways(kernel_of(plan));
    if (ways != c.ways) test::fail(cat(c.name, ": ways ", ways, ", expected ", c.ways), __FILE__, __LINE__);
    const std::string text = codegen::generate(plan, {}).text;
    EXPECT(text.find(cat("kColumnWays = ", c.ways, "u;")) != std::string::npos);
    met |= check_op(c.program, c.op, c.exact, ways);
  }
  EXPECT_EQ(met, kAllColumnWays);
  EXPECT_EQ(shape_of(sums({kBF16}, 2, 1, 5)).vector, 4);
  EXPECT_EQ(shape_of(sums({kBF16})).vector, 8);
}

/// A kernel serves the ops whose ways it has, and no others; of several plans or ops it has them all.
void reuse() {
  const std::vector<Case> all = cases();
  int refused = 0;
  for (const Case& a : all)
    for (const Case& b : all) {
      if (a.program != b.program) continue;
      const plan::Plan first = plan_of(a.program, {a.op}), second = plan_of(b.program, {b.op}),
                       both = plan_of(a.program, {a.op, b.op});
      const codegen::Kernel kernel = kernel_of(first);
      const bool serves = (b.ways & ~a.ways) == 0;
      if (codegen::find_numbers(kernel, second).has_value() != serves)
        test::fail(cat("a kernel of '", a.name, "' for '", b.name, "', expected ", serves), __FILE__, __LINE__);
      EXPECT_EQ(codegen::find_numbers(kernel, both).has_value(), serves);
      refused += !serves;
      EXPECT_EQ(own_ways(kernel_of(both)), a.ways | b.ways);
      const plan::Plan* const plans[] = {&first, &second};
      for (const codegen::Kernel& more :
           {kernel_of(both), codegen::make_kernel(plans), codegen::extended(kernel, second)}) {
        EXPECT_EQ(own_ways(more), a.ways | b.ways);
        for (const plan::Plan* plan : {&first, &second, &both}) EXPECT(codegen::find_numbers(more, *plan).has_value());
        for (const Case& c : {a, b}) EXPECT(device(shape_of(c.program), c.op, own_ways(more)).right);
      }
    }
  EXPECT(refused >= 40);
  for (const Case& c : all)
    for (uint32_t way = 1; way <= kAllColumnWays; way *= 2) {
      if ((c.ways & way) == 0) continue;
      codegen::Kernel damaged = kernel_of(plan_of(c.program, {c.op}));
      damaged.code[0].column_ways &= ~way;
      EXPECT(!codegen::find_numbers(damaged, plan_of(c.program, {c.op})).has_value());
    }
}

/// Tiles, parts and vectors as the planner has them.
void planned() {
  std::set<uint32_t> met;
  for (const DType dtype : {kBF16, kF32, kF64, kU8})
    for (const Sizes& sizes : std::vector<Sizes>{{512, 5025},
                                                 {512, 1024},
                                                 {3840, 769},
                                                 {33, 65},
                                                 {1, 1001},
                                                 {4097, 35},
                                                 {300, 4100},
                                                 {5, 7},
                                                 {4099, 1},
                                                 {4099, 12},
                                                 {100003, 31}}) {
      test::GraphBuilder b;
      const ir::ValueId x = b.input(dtype, sizes);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        const ir::ValueId sum = b.value(op == ReduceOp::kSum && dtype != kF64 ? kF32 : dtype, {sizes[1]});
        ir::Node& reduce = b.node(ir::OpKind::kReduce, {x}, {sum});
        reduce.attrs.dims = {0}, reduce.attrs.reduce = op;
        b.graph.outputs.push_back(sum);
      }
      const plan::Plan plan = planner::make_plan(b.graph, {});
      const codegen::Kernel kernel = kernel_of(plan);
      for (const plan::Op& op : plan.ops) {
        if (op.record.kind != TaskKind::kColumn) continue;
        const auto number = static_cast<size_t>(op.record.params.program.program);
        met.insert(check_op(plan.programs[number], op, false, kernel.code[number].column_ways));
      }
    }
  EXPECT(met.size() >= 5);
}

void random_ops() {
  std::mt19937 random(11);
  const auto one_of = [&](const auto& from) { return from[random() % from.size()]; };
  const std::vector<DType> types = {kBF16, kF32, kF64, kU8, kF16};
  const std::vector<int64_t> rows = {1, 2, 3, 16, 64, 700, 9001},
                             columns = {1, 3, 5, 8, 12, 16, 31, 32, 33, 40, 64, 101};
  int exact = 0;
  constexpr int kCount = 1500;
  for (int n = 0; n < kCount; ++n) {
    const int dims = 2 + static_cast<int>(random() % 3), reduce_dims = dims == 2 || random() % 3 != 0 ? 1 : 2;
    const DType type = one_of(types), other = random() % 3 == 0 ? one_of(types) : type;
    std::vector<DType> loads(1 + random() % 2, type);
    loads.back() = other;
    const Program program =
        sums(loads, dims, reduce_dims, random() % 4 == 0 ? 5 : 1, random() % 8 == 0, random() % 8 == 0);
    Sizes sizes(static_cast<size_t>(dims));
    for (int d = 0; d < dims; ++d)
      sizes[static_cast<size_t>(d)] = d + 1 == dims ? one_of(columns)
                                      : d == 0      ? one_of(rows)
                                                    : 1 + static_cast<int64_t>(random() % 4);
    std::vector<Tensor> tensors;
    for (const DType load : loads) {
      Tensor t{load, Sizes(sizes.size(), 1)};
      int64_t step = random() % 16 == 0 ? 2 : 1;
      for (size_t d = sizes.size(); d-- > 0;) {
        t.strides[d] = step;
        step *= sizes[d];
        if (random() % 8 == 0) step += static_cast<int64_t>(random() % 9);
      }
      if (random() % 12 == 0) t.strides.back() = 0;
      if (random() % 4 == 0) t.offset = static_cast<int64_t>(random() % 17);
      tensors.push_back(t);
    }
    int64_t reduced = 1;
    for (int d = 0; d < reduce_dims; ++d) reduced *= sizes[static_cast<size_t>(d)];
    const int64_t row = sizes.back(), tile = std::vector<int64_t>{row, 2 * row, 8 * row, 32, 64, 256, 5}[random() % 7];
    const plan::Op op = column_op(program, sizes, tensors, tile, random() % 4 == 0 ? (reduced + 1) / 2 : reduced);
    const uint32_t ways = codegen::column_ways(shape_of(program), op.record, op.operands.data());
    exact += check_op(program, op, false, ways) == ways;
  }
  std::printf("exact: %d of %d\n", exact, kCount);
  EXPECT(exact >= kCount * 9 / 10);
}

}  // namespace

int main() {
  named_cases();
  reuse();
  planned();
  random_ops();
  return test::result("column ways");
}
