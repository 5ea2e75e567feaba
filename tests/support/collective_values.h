// What ranks send, and what must come of it by the reductions of the host.
#pragma once
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "comm/reduce.h"

namespace ark::test {

using comm::Reduction;

/// Values that sums and products of a few ranks hold without overflow to infinity; the same on every caller.
inline std::vector<unsigned char> data_of(int rank, size_t count, DType dtype, int round) {
  std::vector<unsigned char> bytes(count * size_bytes(dtype));
  std::mt19937 random(static_cast<unsigned>(rank * 7919 + round * 31 + static_cast<int>(dtype)));
  for (size_t i = 0; i < count; ++i) {
    const int small = static_cast<int>(random() % 201) - 100;
    unsigned char* at = bytes.data() + i * size_bytes(dtype);
    auto put = [&](auto v) { std::memcpy(at, &v, sizeof v); };
    switch (dtype) {
      case DType::kBool:
        put(static_cast<unsigned char>(small & 1));
        break;
      case DType::kU8:
        put(static_cast<unsigned char>(small));
        break;
      case DType::kI8:
        put(static_cast<signed char>(small));
        break;
      case DType::kI16:
        put(static_cast<int16_t>(small * 300));
        break;
      case DType::kI32:
        put(small * 20'000'000);
        break;
      case DType::kI64:
        put(static_cast<int64_t>(small) * 90'000'000'000'000'000);
        break;
      case DType::kF16:
        put(static_cast<_Float16>(small / 37.0f));
        break;
      case DType::kBF16: {
        float f = small / 37.0f;
        uint32_t bits;
        std::memcpy(&bits, &f, 4);
        put(static_cast<uint16_t>(bits >> 16));
        break;
      }
      case DType::kF32:
        put(small / 37.0f);
        break;
      case DType::kF64:
        put(small / 37.0);
        break;
    }
  }
  return bytes;
}

inline std::vector<unsigned char> reduced(int world, size_t first, size_t count, size_t all, DType dtype, Reduction op,
                                          int round) {
  std::vector<std::vector<unsigned char>> inputs;
  std::vector<const void*> sources;
  for (int r = 0; r < world; ++r) inputs.push_back(data_of(r, all, dtype, round));
  for (auto& i : inputs) sources.push_back(i.data() + first * size_bytes(dtype));
  std::vector<unsigned char> result(count * size_bytes(dtype));
  reduce(result.data(), sources, count, dtype, op);
  return result;
}

inline std::string first_difference(const std::vector<unsigned char>& a, const std::vector<unsigned char>& b,
                                    int width) {
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i] && wrong++ == 0) first = i;
  return cat(wrong, " wrong bytes, first at element ", first / width, " of ", a.size() / width);
}

inline unsigned char pattern(int from, int to, size_t i, int round) {
  return static_cast<unsigned char>(from * 89 + to * 29 + i * 7 + (i >> 8) * 3 + round * 13);
}

}  // namespace ark::test
