// Rows that are asked for places are split: the places of the whole row, and no record grows beyond its room.
#include <algorithm>
#include <limits>
#include <random>

#include "planner/draft.h"
#include "planner/fuse/emit.h"
#include "planner/planner.h"
#include "planner/tile/split_reductions.h"
#include "support/test_host_evaluator.h"

using namespace ark;
using namespace ark::test;

namespace {

using Memory = std::vector<std::vector<char>>;
using abi::TaskKind;
using planner::Access;
using planner::FusedGraph;
using planner::FusedOp;
using planner::StorageId;
using enum ReduceOp;

template <class A, class B>
void expect_equal(const A& got, const B& wanted, const std::string& what) {
  expect(got == wanted, cat(what, ": got ", got, ", expected ", wanted));
}

struct Ref {
  StorageId storage = -1;
  std::vector<int64_t> strides;
};

struct Rows {
  int64_t kept = 1;
  std::vector<int64_t> reduced = {16416};
  std::vector<ReduceOp> reduces = {kArgMax};
  DType dtype = DType::kF32;
  int loads = 1;                  // tensors whose sum is reduced
  int late_loads = 0;             // tensors of one number a row that are added to the first result
  bool gathered = false;          // the first tensor's rows stand in a table
  bool stores_row_value = false;  // a number of the row that no reduction yields
  bool stores_elements = false;
  bool column = false;
};

Instr load(DType dtype, size_t operand, int index = -1) {
  return {
      .op = Opcode::kLoad, .dtype = dtype, .a = static_cast<int16_t>(index), .operand = static_cast<int16_t>(operand)};
}
Instr store(DType dtype, int value, size_t operand, bool uniform) {
  return {.op = Opcode::kStore,
          .dtype = dtype,
          .a = static_cast<int16_t>(value),
          .operand = static_cast<int16_t>(operand),
          .uniform = uniform};
}

/// The rows' op: loads, their sum, the reductions, stores.
class RowsGraph {
 public:
  FusedGraph graph;

  explicit RowsGraph(const Rows& rows) : rows_(rows) {
    sizes_ = rows.reduced;
    sizes_.insert(rows.column ? sizes_.end() : sizes_.begin(), rows.kept);
    per_kept_.assign(sizes_.size(), 0);
    per_kept_[rows.column ? sizes_.size() - 1 : 0] = 1;
    fused_.op.name = "rows";
    int value = read_first();
    for (int i = 1; i < rows.loads; ++i) {
      const StorageId x = input(cat("x", i), sizes_, rows.dtype);
      const int next = add(load(rows.dtype, add_operand(dense_ref(x), Access::kRead)));
      value = add({.op = Opcode::kAdd, .dtype = compute_type(rows.dtype), .a = short_of(value), .b = short_of(next)});
    }
    if (rows.stores_elements) {
      const StorageId y = storage("elements", sizes_, rows.dtype);
      add(store(rows.dtype, value, add_operand(dense_ref(y), Access::kWrite), false));
    }
    if (rows.stores_row_value) {
      const StorageId x = input("number", {rows.kept}, rows.dtype), y = storage("copy", {rows.kept}, rows.dtype);
      const int number = add(load(rows.dtype, add_operand({x, per_kept_}, Access::kRead)));
      add(store(rows.dtype, number, add_operand({y, per_kept_}, Access::kWrite), true));
      output(y);
    }
    for (size_t r = 0; r < rows.reduces.size(); ++r) store_reduce(value, rows.reduces[r], r == 0 ? rows.late_loads : 0);
    finish_op();
  }

