// The host target's attention kinds against plain loops in double: masks, causality, groups of heads, parts, ranges,
// gradients by formula and by finite differences.
#include <algorithm>

#include "device/abi/roles.h"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::test;

namespace {

using abi::TaskKind;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  DType t = DType::kF32;
  int64_t batch = 2, heads = 4, kv_heads = 2, queries = 5, keys = 9, d = 16, dv = 16;
  int mask = 0;  // 0 none, 1 bool, 2 additive
  bool causal = false;
  int64_t group() const { return heads / kv_heads; }
  int64_t causal_offset() const { return keys - queries; }
};

std::string to_string(const Case& c) {
  return cat(name(c.t), " b", c.batch, " h", c.heads, "/", c.kv_heads, " s", c.queries, " t", c.keys, " d", c.d, "/",
             c.dv, " mask ", c.mask, " causal ", c.causal);
}

using Values = std::vector<double>;

Values read_all(const HostPlan& p, uint32_t slot, DType t, int64_t n) {
  Values v(n);
  for (int64_t i = 0; i < n; ++i)
    v[i] = t == DType::kBool ? double(read_value(p.memory[slot].data(), t, i).i)
                             : read_value(p.memory[slot].data(), t, i).f;
  return v;
}

/// Inputs in a plan and as doubles. q, out: [b, s, h, d] in memory (so strides are permuted), k, v: [b, g, t, d].
struct Problem {
  Case c;
  HostPlan p;
  uint32_t q, k, v, mask, gradient;
  Values qs, ks, vs, masks, gradients;
  DType mask_type() const { return c.mask == 1 ? DType::kBool : c.t; }

  explicit Problem(const Case& x, unsigned seed = 1) : c(x) {
    std::mt19937 random(seed);
    const auto fill = [&](DType t, int64_t n) {
      const uint32_t slot = p.slot(t, n);
      fill_random(p.memory[slot].data(), t, n, random);
      return slot;
    };
    q = fill(c.t, c.batch * c.queries * c.heads * c.d);
    k = fill(c.t, c.batch * c.kv_heads * c.keys * c.d);
    v = fill(c.t, c.batch * c.kv_heads * c.keys * c.dv);
    mask = fill(mask_type(), c.batch * c.queries * c.keys);
    gradient = fill(c.t, c.batch * c.queries * c.heads * c.dv);
    if (c.mask == 1)  // the last query of batch 0 sees nothing; the keys at both ends are hidden from everyone
      for (int64_t i = 0; i < c.batch * c.queries * c.keys; ++i)
        if (i / c.keys == c.queries - 1 || i % c.keys == 0 || i % c.keys == c.keys - 1)
          write_value(p.memory[mask].data(), DType::kBool, i, {0, 0});
    if (c.mask == 2)
      for (int64_t i = 0; i < c.batch * c.queries * c.keys; i += 3)
        write_value(p.memory[mask].data(), c.t, i, {-kInf, 0});
    qs = read_all(p, q, c.t, c.batch * c.queries * c.heads * c.d);
    ks = read_all(p, k, c.t, c.batch * c.kv_heads * c.keys * c.d);
    vs = read_all(p, v, c.t, c.batch * c.kv_heads * c.keys * c.dv);
    masks = read_all(p, mask, mask_type(), c.batch * c.queries * c.keys);
    gradients = read_all(p, gradient, c.t, c.batch * c.queries * c.heads * c.dv);
  }
  double scale() const { return 1 / std::sqrt(double(c.d)); }
  int64_t at_q(int64_t b, int64_t h, int64_t s, int64_t i, int64_t width) const {
    return ((b * c.queries + s) * c.heads + h) * width + i;
  }
  int64_t at_k(int64_t b, int64_t h, int64_t t, int64_t i, int64_t width) const {
    return ((b * c.kv_heads + h / c.group()) * c.keys + t) * width + i;
  }
  abi::Operand q_like(uint32_t slot, DType t, int64_t width) const {
    return operand(slot, t, {c.queries * c.heads * width, width, c.heads * width, 1});
  }
  abi::Operand k_like(uint32_t slot, DType t, int64_t width) const {
    return operand(slot, t, {c.kv_heads * c.keys * width, c.keys * width, width, 1});
  }
  abi::Operand row_like(uint32_t slot, DType t) const { return operand(slot, t, {c.heads * c.queries, c.queries, 1}); }
  abi::Operand mask_operand() const {
    return c.mask ? operand(mask, mask_type(), {c.queries * c.keys, 0, c.keys, 1}) : absent();
  }
  static abi::Operand absent() { return operand(abi::kNoSlot, DType::kF32, {}); }

