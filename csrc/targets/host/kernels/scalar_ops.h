// What each scalar opcode does to one value, with ATen's semantics. Included once per instruction set, inside that
// set's namespace (see impl.h), so that no inline function compiled for one machine is linked into code for
// another. Types: float, double, int64_t (as wrapping arithmetic) and bool (uint8_t, 0 or 1).

using std::int64_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

template <class T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;

template <class T>
inline T infinity() {
  return static_cast<T>(__builtin_inf());
}
template <class T>
inline T nan_value() {
  return static_cast<T>(__builtin_nan(""));
}

// A function of <cmath> for float and double, without its inline wrappers.
#define ARK_HOST_LIBM(name)                                            \
  inline float math_##name(float x) { return __builtin_##name##f(x); } \
  inline double math_##name(double x) { return __builtin_##name(x); }
ARK_HOST_LIBM(expm1)
ARK_HOST_LIBM(log2)
ARK_HOST_LIBM(log1p)
ARK_HOST_LIBM(exp2)
ARK_HOST_LIBM(sqrt)
ARK_HOST_LIBM(sin)
ARK_HOST_LIBM(cos)
ARK_HOST_LIBM(tan)
ARK_HOST_LIBM(erfc)
ARK_HOST_LIBM(floor)
ARK_HOST_LIBM(ceil)
ARK_HOST_LIBM(nearbyint)
ARK_HOST_LIBM(trunc)
ARK_HOST_LIBM(asin)
ARK_HOST_LIBM(acos)
ARK_HOST_LIBM(atan)
ARK_HOST_LIBM(sinh)
ARK_HOST_LIBM(cosh)
ARK_HOST_LIBM(asinh)
ARK_HOST_LIBM(acosh)
ARK_HOST_LIBM(atanh)
ARK_HOST_LIBM(lgamma)
#undef ARK_HOST_LIBM
inline float math_fmod(float a, float b) { return __builtin_fmodf(a, b); }
inline double math_fmod(double a, double b) { return __builtin_fmod(a, b); }
inline float math_pow(float a, float b) { return __builtin_powf(a, b); }
inline double math_pow(double a, double b) { return __builtin_pow(a, b); }
inline float math_atan2(float a, float b) { return __builtin_atan2f(a, b); }
inline double math_atan2(double a, double b) { return __builtin_atan2(a, b); }
inline double math_exp(double x) { return __builtin_exp(x); }
inline double math_log(double x) { return __builtin_log(x); }
inline double math_tanh(double x) { return __builtin_tanh(x); }
inline double math_erf(double x) { return __builtin_erf(x); }

/// exp in straight-line code, so that loops over it vectorise. Cody-Waite reduction, Taylor polynomial of degree 7 on
/// [-ln2/2, ln2/2] (truncation 5e-9 relative); the scale 2^n is applied in two steps so that subnormal results come
/// out.
inline float math_exp(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  float r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int whole = static_cast<int>(n), half = whole / 2;
  const float low = bits_as<float>((half + 127) << 23), high = bits_as<float>((whole - half + 127) << 23);
  const float result = p * low * high;
  return x != x ? x : result;
}

// The functions below are polynomials fitted at Chebyshev nodes; the errors are the largest over a dense sample of
// floats.

