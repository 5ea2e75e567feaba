// Inline assembly: conversions and arithmetic.
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

// ---- conversions between fp32 and 16-bit floats (round to nearest even)

// One value is converted as the lower half of two: the instruction for one runs at a quarter of the rate.
ARK_DEVICE unsigned short float_to_bf16(float x) {
  u32 w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(0.0f), "f"(x));
  return static_cast<unsigned short>(w);
}
ARK_DEVICE unsigned short float_to_f16(float x) {
  u32 w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(0.0f), "f"(x));
  return static_cast<unsigned short>(w);
}
ARK_DEVICE float f16_to_float(unsigned short h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}
/// Two values in one word, `low` in the lower half.
ARK_DEVICE u32 floats_to_bf16x2(float low, float high) {
  u32 w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
}
/// Of two values each: the products, rounded once.
ARK_DEVICE u32 multiply_bf16x2(u32 a, u32 b) {
  u32 w;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(w) : "r"(a), "r"(b));
  return w;
}
ARK_DEVICE u32 floats_to_f16x2(float low, float high) {
  u32 w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
}

/// a * b + c in one instruction.
ARK_DEVICE i64 multiply_add_wide(i32 a, i32 b, i64 c) {
  i64 d;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(d) : "r"(a), "r"(b), "l"(c));
  return d;
}

// ---- approximate math (a few ulp), where the accurate form costs spills

/// a / b, 2 ulp over the whole range (IEEE division costs a call and spills).
ARK_DEVICE float divide_approx(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
ARK_DEVICE float maximum_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
ARK_DEVICE float minimum_or_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
ARK_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ark::device