  abi::AttentionParams params() const {
    abi::AttentionParams a{};
    a.batch = int(c.batch), a.heads = int(c.heads), a.kv_heads = int(c.kv_heads), a.queries = int(c.queries),
    a.keys = int(c.keys);
    a.head_dim = int(c.d), a.value_dim = int(c.dv), a.causal = c.causal, a.causal_offset = int(c.causal_offset()),
    a.mask_kind = c.mask;
    a.parts = 1, a.positions_per_part = 1, a.fresh_operand = -1, a.tile_q = a.tile_k = 128, a.dtype = int(c.t),
    a.scale = float(scale());
    return a;
  }
  plan::Op op(TaskKind kind, int64_t grid1, int64_t grid2) const {
    plan::Op o;
    o.record.kind = kind;
    o.record.params.attention = params();
    o.record.grid[0] = int(c.batch), o.record.grid[1] = int(grid1), o.record.grid[2] = int(grid2);
    return o;
  }
  /// Mask ranges computed by kMaskRange; returns the operand.
  abi::Operand add_range() {
    if (!c.mask) return absent();
    const int64_t blocks = (c.queries + 127) / 128;
    const uint32_t slot = p.slot(DType::kI32, c.batch * blocks * abi::kRangeValues);
    plan::Op o;
    o.record.kind = TaskKind::kMaskRange;
    o.record.params.mask_range = {int(c.batch), 1, int(c.queries), int(c.keys), 128, c.mask, int(mask_type()), 0};
    o.record.grid[0] = int(c.batch), o.record.grid[1] = 1, o.record.grid[2] = int(blocks);
    o.operands = {mask_operand(), operand(slot, DType::kI32, {blocks * abi::kRangeValues, 0, abi::kRangeValues, 1})};
    p.add(o);
    return operand(slot, DType::kI32, {blocks * abi::kRangeValues, 0, abi::kRangeValues, 1});
  }

  double score(int64_t b, int64_t h, int64_t s, int64_t t) const {
    if (c.causal && t > s + c.causal_offset()) return -kInf;
    double sum = 0;
    for (int64_t i = 0; i < c.d; ++i) sum += qs[at_q(b, h, s, i, c.d)] * ks[at_k(b, h, t, i, c.d)];
    sum *= scale();
    if (!c.mask) return sum;
    const double m = masks[(b * c.queries + s) * c.keys + t];
    return c.mask == 1 ? (m ? sum : -kInf) : sum + m;
  }
  /// Probabilities of a query and its logsumexp.
  double softmax(int64_t b, int64_t h, int64_t s, Values& weights) const {
    weights.assign(c.keys, 0);
    double maximum = -kInf, sum = 0;
    for (int64_t t = 0; t < c.keys; ++t) maximum = std::max(maximum, weights[t] = score(b, h, s, t));
    for (double& w : weights) sum += w = maximum == -kInf ? 0 : std::exp(w - maximum);
    for (double& w : weights) w = sum ? w / sum : 0;
    return sum ? maximum + std::log(sum) : -kInf;
  }
};

double tolerance(DType t) {
  return t == DType::kBF16 ? 0.02 : t == DType::kF16 ? 0.004 : t == DType::kF64 ? 1e-7 : 3e-5;
}

