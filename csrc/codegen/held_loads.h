// The loads of a pointwise program of plain accesses in two steps: `hold` asks for the aligned pieces that vectors lie
// in, `take` moves these into place (device/program/shifted_vector.cuh, pointwise_row_walk.cuh).
#pragma once
#include <string>
#include <vector>

namespace ark::codegen {

struct HeldLoad {
  int number;  // of the instruction
  int operand;
  bool scalar;       // the same along the row
  std::string type;  // of an element in memory
};
/// The declarations inside the program's struct; `unroll`: vectors that a thread has in flight.
std::string held_source(const std::vector<HeldLoad>& loads, int unroll);

}  // namespace ark::codegen
