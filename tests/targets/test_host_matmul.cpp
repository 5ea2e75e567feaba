// The host target's matrix products against plain loops: every type, odd sizes, strides, batches, epilogues with pairs
// and bias, and the few-row kind with prologue, segments, pairs and gates.
#include <algorithm>

#include "support/test_host_util.h"

using namespace ark;
using namespace ark::test;

namespace {

using ark::test::Value;

using Strides = std::vector<int64_t>;

struct Tensor {
  uint32_t slot;
  DType dtype;
  Strides strides;
  int64_t offset;
};

Tensor make(HostPlan& p, DType t, const std::vector<int64_t>& size, const std::vector<int>& order,
            std::mt19937& random) {
  Tensor x{0, t, Strides(size.size(), 0), int64_t(random() % 3)};
  int64_t next = 1;
  for (int i = int(order.size()) - 1; i >= 0; --i) {
    x.strides[order[i]] = next;
    next *= size[order[i]];
  }
  x.slot = p.slot(t, next + x.offset);
  fill_random(p.memory[x.slot].data(), t, next + x.offset, random);
  return x;
}
abi::Operand as_operand(const Tensor& x) { return operand(x.slot, x.dtype, x.strides, x.offset); }
Value at(const HostPlan& p, const Tensor& x, int64_t i, int64_t j, int64_t k = 0) {
  int64_t index = x.offset + i * x.strides[0] + j * x.strides[1];
  if (x.strides.size() > 2) index += k * x.strides[2];
  return read_value(p.memory[x.slot].data(), x.dtype, index);
}

double tolerance(DType t) {
  return t == DType::kBF16 ? 0.01 : t == DType::kF16 ? 0.002 : t == DType::kF64 ? 1e-12 : 2e-5;
}

/// `terms`: of the sum, whose rounding errors are relative to the terms.
void expect_value(DType t, Value got, double wanted_f, int64_t wanted_i, int64_t terms, const std::string& what) {
  if (is_float(t))
    expect(close(got.f, wanted_f, tolerance(t), tolerance(t) * std::sqrt(double(terms + 1))),
           cat(what, ": got ", got.f, ", expected ", wanted_f));
  else
    expect(got.i == wanted_i, cat(what, ": got ", got.i, ", expected ", wanted_i));
}

/// out = a b (* 2 + bias[n]); bias over n, the scale and the addition in the epilogue.
void check_product(DType t, int64_t batch, int64_t m, int64_t n, int64_t k, int layout, abi::TaskKind kind) {
  std::mt19937 random(unsigned(m * 31 + n * 7 + k + layout));
  HostPlan p;
  const Tensor a =
      make(p, t, {batch, m, k}, layout & 1 ? std::vector<int>{0, 2, 1} : std::vector<int>{0, 1, 2}, random);
  const Tensor b =
      make(p, t, {batch, k, n}, layout & 2 ? std::vector<int>{2, 0, 1} : std::vector<int>{0, 1, 2}, random);
  const Tensor c =
      make(p, t, {batch, m, n}, layout & 1 ? std::vector<int>{2, 1, 0} : std::vector<int>{0, 1, 2}, random);
  Tensor bias = make(p, t, {n}, {0}, random);
  bias.strides = {0, 0, 1};
  ProgramMaker e;
  e.p.kind = ProgramKind::kEpilogue;
  e.p.num_dims = 3;
  e.p.num_operands = 2;
  const DType acc = compute_type(t);
  const int root = e.root();
  e.p.instrs[root].dtype = acc;
  e.store(1, t, e.apply(Opcode::kAdd, acc, e.apply(Opcode::kMul, acc, root, e.constant(acc, 2, 2)), e.load(0, t)));
  plan::Op op;
  op.record.kind = kind;
  const int tile = kind == abi::TaskKind::kMatmulTile ? 128 : 64;
  abi::MatmulTileParams params{};
  params.batch = int(batch), params.m = int(m), params.n = int(n), params.k = int(k);
  params.tile_m = params.tile_n = tile, params.tile_k = 16;
  params.program = p.program(e.p), params.first_operand = 2, params.dtype = int(t);
  op.record.params.matmul = params;
  op.record.grid[0] = int(batch), op.record.grid[1] = int((m + tile - 1) / tile),
  op.record.grid[2] = int((n + tile - 1) / tile);
  op.operands = {as_operand(a), as_operand(b), as_operand(bias), as_operand(c)};
  p.add(op);
  p.run(3);
  const std::string what = cat("product ", name(t), " ", batch, " x ", m, " x ", n, " x ", k, " layout ", layout);
  for (int64_t i = 0; i < batch; ++i)
    for (int64_t row = 0; row < m; ++row)
      for (int64_t column = 0; column < n; ++column) {
        double f = 0;
        uint64_t whole = 0;
        for (int64_t q = 0; q < k; ++q) {
          const Value x = at(p, a, i, row, q), y = at(p, b, i, q, column);
          f += x.f * y.f;
          whole += uint64_t(x.i) * uint64_t(y.i);
        }
        const Value v = read_value(p.memory[bias.slot].data(), t, bias.offset + column);
        char wrapped[8];
        write_value(wrapped, t, 0, {0, int64_t(whole * 2 + uint64_t(v.i))});
        expect_value(t, at(p, c, i, row, column), f * 2 + v.f, is_float(t) ? 0 : read_value(wrapped, t, 0).i, k,
                     cat(what, " at ", i, ", ", row, ", ", column));
      }
}

/// Rotary-like epilogue: columns n and n +- p exchange values: out[n] = n % 2p < p ? r[n] - r[n + p] : r[n] + r[n - p].
int pair_program(ProgramMaker& e, int64_t distance, DType out) {
  const DType f = DType::kF32, l = DType::kI64;
  const int column = e.index(2);
  const int first =
      e.apply(Opcode::kLt, DType::kBool, e.apply(Opcode::kRemainder, l, column, e.constant(l, 0, 2 * distance)),
              e.constant(l, 0, distance));
  const int low = e.apply(Opcode::kSub, f, e.root(), e.root(0, +1)),
            high = e.apply(Opcode::kAdd, f, e.root(), e.root(0, -1));
  return e.store(0, out, e.apply(Opcode::kWhere, f, first, low, high));
}

void check_pairs() {
  const int64_t m = 70, n = 256, k = 40, distance = 16;
  std::mt19937 random(5);
  HostPlan p;
  const DType t = DType::kF32;
  const Tensor a = make(p, t, {1, m, k}, {0, 1, 2}, random), b = make(p, t, {1, k, n}, {0, 2, 1}, random),
               c = make(p, t, {1, m, n}, {0, 1, 2}, random);
  ProgramMaker e;
  e.p.kind = ProgramKind::kEpilogue;
  e.p.num_dims = 3;
  e.p.num_operands = 1;
  pair_program(e, distance, t);
  plan::Op op;
  op.record.kind = abi::TaskKind::kMatmulTile;
  abi::MatmulTileParams params{};
  params.batch = 1, params.m = int(m), params.n = int(n), params.k = int(k), params.tile_m = params.tile_n = 128,
  params.tile_k = 64;
  params.program = p.program(e.p), params.first_operand = 2, params.pair_distance = int(distance),
  params.dtype = int(t);
  op.record.params.matmul = params;
  op.record.grid[0] = op.record.grid[1] = 1, op.record.grid[2] = 2;
  op.operands = {as_operand(a), as_operand(b), as_operand(c)};
  p.add(op);
  p.run();
  const auto product = [&](int64_t row, int64_t column) {
    double f = 0;
    for (int64_t q = 0; q < k; ++q) f += at(p, a, 0, row, q).f * at(p, b, 0, q, column).f;
    return f;
  };
  for (int64_t row = 0; row < m; ++row)
    for (int64_t column = 0; column < n; ++column) {
      const double wanted = column % (2 * distance) < distance ? product(row, column) - product(row, column + distance)
                                                               : product(row, column) + product(row, column - distance);
      expect_value(t, at(p, c, 0, row, column), wanted, 0, k, cat("pairs of a tile at ", row, ", ", column));
    }
}

struct RowsCase {
  DType t;
  int64_t m, k;
  int lanes;
  bool gated;
  int64_t distance;
  std::vector<int64_t> units;  // per segment
  bool of_columns = false;     // weights [k][n]
};

/// Prologue: x * rsqrt(mean(x^2) + eps) * g, rounded to t; segments with weights of their own.
void check_rows(const RowsCase& x, uint64_t seed, int piece) {
  std::mt19937 random{unsigned(seed)};
  HostPlan p;
  const DType acc = compute_type(x.t), f = acc;
  const Tensor activation = make(p, x.t, {1, x.m, x.k}, {0, 1, 2}, random);
  Tensor gain = make(p, x.t, {x.k}, {0}, random);
  gain.strides = {0, 0, 1};
  ProgramMaker pro;
  pro.p.kind = ProgramKind::kPrologue;
  pro.p.num_dims = 3;
  pro.p.reduce_dims = 1;
  pro.p.num_operands = 2;
  const int v = pro.load(0, x.t);
  const int sum = pro.reduce(ReduceOp::kSum, f, pro.apply(Opcode::kMul, f, v, v));
  const int scale =
      pro.apply(Opcode::kRsqrt, f,
                pro.apply(Opcode::kAdd, f, pro.apply(Opcode::kMul, f, sum, pro.constant(f, 1.0 / double(x.k))),
                          pro.constant(f, 1e-5)));
  pro.push({.op = Opcode::kYield,
            .dtype = x.t,
            .a = int16_t(pro.apply(Opcode::kMul, f, pro.apply(Opcode::kMul, f, v, scale), pro.load(1, x.t)))});
  plan::Op op;
  op.record.kind = abi::TaskKind::kMatmulRows;
  abi::MatmulRowsParams params{};
  params.m = int(x.m), params.k = int(x.k), params.lanes = x.lanes, params.pair_distance = int(x.distance),
  params.gated = x.gated;
  params.columns = x.of_columns ? abi::kLeastColumns : 0;
  params.prologue = p.program(pro.p), params.prologue_operand = 0, params.dtype = int(x.t),
  params.num_segments = int(x.units.size());
  op.operands = {as_operand(activation), as_operand(gain)};
  struct Expected {
    Tensor weight, weight2, out;
    int64_t columns;
  };
  std::vector<Expected> segments;
  const bool paired = x.lanes == 2 && !x.gated;
  for (size_t s = 0; s < x.units.size(); ++s) {
    const int64_t columns = x.units[s] * (paired ? 2 : 1);
    Expected e{
        make(p, x.t, {columns, x.k}, s == 1 || x.of_columns ? std::vector<int>{1, 0} : std::vector<int>{0, 1}, random),
        {},
        make(p, x.t, {1, x.m, columns}, {0, 1, 2}, random),
        columns};
    e.weight2 = make(p, x.t, {columns, x.k}, x.of_columns ? std::vector<int>{1, 0} : std::vector<int>{0, 1}, random);
    abi::Segment& segment = params.segment[s];
    segment.first_unit = params.num_units, segment.num_units = int(x.units[s]), segment.column = 0;
    params.num_units += int(x.units[s]);
    segment.weight = int(op.operands.size());
    op.operands.push_back(as_operand(e.weight));
    segment.weight2 = x.gated ? int(op.operands.size()) : 0;
    if (x.gated) op.operands.push_back(as_operand(e.weight2));
    segment.first_operand = int(op.operands.size());
    op.operands.push_back(as_operand(e.out));
    ProgramMaker m;
    m.p.kind = ProgramKind::kEpilogue;
    m.p.num_dims = 3;
    m.p.num_operands = 1;
    if (paired)
      pair_program(m, x.distance, x.t);
    else
      m.store(0, x.t,
              x.gated ? m.apply(Opcode::kMul, acc, m.apply(Opcode::kSigmoid, acc, m.root(0)), m.root(1))
                      : m.apply(Opcode::kNeg, acc, m.root()));
    for (Instr& in : m.p.instrs)
      if (in.dtype == DType::kF32) in.dtype = acc;
    segment.program = p.program(m.p);
    segments.push_back(e);
  }
  op.record.params.rows = params;
  op.record.grid[0] = params.num_units, op.record.grid[1] = op.record.grid[2] = 1;
  p.add(op, piece);
  p.run(seed);
  // reference
  std::vector<double> a(x.m * x.k);
  for (int64_t i = 0; i < x.m; ++i) {
    double squares = 0;
    for (int64_t q = 0; q < x.k; ++q) squares += std::pow(at(p, activation, 0, i, q).f, 2);
    for (int64_t q = 0; q < x.k; ++q) {
      const double y = at(p, activation, 0, i, q).f / std::sqrt(squares / double(x.k) + 1e-5) *
                       read_value(p.memory[gain.slot].data(), x.t, gain.offset + q).f;
      char bytes[8];
      write_value(bytes, x.t, 0, {y, 0});
      a[i * x.k + q] = read_value(bytes, x.t, 0).f;
    }
  }
  for (size_t s = 0; s < segments.size(); ++s) {
    const Expected& e = segments[s];
    const auto dot = [&](const Tensor& w, int64_t i, int64_t column) {
      double sum = 0;
      for (int64_t q = 0; q < x.k; ++q) sum += a[i * x.k + q] * at(p, w, column, q).f;
      return sum;
    };
    for (int64_t i = 0; i < x.m; ++i)
      for (int64_t c = 0; c < e.columns; ++c) {
        const double r = dot(e.weight, i, c);
        double wanted = -r;
        if (x.gated) wanted = 1 / (1 + std::exp(-r)) * dot(e.weight2, i, c);
        if (paired)
          wanted = c % (2 * x.distance) < x.distance ? r - dot(e.weight, i, c + x.distance)
                                                     : r + dot(e.weight, i, c - x.distance);
        const double got = at(p, e.out, 0, i, c).f, slack = tolerance(x.t) * std::sqrt(double(x.k));
        expect(close(got, wanted, tolerance(x.t), slack),
               cat("rows ", name(x.t), " m ", x.m, " k ", x.k, " lanes ", x.lanes, " gated ", x.gated, " segment ", s,
                   " at ", i, ", ", c, ": got ", got, ", expected ", wanted));
      }
  }
}

/// The same bits however the tiles are dealt out, in whatever order and by however many threads they run.
void check_determinism() {
  std::vector<std::vector<char>> first;
  for (int trial = 0; trial < 12; ++trial) {
    std::mt19937 random(1);
    HostPlan p;
    const DType t = DType::kBF16;
    const int64_t m = 150, n = 200, k = 500;
    const Tensor a = make(p, t, {1, m, k}, {0, 1, 2}, random), b = make(p, t, {1, k, n}, {0, 2, 1}, random),
                 c = make(p, t, {1, m, n}, {0, 1, 2}, random);
    ProgramMaker e;
    e.p.kind = ProgramKind::kEpilogue;
    e.p.num_dims = 3;
    e.p.num_operands = 1;
    e.store(0, t, e.root());
    plan::Op op;
    op.record.kind = abi::TaskKind::kMatmulSimple;
    abi::MatmulTileParams params{};
    params.batch = 1, params.m = int(m), params.n = int(n), params.k = int(k), params.tile_m = params.tile_n = 64;
    params.program = p.program(e.p), params.first_operand = 2, params.dtype = int(t);
    op.record.params.matmul = params;
    op.record.grid[0] = 1, op.record.grid[1] = 3, op.record.grid[2] = 4;
    op.operands = {as_operand(a), as_operand(b), as_operand(c)};
    p.add(op, 1 + trial % 5);
    p.run(uint64_t(trial), 1 + trial % 3);
    if (trial == 0) first = p.memory;
    expect(p.memory == first, cat("determinism: trial ", trial, " gives other bits"));
  }
}

}  // namespace

