// The host target's program tasks against a scalar evaluator: every opcode with special values, random programs of
// every kind, odd sizes, strides, indices, predicates, long rows, every storage type.
#include <algorithm>

#include "support/test_host_evaluator.h"

using namespace ark;
using namespace ark::test;

namespace {

using ark::test::Value;

/// Runs the plan on the host target and by evaluation; compares the slots named.
void compare_with_evaluator(HostPlan& p, const std::string& what,
                            const std::vector<std::pair<uint32_t, DType>>& outputs, double tolerance,
                            bool throws = false) {
  std::vector<std::vector<char>> expected = p.memory;
  for (const plan::Op& op : p.plan.ops) Evaluator(p.plan, op, expected).run();
  bool thrown = false;
  try {
    p.run(17);
  } catch (const UserError&) {
    thrown = true;
  }
  expect(thrown == throws, cat(what, ": index error ", thrown, ", expected ", throws));
  for (const auto& [slot, dtype] : outputs) {
    const int64_t n = (int64_t(p.memory[slot].size()) - 64) / size_bytes(dtype);
    for (int64_t i = 0; i < n; ++i) {
      const Value got = read_value(p.memory[slot].data(), dtype, i),
                  wanted = read_value(expected[slot].data(), dtype, i);
      const double slack = dtype == DType::kBF16 ? 0.008 : dtype == DType::kF16 ? 0.001 : 0;
      const bool ok = float_type(dtype) ? close(got.f, wanted.f, tolerance + slack, tolerance) : got.i == wanted.i;
      expect(ok, cat(what, ": slot ", slot, " element ", i, ": got ", float_type(dtype) ? got.f : double(got.i),
                     ", expected ", float_type(dtype) ? wanted.f : double(wanted.i)));
      if (!ok) return;
    }
    expect(std::equal(p.memory[slot].end() - 64, p.memory[slot].end(), expected[slot].end() - 64),
           what + ": wrote past the end");
  }
}

const std::vector<double> kSpecialFloats{
    0.0, -0.0, 1,   -1,   0.5,   -0.5, 1.5,  2.5,   -2.5,         3,    -3, 7,  0.1,  -0.3,  20,    -20,
    88,  -88,  100, -104, 1e-30, 1e30, kInf, -kInf, std::nan(""), 1e-3, 5,  -5, 33.3, 1e-40, 65504, 6e-8};
const std::vector<int64_t> kSpecialInts{0,  1,   -1,  2,    -2,  3,     -3,     7,          -7,     63,
                                        64, 100, 127, -128, 255, 32767, -32768, 2147483647, kMin64, ~kMin64};

/// Every pair of special values through one opcode.
void check_opcode(Opcode op, DType in, DType out, int arguments) {
  HostPlan p;
  const int64_t n = is_float(in)         ? int64_t(kSpecialFloats.size())
                    : in == DType::kBool ? 2
                                         : int64_t(kSpecialInts.size());
  const int64_t count = arguments == 1 ? n : n * n;
  const uint32_t a = p.slot(in, count), b = p.slot(in, count), o = p.slot(out, count);
  const auto special = [&](int64_t i) {
    return Value{kSpecialFloats[i % kSpecialFloats.size()],
                 in == DType::kBool ? i % 2 : kSpecialInts[i % kSpecialInts.size()]};
  };
  for (int64_t i = 0; i < count; ++i) {
    write_value(p.memory[a].data(), in, i, special(i % n));
    write_value(p.memory[b].data(), in, i, special(i / n));
  }
  ProgramMaker m;
  m.p.num_operands = 3;
  const int x = m.load(0, in), y = m.load(1, in);
  const int r = m.apply(op, out, x, arguments > 1 ? y : -1);
  m.store(2, out, r);
  p.add(program_op(p, m.p, {count}, {operand(a, in, {1}), operand(b, in, {1}), operand(o, out, {1})}, 100));
  compare_with_evaluator(p, cat(name(op), " ", name(in), " -> ", name(out)), {{o, out}},
                         in == DType::kF64 ? 1e-13 : 2e-6);
}

void test_opcodes() {
  for (const DType t : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (Opcode op = Opcode::kNeg; op <= Opcode::kLgamma; op = Opcode(int(op) + 1)) {
      if (op == Opcode::kIsNan || op == Opcode::kIsInf)
        check_opcode(op, t, DType::kBool, 1);
      else if (op != Opcode::kLogicalNot && op != Opcode::kBitNot)
        check_opcode(op, t, t, 1);
    }
    for (Opcode op = Opcode::kAdd; op <= Opcode::kAtan2; op = Opcode(int(op) + 1)) check_opcode(op, t, t, 2);
    for (Opcode op = Opcode::kEq; op <= Opcode::kGe; op = Opcode(int(op) + 1)) check_opcode(op, t, DType::kBool, 2);
  }
  for (const DType t : {DType::kI64, DType::kI32, DType::kI16, DType::kI8, DType::kU8}) {
    for (const Opcode op : {Opcode::kNeg, Opcode::kAbs, Opcode::kFloor, Opcode::kSign, Opcode::kRelu, Opcode::kBitNot})
      check_opcode(op, t, t, 1);
    for (const Opcode op : {Opcode::kAdd, Opcode::kSub, Opcode::kMul, Opcode::kDiv, Opcode::kDivFloor,
                            Opcode::kDivTrunc, Opcode::kRemainder, Opcode::kFmod, Opcode::kMaximum, Opcode::kMinimum,
                            Opcode::kAnd, Opcode::kOr, Opcode::kXor, Opcode::kShl, Opcode::kShr})
      check_opcode(op, t, t, 2);
    for (Opcode op = Opcode::kEq; op <= Opcode::kGe; op = Opcode(int(op) + 1)) check_opcode(op, t, DType::kBool, 2);
  }
  check_opcode(Opcode::kPow, DType::kI8, DType::kI64, 2);
  for (const Opcode op : {Opcode::kLogicalAnd, Opcode::kLogicalOr, Opcode::kLogicalXor, Opcode::kAnd, Opcode::kOr,
                          Opcode::kXor, Opcode::kMaximum, Opcode::kMinimum, Opcode::kEq, Opcode::kNe, Opcode::kLt})
    check_opcode(op, DType::kBool, DType::kBool, 2);
  for (const Opcode op : {Opcode::kLogicalNot, Opcode::kBitNot}) check_opcode(op, DType::kBool, DType::kBool, 1);
}

void test_casts_and_storage() {
  for (int from = 0; from < kNumDTypes; ++from)
    for (int to = 0; to < kNumDTypes; ++to) check_opcode(Opcode::kCast, DType(from), DType(to), 1);
  // every half and every bfloat survives; every float near a half rounds to the nearest even
  HostPlan p;
  const int64_t n = 65536;
  const uint32_t h = p.slot(DType::kF16, n), b = p.slot(DType::kBF16, n), f = p.slot(DType::kF32, n),
                 ho = p.slot(DType::kF16, n), bo = p.slot(DType::kBF16, n);
  std::mt19937 random(3);
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = uint16_t(i);
    std::memcpy(p.memory[h].data() + 2 * i, &bits, 2);
    std::memcpy(p.memory[b].data() + 2 * i, &bits, 2);
    const float exact = half_to_float(bits), middle = (exact + half_to_float(uint16_t(bits + 1))) / 2;
    write_value(p.memory[f].data(), DType::kF32, i,
                {random() & 1 ? middle : exact * (1 + 1e-4f * float(random() % 100)), 0});
  }
  ProgramMaker m;
  m.p.num_operands = 5;
  const int x = m.load(0, DType::kF16), y = m.load(1, DType::kBF16), z = m.load(2, DType::kF32);
  m.store(3, DType::kF16, z);
  m.store(4, DType::kBF16, z);
  m.store(0, DType::kF16, x);
  m.store(1, DType::kBF16, y);
  const auto dense = [](uint32_t s, DType t) { return operand(s, t, {1}); };
  p.add(program_op(p, m.p, {n},
                   {dense(h, DType::kF16), dense(b, DType::kBF16), dense(f, DType::kF32), dense(ho, DType::kF16),
                    dense(bo, DType::kBF16)},
                   1000));
  compare_with_evaluator(p, "half storage",
                         {{h, DType::kF16}, {b, DType::kBF16}, {ho, DType::kF16}, {bo, DType::kBF16}}, 0);
}

