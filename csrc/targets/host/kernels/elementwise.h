// Elementwise kernels: one loop per opcode and type. Included once per instruction set (see impl.h).

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