 private:
  StorageId storage(const std::string& name, const std::vector<int64_t>& sizes, DType dtype) {
    planner::Storage s;
    s.dtype = dtype;
    s.sizes = s.strides = sizes;
    s.num_elements = 1;
    for (size_t d = sizes.size(); d-- > 0;) s.strides[d] = s.num_elements, s.num_elements *= sizes[d];
    s.name = name;
    graph.storages.push_back(s);
    return static_cast<StorageId>(graph.storages.size()) - 1;
  }
  StorageId input(const std::string& name, const std::vector<int64_t>& sizes, DType dtype) {
    const StorageId s = storage(name, sizes, dtype);
    graph.storages[static_cast<size_t>(s)].input = num_inputs_++;
    return s;
  }
  void output(StorageId s) {
    planner::Storage& storage = graph.storages[static_cast<size_t>(s)];
    storage.returned = true;
    plan::Output out;
    out.fresh = static_cast<int>(graph.fresh.size());
    graph.fresh.push_back({storage.dtype, storage.sizes, storage.strides});
    graph.fresh_storage.push_back(s);
    graph.outputs.push_back(out);
  }
  Ref dense_ref(StorageId s) const { return {s, graph.storages[static_cast<size_t>(s)].strides}; }

  static int16_t short_of(int i) { return static_cast<int16_t>(i); }
  int add(const Instr& instr) {
    program_.instrs.push_back(instr);
    return static_cast<int>(program_.instrs.size()) - 1;
  }
  size_t add_operand(const Ref& ref, Access access) {
    abi::Operand x{};
    x.slot = ref.storage < 0 ? abi::kNoSlot : static_cast<uint32_t>(ref.storage);
    x.dtype = static_cast<short>(ref.storage < 0 ? DType::kI64 : graph.storages[ref.storage].dtype);
    x.vector = 1;
    x.index_operand = -1;
    std::copy(ref.strides.begin(), ref.strides.end(), x.stride);
    fused_.op.operands.push_back(x);
    fused_.access.push_back(access);
    return fused_.op.operands.size() - 1;
  }

  int read_first() {
    const StorageId x = input("x0", sizes_, rows_.dtype);
    if (!rows_.gathered) return add(load(rows_.dtype, add_operand(dense_ref(x), Access::kRead)));
    const int row = add({.op = Opcode::kIndex, .dtype = DType::kI64, .aux = 0});
    Ref within = dense_ref(x);
    const int64_t step = within.strides[0];
    within.strides[0] = 0;
    const size_t number = add_operand(within, Access::kRead), strides = add_operand({}, Access::kParameters);
    fused_.op.operands[number].index_operand = static_cast<signed char>(strides);
    fused_.op.operands[strides].stride[0] = step;
    fused_.op.operands[strides].stride[2] = rows_.kept;
    return add(load(rows_.dtype, number, row));
  }

  void store_reduce(int value, ReduceOp reduce, int late_loads) {
    const DType type = reduce >= kArgMax ? DType::kI64 : compute_type(rows_.dtype);
    int result = add({.op = Opcode::kReduce, .dtype = type, .a = short_of(value), .aux = static_cast<int16_t>(reduce)});
    for (int i = 0; i < late_loads; ++i) {
      const StorageId x = input(cat("late", i), {rows_.kept}, type);
      const int next = add(load(type, add_operand({x, per_kept_}, Access::kRead)));
      result = add({.op = Opcode::kAdd, .dtype = type, .a = short_of(result), .b = short_of(next)});
    }
    const StorageId y = storage(cat("result", fused_.op.operands.size()), {rows_.kept}, type);
    add(store(type, result, add_operand({y, per_kept_}, Access::kWrite), true));
    output(y);
  }

  void finish_op() {
    program_.kind = rows_.column ? ProgramKind::kColumn : ProgramKind::kRow;
    program_.num_dims = static_cast<int>(sizes_.size());
    program_.reduce_dims = static_cast<int>(rows_.reduced.size());
    program_.num_operands = static_cast<int>(fused_.op.operands.size());
    fused_.op.record.kind = rows_.column ? TaskKind::kColumn : TaskKind::kRow;
    std::fill(std::begin(fused_.op.record.size), std::end(fused_.op.record.size), 1);
    std::copy(sizes_.begin(), sizes_.end(), fused_.op.record.size);
    abi::ProgramParams& params = fused_.op.record.params.program;
    graph.programs.push_back(program_);
    params.program = 0;
    params.num_dims = program_.num_dims;
    params.reduce_dims = program_.reduce_dims;
    fused_.op.programs = {params.program};
    graph.ops.push_back(fused_);
  }

