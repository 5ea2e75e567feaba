// C++ spelling of types and scalar opcodes in generated programs (device/program/math.cuh has the functions).
#pragma once
#include <string>

#include "ir/program.h"

namespace ark::codegen {

/// Type of an element in memory: "bf16", "boolean", "float", ...
const char* storage_type(DType type);
/// Type of a value in a register: "float", "double", "i64" or "bool".
const char* register_type(DType type);
/// Type of the value that the instruction yields, whose arguments have these types (Reduce of arg kind, comparisons,
/// Rand).
DType result_type(const Instr& instr);
/// Type (f32, f64, i64 or bool) in which the instruction takes argument `which` (0, 1, 2); `actual` are the arguments'
/// types.
DType argument_type(const Instr& instr, int which, DType actual_a, DType actual_b);
/// A literal of the instruction's constant.
std::string constant(const Instr& instr);
/// "op::exp" or "op::exp_fast".
std::string function(Opcode op, bool fast);
/// Whether the opcode is a call of function() on one, two or three arguments.
int call_arity(Opcode op);
/// Machine instructions that it is, about.
int code_of(const Instr& instr);

/// The accumulator (device/program/reduction.cuh) of values of compute type `source` to one of `result`.
std::string accumulator_type(ReduceOp reduce, DType source, DType result);

}  // namespace ark::codegen
