// Runs compiled programs block by block over an op's iteration domain.
#pragma once
#include <cstdint>
#include <span>

#include "targets/host/program/access.h"
#include "targets/host/program/scratch.h"
#include "targets/host/program/vector_program.h"

namespace ark::targets::host {

/// A program with the sizes and strides of one op. The domain is outer x inner: row programs: rows x row; column
/// programs: reduced x kept; epilogues: rows x columns; pointwise: one row.
struct BoundProgram {
  VectorProgram code;
  std::vector<abi::Operand> operands;  // the program's
  Domain element, uniform;
  int64_t outer_total = 1, inner_total = 1;
  int64_t element_lanes = 0, uniform_lanes = 0;  // capacity of the registers
};

/// `operands` are the program's own, `record_operands` all of the op's (for index parameters); `size` the domain.
BoundProgram bind_program(const Program& program, const Kernels& kernels, std::span<const int64_t> size,
                          std::span<const abi::Operand> operands, std::span<const abi::Operand> record_operands);

/// Accumulators that Root instructions read: data[root] is a matrix whose row 0 is the domain's row `first_row` and
/// whose column 0 is its column `first`; columns outside [first, first + count) read as 0.
struct Roots {
  const void* data[2] = {nullptr, nullptr};
  RegType type = RegType::kF32;
  int64_t row_stride = 0, first_row = 0, first = 0, count = 0, pair_distance = 0;
};

/// Where a prologue's Yield goes: [outer][inner], contiguous.
struct YieldTarget {
  void* data = nullptr;
  RegType type = RegType::kF32;
};

struct Environment {
  const Kernels* kernels = nullptr;
  void* const* slots = nullptr;
  Scratch* scratch = nullptr;
  IndexError* index_error = nullptr;  // where one is noted
};

/// All return false when an index was out of range (the access was dropped).
bool run_elements(const Environment& env, const BoundProgram& program, int64_t begin, int64_t end);
bool run_rows(const Environment& env, const BoundProgram& program, int64_t begin, int64_t end,
              const YieldTarget& yield);
bool run_columns(const Environment& env, const BoundProgram& program, int64_t begin, int64_t end);
/// Epilogue (domain (batch * m) x n) over a block of rows and columns.
struct Region {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};
bool run_epilogue(const Environment& env, const BoundProgram& program, const Region& region, const Roots& roots);

}  // namespace ark::targets::host
