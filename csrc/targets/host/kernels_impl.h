// The kernels of one instruction set. A kernels_*.cpp file sets the target, defines ARK_HOST_ISA (a namespace),
// ARK_HOST_LANES (floats of a vector register) and ARK_HOST_MR (rows of the matmul micro-kernel), includes this file
// and so defines `const Kernels& <isa>_kernels()`.
//
// Standard headers and kernels.h are included by that file before it sets the target: nothing inline of theirs may be
// compiled for a machine that is not there.

namespace ark::targets::host {
namespace ARK_HOST_ISA {

#include "targets/host/scalar_ops.h"
#include "targets/host/storage.h"

template <RegType>
struct ValueOf;
template <>
struct ValueOf<RegType::kF32> {
  using Type = float;
};
template <>
struct ValueOf<RegType::kF64> {
  using Type = double;
};
template <>
struct ValueOf<RegType::kI64> {
  using Type = int64_t;
};
template <>
struct ValueOf<RegType::kBool> {
  using Type = uint8_t;
};

// ---- elementwise -------------------------------------------------------------------------------------------------

template <class Op, class T>
void map_unary(void* out, const void* a, int64_t n) {
  using Result = decltype(Op::apply(T{}));
  auto* __restrict o = static_cast<Result*>(out);
  const auto* x = static_cast<const T*>(a);
  for (int64_t i = 0; i < n; ++i) o[i] = Op::apply(x[i]);
}

template <class Op, class T>
void map_binary(void* out, const void* a, const void* b, int64_t n) {
  using Result = decltype(Op::apply(T{}, T{}));
  auto* __restrict o = static_cast<Result*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  for (int64_t i = 0; i < n; ++i) o[i] = Op::apply(x[i], y[i]);
}

template <class Op>
UnaryFn unary_float(RegType type) {
  if (type == RegType::kF32) return map_unary<Op, float>;
  return type == RegType::kF64 ? map_unary<Op, double> : nullptr;
}
template <class Op>
UnaryFn unary_integer(RegType type) {
  if (type == RegType::kI64) return map_unary<Op, int64_t>;
  return type == RegType::kBool ? map_unary<Op, uint8_t> : nullptr;
}
template <class Op>
UnaryFn unary_any(RegType type) {
  const UnaryFn fn = unary_float<Op>(type);
  return fn ? fn : unary_integer<Op>(type);
}
template <class Op>
UnaryFn unary_rounding(RegType type) {  // integers are whole already
  const UnaryFn fn = unary_float<Op>(type);
  return fn ? fn : unary_integer<OpIdentity>(type);
}
template <class Op>
BinaryFn binary_float(RegType type) {
  if (type == RegType::kF32) return map_binary<Op, float>;
  return type == RegType::kF64 ? map_binary<Op, double> : nullptr;
}
template <class Op>
BinaryFn binary_number(RegType type) {
  const BinaryFn fn = binary_float<Op>(type);
  return fn ? fn : type == RegType::kI64 ? map_binary<Op, int64_t> : nullptr;
}
template <class Op>
BinaryFn binary_any(RegType type) {
  const BinaryFn fn = binary_number<Op>(type);
  return fn ? fn : map_binary<Op, uint8_t>;
}
template <class Op>
BinaryFn binary_bits(RegType type) {
  if (type == RegType::kI64) return map_binary<Op, int64_t>;
  return type == RegType::kBool ? map_binary<Op, uint8_t> : nullptr;
}

struct OpBoolOr {  // bool + bool, and the maximum
  template <class T>
  static T apply(T a, T b) {
    return a | b;
  }
};
struct OpBoolAnd {
  template <class T>
  static T apply(T a, T b) {
    return a & b;
  }
};

UnaryFn find_unary(Opcode op, RegType type) {
  switch (op) {
    case Opcode::kNeg:
      return type == RegType::kBool ? nullptr : unary_any<OpNeg>(type);
    case Opcode::kAbs:
      return type == RegType::kBool ? unary_any<OpIdentity>(type) : unary_any<OpAbs>(type);
    case Opcode::kExp:
      return unary_float<OpExp>(type);
    case Opcode::kExp2:
      return unary_float<OpExp2>(type);
    case Opcode::kExpm1:
      return unary_float<OpExpm1>(type);
    case Opcode::kLog:
      return unary_float<OpLog>(type);
    case Opcode::kLog2:
      return unary_float<OpLog2>(type);
    case Opcode::kLog1p:
      return unary_float<OpLog1p>(type);
    case Opcode::kSqrt:
      return unary_float<OpSqrt>(type);
    case Opcode::kRsqrt:
      return unary_float<OpRsqrt>(type);
    case Opcode::kReciprocal:
      return unary_float<OpReciprocal>(type);
    case Opcode::kSin:
      return unary_float<OpSin>(type);
    case Opcode::kCos:
      return unary_float<OpCos>(type);
    case Opcode::kTan:
      return unary_float<OpTan>(type);
    case Opcode::kTanh:
      return unary_float<OpTanh>(type);
    case Opcode::kSigmoid:
      return unary_float<OpSigmoid>(type);
    case Opcode::kErf:
      return unary_float<OpErf>(type);
    case Opcode::kErfc:
      return unary_float<OpErfc>(type);
    case Opcode::kFloor:
      return unary_rounding<OpFloor>(type);
    case Opcode::kCeil:
      return unary_rounding<OpCeil>(type);
    case Opcode::kRound:
      return unary_rounding<OpRound>(type);
    case Opcode::kTrunc:
      return unary_rounding<OpTrunc>(type);
    case Opcode::kSign:
      return unary_any<OpSign>(type);
    case Opcode::kIsNan:
      return unary_any<OpIsNan>(type);
    case Opcode::kIsInf:
      return unary_any<OpIsInf>(type);
    case Opcode::kLogicalNot:
      return type == RegType::kBool ? map_unary<OpNot, uint8_t> : nullptr;
    case Opcode::kBitNot:
      return type == RegType::kBool ? map_unary<OpNot, uint8_t> : unary_integer<OpBitNot>(type);
    case Opcode::kRelu:
      return unary_any<OpRelu>(type);
    case Opcode::kAsin:
      return unary_float<OpAsin>(type);
    case Opcode::kAcos:
      return unary_float<OpAcos>(type);
    case Opcode::kAtan:
      return unary_float<OpAtan>(type);
    case Opcode::kSinh:
      return unary_float<OpSinh>(type);
    case Opcode::kCosh:
      return unary_float<OpCosh>(type);
    case Opcode::kAsinh:
      return unary_float<OpAsinh>(type);
    case Opcode::kAcosh:
      return unary_float<OpAcosh>(type);
    case Opcode::kAtanh:
      return unary_float<OpAtanh>(type);
    case Opcode::kLgamma:
      return unary_float<OpLgamma>(type);
    default:
      return nullptr;
  }
}

BinaryFn find_binary(Opcode op, RegType type) {
  const bool boolean = type == RegType::kBool;
  switch (op) {
    case Opcode::kAdd:
      return boolean ? map_binary<OpBoolOr, uint8_t> : binary_number<OpAdd>(type);
    case Opcode::kSub:
      return boolean ? map_binary<OpXor, uint8_t> : binary_number<OpSub>(type);
    case Opcode::kMul:
      return boolean ? map_binary<OpBoolAnd, uint8_t> : binary_number<OpMul>(type);
    case Opcode::kDiv:
      return binary_number<OpDiv>(type);
    case Opcode::kDivFloor:
      return binary_number<OpDivFloor>(type);
    case Opcode::kDivTrunc:
      return binary_number<OpDivTrunc>(type);
    case Opcode::kRemainder:
      return binary_number<OpRemainder>(type);
    case Opcode::kFmod:
      return binary_number<OpFmod>(type);
    case Opcode::kPow:
      return binary_number<OpPow>(type);
    case Opcode::kMaximum:
      return binary_any<OpMaximum>(type);
    case Opcode::kMinimum:
      return binary_any<OpMinimum>(type);
    case Opcode::kAtan2:
      return binary_float<OpAtan2>(type);
    case Opcode::kEq:
      return binary_any<OpEq>(type);
    case Opcode::kNe:
      return binary_any<OpNe>(type);
    case Opcode::kLt:
      return binary_any<OpLt>(type);
    case Opcode::kLe:
      return binary_any<OpLe>(type);
    case Opcode::kGt:
      return binary_any<OpGt>(type);
    case Opcode::kGe:
      return binary_any<OpGe>(type);
    case Opcode::kAnd:
      return binary_bits<OpAnd>(type);
    case Opcode::kOr:
      return binary_bits<OpOr>(type);
    case Opcode::kXor:
      return binary_bits<OpXor>(type);
    case Opcode::kShl:
      return type == RegType::kI64 ? map_binary<OpShl, int64_t> : nullptr;
    case Opcode::kShr:
      return type == RegType::kI64 ? map_binary<OpShr, int64_t> : nullptr;
    case Opcode::kLogicalAnd:
      return boolean ? map_binary<OpAnd, uint8_t> : nullptr;
    case Opcode::kLogicalOr:
      return boolean ? map_binary<OpOr, uint8_t> : nullptr;
    case Opcode::kLogicalXor:
      return boolean ? map_binary<OpXor, uint8_t> : nullptr;
    default:
      return nullptr;
  }
}

template <class T>
void map_where(void* out, const void* a, const void* b, const void* c, int64_t n) {
  auto* __restrict o = static_cast<T*>(out);
  const auto* condition = static_cast<const uint8_t*>(a);
  const auto* x = static_cast<const T*>(b);
  const auto* y = static_cast<const T*>(c);
  for (int64_t i = 0; i < n; ++i) {
    const T yes = x[i], no = y[i];
    o[i] = condition[i] ? yes : no;
  }
}

template <class T>
void map_fma(void* out, const void* a, const void* b, const void* c, int64_t n) {
  auto* __restrict o = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  const auto* z = static_cast<const T*>(c);
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (sizeof(T) == 4) {
      // The product of two floats is exact in double: one rounding to double, one to float, without an FMA instruction.
      o[i] = static_cast<float>(static_cast<double>(x[i]) * static_cast<double>(y[i]) + static_cast<double>(z[i]));
    } else if constexpr (kIsFloat<T>) {
      o[i] = __builtin_fma(x[i], y[i], z[i]);
    } else {
      o[i] = OpAdd::apply(OpMul::apply(x[i], y[i]), z[i]);
    }
  }
}

void map_rand(void* out, const void* a, const void* b, const void* c, int64_t n) {
  auto* __restrict o = static_cast<float*>(out);
  const auto* seed = static_cast<const int64_t*>(a);
  const auto* offset = static_cast<const int64_t*>(b);
  const auto* index = static_cast<const int64_t*>(c);
  for (int64_t i = 0; i < n; ++i) o[i] = philox_uniform(seed[i], offset[i], index[i]);
}

TernaryFn find_ternary(Opcode op, RegType type) {
  if (op == Opcode::kRand) return map_rand;
  if (op == Opcode::kFma) {
    if (type == RegType::kF32) return map_fma<float>;
    return type == RegType::kF64 ? map_fma<double> : type == RegType::kI64 ? map_fma<int64_t> : nullptr;
  }
  if (op != Opcode::kWhere) return nullptr;
  switch (type) {
    case RegType::kF32:
      return map_where<float>;
    case RegType::kF64:
      return map_where<double>;
    case RegType::kI64:
      return map_where<int64_t>;
    case RegType::kBool:
      return map_where<uint8_t>;
  }
  return nullptr;
}

template <class To, class From>
void map_convert(void* out, const void* a, int64_t n) {
  auto* __restrict o = static_cast<To*>(out);
  const auto* x = static_cast<const From*>(a);
  for (int64_t i = 0; i < n; ++i) o[i] = cast_value<To, From>(x[i]);
}
template <class From>
UnaryFn convert_from(RegType to) {
  switch (to) {
    case RegType::kF32:
      return map_convert<float, From>;
    case RegType::kF64:
      return map_convert<double, From>;
    case RegType::kI64:
      return map_convert<int64_t, From>;
    case RegType::kBool:
      return map_convert<uint8_t, From>;
  }
  return nullptr;
}
UnaryFn find_convert(RegType from, RegType to) {
  switch (from) {
    case RegType::kF32:
      return convert_from<float>(to);
    case RegType::kF64:
      return convert_from<double>(to);
    case RegType::kI64:
      return convert_from<int64_t>(to);
    case RegType::kBool:
      return convert_from<uint8_t>(to);
  }
  return nullptr;
}

template <DType D>
void map_round(void* out, const void* a, int64_t n) {
  using S = Storage<D>;
  auto* __restrict o = static_cast<typename S::Register*>(out);
  const auto* x = static_cast<const typename S::Register*>(a);
  for (int64_t i = 0; i < n; ++i) o[i] = S::read(S::write(x[i]));
}
UnaryFn find_round(DType storage) {
  switch (storage) {
    case DType::kU8:
      return map_round<DType::kU8>;
    case DType::kI8:
      return map_round<DType::kI8>;
    case DType::kI16:
      return map_round<DType::kI16>;
    case DType::kI32:
      return map_round<DType::kI32>;
    case DType::kF16:
      return map_round<DType::kF16>;
    case DType::kBF16:
      return map_round<DType::kBF16>;
    default:
      return nullptr;  // nothing to round
  }
}

template <class T>
void fill(void* out, const void* value, int64_t n) {
  auto* __restrict o = static_cast<T*>(out);
  const T x = *static_cast<const T*>(value);
  for (int64_t i = 0; i < n; ++i) o[i] = x;
}

// ---- memory ------------------------------------------------------------------------------------------------------

template <DType D>
void load(void* reg, const void* memory, int64_t stride, int64_t n) {
  using S = Storage<D>;
  auto* __restrict o = static_cast<typename S::Register*>(reg);
  const auto* x = static_cast<const typename S::Memory*>(memory);
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) o[i] = S::read(x[i]);
  } else if (stride == 0) {
    const auto value = S::read(x[0]);
    for (int64_t i = 0; i < n; ++i) o[i] = value;
  } else {
    for (int64_t i = 0; i < n; ++i) o[i] = S::read(x[i * stride]);
  }
}
template <DType D>
void store(void* memory, const void* reg, int64_t stride, int64_t n) {
  using S = Storage<D>;
  auto* o = static_cast<typename S::Memory*>(memory);
  const auto* __restrict x = static_cast<const typename S::Register*>(reg);
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) o[i] = S::write(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) o[i * stride] = S::write(x[i]);
  }
}
template <DType D>
void gather(void* reg, const void* memory, const int64_t* offset, const uint8_t* predicate, int64_t n) {
  using S = Storage<D>;
  auto* __restrict o = static_cast<typename S::Register*>(reg);
  const auto* x = static_cast<const typename S::Memory*>(memory);
  for (int64_t i = 0; i < n; ++i) o[i] = (!predicate || predicate[i]) ? S::read(x[offset[i]]) : typename S::Register(0);
}
template <DType D>
void scatter(void* memory, const void* reg, const int64_t* offset, const uint8_t* predicate, int64_t n) {
  using S = Storage<D>;
  auto* o = static_cast<typename S::Memory*>(memory);
  const auto* x = static_cast<const typename S::Register*>(reg);
  for (int64_t i = 0; i < n; ++i)
    if (!predicate || predicate[i]) o[offset[i]] = S::write(x[i]);
}
template <DType D>
void add_storage(Kernels& k) {
  constexpr int i = static_cast<int>(D);
  k.load[i] = load<D>;
  k.store[i] = store<D>;
  k.gather[i] = gather<D>;
  k.scatter[i] = scatter<D>;
}