int main() {
  for (const DType t : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8})
    for (int layout = 0; layout < 4; ++layout) {
      check_product(t, 1, 1, 1, 1, layout, abi::TaskKind::kMatmulSimple);
      check_product(t, 2, 17, 129, 33, layout, abi::TaskKind::kMatmulSimple);
    }
  check_product(DType::kF32, 1, 129, 130, 1000, 2, abi::TaskKind::kMatmulSimple);
  check_product(DType::kF32, 3, 5, 7, 0, 0, abi::TaskKind::kMatmulSimple);
  check_product(DType::kBF16, 1, 200, 300, 64, 2, abi::TaskKind::kMatmulTile);
  for (int layout = 0; layout < 4; ++layout)
    check_product(DType::kF32, 2, 130, 70, 40, layout, abi::TaskKind::kMatmulFloat);
  check_pairs();
  for (const DType t : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64})
    for (const int64_t m : {1, 3, 8}) {
      check_rows({t, m, 129, 1, false, 0, {17}}, 1, 5);
      check_rows({t, m, 64, 1, false, 0, {17, 5, 9}}, 2, 7);
      check_rows({t, m, 65, 2, true, 0, {19}}, 3, 4);
      check_rows({t, m, 48, 2, false, 8, {32, 16, 8}}, 4, 11);
    }
  for (const DType t : {DType::kBF16, DType::kF16})
    for (int64_t m = 1; m <= 16; ++m) {
      check_rows({t, m, 8 * (2 * m + 1), 1, false, 0, {17 + m}, true}, 6, 5);
      check_rows({t, m, 8 * (19 - m), 1, false, 0, {31, 5, 16}, true}, 7, 7);
      check_rows({t, m, 8 * (m + 3), 2, true, 0, {17 + m, 9}, true}, 9, 8);
      check_rows({t, m, 8 * (m + 2), 2, false, 8, {32, 16, 8}, true}, 10, 8);
    }
  check_rows({DType::kBF16, 2, 5000, 1, false, 0, {10}, true}, 8, 3);
  check_rows({DType::kBF16, 1, 5000, 1, false, 0, {10}}, 5, 3);
  check_determinism();
  return finish("test_host_matmul");
}