/// log: x = 2^e m with m in [sqrt(1/2), sqrt(2)), log(1 + r) = r - r^2 / 2 + r^3 p(r). 8e-8 relative.
inline float math_log(float x) {
  const bool subnormal = x < 0x1p-126f;
  const uint32_t bits = bits_as<uint32_t>(subnormal ? x * 0x1p23f : x);
  const uint32_t from_root = bits - 0x3f3504f3u;  // sqrt(1/2)
  const float e = static_cast<float>(static_cast<int>(from_root) >> 23) - (subnormal ? 23.0f : 0.0f);
  const float r = bits_as<float>((from_root & 0x007fffffu) + 0x3f3504f3u) - 1.0f, s = r * r;
  float p = 7.149753890e-02f;
  p = p * r - 1.157120073e-01f;
  p = p * r + 1.166151107e-01f;
  p = p * r - 1.241105068e-01f;
  p = p * r + 1.424993653e-01f;
  p = p * r - 1.666848024e-01f;
  p = p * r + 2.000070748e-01f;
  p = p * r - 2.499998905e-01f;
  p = p * r + 3.333333119e-01f;
  float y = r * s * p - 2.12194440e-4f * e;
  y = r + (y - 0.5f * s) + 0.693359375f * e;
  y = x == 0.0f ? -infinity<float>() : y;
  y = x == infinity<float>() ? x : y;
  return (x < 0.0f || x != x) ? nan_value<float>() : y;
}

/// tanh: x + x^3 p(x^2) below 0.7, 1 - 2 / (exp(2 |x|) + 1) above. 1.2e-7 relative.
inline float math_tanh(float x) {
  const float t = __builtin_fabsf(x), s = x * x;
  float p = 2.064850359e-03f;
  p = p * s - 8.118710898e-03f;
  p = p * s + 2.169165011e-02f;
  p = p * s - 5.394856616e-02f;
  p = p * s + 1.333325262e-01f;
  p = p * s - 3.333333279e-01f;
  const float near = x + x * (s * p), far = 1.0f - 2.0f / (math_exp(2.0f * t) + 1.0f);
  return t < 0.7f ? near : __builtin_copysignf(far, x);
}

/// erf: x + x p(x^2) below 1, 1 - exp(-q(|x|)) with q fitted to -log(erfc) above. 1e-7 relative.
inline float math_erf(float x) {
  const float t = __builtin_fabsf(x), s = x * x, u = t > 4.0f ? 4.0f : t;
  float p = -9.673590650e-06f;
  p = p * s + 1.126825383e-04f;
  p = p * s - 8.484396540e-04f;
  p = p * s + 5.221053412e-03f;
  p = p * s - 2.686543831e-02f;
  p = p * s + 1.128378262e-01f;
  p = p * s - 3.761263848e-01f;
  p = p * s + 1.283791671e-01f;
  float q = 6.582857129e-08f;
  q = q * u - 3.095204469e-06f;
  q = q * u + 6.006879408e-05f;
  q = q * u - 6.733375396e-04f;
  q = q * u + 5.021044722e-03f;
  q = q * u - 2.699949703e-02f;
  q = q * u + 1.109074169e-01f;
  q = q * u + 6.310888681e-01f;
  q = q * u + 1.130604469e+00f;
  q = q * u - 4.005004890e-04f;
  const float near = x + x * p, far = __builtin_copysignf(1.0f - math_exp(-q), x);
  return x != x ? x : (t < 1.0f ? near : far);
}

struct OpNeg {
  template <class T>
  static T apply(T x) {
    if constexpr (kIsFloat<T>) return -x;
    return static_cast<T>(0 - static_cast<uint64_t>(x));
  }
};
struct OpAbs {
  template <class T>
  static T apply(T x) {
    if constexpr (sizeof(T) == 4) return __builtin_fabsf(x);
    if constexpr (kIsFloat<T>) return __builtin_fabs(x);
    return x < 0 ? OpNeg::apply(x) : x;
  }
};

#define ARK_HOST_UNARY(Name, expression) \
  struct Name {                          \
    template <class T>                   \
    static T apply(T x) {                \
      return expression;                 \
    }                                    \
  };