// ---- reductions --------------------------------------------------------------------------------------------------

/// Accumulates in Acc: double for floats (so the order hardly matters, but it is fixed all the same), int64_t
/// otherwise.
template <class T>
using AccOf = typename ValueOf<kIsFloat<T> ? RegType::kF64 : RegType::kI64>::Type;

/// Partial sums in kSumLanes lanes of T, combined pairwise: fixed order, vectorises.
inline constexpr int kSumLanes = 32;
template <class T>
AccOf<T> sum_block(const T* x, int64_t n) {
  if constexpr (!kIsFloat<T>) {
    uint64_t total = 0;
    for (int64_t i = 0; i < n; ++i) total += static_cast<uint64_t>(x[i]);
    return static_cast<int64_t>(total);
  } else {
    T lanes[kSumLanes] = {};
    int64_t i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes)
      for (int j = 0; j < kSumLanes; ++j) lanes[j] += x[i + j];
    for (int j = 0; i < n; ++i, ++j) lanes[j] += x[i];
    double total = 0;
    for (int j = 0; j < kSumLanes; ++j) total += lanes[j];
    return total;
  }
}

struct FoldSum {
  template <class A>
  static A apply(A acc, A x) {
    return OpAdd::apply(acc, x);
  }
};
struct FoldProd {
  template <class A>
  static A apply(A acc, A x) {
    return OpMul::apply(acc, x);
  }
};
struct FoldMax {
  template <class A>
  static A apply(A acc, A x) {
    return OpMaximum::apply(acc, x);
  }
};
struct FoldMin {
  template <class A>
  static A apply(A acc, A x) {
    return OpMinimum::apply(acc, x);
  }
};

