// A scalar program (ir/program.h) as a C++ struct for the device: see device/program/support.cuh for what it offers to
// tasks.
//
// Values are printed one instruction a line, in order. A value that is the same for all V elements of a vector
// (constants, outer coordinates, reduction results and what follows from them) is a scalar; so is the first element of
// an integer that counts up along the vector (the last coordinate); every other value is an array of V.
#pragma once
#include <string>

#include "codegen/row_factor.h"
#include "codegen/row_form.h"
#include "device/abi/column_ways.h"
#include "ir/program.h"

namespace ark::codegen {

/// What is known of the ops that use a program, beside rows. Operands are bits.
struct ProgramUse {
  uint32_t broadcast = 0;      // stride 0 along the last dimension wherever it is used
  uint32_t epilogue_ways = 0;  // of an epilogue of tiles, EpilogueWay (epilogue_ways.h); 0: it is none
  uint32_t column_ways = abi::kAllColumnWays;
  // Of a pointwise program: what may go through tiles of shared memory (plan/transposed_operands.h), and what is
  // contiguous over the whole domain wherever it is used.
  uint32_t transposed = 0, flat = 0;
};

/// `struct Program<number> { ... };`, preceded by `comment` (whole lines). Throws InternalError for a malformed program
/// and UnsupportedError for an opcode that the device does not know in this kind of program.
std::string program_source(const Program& program, int number, const std::string& comment, const ProgramUse& use = {});

/// The same as `template <u32 kFlags> struct FlaggedProgram<number>`: bit i of kFlags says that plain accesses of
/// operand i are flagged words (device/program/flag_words.cuh). It also offers ready<V>(c, x, in): whether all words of
/// `in` are there; those that are not are asked for again.
std::string flagged_program_source(const Program& program, int number);

/// The same of a prologue whose rows have a factor, as `struct ScaledProgram<number>`: it yields the elements without
/// it, adds up on the same walk what it is made of, and has factor(uniform).
std::string scaled_program_source(const RowFactor& of, int number, const ProgramUse& use = {});

/// The same for a row task: the struct also says how rows are walked, and loads by pass.
std::string row_program_source(const Program& program, const RowForm& form, int number, const std::string& comment);

}  // namespace ark::codegen