ARK_HOST_UNARY(OpExp, math_exp(x))
ARK_HOST_UNARY(OpExp2, math_exp2(x))
ARK_HOST_UNARY(OpExpm1, math_expm1(x))
ARK_HOST_UNARY(OpLog, math_log(x))
ARK_HOST_UNARY(OpLog2, math_log2(x))
ARK_HOST_UNARY(OpLog1p, math_log1p(x))
ARK_HOST_UNARY(OpSqrt, math_sqrt(x))
ARK_HOST_UNARY(OpRsqrt, T(1) / math_sqrt(x))
ARK_HOST_UNARY(OpReciprocal, T(1) / x)
ARK_HOST_UNARY(OpSin, math_sin(x))
ARK_HOST_UNARY(OpCos, math_cos(x))
ARK_HOST_UNARY(OpTan, math_tan(x))
ARK_HOST_UNARY(OpTanh, math_tanh(x))
ARK_HOST_UNARY(OpSigmoid, T(1) / (T(1) + math_exp(-x)))
ARK_HOST_UNARY(OpErf, math_erf(x))
ARK_HOST_UNARY(OpErfc, math_erfc(x))
ARK_HOST_UNARY(OpFloor, math_floor(x))
ARK_HOST_UNARY(OpCeil, math_ceil(x))
ARK_HOST_UNARY(OpRound, math_nearbyint(x))
ARK_HOST_UNARY(OpTrunc, math_trunc(x))
ARK_HOST_UNARY(OpAsin, math_asin(x))
ARK_HOST_UNARY(OpAcos, math_acos(x))
ARK_HOST_UNARY(OpAtan, math_atan(x))
ARK_HOST_UNARY(OpSinh, math_sinh(x))
ARK_HOST_UNARY(OpCosh, math_cosh(x))
ARK_HOST_UNARY(OpAsinh, math_asinh(x))
ARK_HOST_UNARY(OpAcosh, math_acosh(x))
ARK_HOST_UNARY(OpAtanh, math_atanh(x))
ARK_HOST_UNARY(OpLgamma, math_lgamma(x))
ARK_HOST_UNARY(OpIdentity, x)
ARK_HOST_UNARY(OpSign, static_cast<T>((x > T(0)) - (x < T(0))))  // NaN: 0, as ATen's CPU and CUDA kernels
ARK_HOST_UNARY(OpRelu, x < T(0) ? T(0) : x)                      // keeps NaN and -0
ARK_HOST_UNARY(OpBitNot, static_cast<T>(~x))
ARK_HOST_UNARY(OpNot, static_cast<T>(x == 0))
#undef ARK_HOST_UNARY

struct OpIsNan {
  template <class T>
  static uint8_t apply(T x) {
    return x != x;
  }
};
struct OpIsInf {
  template <class T>
  static uint8_t apply(T x) {
    if constexpr (kIsFloat<T>) return x == infinity<T>() || x == -infinity<T>();
    return 0;
  }
};

// Integer arithmetic wraps; division by zero gives 0 and INT64_MIN / -1 wraps, so that no input can raise a signal.
inline int64_t int_div_trunc(int64_t a, int64_t b) {
  if (b == 0) return 0;
  return b == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : a / b;
}
inline int64_t int_fmod(int64_t a, int64_t b) { return (b == 0 || b == -1) ? 0 : a % b; }
inline int64_t int_pow(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? ((exponent & 1) ? -1 : 1) : 0;
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (uint64_t e = static_cast<uint64_t>(exponent); e != 0; e >>= 1, factor *= factor)
    if (e & 1) result *= factor;
  return static_cast<int64_t>(result);
}

#define ARK_HOST_WRAPPING(Name, op)                                                \
  struct Name {                                                                    \
    template <class T>                                                             \
    static T apply(T a, T b) {                                                     \
      if constexpr (kIsFloat<T>) return a op b;                                    \
      return static_cast<T>(static_cast<uint64_t>(a) op static_cast<uint64_t>(b)); \
    }                                                                              \
  };
ARK_HOST_WRAPPING(OpAdd, +)
ARK_HOST_WRAPPING(OpSub, -)
ARK_HOST_WRAPPING(OpMul, *)
#undef ARK_HOST_WRAPPING

