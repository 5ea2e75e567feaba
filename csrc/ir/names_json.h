// How the enumerations and the programs of ir are written as JSON; shared by the graph's and the plan's readers.
#pragma once
#include "base/json_struct.h"
#include "base/types.h"
#include "ir/program.h"

namespace ark::json {

template <>
struct Enumerators<DType> {
  static constexpr int count = kNumDTypes;
  static std::string_view name(DType t) { return ark::name(t); }
};
template <>
struct Enumerators<Opcode> {
  static constexpr int count = kNumOpcodes;
  static std::string_view name(Opcode op) { return ark::name(op); }
};
template <>
struct Enumerators<ReduceOp> {
  static constexpr int count = kNumReduceOps;
  static std::string_view name(ReduceOp op) { return ark::name(op); }
};
template <>
struct Enumerators<ProgramKind> {
  static constexpr int count = static_cast<int>(ProgramKind::kPrologue) + 1;
  static std::string_view name(ProgramKind kind) { return ark::name(kind); }
};

template <>
struct Fields<Instr> {
  static constexpr auto list = std::tuple{field("op", &Instr::op),
                                          field("dtype", &Instr::dtype),
                                          field("a", &Instr::a),
                                          field("b", &Instr::b),
                                          field("c", &Instr::c),
                                          field("d", &Instr::d),
                                          field("operand", &Instr::operand),
                                          field("aux", &Instr::aux),
                                          field("delta_sign", &Instr::delta_sign),
                                          field("uniform", &Instr::uniform),
                                          field("imm", &Instr::imm),
                                          field("imm_int", &Instr::imm_int)};
};
template <>
struct Fields<Program> {
  static constexpr auto list = std::tuple{
      field("kind", &Program::kind), field("num_dims", &Program::num_dims), field("reduce_dims", &Program::reduce_dims),
      field("num_operands", &Program::num_operands), field("instrs", &Program::instrs)};
};

}  // namespace ark::json