  const Rows rows_;
  std::vector<int64_t> sizes_, per_kept_;
  Program program_;
  FusedOp fused_;
  int num_inputs_ = 0;
};

planner::Draft split(const Rows& rows) {
  planner::Draft draft;
  draft.graph = RowsGraph(rows).graph;
  planner::split_reductions(draft, {});
  return draft;
}

/// Numbers that tie often; of floats also what has rules of its own.
Value number(std::mt19937& random, const std::vector<double>& special) {
  if (!special.empty() && random() % 4000 == 0) return {special[random() % special.size()], 0};
  const auto small = static_cast<int64_t>(random() % 9) - 4;
  return {static_cast<double>(small) * 0.5, small};
}

/// Of `n` numbers in rows: two equal ones above and two below all others, in each row's last half.
void plant(char* memory, DType dtype, int64_t rows, int64_t n, std::mt19937& random) {
  const int64_t length = n / rows, half = length / 2;
  for (int64_t row = 0; length >= 16 && row < rows; ++row)
    for (const int64_t extreme : {9, -9, 9, -9}) {
      const int64_t place = row * length + half + static_cast<int64_t>(random() % static_cast<uint64_t>(length - half));
      write_value(memory, dtype, place, {static_cast<double>(extreme), extreme});
    }
}

Memory evaluate(const FusedGraph& graph, const std::vector<double>& special) {
  std::mt19937 random(7);
  Memory memory;
  for (const planner::Storage& s : graph.storages) {
    memory.emplace_back(static_cast<size_t>(s.num_elements * size_bytes(s.dtype)));
    for (int64_t i = 0; s.input >= 0 && i < s.num_elements; ++i)
      write_value(memory.back().data(), s.dtype, i, number(random, special));
    if (s.input >= 0 && !s.sizes.empty()) plant(memory.back().data(), s.dtype, s.sizes[0], s.num_elements, random);
  }
  plan::Plan plan;
  plan.programs = graph.programs;
  for (const FusedOp& op : graph.ops) Evaluator(plan, op.op, memory).run();
  return memory;
}

std::string describe(const Rows& rows) {
  std::string text = cat(rows.kept, " rows of", rows.column ? " (columns)" : "");
  for (int64_t n : rows.reduced) text += cat(" ", n);
  for (ReduceOp reduce : rows.reduces) text += cat(" ", name(reduce));
  return text + cat(", ", name(rows.dtype), ", ", rows.loads, " loads");
}

/// Split or not; the results are those of the op as it was.
planner::Draft check_split(const Rows& rows, bool splits, const std::vector<double>& special = {}) {
  const FusedGraph whole = RowsGraph(rows).graph;
  planner::Draft draft = split(rows);
  const std::string what = describe(rows) + ": ";
  expect_equal(draft.graph.ops.size(), splits ? size_t{2} : size_t{1}, what + "ops");
  if (!splits) {
    expect_equal(draft.graph.storages.size(), whole.storages.size(), what + "storages");
    expect_equal(draft.graph.programs.size(), whole.programs.size(), what + "programs");
    return draft;
  }
  expect_equal(draft.graph.ops[0].op.name, std::string("rows.parts"), what + "name");
  const Memory wanted = evaluate(whole, special), got = evaluate(draft.graph, special);
  for (size_t s = 0; s < wanted.size(); ++s)
    expect(got[s] == wanted[s], what + whole.storages[s].name + " differs from the whole row's");
  for (const FusedOp& op : draft.graph.ops)
    expect(op.op.operands.size() <= planner::kMaxOperands, what + cat(op.op.operands.size(), " operands"));
  return draft;
}

/// The plan of the split graph, with its tiles, is one that the verifier takes.
void test_plans() {
  for (const Rows& rows :
       {Rows{}, Rows{.kept = 5, .reduced = {50257}, .reduces = {kArgMax, kMax, kSum}},
        Rows{.kept = 64, .reduced = {128256}, .dtype = DType::kBF16},
        Rows{.kept = 2, .reduced = {24, 1500}, .reduces = {kArgMin}}, Rows{.kept = 2, .stores_row_value = true},
        Rows{.kept = 2, .reduced = {65536}, .reduces = {kSum}, .stores_row_value = true}}) {
    const plan::Plan plan = planner::plan_fused(RowsGraph(rows).graph, {});
    expect_equal(plan.ops.size(), size_t{2}, describe(rows) + ": ops of the plan");
    const int64_t tiles = planner::num_tiles(plan.ops[0].record);
    expect(tiles >= 2 * rows.kept, describe(rows) + cat(": ", tiles, " tiles"));
  }
}

/// Rows of other lengths run in the same code where sizes vary.
void test_sizes() {
  const auto programs = [](int64_t n, bool sizes_vary) {
    planner::Options options;
    options.sizes_vary = sizes_vary;
    return planner::plan_fused(RowsGraph({.kept = 2, .reduced = {n}, .reduces = {kArgMax, kMax}}).graph, options)
        .programs;
  };
  expect(programs(50257, true) == programs(128256, true), "lengths of 50257 and 128256 have the same programs");
  expect(programs(50257, false) != programs(128256, false), "the length of a part is code");
}

void test_values() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::vector<double>> specials = {{}, {nan}, {0.0, -0.0}, {kInf, -kInf}, {nan, kInf, -kInf}};
  for (const std::vector<double>& special : specials)
    for (const int64_t n : {16416, 16421, 20000})  // the second is a prime
      for (const ReduceOp reduce : {kArgMax, kArgMin})
        check_split({.kept = 2, .reduced = {n}, .reduces = {reduce}}, true, special);
}