// ---- random programs ----
struct Fuzzer {
  std::mt19937 random;
  int pick(int n) { return int(random() % unsigned(n)); }
  DType float_dtype() { return std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16, DType::kF64}[pick(4)]; }

  /// Appends a random float computation over float values; returns the last.
  int grow(ProgramMaker& m, std::vector<int>& pool, DType t, int steps) {
    const std::vector<Opcode> unary{Opcode::kNeg,  Opcode::kAbs,  Opcode::kSigmoid,
                                    Opcode::kTanh, Opcode::kRelu, Opcode::kSin};
    const std::vector<Opcode> binary{Opcode::kAdd, Opcode::kSub, Opcode::kMul, Opcode::kMaximum, Opcode::kMinimum};
    for (int s = 0; s < steps; ++s) {
      const int a = pool[pick(int(pool.size()))], b = pool[pick(int(pool.size()))];
      if (pick(6) == 0) pool.push_back(m.constant(t, 0.3));
      const int kind = pick(8);
      if (kind < 3)
        pool.push_back(m.apply(unary[pick(int(unary.size()))], t, a));
      else if (kind < 7)
        pool.push_back(m.apply(binary[pick(int(binary.size()))], t, a, b));
      else
        pool.push_back(m.apply(Opcode::kWhere, t, m.apply(Opcode::kLt, DType::kBool, a, b), b, a));
    }
    return pool.back();
  }

  /// Random strides for a tensor over `size`: dense, permuted, broadcast or spread out.
  abi::Operand tensor(HostPlan& p, const std::vector<int64_t>& size, DType t, bool output,
                      const std::vector<bool>& drop, uint32_t& slot) {
    std::vector<int> order(size.size());
    for (size_t d = 0; d < size.size(); ++d) order[d] = int(d);
    if (pick(3) == 0) std::shuffle(order.begin(), order.end(), random);
    std::vector<int64_t> strides(size.size(), 0);
    int64_t next = pick(4) == 0 ? 2 : 1, elements = 1;
    for (int i = int(size.size()) - 1; i >= 0; --i) {
      const int d = order[i];
      if (drop[d] || (!output && pick(5) == 0)) continue;
      strides[d] = next;
      elements += (std::max<int64_t>(size[d], 1) - 1) * next;
      next *= std::max<int64_t>(size[d], 1);
      if (pick(6) == 0) next += 3;
    }
    const int64_t offset = pick(3);
    slot = p.slot(t, elements + offset);
    fill_random(p.memory[slot].data(), t, elements + offset, random);
    return operand(slot, t, strides, offset);
  }

  void run(ProgramKind kind, int trial) {
    const int dims = 1 + pick(4);
    const int reduce = kind == ProgramKind::kPointwise ? 0 : 1 + pick(dims);
    const std::vector<int64_t> choices{1, 2, 3, 5, 17, 33, 129};
    std::vector<int64_t> size;
    int64_t total = 1;
    for (int d = 0; d < dims; ++d) {
      size.push_back(choices[pick(total > 2000 ? 3 : 7)]);
      total *= size.back();
    }
    HostPlan p;
    const DType t = pick(4) == 0 ? DType::kF64 : DType::kF32;
    ProgramMaker m;
    m.p.kind = kind;
    m.p.num_dims = dims;
    m.p.reduce_dims = reduce;
    std::vector<abi::Operand> operands;
    std::vector<std::pair<uint32_t, DType>> outputs;
    std::vector<int> pool;
    const std::vector<bool> keep_all(dims, false);
    std::vector<bool> reduced(dims, false);
    for (int d = 0; d < dims; ++d)
      reduced[d] = kind == ProgramKind::kRow ? d >= dims - reduce : kind == ProgramKind::kColumn && d < reduce;
    uint32_t slot = 0;
    for (int i = 0, loads = 1 + pick(3); i < loads; ++i) {
      const DType s =
          t == DType::kF64 ? DType::kF64 : std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16}[pick(3)];
      operands.push_back(tensor(p, size, s, false, pick(3) == 0 ? reduced : keep_all, slot));
      pool.push_back(m.load(int(operands.size()) - 1, s));
    }
    pool.push_back(m.constant(t, 0.75));
    pool.push_back(m.apply(Opcode::kCast, t, m.index(pick(dims))));
    const auto out = [&](int value, bool uniform) {
      const DType s = t == DType::kF64 ? DType::kF64 : DType::kF32;
      operands.push_back(tensor(p, size, s, true, uniform ? reduced : keep_all, slot));
      outputs.push_back({slot, s});
      m.store(int(operands.size()) - 1, s, value, uniform && kind == ProgramKind::kRow);
    };
    grow(m, pool, t, 1 + pick(8));
    if (kind == ProgramKind::kPointwise || pick(2)) out(pool.back(), false);
    if (kind == ProgramKind::kRow) {
      for (int i = 0, reductions = 1 + pick(3); i < reductions; ++i) {
        const int r =
            m.reduce(std::vector<ReduceOp>{ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}[pick(3)], t, pool.back());
        // keep sums of the size of the values: the comparison is of floats
        pool.push_back(m.apply(Opcode::kTanh, t, m.apply(Opcode::kMul, t, r, m.constant(t, 0.01))));
        if (pick(2)) out(pool.back(), true);
        grow(m, pool, t, pick(5));
        if (pick(2)) out(pool.back(), pick(2) == 0);
      }
      out(pool.back(), false);
    }
    if (kind == ProgramKind::kColumn) {
      std::vector<int> after;
      for (int i = 0, reductions = 1 + pick(2); i < reductions; ++i)
        after.push_back(m.reduce(std::vector<ReduceOp>{ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}[pick(3)], t,
                                 pool[pick(int(pool.size()))]));
      after.push_back(m.constant(t, -0.25));
      out(after[0], true);
      grow(m, after, t, 1 + pick(4));
      // the last value must depend on a reduction
      out(m.apply(Opcode::kAdd, t, after[0], after.back()), true);
    }
    m.p.num_operands = int(operands.size());
    p.add(program_op(p, m.p, size, operands, 1 + pick(200)), 1 + pick(3));
    compare_with_evaluator(p, cat("random program ", int(kind), " trial ", trial), outputs, 2e-4);
  }
};

