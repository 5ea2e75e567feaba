// Storage types: how a value of a compute type is kept in memory. Included once per instruction set (see
// impl.h).

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  uint32_t bits = (magnitude << 13) + 0x38000000u;
  bits = magnitude >= 0x7c00u ? bits + 0x38000000u : bits;  // infinities, NaN
  const float subnormal = static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f;
  bits = magnitude < 0x400u ? bits_as<uint32_t>(subnormal) : bits;
  return bits_as<float>(bits | sign);
}
inline uint16_t float_to_half(float f) {
  const uint32_t bits = bits_as<uint32_t>(f), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // 0.5f has the spacing of half's subnormals: the addition rounds to nearest even.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // 65520 and more: infinity
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return static_cast<uint16_t>(result | sign);
}
inline float bfloat_to_float(uint16_t b) { return bits_as<float>(static_cast<uint32_t>(b) << 16); }
inline uint16_t float_to_bfloat(float f) {
  const uint32_t bits = bits_as<uint32_t>(f);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? ((bits >> 16) | 0x40u) : rounded);
}

/// Storage<T>::Memory is what lies in memory, Storage<T>::Register what is computed with.
template <DType T>
struct Storage;
#define ARK_HOST_STORAGE(dtype, MemoryType, RegisterType, read_expression, write_expression) \
  template <>                                                                                \
  struct Storage<dtype> {                                                                    \
    using Memory = MemoryType;                                                               \
    using Register = RegisterType;                                                           \
    static Register read(Memory x) { return read_expression; }                               \
    static Memory write(Register x) { return write_expression; }                             \
  };
ARK_HOST_STORAGE(DType::kBool, uint8_t, uint8_t, x != 0, x)
ARK_HOST_STORAGE(DType::kU8, uint8_t, int64_t, x, static_cast<uint8_t>(x))
ARK_HOST_STORAGE(DType::kI8, signed char, int64_t, x, static_cast<signed char>(x))
ARK_HOST_STORAGE(DType::kI16, short, int64_t, x, static_cast<short>(x))
ARK_HOST_STORAGE(DType::kI32, int, int64_t, x, static_cast<int>(x))
ARK_HOST_STORAGE(DType::kI64, int64_t, int64_t, x, x)
ARK_HOST_STORAGE(DType::kF16, uint16_t, float, half_to_float(x), float_to_half(x))
ARK_HOST_STORAGE(DType::kBF16, uint16_t, float, bfloat_to_float(x), float_to_bfloat(x))
ARK_HOST_STORAGE(DType::kF32, float, float, x, x)
ARK_HOST_STORAGE(DType::kF64, double, double, x, x)
#undef ARK_HOST_STORAGE

/// Casts between compute types as ATen makes them; a float that no int64_t holds gives the smallest one (what x86
/// does).
template <class To, class From>
inline To cast_value(From x) {
  if constexpr (sizeof(To) == 1) {
    return static_cast<To>(x != From(0));
  } else if constexpr (!kIsFloat<To> && kIsFloat<From>) {
    return (x >= From(-0x1p63) && x < From(0x1p63)) ? static_cast<int64_t>(x) : static_cast<int64_t>(1ull << 63);
  } else {
    return static_cast<To>(x);
  }
}
