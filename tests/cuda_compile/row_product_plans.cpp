// Products of few rows.
#include "plan/few_rows_form.h"
#include "plans.h"

namespace ark::cuda_compile {
namespace {

using abi::TaskKind;

/// An operand whose accesses are known to move 16 bytes.
abi::Operand whole_vectors(DType type) {
  abi::Operand operand{};
  operand.dtype = static_cast<int>(type);
  operand.vector = static_cast<signed char>(16 / size_bytes(type));
  operand.index_operand = -1;
  return operand;
}

/// Shapes that fit no function (codegen/codegen.cpp): each is the body of a kernel of its own. Together the four take
/// the compiler 41 CPU seconds, alone 26: what it does with a body grows faster than the body.
constexpr struct {
  const char* name;
  int m, k;
} kLarge[] = {
    {"rows_gated_8192", 2, 8192}, {"rows_gated_2560", 12, 2560}, {"rows_5000", 5, 5000}, {"rows_14336", 5, 14336}};

/// Rotary pairs (columns n and n +- p of one weight), gated pairs (two weights), a residual; lengths of one row and
/// types, each form once (called), one row in two layers (part of the kernel's body), or several rows.
enum class RowsPlan {
  kEverySize,
  kOne,
  kEight,
  kSixteen,
  kLarge,
  kColumns,
  kColumnsOne,
  kColumnsSixteen,
  kLanes,
  kLanesSixteen
};
NamedPlan rows_plan(RowsPlan which, size_t large = 0) {
  plan::Plan p;
  const int norm = add_program(p, rms_norm(ProgramKind::kPrologue));
  ProgramBuilder plain(ProgramKind::kPrologue, 2, 1, 1);
  plain.op(Opcode::kYield, plain.load(0, DType::kBF16));
  const int copy = add_program(p, plain);
  ProgramBuilder combine(ProgramKind::kPrologue, 3, 1, 5);
  {
    Instr parts{.op = Opcode::kLoadParts, .dtype = DType::kF32};
    parts.a = combine.index(1), parts.b = combine.index(2), parts.operand = 0;
    combine.op(Opcode::kYield, combine.add(parts));
  }
  const int from_parts = add_program(p, combine);
  ProgramBuilder rotary(ProgramKind::kEpilogue, 3, 0, 4);
  {
    const int head = rotary.op(Opcode::kRemainder, rotary.index(2), rotary.constant(64, DType::kI64), -1, DType::kI64);
    const int first = rotary.op(Opcode::kLt, head, rotary.constant(32, DType::kI64), -1, DType::kBool);
    const int own = rotary.op(Opcode::kCast, rotary.root(0, 0), -1, -1, DType::kBF16);
    const int after = rotary.op(Opcode::kCast, rotary.root(0, 1), -1, -1, DType::kBF16);
    const int before = rotary.op(Opcode::kCast, rotary.root(0, -1), -1, -1, DType::kBF16);
    const int turned = rotary.op(Opcode::kWhere, first, rotary.op(Opcode::kNeg, after), before);
    const int cosine = rotary.load(0, DType::kF32), sine = rotary.load(1, DType::kF32),
              position = rotary.load(2, DType::kI64);
    const int y = rotary.op(Opcode::kFma, own, cosine, rotary.op(Opcode::kMul, turned, sine));
    rotary.store(3, DType::kBF16, y, false, position);
  }
  ProgramBuilder gate(ProgramKind::kEpilogue, 3, 0, 1);
  {
    const int a = gate.op(Opcode::kCast, gate.root(0), -1, -1, DType::kBF16);
    const int b = gate.op(Opcode::kCast, gate.root(1), -1, -1, DType::kBF16);
    const int silu = gate.op(Opcode::kMul, a, gate.op(Opcode::kSigmoid, a));
    gate.store(0, DType::kBF16, gate.op(Opcode::kMul, gate.op(Opcode::kCast, silu, -1, -1, DType::kBF16), b));
  }
  ProgramBuilder residual(ProgramKind::kEpilogue, 3, 0, 2);
  {
    const int y = residual.op(Opcode::kCast, residual.root(0), -1, -1, DType::kBF16);
    residual.store(1, DType::kBF16, residual.op(Opcode::kAdd, residual.load(0, DType::kBF16), y));
  }
  const int programs[3] = {add_program(p, rotary), add_program(p, gate), add_program(p, residual)};
  struct Shape {
    int m, k, lanes, pair, gated;
    DType type;
    int columns = 0;
  };
  const auto add = [&](const char* name, const Shape& shape, int prologue, std::vector<int> epilogues) {
    plan::Op op;
    op.name = name;
    op.record.kind = TaskKind::kMatmulRows;
    abi::MatmulRowsParams& rows = op.record.params.rows;
    rows.m = shape.m;
    rows.k = shape.k;
    rows.lanes = shape.lanes;
    rows.pair_distance = shape.pair;
    rows.gated = shape.gated;
    op.early = 1;  // operand 0: all weights
    rows.columns = shape.columns;
    rows.dtype = static_cast<int>(shape.type);
    rows.prologue = prologue;
    rows.num_segments = static_cast<int>(epilogues.size());
    for (size_t s = 0; s < epilogues.size(); ++s) {
      abi::Segment& segment = rows.segment[s];
      segment.program = epilogues[s];
      segment.first_unit = rows.num_units;
      segment.num_units = 256;
      rows.num_units += segment.num_units;
    }
    const bool once = which == RowsPlan::kEverySize || which == RowsPlan::kLarge;
    if (shape.m > 1 && !once) op.operands.assign(8, whole_vectors(shape.type));
    p.ops.insert(p.ops.end(), once ? 1 : 2, op);
  };
  const DType b = DType::kBF16;
  if (which == RowsPlan::kLarge) {
    const auto& [name, m, k] = kLarge[large];
    const bool gated = large < 2;
    add("rows", {m, k, gated ? 2 : 1, 0, gated, b}, gated ? norm : copy, {programs[gated ? 1 : 2]});
    plan::number_forms(p);
    return {name, p};
  }
  if (which >= RowsPlan::kColumns) {  // weights [k][n]
    const bool lanes = which == RowsPlan::kLanes || which == RowsPlan::kLanesSixteen;
    const int m = which == RowsPlan::kColumnsOne                             ? 1
                  : which == RowsPlan::kColumns || which == RowsPlan::kLanes ? 8
                                                                             : 16;
    const int windows = m > 8 ? 5000 : 9000;  // k of several
    p.maps.resize(1);
    if (!lanes) {
      for (const int k : {768, 1600}) add("norm", {m, k, 1, 0, 0, b, 16}, norm, {programs[2]});
      add("out", {m, 768, 1, 0, 0, b, 16}, m == 1 ? from_parts : copy, {programs[2]});
      add("down", {m, 3072, 1, 0, 0, b, 16}, copy, {programs[2]});
      if (m == 1) add("wide", {m, 2048, 1, 0, 0, DType::kF16, 64}, copy, {programs[2], programs[2]});
      if (m <= 8) add("half", {m, 1000, 1, 0, 0, DType::kF16, 32}, copy, {programs[2]});
      if (m > 1) add("windows", {m, windows, 1, 0, 0, b, abi::most_columns(m, 1)}, copy, {programs[2]});
    }
    if (lanes || m == 1) {  // of several rows in kernels of their own: together they would be over the registers
      const int widest = abi::most_columns(m, 2);
      add("few columns", {m, 1544, 1, 0, 0, b, 8}, m == 1 ? norm : copy, {programs[2]});
      add("gate, up", {m, 768, 2, 0, 1, b, widest}, norm, {programs[1]});
      add("gate, up, narrow", {m, 1600, 2, 0, 1, b, 8}, copy, {programs[1]});
      add("q, k, v", {m, 768, 2, 32, 0, b, widest}, norm, {programs[0], programs[0], programs[2]});
    }
    plan::number_forms(p);
    if (lanes) return {m == 8 ? "rows_columns_lanes_eight" : "rows_columns_lanes_sixteen", p};
    return {m == 1 ? "rows_columns_one" : m == 8 ? "rows_columns_eight" : "rows_columns_sixteen", p};
  }
  const int m = which == RowsPlan::kEight ? 8 : which == RowsPlan::kSixteen ? 16 : 1;
  add("q, k, v", {m, 2048, 2, 32, 0, b}, norm, {programs[0], programs[0], programs[2]});
  add("gate, up", {m, 2048, 2, 0, 1, b}, norm, {programs[1]});
  add("out", {m, 2048, 1, 0, 0, b}, m == 1 ? from_parts : copy, {programs[2]});
  add("down", {m, 8192, 1, 0, 0, b}, copy, {programs[2]});
  if (which == RowsPlan::kEverySize) {
    for (const auto& [rows, k] : {std::pair{3, 4096}, {16, 2048}})
      add("rows", {rows, k, 2, 0, 1, b}, norm, {programs[1]});
    for (const int k : {40, 1000, 4096, 5000, 14336}) add("sizes", {1, k, 1, 0, 0, b}, copy, {programs[2]});
    for (const int k : {40, 1000}) add("strips", {5, k, 1, 0, 0, b}, copy, {programs[2]});
    add("half", {1, 768, 1, 0, 0, DType::kF16}, copy, {programs[2]});
    add("strips of half", {9, 768, 1, 0, 0, DType::kF16}, copy, {programs[2]});
    add("float", {2, 768, 1, 0, 0, DType::kF32}, copy, {programs[2]});
    add("float of half", {3, 2012, 1, 0, 0, DType::kF32}, copy, {programs[2]});
  }
  constexpr const char* kNames[] = {"rows", "rows_one", "rows_eight", "rows_sixteen"};
  plan::number_forms(p);
  return {kNames[static_cast<int>(which)], p};
}

}  // namespace

std::vector<NamedPlan> row_product_plans() {
  std::vector<NamedPlan> plans;
  for (const RowsPlan which :
       {RowsPlan::kEverySize, RowsPlan::kOne, RowsPlan::kEight, RowsPlan::kSixteen, RowsPlan::kColumns,
        RowsPlan::kColumnsOne, RowsPlan::kColumnsSixteen, RowsPlan::kLanes, RowsPlan::kLanesSixteen})
    plans.push_back(rows_plan(which));
  for (size_t large = 0; large < std::size(kLarge); ++large) plans.push_back(rows_plan(RowsPlan::kLarge, large));
  return plans;
}

}  // namespace ark::cuda_compile