void compare_forward(Problem& x, uint32_t out, uint32_t lse, const std::string& what) {
  const Case& c = x.c;
  Values w;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t s = 0; s < c.queries; ++s) {
        const double log_sum = x.softmax(b, h, s, w);
        if (lse != abi::kNoSlot) {
          const double got = read_value(x.p.memory[lse].data(), DType::kF32, (b * c.heads + h) * c.queries + s).f;
          expect(close(got, log_sum, 2e-5, 2e-5), cat(what, " logsumexp: got ", got, ", expected ", log_sum));
        }
        for (int64_t i = 0; i < c.dv; ++i) {
          double wanted = 0;
          for (int64_t t = 0; t < c.keys; ++t) wanted += w[t] * x.vs[x.at_k(b, h, t, i, c.dv)];
          const double got = read_value(x.p.memory[out].data(), c.t, x.at_q(b, h, s, i, c.dv)).f;
          expect(close(got, wanted, tolerance(c.t), tolerance(c.t)),
                 cat(what, " at ", b, ", ", h, ", ", s, ", ", i, ": got ", got, ", expected ", wanted));
        }
      }
}

void check_forward(const Case& c, TaskKind kind, bool with_range) {
  Problem x(c);
  const abi::Operand range = with_range ? x.add_range() : Problem::absent();
  const uint32_t out = x.p.slot(c.t, c.batch * c.queries * c.heads * c.dv),
                 lse = x.p.slot(DType::kF32, c.batch * c.heads * c.queries);
  const bool decode = kind == TaskKind::kAttentionDecode;
  const int64_t block = kind == TaskKind::kAttentionSimple ? abi::kTiledQueries : 128;
  plan::Op op = x.op(kind, decode ? c.kv_heads : c.heads, decode ? 1 : (c.queries + block - 1) / block);
  op.record.params.attention.tile_q = static_cast<int>(block);
  op.operands = {x.q_like(x.q, c.t, c.d),
                 x.k_like(x.k, c.t, c.d),
                 x.k_like(x.v, c.t, c.dv),
                 x.q_like(out, c.t, c.dv),
                 x.row_like(lse, DType::kF32),
                 x.mask_operand(),
                 range};
  x.p.add(op);
  x.p.run(4);
  compare_forward(x, out, lse, cat("attention kind ", int(kind), " ", to_string(c), " range ", with_range));
}

/// Decode in parts, combined by a program with LoadParts.
void check_parts(const Case& c, int parts, int positions_per_part) {
  Problem x(c);
  const abi::Operand range = x.add_range();
  const int64_t rows = c.group() * c.queries;
  const DType f = DType::kF32;
  const uint32_t sums = x.p.slot(f, c.batch * c.kv_heads * parts * rows * c.dv),
                 max_sum = x.p.slot(f, c.batch * c.kv_heads * parts * rows * 2);
  const uint32_t out = x.p.slot(c.t, c.batch * c.queries * c.heads * c.dv);
  fill_random(x.p.memory[sums].data(), f, c.batch * c.kv_heads * parts * rows * c.dv,
              *std::make_unique<std::mt19937>(1));
  plan::Op op = x.op(TaskKind::kAttentionDecode, c.kv_heads, parts);
  op.record.params.attention.parts = parts;
  op.record.params.attention.positions_per_part = positions_per_part;
  op.operands = {x.q_like(x.q, c.t, c.d),
                 x.k_like(x.k, c.t, c.d),
                 x.k_like(x.v, c.t, c.dv),
                 Problem::absent(),
                 Problem::absent(),
                 x.mask_operand(),
                 range,
                 operand(sums, f, {c.kv_heads * parts * rows * c.dv, parts * rows * c.dv, rows * c.dv, c.dv, 1}),
                 operand(max_sum, f, {c.kv_heads * parts * rows * 2, parts * rows * 2, rows * 2, 2, 1})};
  x.p.add(op);
  // out[b, s, h, i] over the domain (b, h, s, i): row = b * heads * queries + h * queries + s
  ProgramMaker m;
  m.p.num_dims = 4;
  m.p.num_operands = 6;
  const DType l = DType::kI64;
  const auto times_plus = [&](int a, int64_t factor, int b) {
    return m.apply(Opcode::kAdd, l, m.apply(Opcode::kMul, l, a, m.constant(l, 0, factor)), b);
  };
  const int row = times_plus(times_plus(m.index(0), c.heads, m.index(1)), c.queries, m.index(2));
  m.store(5, c.t,
          m.push({.op = Opcode::kLoadParts, .dtype = f, .a = int16_t(row), .b = int16_t(m.index(3)), .operand = 0}));
  abi::Operand pair = range;
  abi::Operand sizes = operand(abi::kNoSlot, f, {parts, rows, c.dv, positions_per_part, c.keys, c.kv_heads});
  x.p.add(program_op(x.p, m.p, {c.batch, c.heads, c.queries, c.dv},
                     {operand(sums, f, {}), operand(max_sum, f, {}), pair, sizes, operand(abi::kNoSlot, l, {}),
                      x.q_like(out, c.t, c.dv)},
                     50));
  x.p.run(11);
  compare_forward(x, out, abi::kNoSlot, cat("parts ", parts, " of ", positions_per_part, " ", to_string(c)));
}

