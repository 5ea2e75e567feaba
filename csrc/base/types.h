// Element types, shared by every room.
#pragma once
#include <cstdint>
#include <string_view>

namespace ark {

/// Element type of a tensor. The values are part of the plan format (abi::Operand::dtype).
enum class DType : uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64 };
inline constexpr int kNumDTypes = 10;

constexpr int size_bytes(DType t) {
  constexpr int kSizes[kNumDTypes] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8};
  return kSizes[static_cast<int>(t)];
}
constexpr bool is_float(DType t) { return t >= DType::kF16; }
constexpr std::string_view name(DType t) {
  constexpr std::string_view kNames[kNumDTypes] = {"bool", "u8",  "i8",   "i16", "i32",
                                                   "i64",  "f16", "bf16", "f32", "f64"};
  return kNames[static_cast<int>(t)];
}

/// Type in which a value of type `t` is computed: f64 for f64, f32 for the other floats, i64 for integers, bool for
/// bool.
constexpr DType compute_type(DType t) {
  if (t == DType::kF64 || t == DType::kBool) return t;
  return is_float(t) ? DType::kF32 : DType::kI64;
}

}  // namespace ark
