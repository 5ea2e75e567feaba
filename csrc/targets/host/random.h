// What makes launches differ from seed to seed.
#pragma once
#include <cstdint>

namespace ark::targets::host {

/// xorshift64*: the order in which workers are tried and how many tiles are run at a time.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567u) {
    for (int i = 0; i < 4; ++i) next();
  }
  uint32_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<uint32_t>((state_ * 0x2545F4914F6CDD1Du) >> 32);
  }

 private:
  uint64_t state_;
};

}  // namespace ark::targets::host
