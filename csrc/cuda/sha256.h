// SHA-256 (FIPS 180-4), for cache keys and checksums.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ark::cuda {

class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  /// Length first, so that no two sequences of fields give the same stream.
  void update_field(std::string_view bytes);
  /// 64 hexadecimal digits; the object must not be used afterwards.
  std::string finish();

 private:
  void block(const unsigned char* bytes);
  std::array<uint32_t, 8> state_;
  std::array<unsigned char, 64> pending_{};
  uint64_t length_ = 0;
};

std::string sha256(std::string_view bytes);

}  // namespace ark::cuda