template <class Fold, class T>
void fold_rows(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t) {
  auto* total = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r, x += columns) {
    AccOf<T> sum = total[r];
    for (int64_t c = 0; c < columns; ++c) sum = Fold::apply(sum, static_cast<AccOf<T>>(x[c]));
    total[r] = sum;
  }
}
template <class T>
void sum_rows(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t) {
  auto* total = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r) total[r] = OpAdd::apply(total[r], sum_block(x + r * columns, columns));
}
/// Max and min of a row in lanes; the result does not depend on the order.
template <class Fold, class T>
void extreme_rows(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t) {
  auto* total = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r, x += columns) {
    T lanes[kSumLanes];
    int64_t c = 0;
    if (columns >= kSumLanes) {
      for (int j = 0; j < kSumLanes; ++j) lanes[j] = x[j];
      for (c = kSumLanes; c + kSumLanes <= columns; c += kSumLanes)
        for (int j = 0; j < kSumLanes; ++j) lanes[j] = Fold::apply(lanes[j], x[c + j]);
      for (int j = 0; j < kSumLanes; ++j) total[r] = Fold::apply(total[r], static_cast<AccOf<T>>(lanes[j]));
    }
    for (; c < columns; ++c) total[r] = Fold::apply(total[r], static_cast<AccOf<T>>(x[c]));
  }
}
template <class Fold, class T>
void fold_columns(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t) {
  auto* __restrict total = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r, x += columns)
    for (int64_t c = 0; c < columns; ++c) total[c] = Fold::apply(total[c], static_cast<AccOf<T>>(x[c]));
}