void test_types() {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF64, DType::kI64, DType::kI32, DType::kU8})
    check_split({.kept = 3, .reduced = {16421}, .reduces = {kArgMax, kArgMin}, .dtype = dtype}, true);
  check_split({.reduced = {16416}, .dtype = DType::kBool}, false);
}

/// All elements equal: the first of the first part.
void test_one_value() {
  planner::Draft draft = split({.kept = 2, .reduced = {16421}, .dtype = DType::kI64});
  for (planner::Storage& s : draft.graph.storages) s.input = -1;
  const Memory memory = evaluate(draft.graph, {});
  for (size_t s = 0; s < memory.size(); ++s)
    if (draft.graph.storages[s].returned)
      for (int64_t row = 0; row < 2; ++row)
        expect_equal(read_value(memory[s].data(), DType::kI64, row).i, int64_t{0}, "place among equals");
}

/// Beside other reductions of the same row; sums (of integers here, so that their order does not show) see an element
/// once though parts overlap.
void test_mixed() {
  for (const int64_t n : {16416, 16421})
    check_split({.kept = 2, .reduced = {n}, .reduces = {kSum, kArgMax, kMax, kArgMin, kProd}, .dtype = DType::kI64},
                true);
  check_split({.reduced = {16421}, .reduces = {kMin, kArgMax, kArgMin}, .dtype = DType::kF32}, true);
}

void test_dimensions() {
  check_split({.kept = 3, .reduced = {8, 4111}}, true);
  check_split({.kept = 1, .reduced = {24, 1500}, .reduces = {kArgMin, kMax}}, true);
  check_split({.kept = 3, .reduced = {5, 4103}}, true);
}

/// What moves at once lies at multiples of its length in every part.
void test_vectors() {
  const auto vector_of = [](const Rows& rows) {
    planner::Draft draft;
    draft.graph = RowsGraph(rows).graph;
    draft.graph.ops[0].op.operands[0].vector = 8;
    planner::split_reductions(draft, {});
    const plan::Op& op = draft.graph.ops[0].op;
    expect(op.operands[0].stride[1] % op.operands[0].vector == 0, describe(rows) + ": a part begins within a vector");
    return static_cast<int>(op.operands[0].vector);
  };
  expect_equal(vector_of({.reduced = {128256}}), 8, "parts of a vocabulary move whole vectors");
  expect_equal(vector_of({.reduced = {65544}, .reduces = {kSum}}), 1, "parts of 8193 elements");
}

