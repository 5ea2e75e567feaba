// Tile sizes, grids, tensor maps; split reductions compute the same sums.
#include <algorithm>
#include <cmath>
#include <functional>

#include "planner/order/counters.h"
#include "planner/tile/split_reductions.h"
#include "support/sample_graphs.h"
#include "support/tiled.h"

using namespace ark;
using namespace ark::test;

namespace {

using Memory = std::vector<std::vector<double>>;

std::string grid(const plan::Op& op) { return cat(op.record.grid[0], " ", op.record.grid[1], " ", op.record.grid[2]); }

void test_encoder() {
  Builder b = encoder({.batch = 10, .seq = 384, .width = 1024, .heads = 16, .hidden = 4096});
  const planner::Draft draft = tiled(b);
  expect_equal(grid(find(draft, "qkv")), std::string("1 30 12"), "qkv: 128 x 256 tiles");
  expect_equal(grid(find(draft, "ffn2")), std::string("1 30 4"), "ffn2: one wave of 120 tiles");
  expect_equal(grid(find(draft, "attention")), std::string("10 16 3"), "attention");
  const plan::Op& norm = find(draft, "norm1");
  expect(128 % norm.record.params.program.tile == 0, "norm: tiles line up with row blocks of 128");
  expect(planner::num_tiles(norm.record) >= 120, "norm: a tile per worker");

  const abi::MatmulTileParams& p = find(draft, "qkv").record.params.matmul;
  expect(p.a_k_major == 1 && p.b_k_major == 1, "qkv: k is contiguous in both");
  const plan::TensorMap& a = draft.maps.at(p.map_a);
  expect(a.sizes == std::vector<int64_t>{1024, 3840, 1} && a.box == std::vector<int32_t>{64, 128, 1}, "map of a");
  expect_equal(a.strides_bytes[0], int64_t{2048}, "map of a: row stride");
  const abi::AttentionParams& at = find(draft, "attention").record.params.attention;
  const plan::TensorMap& k = draft.maps.at(at.map[1]);
  expect(k.sizes == std::vector<int64_t>{64, 384, 16, 10} && k.box == std::vector<int32_t>{64, 64, 1, 1}, "map of k");
  expect_equal(k.offset_bytes, int64_t{2048}, "map of k: offset");
  expect(k.strides_bytes == std::vector<int64_t>{3 * 2048, 128, 384 * 3 * 2048}, "map of k: strides");
}

/// Of any type and size: how many queries a tile has says how it is computed.
void test_simple_attention() {
  const auto grid_of = [](auto change) {
    Builder b = encoder({.batch = 10, .seq = 384, .width = 1280, .heads = 16, .hidden = 1024});
    for (FusedOp& op : b.graph.ops) {
      if (op.op.record.kind != TaskKind::kAttentionForward) continue;
      op.op.record.kind = TaskKind::kAttentionSimple;
      op.op.record.params.attention.dtype = static_cast<int>(DType::kBF16);
      change(op.op);
    }
    const planner::Draft draft = tiled(b);
    const plan::Op& op = find(draft, "attention");
    expect(op.record.params.attention.map[0] == -1, "no tensor maps");
    return cat(grid(op), ", tile ", op.record.params.attention.tile_q, ", vector ", int{op.operands[1].vector});
  };
  const auto retyped = [](DType type) {
    return [type](plan::Op& op) {
      op.record.params.attention.dtype = static_cast<int>(type);
      for (size_t i = 0; i < 4; ++i) op.operands[i].dtype = static_cast<short>(type);
    };
  };
  expect_equal(grid_of([](plan::Op&) {}), std::string("10 16 3, tile 128, vector 8"), "heads of 80");
  expect_equal(grid_of([](plan::Op& op) { op.operands[1].offset += 4; }), std::string("10 16 6, tile 64, vector 4"),
               "rows that cannot be read by 16 bytes");
  expect_equal(grid_of([](plan::Op& op) { op.record.params.attention.head_dim = 264; }),
               std::string("10 16 6, tile 64, vector 8"), "a large head");
  expect_equal(grid_of([](plan::Op& op) { op.record.params.attention.head_dim = 77; }),
               std::string("10 16 6, tile 64, vector 8"), "an odd head in rows of 80");
  expect_equal(grid_of(retyped(DType::kF32)), std::string("10 16 6, tile 64, vector 4"), "fp32");
  expect_equal(grid_of(retyped(DType::kF64)), std::string("10 16 12, tile 32, vector 2"), "fp64");
}

/// Weight gradients: both operands with the rows contiguous; 1024 x 1024 is balanced better by 128 x 128 tiles.
void test_weight_gradient() {
  Builder b;
  auto dy = b.input("dy", {3840, 1024}, false), x = b.input("x", {3840, 1024}, false),
       dw = b.storage("dw", {1024, 1024});
  b.output(dw);
  b.matmul("dw", 1, 1024, 1024, 3840, {dy, {0, 1, 1024}}, {x, {0, 1024, 1}}, {dw, {0, 1024, 1}});
  const planner::Draft draft = tiled(b);
  const plan::Op& op = find(draft, "dw");
  expect_equal(grid(op), std::string("1 8 8"), "dw: grid");
  const abi::MatmulTileParams& p = op.record.params.matmul;
  expect(p.a_k_major == 0 && p.b_k_major == 0, "dw: rows are contiguous");
  expect(draft.maps.at(p.map_b).box == std::vector<int32_t>{64, 64, 1}, "dw: box");
}

/// Nothing waits for a weight gradient among many: the worker time counts, not the waves.
void test_weight_gradient_among_others() {
  Builder b;
  auto dy = b.input("dy", {3840, 1024}, false), x = b.input("x", {3840, 1024}, false), z = b.storage("z", {1024, 1024});
  for (int i = 0; i < 20; ++i) {
    auto dw = b.storage(cat("dw", i), {1024, 1024});
    b.output(dw);
    b.matmul(cat("dw", i), 1, 1024, 1024, 3840, {dy, {0, 1, 1024}}, {x, {0, 1024, 1}}, {dw, {0, 1024, 1}});
    if (i == 0) {
      b.output(z);
      b.matmul("z", 1, 1024, 1024, 1024, {dw, {0, 1024, 1}}, {dw, {0, 1024, 1}}, {z, {0, 1024, 1}});
    }
  }
  for (FusedOp& op : b.graph.ops) op.op.flops = 1'000'000'000;
  const planner::Draft draft = tiled(b);
  expect_equal(grid(find(draft, "dw0")), std::string("1 8 8"), "dw0: somebody waits for it");
  expect_equal(grid(find(draft, "dw1")), std::string("1 8 4"), "dw1: 128 x 256 tiles");
}

/// Sums of few rows: tiles wide enough to be worth an item.
void test_narrow_columns() {
  Builder b;
  auto parts = b.input("parts", {30, 1024}, false), y = b.storage("y", {1024});
  b.output(y);
  b.program_op(TaskKind::kColumn, "sum", {30, 1024}, 1, {{parts, {1024, 1}}}, {{y, {0, 1}}});
  const planner::Draft draft = tiled(b);
  expect_equal(grid(find(draft, "sum")), std::string("4 1 1"), "sum: 256 columns a tile");
}

void test_unaligned_matmul() {
  Builder b;
  auto x = b.input("x", {100, 77}, false), w = b.input("w", {33, 77}), y = b.storage("y", {100, 33});
  b.output(y);
  b.matmul("odd", 1, 100, 33, 77, {x, {0, 77, 1}}, {w, {0, 1, 77}}, {y, {0, 33, 1}});
  const planner::Draft draft = tiled(b);
  expect(find(draft, "odd").record.kind == TaskKind::kMatmulSimple, "rows of 154 bytes are not for tensor maps");
  expect_equal(grid(find(draft, "odd")), std::string("1 2 1"), "odd: 64 x 64 tiles");
}

/// y[m, n] in fp32 of x [m, k] and w [n, k], rows of `pitch` elements.
Builder float_product(int64_t m, int64_t n, int64_t k, int64_t pitch) {
  Builder b;
  auto x = b.input("x", {m, pitch}, false, DType::kF32), w = b.input("w", {n, pitch}, true, DType::kF32);
  auto y = b.storage("y", {m, n}, DType::kF32);
  b.output(y);
  FusedOp& op = b.matmul("y", 1, m, n, k, {x, {0, pitch, 1}}, {w, {0, 1, pitch}}, {y, {0, n, 1}});
  op.op.record.kind = TaskKind::kMatmulFloat;
  op.op.record.params.matmul.dtype = static_cast<int>(DType::kF32);
  return b;
}

/// Tiles that fill the workers, maps of blocks of 64 rows by 32 k.
void test_float_tiles() {
  struct Case {
    int64_t m, n, k;
    std::string grid;
  };
  for (const Case& c : {Case{1024, 1024, 1024, "1 8 16"}, Case{2048, 2048, 2048, "1 16 16"},
                        Case{384, 768, 768, "1 6 12"}, Case{64, 16384, 256, "1 1 128"}}) {
    Builder b = float_product(c.m, c.n, c.k, c.k);
    const planner::Draft draft = tiled(b);
    expect(find(draft, "y").record.kind == TaskKind::kMatmulFloat, "float: kind");
    expect_equal(grid(find(draft, "y")), c.grid, cat("float: grid of ", c.m, " x ", c.n, " x ", c.k));
    expect(draft.maps.size() == 2, "float: two maps");
    for (const plan::TensorMap& map : draft.maps) expect(map.box == std::vector<int32_t>{32, 64, 1}, "float: box");
  }
  Builder b = float_product(1024, 1024, 1024, 1024);
  for (abi::Operand& x : b.graph.ops[0].op.operands)
    if (x.stride[2] == 1) std::swap(x.stride[1], x.stride[2]);  // a by columns
  const planner::Draft columns = tiled(b);
  expect(columns.maps[0].box == std::vector<int32_t>{64, 32, 1}, "float: box of rows");
  Builder odd = float_product(1024, 1024, 1023, 1023);
  expect(find(tiled(odd), "y").record.kind == TaskKind::kMatmulSimple, "rows of 4092 bytes are not for tensor maps");
}

Memory evaluate(const FusedGraph& graph);

/// Parts of a long k, as of products on the tensor cores.
void test_float_split_k(int64_t n, int64_t k, int64_t tiles) {
  Builder b = float_product(9, n, k, k);
  const StorageId y = b.graph.fresh_storage[0];
  const Memory wanted = evaluate(b.graph);
  const planner::Draft draft = tiled(b);
  const std::string what = cat("float, n ", n, ", k ", k, ": ");
  expect_equal(draft.graph.ops.size(), tiles > 0 ? size_t{2} : size_t{1}, what + "ops");
  expect(evaluate(draft.graph)[static_cast<size_t>(y)] == wanted[static_cast<size_t>(y)], what + "results differ");
  const abi::OpRecord& record = draft.graph.ops[0].op.record;
  expect(record.kind == TaskKind::kMatmulFloat, what + "kind");
  if (tiles > 0) expect_equal(planner::num_tiles(record), tiles, what + "tiles");
}

/// The same, but large: its operands are copied into padded rows, once for both products that read x.
void test_aligned_copies() {
  Builder b;
  auto x = b.input("x", {70, 77}, false), w = b.input("w", {33, 77}), v = b.input("v", {70, 40});
  auto y = b.storage("y", {70, 33}), z = b.storage("z", {77, 40});
  b.output(y);
  b.output(z);
  b.matmul("y", 1, 70, 33, 77, {x, {0, 77, 1}}, {w, {0, 1, 77}}, {y, {0, 33, 1}});
  b.matmul("z", 1, 77, 40, 70, {x, {0, 1, 77}}, {v, {0, 40, 1}}, {z, {0, 40, 1}});
  for (FusedOp& op : b.graph.ops) {
    op.op.record.kind = TaskKind::kMatmulSimple;
    op.op.flops = 10'000'000'000;
  }
  FusedGraph plain = b.graph;
  for (FusedOp& op : plain.ops) op.op.record.kind = TaskKind::kMatmulTile;  // as the evaluator knows them
  const Memory wanted = evaluate(plain);
  const planner::Draft draft = tiled(b);
  expect_equal(draft.graph.ops.size(), size_t{4}, "aligned: copies of x and w, and two products");
  expect(find(draft, "y").record.kind == TaskKind::kMatmulTile, "aligned: kind");
  const Memory got = evaluate(draft.graph);
  expect(got[y] == wanted[y] && got[z] == wanted[z], "aligned: results differ");
  for (const plan::TensorMap& map : draft.maps) expect(map.strides_bytes[0] % 16 == 0, "aligned: row strides");
}

void test_pointwise() {
  Builder b;
  // heads and sequence swapped: tiles must not straddle batches, so that waits can follow (batch, rows)
  const std::vector<int64_t> sizes = {10, 384, 16, 64};
  auto x = b.input("x", {10, 16, 384, 64}, false), y = b.storage("y", sizes);
  b.output(y);
  b.program_op(TaskKind::kPointwise, "swap", sizes, 0, {{x, {16 * 384 * 64, 64, 384 * 64, 1}}}, {b.dense_ref(y)});
  const planner::Draft draft = tiled(b);
  const plan::Op& op = find(draft, "swap");
  expect_equal(int64_t{op.record.grid[0]} * op.record.grid[1] * op.record.grid[2] * op.record.params.program.tile,
               int64_t{10 * 384 * 1024}, "swap: whole tiles");
  expect_equal(op.record.grid[0], 10, "swap: a grid dimension for the batch");
  const planner::Footprint f = planner::footprint(op, draft.graph.programs, 0, draft.graph.storages[x]);
  expect_equal(f.step[0], int64_t{16 * 384 * 64}, "swap: step between batches");
  expect_equal(f.step[1], op.record.params.program.tile / 1024 * 64, "swap: step between row blocks");
}

/// An op without elements has no tiles; sums of nothing have.
void test_no_elements() {
  const auto tiles = [](TaskKind kind, const std::vector<int64_t>& sizes, const std::vector<int64_t>& results) {
    Builder b;
    auto x = b.input("x", sizes, false), y = b.storage("y", results);
    b.output(y);
    std::vector<int64_t> strides = b.dense_ref(y).strides;
    strides.resize(sizes.size());
    if (kind == TaskKind::kColumn) std::rotate(strides.begin(), strides.end() - 1, strides.end());
    b.program_op(kind, "op", sizes, kind == TaskKind::kPointwise ? 0 : 1, {b.dense_ref(x)}, {{y, strides}});
    return planner::num_tiles(find(tiled(b), "op").record);
  };
  expect_equal(tiles(TaskKind::kPointwise, {2, 0}, {2, 0}), int64_t{0}, "pointwise: of no columns");
  expect_equal(tiles(TaskKind::kPointwise, {3, 0, 5}, {3, 0, 5}), int64_t{0}, "pointwise: a 0 in the middle");
  expect_equal(tiles(TaskKind::kColumn, {4, 2, 0}, {2, 0}), int64_t{0}, "sums of no columns");
  expect(tiles(TaskKind::kColumn, {0, 2, 3}, {2, 3}) > 0, "columns of nothing");
  expect(tiles(TaskKind::kRow, {2, 3, 0}, {2, 3}) > 0, "rows of nothing");
}

// ---- rewritten graphs, evaluated ----

void evaluate(const FusedOp& op, const FusedGraph& graph, Memory& memory) {
  const abi::ProgramParams& params = op.op.record.params.program;
  const Program& program = graph.programs[params.program];
  const bool column = op.op.record.kind == TaskKind::kColumn;
  const int n = params.num_dims, r = params.reduce_dims;
  std::vector<int> kept, reduced;
  for (int d = 0; d < n; ++d) ((column ? d < r : d >= n - r) ? reduced : kept).push_back(d);
  std::vector<int64_t> x(n, 0);
  auto walk = [&](const std::vector<int>& dims, auto&& body, auto&& self, size_t at = 0) -> void {
    if (at == dims.size()) return body();
    for (x[dims[at]] = 0; x[dims[at]] < op.op.record.size[dims[at]]; ++x[dims[at]]) self(dims, body, self, at + 1);
    x[dims[at]] = 0;
  };
  auto address = [&](int number) {
    const abi::Operand& operand = op.op.operands[params.first_operand + number];
    int64_t at = operand.offset;
    for (int d = 0; d < n; ++d) at += x[d] * operand.stride[d];
    return std::pair(operand.slot, at);
  };
  auto run = [&](std::vector<double>& reg, std::vector<double>& sums, bool late) {
    std::vector<bool> after(program.instrs.size(), false);
    for (size_t i = 0; i < program.instrs.size(); ++i) {
      const Instr& instr = program.instrs[i];
      after[i] = instr.op == Opcode::kReduce || (instr.a >= 0 && after[instr.a]) || (instr.b >= 0 && after[instr.b]);
      if (after[i] != late && !(late && instr.op != Opcode::kStore)) continue;
      const double a = instr.a >= 0 ? reg[instr.a] : 0, b = instr.b >= 0 ? reg[instr.b] : 0;
      switch (instr.op) {
        case Opcode::kConst:
          reg[i] = static_cast<double>(instr.imm_int);
          break;
        case Opcode::kIndex:
          reg[i] = static_cast<double>(x[instr.aux]);
          break;
        case Opcode::kLt:
          reg[i] = a < b;
          break;
        case Opcode::kGe:
          reg[i] = a >= b;
          break;
        case Opcode::kLoad:
          if (instr.c >= 0 && reg[instr.c] == 0) break;
          reg[i] = memory[address(instr.operand).first].at(address(instr.operand).second);
          break;
        case Opcode::kAdd:
          reg[i] = a + b;
          break;
        case Opcode::kMul:
          reg[i] = a * b;
          break;
        case Opcode::kReduce:
          reg[i] = sums[i];
          break;
        case Opcode::kStore:
          memory[address(instr.operand).first].at(address(instr.operand).second) = a;
          break;
        default:
          std::abort();
      }
    }
  };
  walk(
      kept,
      [&] {
        std::vector<double> reg(program.instrs.size(), 0), sums(program.instrs.size(), 0);
        walk(
            reduced,
            [&] {
              run(reg, sums, false);
              for (size_t i = 0; i < program.instrs.size(); ++i) {
                if (program.instrs[i].op == Opcode::kReduce) sums[i] += reg[program.instrs[i].a];
              }
            },
            walk);
        run(reg, sums, true);
      },
      walk);
}

/// Every product, then the epilogue on them.
void evaluate_matmul(const FusedOp& op, const FusedGraph& graph, Memory& memory) {
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  auto value = [&](int number, int64_t d0, int64_t d1, int64_t d2) -> double& {
    const abi::Operand& x = op.op.operands[number];
    return memory[x.slot].at(x.offset + d0 * x.stride[0] + d1 * x.stride[1] + d2 * x.stride[2]);
  };
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t m = 0; m < p.m; ++m) {
      std::vector<double> sums(p.n, 0);
      for (int64_t n = 0; n < p.n; ++n) {
        for (int64_t k = 0; k < p.k; ++k) sums[n] += value(0, b, m, k) * value(1, b, k, n);
      }
      for (int64_t n = 0; n < p.n; ++n) {
        std::vector<double> reg;
        for (const Instr& instr : graph.programs[p.program].instrs) {
          const int64_t column = n + instr.delta_sign * p.pair_distance;
          switch (instr.op) {
            case Opcode::kRoot:
              reg.push_back(column >= 0 && column < p.n ? sums[column] : 0);
              break;
            case Opcode::kLoad:
              reg.push_back(value(p.first_operand + instr.operand, b, m, n));
              break;
            case Opcode::kAdd:
              reg.push_back(reg[instr.a] + reg[instr.b]);
              break;
            case Opcode::kStore:
              value(p.first_operand + instr.operand, b, m, n) = reg[instr.a];
              reg.push_back(0);
              break;
            default:
              std::abort();
          }
        }
      }
    }
  }
}

