// Programs evaluated one element at a time, in the plainest way: what the host target is compared with.
#pragma once
#include <algorithm>
#include <map>

#include "support/test_host_util.h"

namespace ark::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min();

inline DType compute(DType t) { return compute_type(t); }

// ---- scalar meaning of the opcodes, in the compute type ----
template <class T>
T float_unary(Opcode op, T x) {
  switch (op) {
    case Opcode::kNeg:
      return -x;
    case Opcode::kAbs:
      return std::abs(x);
    case Opcode::kExp:
      return std::exp(x);
    case Opcode::kExp2:
      return std::exp2(x);
    case Opcode::kExpm1:
      return std::expm1(x);
    case Opcode::kLog:
      return std::log(x);
    case Opcode::kLog2:
      return std::log2(x);
    case Opcode::kLog1p:
      return std::log1p(x);
    case Opcode::kSqrt:
      return std::sqrt(x);
    case Opcode::kRsqrt:
      return 1 / std::sqrt(x);
    case Opcode::kReciprocal:
      return 1 / x;
    case Opcode::kSin:
      return std::sin(x);
    case Opcode::kCos:
      return std::cos(x);
    case Opcode::kTan:
      return std::tan(x);
    case Opcode::kTanh:
      return std::tanh(x);
    case Opcode::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Opcode::kErf:
      return std::erf(x);
    case Opcode::kErfc:
      return std::erfc(x);
    case Opcode::kFloor:
      return std::floor(x);
    case Opcode::kCeil:
      return std::ceil(x);
    case Opcode::kRound:
      return std::nearbyint(x);
    case Opcode::kTrunc:
      return std::trunc(x);
    case Opcode::kSign:
      return x > 0 ? 1 : x < 0 ? -1 : 0;
    case Opcode::kRelu:
      return std::isnan(x) ? x : std::max(x, T(0));
    case Opcode::kAsin:
      return std::asin(x);
    case Opcode::kAcos:
      return std::acos(x);
    case Opcode::kAtan:
      return std::atan(x);
    case Opcode::kSinh:
      return std::sinh(x);
    case Opcode::kCosh:
      return std::cosh(x);
    case Opcode::kAsinh:
      return std::asinh(x);
    case Opcode::kAcosh:
      return std::acosh(x);
    case Opcode::kAtanh:
      return std::atanh(x);
    case Opcode::kLgamma:
      return std::lgamma(x);
    default:
      throw InternalError("no such unary");
  }
}
template <class T>
T python_mod(T a, T b) {
  const T r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <class T>
T float_binary(Opcode op, T a, T b) {
  const bool nan = std::isnan(a) || std::isnan(b);
  switch (op) {
    case Opcode::kAdd:
      return a + b;
    case Opcode::kSub:
      return a - b;
    case Opcode::kMul:
      return a * b;
    case Opcode::kDiv:
      return a / b;
    case Opcode::kDivTrunc:
      return std::trunc(a / b);
    case Opcode::kDivFloor:
      if (b == 0) return a / b;
      if (std::isinf(a) || nan) return std::numeric_limits<T>::quiet_NaN();
      return std::isinf(b) ? (a == 0 || (a < 0) == (b < 0) ? T(0) : T(-1))
                           : T(std::floor((long double)(a) / (long double)(b)));
    case Opcode::kRemainder:
      return python_mod(a, b);
    case Opcode::kFmod:
      return std::fmod(a, b);
    case Opcode::kPow:
      return std::pow(a, b);
    case Opcode::kMaximum:
      return nan ? std::numeric_limits<T>::quiet_NaN() : std::max(a, b);
    case Opcode::kMinimum:
      return nan ? std::numeric_limits<T>::quiet_NaN() : std::min(a, b);
    case Opcode::kAtan2:
      return std::atan2(a, b);
    default:
      throw InternalError("no such binary");
  }
}
inline int64_t wrap(unsigned __int128 x) { return int64_t(uint64_t(x)); }
inline int64_t int_binary(Opcode op, int64_t a, int64_t b) {
  const __int128 wide_a = a, wide_b = b;
  const auto quotient = [&] { return b == 0 ? __int128(0) : wide_a / wide_b; };
  const auto rest = [&] { return b == 0 ? __int128(0) : wide_a % wide_b; };
  const bool opposite = rest() != 0 && (rest() < 0) != (b < 0);
  switch (op) {
    case Opcode::kAdd:
      return wrap(wide_a + wide_b);
    case Opcode::kSub:
      return wrap(wide_a - wide_b);
    case Opcode::kMul:
      return wrap((unsigned __int128)(wide_a) * (unsigned __int128)(wide_b));
    case Opcode::kDiv:
    case Opcode::kDivTrunc:
      return wrap(quotient());
    case Opcode::kDivFloor:
      return wrap(quotient() - opposite);
    case Opcode::kFmod:
      return wrap(rest());
    case Opcode::kRemainder:
      return wrap(rest() + (opposite ? wide_b : 0));
    case Opcode::kMaximum:
      return std::max(a, b);
    case Opcode::kMinimum:
      return std::min(a, b);
    case Opcode::kAnd:
      return a & b;
    case Opcode::kOr:
      return a | b;
    case Opcode::kXor:
      return a ^ b;
    case Opcode::kShl:
      return b < 0 || b > 63 ? 0 : int64_t(uint64_t(a) << b);
    case Opcode::kShr:
      return b < 0 || b > 63 ? (a < 0 ? -1 : 0) : a >> b;
    case Opcode::kPow: {
      if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
      uint64_t r = 1;
      for (int64_t i = 0; i < std::min<int64_t>(b, 200); ++i) r *= uint64_t(a);
      return int64_t(r);
    }
    default:
      throw InternalError("no such binary");
  }
}
inline bool compare(Opcode op, auto a, auto b) {
  switch (op) {
    case Opcode::kEq:
      return a == b;
    case Opcode::kNe:
      return a != b;
    case Opcode::kLt:
      return a < b;
    case Opcode::kLe:
      return a <= b;
    case Opcode::kGt:
      return a > b;
    default:
      return a >= b;
  }
}

/// Rounds a result to the compute type and, for narrow integers, to the type itself.
inline Value settle(DType t, Value v) {
  if (compute(t) == DType::kF32) v.f = float(v.f);
  if (compute(t) == DType::kI64 && t != DType::kI64) {
    char bytes[8];
    write_value(bytes, t, 0, v);
    v = read_value(bytes, t, 0);
  }
  return v;
}

inline Value arithmetic(const Instr& in, DType ta, Value a, Value b, Value c) {
  const bool f32 = compute(in.dtype) == DType::kF32;
  const bool floats = float_type(in.dtype);
  if (in.op >= Opcode::kEq && in.op <= Opcode::kGe)
    return {0, float_type(ta) ? compare(in.op, a.f, b.f) : compare(in.op, a.i, b.i)};
  switch (in.op) {
    case Opcode::kIsNan:
      return {0, float_type(ta) && std::isnan(a.f)};
    case Opcode::kIsInf:
      return {0, float_type(ta) && std::isinf(a.f)};
    case Opcode::kLogicalNot:
      return {0, a.i == 0};
    case Opcode::kLogicalAnd:
      return {0, a.i && b.i};
    case Opcode::kLogicalOr:
      return {0, a.i || b.i};
    case Opcode::kLogicalXor:
      return {0, (a.i != 0) != (b.i != 0)};
    case Opcode::kWhere:
      return a.i ? b : c;
    case Opcode::kFma:
      if (floats) return {f32 ? double(std::fma(float(a.f), float(b.f), float(c.f))) : std::fma(a.f, b.f, c.f), 0};
      return settle(in.dtype, {0, int_binary(Opcode::kAdd, int_binary(Opcode::kMul, a.i, b.i), c.i)});
    default:
      break;
  }
  const bool unary = in.b < 0;
  if (floats) {
    if (unary) return {f32 ? double(float_unary(in.op, float(a.f))) : float_unary(in.op, a.f), 0};
    return {f32 ? double(float_binary(in.op, float(a.f), float(b.f))) : float_binary(in.op, a.f, b.f), 0};
  }
  const bool boolean = in.dtype == DType::kBool;
  int64_t result = 0;
  switch (in.op) {
    case Opcode::kNeg:
      result = wrap(-(unsigned __int128)(a.i));
      break;
    case Opcode::kAbs:
      result = a.i < 0 ? wrap(-(unsigned __int128)(a.i)) : a.i;
      break;
    case Opcode::kBitNot:
      result = boolean ? !a.i : ~a.i;
      break;
    case Opcode::kSign:
      result = (a.i > 0) - (a.i < 0);
      break;
    case Opcode::kRelu:
      result = std::max<int64_t>(a.i, 0);
      break;
    case Opcode::kFloor:
    case Opcode::kCeil:
    case Opcode::kRound:
    case Opcode::kTrunc:
      result = a.i;
      break;
    default:
      result = int_binary(in.op, a.i, b.i);
  }
  return settle(in.dtype, {0, boolean ? result != 0 : result});
}

inline Value cast(DType from, DType to, Value v) {
  Value r;
  if (to == DType::kBool) {
    r.i = float_type(from) ? v.f != 0 : v.i != 0;
  } else if (float_type(to)) {
    r.f = float_type(from) ? v.f : double(v.i);
    if (!float_type(from) && compute(to) == DType::kF32) r.f = float(v.i);
  } else {
    r.i = !float_type(from) ? v.i : (v.f >= -0x1p63 && v.f < 0x1p63) ? int64_t(v.f) : kMin64;
  }
  char bytes[8];
  write_value(bytes, to, 0, r);
  return read_value(bytes, to, 0);
}

// ---- evaluator ----
class Evaluator {
 public:
  Evaluator(const plan::Plan& plan, const plan::Op& op, std::vector<std::vector<char>>& memory)
      : program_(plan.programs[op.record.params.program.program]), op_(op), memory_(memory) {
    dims_ = program_.num_dims;
    for (int d = 0; d < dims_; ++d) size_.push_back(op.record.size[d]);
  }

  void run() {
    const bool row = program_.kind == ProgramKind::kRow, column = program_.kind == ProgramKind::kColumn;
    std::vector<int64_t> x(dims_, 0);
    const int64_t total = product(0, dims_);
    for (size_t i = 0; i < program_.instrs.size(); ++i) {
      if (program_.instrs[i].op != Opcode::kStore) continue;
      const bool reduced = (row && program_.instrs[i].uniform) || (column && depends_on_reduce(int(i)));
      for (int64_t flat = 0; flat < total; ++flat) {
        unflatten(flat, x);
        if (reduced && !at_first(x)) continue;
        forget();
        store(int(i), x);
      }
      if (total == 0 && reduced) empty_stores(int(i), x);
    }
  }

 private:
  int64_t product(int begin, int end) const {
    int64_t p = 1;
    for (int d = begin; d < end; ++d) p *= size_[d];
    return p;
  }
  void unflatten(int64_t flat, std::vector<int64_t>& x) const {
    for (int d = dims_ - 1; d >= 0; --d) x[d] = flat % size_[d], flat /= size_[d];
  }
  bool reduced_dim(int d) const {
    return program_.kind == ProgramKind::kRow ? d >= dims_ - program_.reduce_dims : d < program_.reduce_dims;
  }
  bool at_first(const std::vector<int64_t>& x) const {
    for (int d = 0; d < dims_; ++d)
      if (reduced_dim(d) && x[d] != 0) return false;
    return true;
  }
  void empty_stores(int i, std::vector<int64_t>& x) {
    int64_t kept = 1;
    for (int d = 0; d < dims_; ++d) kept *= reduced_dim(d) ? 1 : size_[d];
    for (int64_t k = 0; k < kept; ++k) {
      int64_t rest = k;
      for (int d = dims_ - 1; d >= 0; --d) {
        x[d] = reduced_dim(d) ? 0 : rest % size_[d];
        if (!reduced_dim(d)) rest /= size_[d];
      }
      forget();
      store(i, x);
    }
  }
  bool depends_on_reduce(int i) const {
    const Instr& in = program_.instrs[i];
    if (in.op == Opcode::kReduce) return true;
    for (const int input : {int(in.a), int(in.b), int(in.c), int(in.d)})
      if (input >= 0 && depends_on_reduce(input)) return true;
    return false;
  }
  /// Element offset, or -1 when an index is out of range.
  int64_t offset(const Instr& in, const std::vector<int64_t>& x, int a, int b) {
    const abi::Operand& o = op_.operands[in.operand];
    int64_t at = o.offset;
    for (int d = 0; d < dims_; ++d) at += x[d] * o.stride[d];
    int which = 0;
    for (const int index : {a, b}) {
      if (index >= 0) {
        const abi::Operand& p = op_.operands[o.index_operand];
        int64_t i = value(index, x).i;
        if (i < 0) i += p.stride[2 + which];
        if (i < 0 || i >= p.stride[2 + which]) return -1;
        at += i * p.stride[which];
      }
      ++which;
    }
    return at;
  }
  void store(int i, const std::vector<int64_t>& x) {
    const Instr& in = program_.instrs[i];
    if (in.d >= 0 && !value(in.d, x).i) return;
    const int64_t at = offset(in, x, in.b, in.c);
    if (at >= 0) write_value(memory_[op_.operands[in.operand].slot].data(), in.dtype, at, value(in.a, x));
  }
  DType type(int i) const {
    const Instr& in = program_.instrs[i];
    if (in.op == Opcode::kIndex) return DType::kI64;
    return in.dtype;
  }
  void forget() { memo_.assign(program_.instrs.size(), {}); }
  /// Instruction i at coordinates x, remembered until forget().
  Value value(int i, const std::vector<int64_t>& x) {
    if (!memo_[i].first) {
      const Value v = compute_value(i, x);  // may forget and remember others
      memo_[i] = {true, v};
    }
    return memo_[i].second;
  }
  Value compute_value(int i, const std::vector<int64_t>& x) {
    const Instr& in = program_.instrs[i];
    switch (in.op) {
      case Opcode::kConst:
        return float_type(in.dtype) ? settle(in.dtype, {in.imm, 0}) : Value{0, in.imm_int};
      case Opcode::kIndex:
        return {0, x[in.aux]};
      case Opcode::kLoad: {
        if (in.c >= 0 && !value(in.c, x).i) return {};
        const int64_t at = offset(in, x, in.a, in.b);
        if (at < 0) return {std::nan(""), 0};
        return read_value(memory_[op_.operands[in.operand].slot].data(), in.dtype, at);
      }
      case Opcode::kReduce:
        return reduce(i, x);
      case Opcode::kCast:
        return cast(type(in.a), in.dtype, value(in.a, x));
      default:
        break;
    }
    return arithmetic(in, type(in.a), value(in.a, x), in.b >= 0 ? value(in.b, x) : Value{},
                      in.c >= 0 ? value(in.c, x) : Value{});
  }
  Value reduce(int i, const std::vector<int64_t>& at) {
    std::vector<int64_t> key;
    for (int d = 0; d < dims_; ++d)
      if (!reduced_dim(d)) key.push_back(at[d]);
    key.push_back(i);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    const auto outside = memo_;
    const Instr& in = program_.instrs[i];
    const auto op = ReduceOp(in.aux);
    const bool floats = float_type(type(in.a));
    Value acc;
    if (op == ReduceOp::kProd || op == ReduceOp::kAll) acc = {1, 1};
    if (op == ReduceOp::kMax) acc = {-kInf, kMin64};
    if (op == ReduceOp::kMin) acc = {kInf, ~kMin64};
    const bool by_row = program_.kind == ProgramKind::kRow;
    const int begin = by_row ? dims_ - program_.reduce_dims : 0, end = by_row ? dims_ : program_.reduce_dims;
    int64_t arg = 0;
    Value best;
    std::vector<int64_t> x = at;
    for (int64_t n = 0, total = product(begin, end); n < total; ++n) {
      int64_t rest = n;
      for (int d = end - 1; d >= begin; --d) x[d] = rest % size_[d], rest /= size_[d];
      forget();
      const Value v = value(in.a, x);
      switch (op) {
        case ReduceOp::kSum:
          acc.f += v.f, acc.i = wrap((unsigned __int128)(acc.i) + v.i);
          break;
        case ReduceOp::kProd:
          acc.f *= v.f, acc.i = int_binary(Opcode::kMul, acc.i, v.i);
          break;
        case ReduceOp::kMax:
          acc.f = float_binary(Opcode::kMaximum, acc.f, v.f), acc.i = std::max(acc.i, v.i);
          break;
        case ReduceOp::kMin:
          acc.f = float_binary(Opcode::kMinimum, acc.f, v.f), acc.i = std::min(acc.i, v.i);
          break;
        case ReduceOp::kAny:
          acc.i |= v.i;
          break;
        case ReduceOp::kAll:
          acc.i &= v.i;
          break;
        default: {
          const bool greater = op == ReduceOp::kArgMax;
          const bool better =
              floats ? (!std::isnan(best.f) && (std::isnan(v.f) || (greater ? v.f > best.f : v.f < best.f)))
                     : (greater ? v.i > best.i : v.i < best.i);
          if (n == 0 || better) best = v, arg = n;
        }
      }
    }
    if (op == ReduceOp::kArgMax || op == ReduceOp::kArgMin) acc.i = arg;
    acc = settle(in.dtype, acc);
    memo_ = outside;
    known_[key] = acc;
    return acc;
  }

  const Program& program_;
  const plan::Op& op_;
  std::vector<std::vector<char>>& memory_;
  int dims_ = 0;
  std::vector<int64_t> size_;
  std::vector<std::pair<bool, Value>> memo_;
  std::map<std::vector<int64_t>, Value> known_;  // reductions
};

}  // namespace ark::test