/// The first index of the greatest (least) value; the first NaN beats everything. An index of -1: nothing seen yet.
template <bool kGreatest, class T>
void take_argument(AccOf<T>& best, int64_t& index, T x, int64_t i) {
  const auto value = static_cast<AccOf<T>>(x);
  if (index < 0 || (best == best && (value != value || (kGreatest ? value > best : value < best)))) {
    best = value;
    index = i;
  }
}
template <bool kGreatest, bool kByRows, class T>
void fold_argument(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t first_index) {
  auto* best = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t to = kByRows ? r : c;
      take_argument<kGreatest, T>(best[to], acc.index[to], x[r * columns + c], first_index + (kByRows ? c : r));
    }
}

template <class T>
ReduceFn reduce_rows_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return sum_rows<T>;
    case ReduceOp::kProd:
      return fold_rows<FoldProd, T>;
    case ReduceOp::kMax:
    case ReduceOp::kAny:
      return extreme_rows<FoldMax, T>;
    case ReduceOp::kMin:
    case ReduceOp::kAll:
      return extreme_rows<FoldMin, T>;
    case ReduceOp::kArgMax:
      return fold_argument<true, true, T>;
    case ReduceOp::kArgMin:
      return fold_argument<false, true, T>;
  }
  return nullptr;
}
template <class T>
ReduceFn reduce_columns_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return fold_columns<FoldSum, T>;
    case ReduceOp::kProd:
      return fold_columns<FoldProd, T>;
    case ReduceOp::kMax:
    case ReduceOp::kAny:
      return fold_columns<FoldMax, T>;
    case ReduceOp::kMin:
    case ReduceOp::kAll:
      return fold_columns<FoldMin, T>;
    case ReduceOp::kArgMax:
      return fold_argument<true, false, T>;
    case ReduceOp::kArgMin:
      return fold_argument<false, false, T>;
  }
  return nullptr;
}
ReduceFn find_reduce_rows(ReduceOp op, RegType type) {
  switch (type) {
    case RegType::kF32:
      return reduce_rows_of<float>(op);
    case RegType::kF64:
      return reduce_rows_of<double>(op);
    case RegType::kI64:
      return reduce_rows_of<int64_t>(op);
    case RegType::kBool:
      return reduce_rows_of<uint8_t>(op);
  }
  return nullptr;
}
ReduceFn find_reduce_columns(ReduceOp op, RegType type) {
  switch (type) {
    case RegType::kF32:
      return reduce_columns_of<float>(op);
    case RegType::kF64:
      return reduce_columns_of<double>(op);
    case RegType::kI64:
      return reduce_columns_of<int64_t>(op);
    case RegType::kBool:
      return reduce_columns_of<uint8_t>(op);
  }
  return nullptr;
}