Memory evaluate(const FusedGraph& graph) {
  Memory memory;
  for (const planner::Storage& storage : graph.storages) {
    memory.emplace_back(storage.num_elements);
    for (int64_t i = 0; i < storage.num_elements; ++i)
      memory.back()[i] = storage.input < 0 ? 0 : static_cast<double>(i * 7 % 13);
  }
  for (const FusedOp& op : graph.ops) {
    const bool product = op.op.record.kind == TaskKind::kMatmulTile || op.op.record.kind == TaskKind::kMatmulFloat;
    product ? evaluate_matmul(op, graph, memory) : evaluate(op, graph, memory);
  }
  return memory;
}

/// sum of x and of x * y, plus an old value per kept element; x * y is also stored elementwise.
Builder reduction(bool column, int64_t kept, std::vector<int64_t> reduced) {
  Builder b;
  std::vector<int64_t> sizes = reduced;
  sizes.insert(column ? sizes.end() : sizes.begin(), kept);
  auto x = b.input("x", sizes, false), y = b.input("y", sizes, false), old = b.input("old", {kept}, false);
  auto sum = b.storage("sum", {kept}), dot = b.storage("dot", {kept}), product = b.storage("product", sizes);
  std::vector<int64_t> per_kept(sizes.size(), 0);
  per_kept[column ? sizes.size() - 1 : 0] = 1;
  FusedOp& op = b.program_op(column ? TaskKind::kColumn : TaskKind::kRow, "sum", sizes,
                             static_cast<int>(reduced.size()), {b.dense_ref(x), b.dense_ref(y), {old, per_kept}},
                             {{sum, per_kept}, {dot, per_kept}, b.dense_ref(product)});
  Program program = b.graph.programs[op.op.programs[0]];
  program.instrs = {{.op = Opcode::kLoad, .operand = 0},
                    {.op = Opcode::kLoad, .operand = 1},
                    {.op = Opcode::kMul, .a = 0, .b = 1},
                    {.op = Opcode::kStore, .a = 2, .operand = 5},
                    {.op = Opcode::kReduce, .a = 0},
                    {.op = Opcode::kReduce, .a = 2},
                    {.op = Opcode::kLoad, .operand = 2},
                    {.op = Opcode::kAdd, .a = 5, .b = 6},
                    {.op = Opcode::kStore, .a = 4, .operand = 3, .uniform = true},
                    {.op = Opcode::kStore, .a = 7, .operand = 4, .uniform = true}};
  b.graph.programs[op.op.programs[0]] = program;
  return b;
}