void test_random_programs() {
  Fuzzer fuzzer{std::mt19937(5)};
  for (int trial = 0; trial < 150; ++trial) {
    fuzzer.run(ProgramKind::kPointwise, trial);
    fuzzer.run(ProgramKind::kRow, trial);
    fuzzer.run(ProgramKind::kColumn, trial);
  }
}

/// Layer norm and softmax over rows of every regime: shorter than a block, longer than the registers.
void test_norms() {
  for (const int64_t row : {1, 17, 129, 1024, 4097, 8192, 8193, 20000}) {
    HostPlan p;
    const int64_t rows = row > 4000 ? 3 : 37;
    const DType bf = DType::kBF16, f = DType::kF32;
    const uint32_t x = p.slot(bf, rows * row), w = p.slot(f, row), y = p.slot(bf, rows * row), mean = p.slot(f, rows),
                   s = p.slot(f, rows * row);
    std::mt19937 random(9);
    fill_random(p.memory[x].data(), bf, rows * row, random);
    fill_random(p.memory[w].data(), f, row, random);
    ProgramMaker m;
    m.p.kind = ProgramKind::kRow;
    m.p.num_dims = 2;
    m.p.reduce_dims = 1;
    m.p.num_operands = 5;
    const int v = m.load(0, bf);
    const int mu = m.apply(Opcode::kMul, f, m.reduce(ReduceOp::kSum, f, v), m.constant(f, 1.0 / double(row)));
    const int centred = m.apply(Opcode::kSub, f, v, mu);
    const int variance =
        m.apply(Opcode::kMul, f, m.reduce(ReduceOp::kSum, f, m.apply(Opcode::kMul, f, centred, centred)),
                m.constant(f, 1.0 / double(row)));
    const int scale = m.apply(Opcode::kRsqrt, f, m.apply(Opcode::kAdd, f, variance, m.constant(f, 1e-5)));
    m.store(2, bf, m.apply(Opcode::kMul, f, m.apply(Opcode::kMul, f, centred, scale), m.load(1, f)));
    m.store(3, f, mu, true);
    const int e = m.apply(Opcode::kExp, f, m.apply(Opcode::kSub, f, v, m.reduce(ReduceOp::kMax, f, v)));
    m.store(4, f, m.apply(Opcode::kDiv, f, e, m.reduce(ReduceOp::kSum, f, e)));
    p.add(program_op(p, m.p, {rows, row},
                     {operand(x, bf, {row, 1}), operand(w, f, {0, 1}), operand(y, bf, {row, 1}),
                      operand(mean, f, {1, 0}), operand(s, f, {row, 1})},
                     2));
    compare_with_evaluator(p, cat("norm of rows of ", row), {{y, bf}, {mean, f}, {s, f}}, 1e-5);
  }
}