// ---- matrices ----------------------------------------------------------------------------------------------------

/// A machine vector of T, or what holds as many lanes of another type.
template <class T, int kCount>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kCount * sizeof(T)), aligned(alignof(T)), may_alias));
};
template <class T>
inline constexpr int kLanesOf = ARK_HOST_LANES * 4 / static_cast<int>(sizeof(T));

/// Two vectors wide, kRows high: kRows * 2 accumulators, two of B and one of A in registers.
template <class T, int kRows>
void micro_kernel(int64_t k, const T* a, const T* b, T* c, int64_t ldc) {
  constexpr int kLanes = kLanesOf<T>;
  using Vector = typename VectorOf<T, kLanes>::Type;
  Vector acc[kRows][2];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < 2; ++j) acc[i][j] = *reinterpret_cast<const Vector*>(c + i * ldc + j * kLanes);
  for (int64_t p = 0; p < k; ++p, a += kRows, b += 2 * kLanes) {
    const Vector b0 = *reinterpret_cast<const Vector*>(b), b1 = *reinterpret_cast<const Vector*>(b + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      acc[i][0] += a[i] * b0;
      acc[i][1] += a[i] * b1;
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < 2; ++j) *reinterpret_cast<Vector*>(c + i * ldc + j * kLanes) = acc[i][j];
}

