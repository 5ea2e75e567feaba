// The scalar opcodes of ir/program.h with ATen's semantics (targets/host/kernels/scalar_ops.h is the reference).
// Generated programs call op::name(...); the suffix _fast marks forms whose error stays far below the rounding of a
// 16-bit result.
#pragma once
#include "device/ptx/ptx.cuh"

namespace ark::device::op {

template <class T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;

ARK_DEVICE float infinity() { return __int_as_float(0x7f800000); }
ARK_DEVICE float not_a_number() { return __int_as_float(0x7fffffff); }

#define ARK_LIBM(name, f32, f64)                    \
  ARK_DEVICE float name(float x) { return f32(x); } \
  ARK_DEVICE double name(double x) { return f64(x); }
ARK_LIBM(exp, ::expf, ::exp)
ARK_LIBM(exp2, ::exp2f, ::exp2)
ARK_LIBM(expm1, ::expm1f, ::expm1)
ARK_LIBM(log, ::logf, ::log)
ARK_LIBM(log2, ::log2f, ::log2)
ARK_LIBM(log1p, ::log1pf, ::log1p)
ARK_LIBM(sqrt, ::sqrtf, ::sqrt)
ARK_LIBM(rsqrt, ::rsqrtf, ::rsqrt)
ARK_LIBM(sin, ::sinf, ::sin)
ARK_LIBM(cos, ::cosf, ::cos)
ARK_LIBM(tan, ::tanf, ::tan)
ARK_LIBM(tanh, ::tanhf, ::tanh)
ARK_LIBM(erf, ::erff, ::erf)
ARK_LIBM(erfc, ::erfcf, ::erfc)
ARK_LIBM(floor, ::floorf, ::floor)
ARK_LIBM(ceil, ::ceilf, ::ceil)
ARK_LIBM(round, ::rintf, ::rint)
ARK_LIBM(trunc, ::truncf, ::trunc)
ARK_LIBM(asin, ::asinf, ::asin)
ARK_LIBM(acos, ::acosf, ::acos)
ARK_LIBM(atan, ::atanf, ::atan)
ARK_LIBM(sinh, ::sinhf, ::sinh)
ARK_LIBM(cosh, ::coshf, ::cosh)
ARK_LIBM(asinh, ::asinhf, ::asinh)
ARK_LIBM(acosh, ::acoshf, ::acosh)
ARK_LIBM(atanh, ::atanhf, ::atanh)
ARK_LIBM(lgamma, ::lgammaf, ::lgamma)
#undef ARK_LIBM

ARK_DEVICE float exp_fast(float x) { return exp2_approx(x * 1.4426950408889634f); }
ARK_DEVICE float tanh_fast(float x) {  // exact sign and limits; 1e-6 absolute
  const float e = exp2_approx(fabsf(x) * 2.8853900817779268f);
  const float t =
      fabsf(x) < 0.0625f ? x * (1.0f - x * x * 0.33333333f) : copysignf(1.0f - divide_approx(2.0f, e + 1.0f), x);
  return t;
}
ARK_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + ::expf(-x)); }
ARK_DEVICE double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }
ARK_DEVICE float sigmoid_fast(float x) { return divide_approx(1.0f, 1.0f + exp_fast(-x)); }
/// 1 + erf(x) as erfc(-x), so that nothing cancels where it is small: erfc(t) = 2^(t p(t)), t = |x|, p fitted on
/// [0, 4.5] to 3.3e-7 absolute and 1e-4 relative error of erfc, whichever is larger; beyond it falls faster than erfc.
ARK_DEVICE float erf_plus_one_fast(float x) {
  const float t = fabsf(x);
  float p = ::fmaf(-6.23599544e-06f, t, 7.82538191e-05f);
  p = ::fmaf(p, t, -0.000129448614f);
  p = ::fmaf(p, t, -0.00329246698f);
  p = ::fmaf(p, t, 0.030701397f);
  p = ::fmaf(p, t, -0.149688616f);
  p = ::fmaf(p, t, -0.918150187f);
  p = ::fmaf(p, t, -1.6279273f);
  const float e = exp2_approx(p * t);
  return x < 0.0f ? e : 2.0f - e;
}
ARK_DEVICE float reciprocal(float x) { return 1.0f / x; }
ARK_DEVICE double reciprocal(double x) { return 1.0 / x; }
ARK_DEVICE float reciprocal_fast(float x) { return divide_approx(1.0f, x); }

// Integers wrap, so they are computed as unsigned.
template <class T>
ARK_DEVICE T neg(T x) {
  if constexpr (kIsFloat<T>) return -x;
  return static_cast<T>(0 - static_cast<u64>(x));
}
template <class T>
ARK_DEVICE T abs(T x) {
  if constexpr (sizeof(T) == 4) return ::fabsf(x);
  if constexpr (kIsFloat<T>) return ::fabs(x);
  return x < 0 ? neg(x) : x;
}
template <class T>
ARK_DEVICE T sign(T x) {
  return static_cast<T>((x > T(0)) - (x < T(0)));
}
template <class T>
ARK_DEVICE T relu(T x) {
  return x < T(0) ? T(0) : x;  // keeps NaN and -0
}
template <class T>
ARK_DEVICE bool is_nan(T x) {
  return x != x;
}
template <class T>
ARK_DEVICE bool is_inf(T x) {
  if constexpr (kIsFloat<T>) return abs(x) == static_cast<T>(infinity());
  return false;
}
template <class T>
ARK_DEVICE bool logical_not(T x) {
  return x == T(0);
}
ARK_DEVICE i64 bit_not(i64 x) { return ~x; }
ARK_DEVICE bool bit_not(bool x) { return !x; }