void test_split(bool column, int64_t kept, const std::vector<int64_t>& reduced, size_t ops) {
  Builder b = reduction(column, kept, reduced);
  const Memory wanted = evaluate(b.graph);
  planner::Draft draft;
  draft.graph = std::move(b.graph);
  planner::split_reductions(draft, {});
  const std::string what = cat(column ? "column" : "row", " sums of ", reduced[0], "...: ");
  expect_equal(draft.graph.ops.size(), ops, what + "ops");
  const Memory got = evaluate(draft.graph);
  for (size_t s = 0; s < wanted.size(); ++s) {
    expect(got[s] == wanted[s], what + "storage " + draft.graph.storages[s].name + " differs");
  }
  planner::tile(draft, {});
  for (const FusedOp& op : draft.graph.ops) expect(planner::num_tiles(op.op.record) > 0, what + "no tiles");
}

void test_split_grid() {
  Builder b = reduction(true, 1024, {3840});
  const planner::Draft draft = tiled(b);
  expect_equal(draft.graph.ops.size(), size_t{2}, "bias gradient: two ops");
  const abi::OpRecord& record = draft.graph.ops[0].op.record;
  expect_equal(record.size[0], abi::i64{128}, "bias gradient: parts of 128 rows, as a matmul's row blocks");
  const planner::Footprint f =
      planner::footprint(draft.graph.ops[0].op, draft.graph.programs, 0, draft.graph.storages[0]);
  expect_equal(f.step[0], int64_t{128 * 1024}, "bias gradient: a tile reads its row block");
}

