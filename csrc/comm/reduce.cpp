#include "comm/reduce.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace ark::comm {
namespace {

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

/// Round to nearest even; NaN stays NaN.
uint16_t float_to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float f16_to_float(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, sizeof half);
  return static_cast<float>(half);
}

uint16_t float_to_f16(float value) {
  _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

/// How a type is stored, what it is accumulated in, and the way between.
template <class T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static Sum load(T v) { return v; }
  static T store(Sum v) { return v; }
};
struct Bf16 {
  using Stored = uint16_t;
  using Sum = float;
  static float load(uint16_t v) { return bf16_to_float(v); }
  static uint16_t store(float v) { return float_to_bf16(v); }
};
struct F16 {
  using Stored = uint16_t;
  using Sum = float;
  static float load(uint16_t v) { return f16_to_float(v); }
  static uint16_t store(float v) { return float_to_f16(v); }
};

template <class T>
bool is_negative(T v) {
  if constexpr (std::is_floating_point_v<T>)
    return std::signbit(v);
  else
    return v < 0;
}

template <Reduction kOp, class T>
T combine(T a, T b) {
  if constexpr (kOp == Reduction::kSum || kOp == Reduction::kAverage) {
    // Integers wrap, as everywhere in torch.
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else
      return a + b;
  } else if constexpr (kOp == Reduction::kProduct) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    else
      return a * b;
  } else if constexpr (kOp == Reduction::kMin) {
    // As NCCL, and the GPU's instructions: a number wins over NaN, -0 is less than 0.
    return a < b || b != b || (a == b && is_negative(a)) ? a : b;
  } else if constexpr (kOp == Reduction::kMax) {
    return a > b || b != b || (a == b && !is_negative(a)) ? a : b;
  } else if constexpr (std::is_integral_v<T>) {
    if constexpr (kOp == Reduction::kBitAnd) return a & b;
    if constexpr (kOp == Reduction::kBitOr) return a | b;
    return a ^ b;
  }
  return a;
}

template <class Format, Reduction kOp>
void reduce_as(void* dst, std::span<const void* const> sources, size_t count) {
  using Stored = typename Format::Stored;
  auto* out = static_cast<Stored*>(dst);
  for (size_t i = 0; i < count; ++i) {
    auto sum = Format::load(static_cast<const Stored*>(sources[0])[i]);
    for (size_t r = 1; r < sources.size(); ++r)
      sum = combine<kOp>(sum, Format::load(static_cast<const Stored*>(sources[r])[i]));
    if constexpr (kOp == Reduction::kAverage)
      sum = static_cast<decltype(sum)>(sum / static_cast<decltype(sum)>(sources.size()));
    out[i] = Format::store(sum);
  }
}

template <class Format>
void reduce_format(void* dst, std::span<const void* const> sources, size_t count, DType dtype, Reduction op) {
  constexpr bool kInteger = std::is_integral_v<typename Format::Sum>;
  switch (op) {
    case Reduction::kSum:
      return reduce_as<Format, Reduction::kSum>(dst, sources, count);
    case Reduction::kProduct:
      return reduce_as<Format, Reduction::kProduct>(dst, sources, count);
    case Reduction::kMin:
      return reduce_as<Format, Reduction::kMin>(dst, sources, count);
    case Reduction::kMax:
      return reduce_as<Format, Reduction::kMax>(dst, sources, count);
    case Reduction::kAverage:
      return reduce_as<Format, Reduction::kAverage>(dst, sources, count);
    default:
      break;
  }
  if constexpr (kInteger) {
    if (op == Reduction::kBitAnd) return reduce_as<Format, Reduction::kBitAnd>(dst, sources, count);
    if (op == Reduction::kBitOr) return reduce_as<Format, Reduction::kBitOr>(dst, sources, count);
    if (op == Reduction::kBitXor) return reduce_as<Format, Reduction::kBitXor>(dst, sources, count);
  }
  throw UnsupportedError(cat("reduction ", name(op), " of ", name(dtype), ": expected an integer or bool type"));
}

Reduction as_bool(Reduction op) {
  if (op == Reduction::kSum || op == Reduction::kMax) return Reduction::kBitOr;
  if (op == Reduction::kProduct || op == Reduction::kMin) return Reduction::kBitAnd;
  check<UnsupportedError>(op != Reduction::kAverage, "reduction average of bool: expected a number type");
  return op;
}

}  // namespace

std::string_view name(Reduction op) {
  constexpr std::string_view kNames[] = {"sum", "product", "min", "max", "average", "bit-and", "bit-or", "bit-xor"};
  return kNames[static_cast<int>(op)];
}

void reduce(void* dst, std::span<const void* const> sources, size_t count, DType dtype, Reduction op) {
  switch (dtype) {
    case DType::kBool:
      return reduce_format<Plain<uint8_t>>(dst, sources, count, dtype, as_bool(op));
    case DType::kU8:
      return reduce_format<Plain<uint8_t>>(dst, sources, count, dtype, op);
    case DType::kI8:
      return reduce_format<Plain<int8_t>>(dst, sources, count, dtype, op);
    case DType::kI16:
      return reduce_format<Plain<int16_t>>(dst, sources, count, dtype, op);
    case DType::kI32:
      return reduce_format<Plain<int32_t>>(dst, sources, count, dtype, op);
    case DType::kI64:
      return reduce_format<Plain<int64_t>>(dst, sources, count, dtype, op);
    case DType::kF16:
      return reduce_format<F16>(dst, sources, count, dtype, op);
    case DType::kBF16:
      return reduce_format<Bf16>(dst, sources, count, dtype, op);
    case DType::kF32:
      return reduce_format<Plain<float>>(dst, sources, count, dtype, op);
    case DType::kF64:
      return reduce_format<Plain<double>>(dst, sources, count, dtype, op);
  }
}

}  // namespace ark::comm
