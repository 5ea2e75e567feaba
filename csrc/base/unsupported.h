// Reasons to run something through ATen that the front end tells apart by their type.
#pragma once
#include <cstdint>
#include <string>

#include "base/check.h"

namespace ark {

/// An op needs more of something than it may have, so that a shorter step is planned (mapped to
/// ark_torch.errors.TooLong).
struct TooLong : UnsupportedError {
  std::string unit;  // what is counted
  int64_t actual, limit;

  TooLong(const std::string& where, std::string counted, int64_t needed, int64_t most)
      : UnsupportedError(cat(where, " needs ", needed, " ", counted, ", at most ", most)),
        unit(std::move(counted)),
        actual(needed),
        limit(most) {}
};

}  // namespace ark
