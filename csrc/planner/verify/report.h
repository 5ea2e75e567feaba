// What a verification says of itself.
#pragma once
#include <cstdint>

namespace ark::planner {

/// What a verification looked at, for tests and statistics.
struct VerifyReport {
  int64_t tiles = 0, op_pairs = 0, block_pairs = 0, tile_pairs = 0;
};

}  // namespace ark::planner