/// Columns that make a few tiles more than there are workers: as many for each of them.
void test_even_columns() {
  Builder b = reduction(true, 50257, {512});
  const planner::Draft draft = tiled(b);
  expect_equal(draft.graph.ops.size(), size_t{1}, "wide table: one op");
  const abi::OpRecord& record = draft.graph.ops[0].op.record;
  const int64_t workers = planner::Options{}.machine.num_workers, tiles = planner::num_tiles(record);
  const int64_t rounds = (tiles + workers - 1) / workers;
  expect(tiles * 20 > rounds * workers * 19, cat("wide table: ", tiles, " tiles"));
  expect_equal(record.params.program.tile % 8, abi::i64{0}, "wide table: whole vectors");
}

/// A long k for few tiles: parts of k side by side, then their sum and the epilogue (here with the columns 64 to the
/// left and right).
void test_split_k(int64_t k, bool pairs, bool splits) {
  Builder b;
  const int64_t m = 3, n = 256;
  auto x = b.input("x", {m, k}, false), w = b.input("w", {n, k}), old = b.input("old", {m, n}, false);
  auto y = b.storage("y", {m, n});
  b.output(y);
  FusedOp& op = b.matmul("y", 1, m, n, k, {x, {0, k, 1}}, {w, {0, 1, k}}, {y, {0, n, 1}}, {{old, {0, n, 1}}});
  if (pairs) {
    abi::MatmulTileParams& p = op.op.record.params.matmul;
    p.pair_distance = 64;
    b.graph.programs[p.program].instrs = {{.op = Opcode::kRoot},
                                          {.op = Opcode::kLoad, .operand = 0},
                                          {.op = Opcode::kAdd, .a = 0, .b = 1},
                                          {.op = Opcode::kRoot, .delta_sign = 1},
                                          {.op = Opcode::kRoot, .delta_sign = -1},
                                          {.op = Opcode::kAdd, .a = 3, .b = 4},
                                          {.op = Opcode::kAdd, .a = 2, .b = 5},
                                          {.op = Opcode::kStore, .a = 6, .operand = 1}};
  }
  const Memory wanted = evaluate(b.graph);
  const planner::Draft draft = tiled(b);
  const std::string what = cat("k ", k, pairs ? " with pairs: " : ": ");
  expect_equal(draft.graph.ops.size(), splits ? size_t{2} : size_t{1}, what + "ops");
  expect(evaluate(draft.graph)[y] == wanted[y], what + "results differ");
  const abi::OpRecord& record = draft.graph.ops[0].op.record;
  expect(record.kind == TaskKind::kMatmulTile, what + "kind");
  if (splits) expect(planner::num_tiles(record) == 2 * (pairs ? 4 : 8), what + "tiles");
}

}  // namespace

int main() {
  test_encoder();
  test_simple_attention();
  test_weight_gradient();
  test_weight_gradient_among_others();
  test_narrow_columns();
  test_unaligned_matmul();
  test_aligned_copies();
  test_float_tiles();
  test_float_split_k(256, 2048, 32);
  test_float_split_k(256, 256, 0);
  test_pointwise();
  test_no_elements();
  test_split(true, 64, {1024}, 2);
  test_split(true, 96, {16, 120}, 2);
  test_split(true, 64, {1021}, 3);  // a prime: a rest
  test_split(true, 64, {128}, 1);   // too short
  test_split(false, 3, {65536}, 2);
  test_split(false, 2, {64, 1500}, 2);
  test_split(false, 500, {1024}, 1);  // rows enough
  test_split_grid();
  test_even_columns();
  test_split_k(2048, false, true);
  test_split_k(2048, true, true);
  test_split_k(512, false, false);
  return finish("tile");
}