/// How the lanes of a vector of T are read from contiguous memory of type B.
template <class T>
struct ReadPlain {
  using Memory = T;
  using Vector = typename VectorOf<T, kLanesOf<T>>::Type;
  static Vector read(const T* p) { return *reinterpret_cast<const Vector*>(p); }
  static T read_one(T x) { return x; }
};
struct ReadHalfWords {
  using Memory = uint16_t;
  using Vector = VectorOf<float, kLanesOf<float>>::Type;
  using Words = VectorOf<uint16_t, kLanesOf<float>>::Type;
  using Bits = VectorOf<uint32_t, kLanesOf<float>>::Type;
  static Bits widen(const uint16_t* p) { return __builtin_convertvector(*reinterpret_cast<const Words*>(p), Bits); }
};
struct ReadBfloat : ReadHalfWords {
  static Vector read(const uint16_t* p) { return bits_as<Vector>(widen(p) << 16); }
  static float read_one(uint16_t x) { return bfloat_to_float(x); }
};
struct ReadHalf : ReadHalfWords {
  using Integers = VectorOf<int, kLanesOf<float>>::Type;
  static Vector read(const uint16_t* p) {
    const Bits h = widen(p), magnitude = h & 0x7fffu;
    Bits bits = (magnitude << 13) + 0x38000000u;
    bits = magnitude >= 0x7c00u ? bits + 0x38000000u : bits;
    const Vector subnormal = __builtin_convertvector(bits_as<Integers>(magnitude), Vector) * 0x1p-24f;
    bits = magnitude < 0x400u ? bits_as<Bits>(subnormal) : bits;
    return bits_as<Vector>(bits | ((h & 0x8000u) << 16));
  }
  static float read_one(uint16_t x) { return half_to_float(x); }
};