void test_reductions_of_special_values() {
  for (const bool by_row : {true, false})
    for (const DType t : {DType::kF32, DType::kBF16, DType::kF64, DType::kI64, DType::kI32, DType::kU8, DType::kBool})
      for (int op = 0; op < kNumReduceOps; ++op) {
        const auto reduce = ReduceOp(op);
        const bool boolean = reduce == ReduceOp::kAny || reduce == ReduceOp::kAll, arg = reduce >= ReduceOp::kArgMax;
        if (boolean != (t == DType::kBool)) continue;
        for (const int64_t n : {1, 2, 17, 64, 129, 2000}) {
          const DType result = arg ? DType::kI64 : t == DType::kBF16 ? DType::kF32 : t;
          HostPlan p;
          const int64_t kept = 19;
          const uint32_t x = p.slot(t, n * kept), y = p.slot(result, kept);
          std::mt19937 random(unsigned(100 * op + n));
          fill_random(p.memory[x].data(), t, n * kept, random, 0.5);
          for (int64_t i = 0; i < kept && is_float(t) && n > 2; i += 3)
            write_value(p.memory[x].data(), t, by_row ? i * n + n / 2 : (n / 2) * kept + i,
                        {i % 2 ? std::nan("") : kInf, 0});
          ProgramMaker m;
          m.p.kind = by_row ? ProgramKind::kRow : ProgramKind::kColumn;
          m.p.num_dims = 2;
          m.p.reduce_dims = 1;
          m.p.num_operands = 2;
          m.store(1, result, m.reduce(reduce, result, m.load(0, t)), true);
          const std::vector<int64_t> size = by_row ? std::vector<int64_t>{kept, n} : std::vector<int64_t>{n, kept};
          p.add(program_op(p, m.p, size,
                           {operand(x, t, {size[1], 1}),
                            operand(y, result, by_row ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1})},
                           7));
          compare_with_evaluator(p, cat(name(reduce), " of ", n, " ", name(t), by_row ? " by row" : " by column"),
                                 {{y, result}}, t == DType::kF64 ? 1e-12 : 1e-5);
        }
      }
}

