// The table of kMaskRange (device/abi/abi.h).
#pragma once
#include <cstdint>

namespace ark::planner {

inline constexpr int64_t kMaskRangeValues = 4;  // per block of queries; decode attention reads the first two

}  // namespace ark::planner
