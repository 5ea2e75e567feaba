// What the tests of generated programs on the host share: numbers, operands in memory of their own.
#pragma once
#include <random>

#include "device/program/support.cuh"

namespace ark::device {

inline std::mt19937 engine(3);
inline i64 up_to(i64 n) { return static_cast<i64>(engine() % static_cast<u64>(n)); }

inline void write_number(void* at, i32 dtype, i64 value) {
  const float as_float = static_cast<float>(value);
  const double as_double = static_cast<double>(value);
  const bf16 as_bf16 = narrow<bf16>(as_float);
  const void* from = &value;
  if (dtype == kTypeBF16) from = &as_bf16;
  if (dtype == kTypeF32) from = &as_float;
  if (dtype == kTypeF64) from = &as_double;
  std::memcpy(at, from, static_cast<size_t>(element_bytes(dtype)));
}

/// Puts `count` random numbers `offset` elements behind an aligned address, and says so in the operand.
inline std::vector<unsigned char> random_memory(abi::Operand& o, i64 count, i64 offset) {
  const i64 size = element_bytes(o.dtype);
  std::vector<unsigned char> bytes(static_cast<size_t>((count + offset + 8) * size + 32));
  o.offset = (reinterpret_cast<i64>(bytes.data()) + 15) / 16 * 16 + offset * size;
  for (i64 i = 0; i < count; ++i) write_number(reinterpret_cast<void*>(o.offset + i * size), o.dtype, up_to(7));
  memory.ranges.push_back({static_cast<u64>(o.offset), static_cast<u64>(o.offset + count * size)});
  return bytes;
}

template <class P>
void run_element(const ProgramContext& c, const i32 (&x)[P::kDims]) {
  typename P::template Inputs<1> in;
  P::template load<1>(c, x, in);
  P::template run_loaded<1>(c, x, in, NoRoots{});
}

}  // namespace ark::device
