// The flat way of a pointwise program: what it writes is contiguous over the whole domain, so that its vectors may
// begin anywhere in a row and end in the next (device/program/pointwise_flat.cuh). What is the same along a row is
// computed once per vector for each of the two rows; an element takes the value of its own.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace ark::codegen {

struct FlatForm {
  bool exists = false;
  uint32_t operands = 0;     // contiguous over the whole domain
  int head = 0;              // the narrowest of them: where it is aligned all are, if they can be
  int unroll = 1;            // vectors that a thread has in flight
  std::vector<bool> loads;   // of a value per row
  std::vector<bool> row;     // instructions that are computed per row
  std::vector<bool> border;  // those of them whose values elements take
  std::vector<bool> body;    // instructions that are computed per element
};

/// Loads and stores by coordinates alone, arithmetic, nothing that only elements of the domain may do.
bool is_plain(const Program& program);

/// The declarations of the form inside the program's struct. `instruction(i, of_row)`: the text of instruction i, where
/// values of the border are one per element unless `of_row`. `type(i)`: of its value; `stored(i)`: of an operand's
/// element in memory.
struct FlatText {
  std::function<std::string(int, bool)> instruction;
  std::function<std::string(int)> type, stored;
};
std::string flat_source(const Program& program, const FlatForm& form, const FlatText& text);

}  // namespace ark::codegen