/// out[i, j] = table[index[i], j] where index is in range; negative indices count from the end; and the inverse store.
void test_indices(bool out_of_range) {
  HostPlan p;
  const int64_t rows = 129, columns = 17, table_rows = 40;
  const DType f = DType::kF32, l = DType::kI64, i32 = DType::kI32;
  const uint32_t table = p.slot(f, table_rows * columns), index = p.slot(i32, rows), y = p.slot(f, rows * columns),
                 back = p.slot(f, (rows + 10) * columns), where = p.slot(l, rows);
  std::mt19937 random(1);
  fill_random(p.memory[table].data(), f, table_rows * columns, random);
  std::vector<int64_t> order(rows + 10);
  for (int64_t i = 0; i < rows + 10; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (int64_t i = 0; i < rows; ++i) {
    write_value(p.memory[index].data(), i32, i, {0, int64_t(random() % (2 * table_rows)) - table_rows});
    write_value(p.memory[where].data(), l, i, {0, order[i]});
  }
  if (out_of_range) write_value(p.memory[index].data(), i32, 77, {0, table_rows});
  ProgramMaker m;
  m.p.num_dims = 2;
  m.p.num_operands = 7;
  const int keep = m.apply(Opcode::kLt, DType::kBool, m.index(1), m.constant(l, 0, 13));
  const int v = m.load(0, f, m.load(1, i32), -1, keep);
  m.store(2, f, v);
  m.store(3, f, v, false, m.load(4, l), -1, keep);
  abi::Operand from = operand(table, f, {0, 1}), to = operand(back, f, {0, 1});
  from.index_operand = 5;
  to.index_operand = 6;
  p.add(program_op(
      p, m.p, {rows, columns},
      {from, operand(index, i32, {1, 0}), operand(y, f, {columns, 1}), to, operand(where, l, {1, 0}),
       operand(abi::kNoSlot, f, {columns, 0, table_rows, 0}), operand(abi::kNoSlot, f, {columns, 0, rows + 10, 0})},
      64));
  compare_with_evaluator(p, "indices", {{y, f}, {back, f}}, 0, out_of_range);
}

void test_empty_rows() {
  for (const bool by_row : {true, false}) {
    HostPlan p;
    const DType f = DType::kF32;
    const uint32_t x = p.slot(f, 1), y = p.slot(f, 5), z = p.slot(f, 5);
    ProgramMaker m;
    m.p.kind = by_row ? ProgramKind::kRow : ProgramKind::kColumn;
    m.p.num_dims = 2;
    m.p.reduce_dims = 1;
    m.p.num_operands = 3;
    const int v = m.load(0, f);
    m.store(1, f, m.reduce(ReduceOp::kSum, f, v), true);
    m.store(2, f, m.reduce(ReduceOp::kMax, f, v), true);
    const std::vector<int64_t> size = by_row ? std::vector<int64_t>{5, 0} : std::vector<int64_t>{0, 5},
                               out = by_row ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1};
    p.add(program_op(p, m.p, size, {operand(x, f, {0, 1}), operand(y, f, out), operand(z, f, out)}, 2));
    compare_with_evaluator(p, "empty rows", {{y, f}, {z, f}}, 0);
  }
}