struct Slots {
  uint32_t out, lse, delta, dq, dk, dv;
};

/// `parts`: of the query heads of a kv head, with a dk and a dv each.
void check_backward(const Case& c, int parts = 1) {
  Problem x(c);
  const abi::Operand range = x.add_range();
  const DType f = DType::kF32;
  const int64_t q_count = c.batch * c.queries * c.heads, k_count = c.batch * c.kv_heads * c.keys;
  const Slots s{x.p.slot(c.t, q_count * c.dv),
                x.p.slot(f, q_count),
                x.p.slot(f, q_count),
                x.p.slot(c.t, q_count * c.d),
                x.p.slot(c.t, k_count * c.d * parts),
                x.p.slot(c.t, k_count * c.dv * parts)};
  const int64_t query_blocks = (c.queries + 127) / 128, key_blocks = (c.keys + 127) / 128;
  const abi::Operand q = x.q_like(x.q, c.t, c.d), k = x.k_like(x.k, c.t, c.d), v = x.k_like(x.v, c.t, c.dv),
                     none = Problem::absent();
  const abi::Operand out = x.q_like(s.out, c.t, c.dv), lse = x.row_like(s.lse, f), delta = x.row_like(s.delta, f),
                     gradient = x.q_like(x.gradient, c.t, c.dv);
  plan::Op forward = x.op(TaskKind::kAttentionForward, c.heads, query_blocks);
  forward.operands = {q, k, v, out, lse, x.mask_operand(), range};
  x.p.add(forward);
  plan::Op rows = x.op(TaskKind::kAttentionBackwardRows, c.heads, query_blocks);
  rows.operands = {gradient, out, delta};
  x.p.add(rows);
  plan::Op keys = x.op(TaskKind::kAttentionBackward, c.kv_heads * parts, key_blocks);
  keys.record.params.attention.head_parts = parts == 1 ? 0 : parts;
  const auto by_part = [&](uint32_t slot, int64_t d) {  // [b, kv head * parts + part, key, d]
    const int64_t head = c.keys * d;
    return operand(slot, c.t, {c.kv_heads * parts * head, head, d, 1});
  };
  keys.operands = {q,
                   k,
                   v,
                   gradient,
                   lse,
                   delta,
                   x.mask_operand(),
                   range,
                   none,
                   parts == 1 ? x.k_like(s.dk, c.t, c.d) : by_part(s.dk, c.d),
                   parts == 1 ? x.k_like(s.dv, c.t, c.dv) : by_part(s.dv, c.dv)};
  x.p.add(keys);
  plan::Op queries = x.op(TaskKind::kAttentionBackwardQuery, c.heads, query_blocks);
  queries.operands = {q, k, v, gradient, lse, delta, x.mask_operand(), range, x.q_like(s.dq, c.t, c.d), none, none};
  x.p.add(queries);
  x.p.run(2);

  Values dq(q_count * c.d), dk(k_count * c.d), dv(k_count * c.dv), w;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.queries; ++i) {
        x.softmax(b, h, i, w);
        Values dp(c.keys);
        double mean = 0;
        for (int64_t t = 0; t < c.keys; ++t) {
          for (int64_t j = 0; j < c.dv; ++j) {
            dp[t] += x.gradients[x.at_q(b, h, i, j, c.dv)] * x.vs[x.at_k(b, h, t, j, c.dv)];
            dv[x.at_k(b, h, t, j, c.dv)] += w[t] * x.gradients[x.at_q(b, h, i, j, c.dv)];
          }
          mean += w[t] * dp[t];
        }
        for (int64_t t = 0; t < c.keys; ++t) {
          const double ds = w[t] * (dp[t] - mean) * x.scale();
          for (int64_t j = 0; j < c.d; ++j) {
            dq[x.at_q(b, h, i, j, c.d)] += ds * x.ks[x.at_k(b, h, t, j, c.d)];
            dk[x.at_k(b, h, t, j, c.d)] += ds * x.qs[x.at_q(b, h, i, j, c.d)];
          }
        }
      }
  const auto compare = [&](uint32_t slot, const Values& wanted, const char* which) {
    const double slack = tolerance(c.t) * 3;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double got = read_value(x.p.memory[slot].data(), c.t, int64_t(i)).f;
      expect(close(got, wanted[i], slack, slack),
             cat("backward ", to_string(c), " ", which, " element ", i, ": got ", got, ", expected ", wanted[i]));
    }
  };
  compare(s.dq, dq, "dq");
  if (parts == 1) {
    compare(s.dk, dk, "dk");
    compare(s.dv, dv, "dv");
    return;
  }
  const auto compare_sum = [&](uint32_t slot, const Values& wanted, int64_t d, const char* which) {
    const double slack = tolerance(c.t) * 3 * parts;
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t g = 0; g < c.kv_heads; ++g)
        for (int64_t t = 0; t < c.keys; ++t)
          for (int64_t j = 0; j < d; ++j) {
            double sum = 0;
            for (int64_t part = 0; part < parts; ++part) {
              const int64_t head = (b * c.kv_heads + g) * parts + part;
              sum += read_value(x.p.memory[slot].data(), c.t, (head * c.keys + t) * d + j).f;
            }
            const double expected = wanted[x.at_k(b, g * (c.heads / c.kv_heads), t, j, d)];
            expect(close(sum, expected, slack, slack),
                   cat(parts, " parts, backward ", to_string(c), " ", which, ": got ", sum, ", expected ", expected));
          }
  };
  compare_sum(s.dk, dk, c.d, "dk");
  compare_sum(s.dv, dv, c.dv, "dv");
}

}  // namespace