#define ARK_WRAPPING(name, sign)                                         \
  template <class T>                                                     \
  ARK_DEVICE T name(T a, T b) {                                          \
    if constexpr (kIsFloat<T>) return a sign b;                          \
    return static_cast<T>(static_cast<u64>(a) sign static_cast<u64>(b)); \
  }
ARK_WRAPPING(add, +)
ARK_WRAPPING(sub, -)
ARK_WRAPPING(mul, *)
#undef ARK_WRAPPING

template <class T>
ARK_DEVICE T fma(T a, T b, T c) {
  if constexpr (sizeof(T) == 4) return ::fmaf(a, b, c);
  if constexpr (kIsFloat<T>) return ::fma(a, b, c);
  return add(mul(a, b), c);
}

// Division by zero gives 0 and INT64_MIN / -1 wraps, as on the host target.
ARK_DEVICE i64 div_trunc(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? neg(a) : a / b; }
ARK_DEVICE float div_trunc(float a, float b) { return ::truncf(a / b); }
ARK_DEVICE double div_trunc(double a, double b) { return ::trunc(a / b); }
ARK_DEVICE i64 div(i64 a, i64 b) { return div_trunc(a, b); }
ARK_DEVICE float div(float a, float b) { return a / b; }
ARK_DEVICE double div(double a, double b) { return a / b; }
ARK_DEVICE float div_fast(float a, float b) { return divide_approx(a, b); }
ARK_DEVICE i64 fmod(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
ARK_DEVICE float fmod(float a, float b) { return ::fmodf(a, b); }
ARK_DEVICE double fmod(double a, double b) { return ::fmod(a, b); }
template <class T>
ARK_DEVICE T remainder(T a, T b) {  // the sign of the divisor
  const T r = fmod(a, b);
  return r != 0 && ((b < 0) != (r < 0)) ? r + b : r;
}
template <class T>
ARK_DEVICE T div_floor(T a, T b) {
  if constexpr (kIsFloat<T>) {
    if (b == 0) return a / b;
    const T mod = fmod(a, b);
    T quotient = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0)) quotient -= T(1);
    if (quotient == 0) return ::copysign(T(0), a / b);
    const T floored = floor(quotient);
    return quotient - floored > T(0.5) ? floored + T(1) : floored;
  } else {
    const i64 quotient = div_trunc(a, b), rest = fmod(a, b);
    return rest != 0 && ((rest < 0) != (b < 0)) ? quotient - 1 : quotient;
  }
}
ARK_DEVICE float pow(float a, float b) { return ::powf(a, b); }
ARK_DEVICE double pow(double a, double b) { return ::pow(a, b); }
ARK_DEVICE i64 pow(i64 base, i64 exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? ((exponent & 1) ? -1 : 1) : 0;
  u64 result = 1, factor = static_cast<u64>(base);
  for (u64 e = static_cast<u64>(exponent); e != 0; e >>= 1, factor *= factor)
    if (e & 1) result *= factor;
  return static_cast<i64>(result);
}
/// b's integer powers that occur in models, without the general function.
ARK_DEVICE float pow2(float a) { return a * a; }
ARK_DEVICE float pow3(float a) { return a * a * a; }

template <class T>
ARK_DEVICE T maximum(T a, T b) {
  return (a > b || a != a) ? a : b;
}
template <class T>
ARK_DEVICE T minimum(T a, T b) {
  return (a < b || a != a) ? a : b;
}
ARK_DEVICE float atan2(float a, float b) { return ::atan2f(a, b); }
ARK_DEVICE double atan2(double a, double b) { return ::atan2(a, b); }

#define ARK_COMPARE(name, sign)    \
  template <class T>               \
  ARK_DEVICE bool name(T a, T b) { \
    return a sign b;               \
  }
ARK_COMPARE(eq, ==)
ARK_COMPARE(ne, !=)
ARK_COMPARE(lt, <)
ARK_COMPARE(le, <=)
ARK_COMPARE(gt, >)
ARK_COMPARE(ge, >=)
#undef ARK_COMPARE
#define ARK_BITS(name, sign)         \
  template <class T>                 \
  ARK_DEVICE T name(T a, T b) {      \
    return static_cast<T>(a sign b); \
  }
ARK_BITS(bit_and, &)
ARK_BITS(bit_or, |)
ARK_BITS(bit_xor, ^)
#undef ARK_BITS
ARK_DEVICE bool logical_and(bool a, bool b) { return a && b; }
ARK_DEVICE bool logical_or(bool a, bool b) { return a || b; }
ARK_DEVICE bool logical_xor(bool a, bool b) { return a != b; }
// A count that is negative or as wide as the type shifts everything out.
ARK_DEVICE i64 shl(i64 a, i64 b) { return b < 0 || b >= 64 ? 0 : static_cast<i64>(static_cast<u64>(a) << b); }
ARK_DEVICE i64 shr(i64 a, i64 b) { return a >> (b < 0 || b >= 63 ? 63 : b); }
template <class T>
ARK_DEVICE T where(bool condition, T a, T b) {
  return condition ? a : b;
}

}  // namespace ark::device::op