void test_left_alone() {
  check_split({.reduced = {16415}}, false);                              // too short
  check_split({.kept = 67, .reduced = {16416}}, false);                  // rows enough for the workers
  check_split({.kept = 64, .reduced = {20000}, .column = true}, false);  // columns have one phase
}

/// Elements that are stored are seen once: parts divide the row.
void test_stored_elements() {
  const planner::Draft draft = check_split({.kept = 2, .reduced = {20000}, .stores_elements = true}, true);
  const abi::OpRecord& record = draft.graph.ops[0].op.record;
  expect_equal(record.size[1] * record.size[2], abi::i64{20000}, "elements of all parts");
  check_split({.reduced = {16421}, .stores_elements = true}, false);
}

/// An extreme that is asked for anyway serves its place.
void test_shared_extreme() {
  const auto operands = [](const Rows& rows, size_t op) { return split(rows).graph.ops.at(op).op.operands.size(); };
  expect_equal(operands({.reduces = {kArgMax}}, 0), size_t{3}, "x, extremes, places");
  expect_equal(operands({.reduces = {kArgMax, kMax}}, 0), size_t{3}, "x, extremes, places, with the extreme");
  expect_equal(operands({.reduces = {kMax, kArgMax}}, 1), size_t{4}, "extremes, places, two results");
  expect_equal(operands({.reduces = {kMin, kArgMax}}, 0), size_t{4}, "another extreme");
  expect_equal(operands({.reduces = {kArgMax}, .gathered = true}, 0), size_t{4}, "x, its index, extremes, places");
}

/// Room of the first op: what it reads, index operands, a place and an extreme per place.
void test_room_of_first() {
  const int most = static_cast<int>(planner::kMaxOperands);
  for (const bool fits : {true, false}) {
    const int more = fits ? 0 : 1;
    const Rows one{.loads = most - 2 + more}, both{.reduces = {kArgMax, kArgMin}, .loads = most - 4 + more};
    const Rows own{.reduces = {kArgMax, kMax}, .loads = most - 2 + more};
    const Rows gathered{.loads = most - 3 + more, .gathered = true};
    for (const Rows& rows : {one, both, own, gathered}) {
      const planner::Draft draft = check_split(rows, fits);
      if (fits) expect_equal(draft.graph.ops[0].op.operands.size(), size_t(most), describe(rows) + ": operands");
    }
  }
}

/// Room of the second op: extremes, places, what follows the reduction.
void test_room_of_second() {
  const int most = static_cast<int>(planner::kMaxOperands);
  const planner::Draft draft = check_split({.late_loads = most - 3}, true);
  expect_equal(draft.graph.ops[1].op.operands.size(), size_t(most), "operands of the second op");
  check_split({.late_loads = most - 2}, false);
}

/// Sums keep their room: any number of reductions that the records hold.
void test_room_of_sums() {
  const auto sums = [](int count, int loads, bool column) {
    return Rows{.kept = column ? 64 : 2,
                .reduced = {column ? 1024 : 65536},
                .reduces = std::vector<ReduceOp>(static_cast<size_t>(count), kSum),
                .dtype = DType::kI64,
                .loads = loads,
                .column = column};
  };
  const int most = static_cast<int>(planner::kMaxOperands);
  for (const bool column : {true, false})
    for (const int count : {1, 5, 6, 10}) {
      check_split(sums(count, most - count, column), true);
      check_split(sums(count, most - count + 1, column), false);
    }
  check_split(sums(11, 1, true), false);  // the second op: 11 partial sums, 11 results
}

}  // namespace

int main() {
  test_plans();
  test_sizes();
  test_values();
  test_types();
  test_one_value();
  test_mixed();
  test_dimensions();
  test_vectors();
  test_left_alone();
  test_stored_elements();
  test_shared_extreme();
  test_room_of_first();
  test_room_of_second();
  test_room_of_sums();
  return finish("split places");
}