/// Four vectors of partial sums, added pairwise, then lane by lane.
template <class T, class Read>
T dot_vectors(const T* a, const typename Read::Memory* b, int64_t n) {
  constexpr int kLanes = kLanesOf<T>;
  using Vector = typename VectorOf<T, kLanes>::Type;
  const auto product = [&](int64_t at) { return *reinterpret_cast<const Vector*>(a + at) * Read::read(b + at); };
  Vector s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 += product(i);
    s1 += product(i + kLanes);
    s2 += product(i + 2 * kLanes);
    s3 += product(i + 3 * kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) s0 += product(i);
  const Vector sum = (s0 + s1) + (s2 + s3);
  T lanes[kLanes];
  __builtin_memcpy(lanes, &sum, sizeof(sum));
  for (int j = 0; i < n; ++i, ++j) lanes[j] += a[i] * Read::read_one(b[i]);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}
template <class T>
T dot(const T* a, const T* b, int64_t n) {
  return dot_vectors<T, ReadPlain<T>>(a, b, n);
}
template <class Read>
float dot_from(const float* a, const void* b, int64_t n) {
  return dot_vectors<float, Read>(a, static_cast<const typename Read::Memory*>(b), n);
}
template <>
int64_t dot(const int64_t* a, const int64_t* b, int64_t n) {
  uint64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += static_cast<uint64_t>(a[i]) * static_cast<uint64_t>(b[i]);
  return static_cast<int64_t>(total);
}

template <class T>
void axpy(T* __restrict y, T x, const T* a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = OpAdd::apply(y[i], OpMul::apply(x, a[i]));
}

float row_max(const float* a, int64_t n) {
  double best = -infinity<double>();
  Accumulators acc{&best, nullptr};
  extreme_rows<FoldMax, float>(acc, a, 1, n, 0);
  return static_cast<float>(best);
}
float exp_sum(float* a, float shift, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] = math_exp(a[i] - shift);
  return static_cast<float>(sum_block(a, n));
}

Kernels make_kernels() {
  Kernels k;
  k.isa = ARK_HOST_ISA_NAME;
  k.unary = find_unary;
  k.binary = find_binary;
  k.ternary = find_ternary;
  k.convert = find_convert;
  k.round_to = find_round;
  k.reduce_rows = find_reduce_rows;
  k.reduce_columns = find_reduce_columns;
  add_storage<DType::kBool>(k);
  add_storage<DType::kU8>(k);
  add_storage<DType::kI8>(k);
  add_storage<DType::kI16>(k);
  add_storage<DType::kI32>(k);
  add_storage<DType::kI64>(k);
  add_storage<DType::kF16>(k);
  add_storage<DType::kBF16>(k);
  add_storage<DType::kF32>(k);
  add_storage<DType::kF64>(k);
  k.fill[static_cast<int>(RegType::kF32)] = fill<float>;
  k.fill[static_cast<int>(RegType::kF64)] = fill<double>;
  k.fill[static_cast<int>(RegType::kI64)] = fill<int64_t>;
  k.fill[static_cast<int>(RegType::kBool)] = fill<uint8_t>;
  k.f32 = {ARK_HOST_MR, 2 * ARK_HOST_LANES, micro_kernel<float, ARK_HOST_MR>, dot<float>, axpy<float>};
  k.f64 = {ARK_HOST_MR, ARK_HOST_LANES, micro_kernel<double, ARK_HOST_MR>, dot<double>, axpy<double>};
  k.i64 = {ARK_HOST_MR, ARK_HOST_LANES, micro_kernel<int64_t, ARK_HOST_MR>, dot<int64_t>, axpy<int64_t>};
  k.dot_storage[static_cast<int>(DType::kBF16)] = dot_from<ReadBfloat>;
  k.dot_storage[static_cast<int>(DType::kF16)] = dot_from<ReadHalf>;
  k.dot_storage[static_cast<int>(DType::kF32)] = dot_from<ReadPlain<float>>;
  k.row_max = row_max;
  k.exp_sum = exp_sum;
  return k;
}

}  // namespace ARK_HOST_ISA
}  // namespace ark::targets::host