struct OpDivTrunc {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsFloat<T>) return math_trunc(a / b);
    return int_div_trunc(a, b);
  }
};
struct OpDiv {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsFloat<T>) return a / b;
    return int_div_trunc(a, b);
  }
};
struct OpFmod {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsFloat<T>) return math_fmod(a, b);
    return int_fmod(a, b);
  }
};
/// The remainder has the sign of the divisor.
struct OpRemainder {
  template <class T>
  static T apply(T a, T b) {
    const T r = OpFmod::apply(a, b);
    return (r != 0 && ((b < 0) != (r < 0))) ? r + b : r;
  }
};
/// Python's floor division: exact where a / b rounds across an integer.
struct OpDivFloor {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsFloat<T>) {
      if (b == 0) return a / b;
      const T mod = math_fmod(a, b);
      T quotient = (a - mod) / b;
      if (mod != 0 && (b < 0) != (mod < 0)) quotient -= T(1);
      if (quotient == 0) return a / b < 0 || (a / b == 0 && bits_as<uint64_t>(double(a / b)) >> 63) ? T(-0.0) : T(0);
      const T floored = math_floor(quotient);
      return quotient - floored > T(0.5) ? floored + T(1) : floored;
    } else {
      const int64_t quotient = int_div_trunc(a, b), rest = int_fmod(a, b);
      return rest != 0 && ((rest < 0) != (b < 0)) ? quotient - 1 : quotient;
    }
  }
};
struct OpPow {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsFloat<T>) return math_pow(a, b);
    return int_pow(a, b);
  }
};
struct OpMaximum {
  template <class T>
  static T apply(T a, T b) {
    return (a > b || a != a) ? a : b;  // a NaN: a; b NaN: the comparison is false, b
  }
};
struct OpMinimum {
  template <class T>
  static T apply(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};
struct OpAtan2 {
  template <class T>
  static T apply(T a, T b) {
    return math_atan2(a, b);
  }
};

#define ARK_HOST_COMPARE(Name, expression) \
  struct Name {                            \
    template <class T>                     \
    static uint8_t apply(T a, T b) {       \
      return expression;                   \
    }                                      \
  };
ARK_HOST_COMPARE(OpEq, a == b)
ARK_HOST_COMPARE(OpNe, a != b)
ARK_HOST_COMPARE(OpLt, a < b)
ARK_HOST_COMPARE(OpLe, a <= b)
ARK_HOST_COMPARE(OpGt, a > b)
ARK_HOST_COMPARE(OpGe, a >= b)
#undef ARK_HOST_COMPARE

#define ARK_HOST_BITS(Name, expression)  \
  struct Name {                          \
    template <class T>                   \
    static T apply(T a, T b) {           \
      return static_cast<T>(expression); \
    }                                    \
  };
ARK_HOST_BITS(OpAnd, a &b)
ARK_HOST_BITS(OpOr, a | b)
ARK_HOST_BITS(OpXor, a ^ b)
// Shifts by a negative count or by the width and more: everything is shifted out (ATen).
ARK_HOST_BITS(OpShl, (b < 0 || b >= 64) ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b))
ARK_HOST_BITS(OpShr, a >> ((b < 0 || b >= 63) ? 63 : b))
#undef ARK_HOST_BITS

/// Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = (index / 4, offset); the word index % 4 as 24 bits in
/// [0, 1).
inline float philox_uniform(int64_t seed, int64_t offset, int64_t index) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32);
  const uint64_t block = static_cast<uint64_t>(index) / 4;
  uint32_t c[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(offset),
                   static_cast<uint32_t>(static_cast<uint64_t>(offset) >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key0,
                   n2 = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key1;
    c[1] = static_cast<uint32_t>(p1);
    c[3] = static_cast<uint32_t>(p0);
    c[0] = n0;
    c[2] = n2;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return static_cast<float>(c[index & 3] >> 8) * 0x1p-24f;
}
