// A scalar program (ir/program.h) compiled to calls of block kernels. Sizes are not in it: ops of equal layers share
// one.
//
// Every value lives in one or both of two spaces. *Element* registers hold one value per element of a block (rows x
// columns); *uniform* registers hold one per row (row programs) or one per kept column (column programs): results of
// Reduce and what is computed from them. An element step that needs a uniform value gets it through an Expand; a
// uniform step that needs a value of the element space (a bias, say) computes it at the first element of the row.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/program.h"
#include "targets/host/kernels/kernels.h"

namespace ark::targets::host {

/// Where a register lies: `offset` bytes per lane into its space's file.
struct Register {
  RegType type = RegType::kF32;
  bool uniform = false;
  int32_t offset = 0;
};

enum class StepKind : uint8_t {
  kConst,
  kIndex,
  kLoad,
  kStore,
  kRoot,
  kYield,
  kReduce,
  kFinish,
  kExpand,
  kUnary,
  kBinary,
  kTernary,
  kLoadParts,
  kParameter,
  kCheckIndex
};

struct Step {
  StepKind kind = StepKind::kConst;
  bool uniform = false;  // runs over the uniform space
  int16_t out = -1;      // registers, -1: none
  int16_t a = -1, b = -1, c = -1;
  int16_t predicate = -1;  // Load, Store, CheckIndex
  int16_t reduction = -1;  // Reduce, Finish
  Instr instr;
  UnaryFn unary = nullptr;  // also the conversion of a Finish or Yield (null: none)
  BinaryFn binary = nullptr;
  TernaryFn ternary = nullptr;
  ReduceFn reduce = nullptr;
};

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  RegType accumulator = RegType::kF64;  // f64 or i64
  RegType argument = RegType::kF32;
};

/// One walk over the elements: `element` steps per block, then `uniform` steps once per row block.
struct Pass {
  std::vector<Step> element, uniform;
};

struct VectorProgram {
  ProgramKind kind = ProgramKind::kPointwise;
  int num_dims = 1, reduce_dims = 0;
  std::vector<Register> registers;
  std::vector<Step> setup;  // constants: once per run, into registers that nothing else uses
  Pass before;              // uniform steps that need no pass (element empty)
  std::vector<Pass> passes;
  std::vector<Reduction> reductions;
  int element_bytes = 0, uniform_bytes = 0;  // per lane, of each space's file
};

/// `whole_rows`: every block holds whole rows, so that one pass with the steps in program order does (row programs
/// only; ignored otherwise). Throws UnsupportedError for an opcode or type that the host does not know.
VectorProgram compile_program(const Program& program, const Kernels& kernels, bool whole_rows);

}  // namespace ark::targets::host