/// The generator of Opcode::kRand against the published test vectors of Philox4x32-10 and against its own definition.
void test_random_numbers() {
  HostPlan p;
  const DType l = DType::kI64, f = DType::kF32;
  const int64_t n = 4;
  const uint32_t y = p.slot(f, n), z = p.slot(f, n);
  ProgramMaker m;
  m.p.num_operands = 2;
  const int i = m.index(0);
  m.store(0, f, m.apply(Opcode::kRand, f, m.constant(l, 0, 0), m.constant(l, 0, 0), i));
  // counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0: the words of index / 4, offset and seed
  const int64_t block = int64_t(0x85a308d3243f6a88u), offset = int64_t(0x0370734413198a2eu),
                seed = int64_t(0x299f31d0a4093822u);
  (void)block;  // its high bit is beyond what an index can reach: only the first vector has a reachable counter
  m.store(1, f, m.apply(Opcode::kRand, f, m.constant(l, 0, seed), m.constant(l, 0, offset), i));
  p.add(program_op(p, m.p, {n}, {operand(y, f, {1}), operand(z, f, {1})}, 4));
  p.run();
  const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  for (int64_t k = 0; k < n; ++k)
    expect(read_value(p.memory[y].data(), f, k).f == double(zeros[k] >> 8) * 0x1p-24, cat("Philox word ", k));
  bool differs = false;
  for (int64_t k = 0; k < n; ++k)
    differs |= read_value(p.memory[z].data(), f, k).f != read_value(p.memory[y].data(), f, k).f;
  expect(differs, "Philox: seed and offset change nothing");
}

}  // namespace

int main() {
  test_opcodes();
  test_casts_and_storage();
  test_norms();
  test_reductions_of_special_values();
  test_random_programs();
  test_indices(false);
  test_indices(true);
  test_empty_rows();
  test_random_numbers();
  return finish("test_host_programs");
}