int main() {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64})
    for (int mask = 0; mask < 3; ++mask)
      for (const bool causal : {false, true}) {
        Case c{.t = t, .mask = mask, .causal = causal};
        for (const TaskKind kind :
             {TaskKind::kAttentionSimple, TaskKind::kAttentionForward, TaskKind::kAttentionDecode})
          for (const bool range : {false, true}) check_forward(c, kind, range);
        c.dv = 24;
        check_backward(c);
        check_backward(c, 2);
        if (t != DType::kF64) {
          check_parts(c, 4, 2);
          check_parts(c, 3, 100);
          check_parts(c, 1, 4);
        }
      }
  check_forward({.t = DType::kF32, .batch = 1, .heads = 3, .kv_heads = 3, .queries = 1, .keys = 1, .d = 1, .dv = 1},
                TaskKind::kAttentionSimple, false);
  for (const int mask : {0, 1}) {
    const Case big{.t = DType::kF32,
                   .batch = 1,
                   .heads = 2,
                   .kv_heads = 1,
                   .queries = 129,
                   .keys = 257,
                   .d = 33,
                   .dv = 17,
                   .mask = mask,
                   .causal = true};
    for (const TaskKind kind : {TaskKind::kAttentionSimple, TaskKind::kAttentionForward})
      check_forward(big, kind, true);
    check_backward(big);
    check_parts({.t = DType::kBF16,
                 .batch = 2,
                 .heads = 8,
                 .kv_heads = 2,
                 .queries = 1,
                 .keys = 300,
                 .d = 64,
                 .dv = 64,
                 .mask = mask},
                7, 33);
  }
  return finish("test_host_attention");
}
