#include "planner/verify/record_check.h"

namespace ark::planner {

void RecordCheck::grid(std::array<int64_t, 3> expected) const {
  bool good = record().grid[abi::GridAxis::kOuter] == expected[0] &&
              record().grid[abi::GridAxis::kMiddle] == expected[1] &&
              record().grid[abi::GridAxis::kInner] == expected[2];
  need(good || expected[0] * expected[1] * expected[2] == 0, "grid ", record().grid[abi::GridAxis::kOuter], ' ',
       record().grid[abi::GridAxis::kMiddle], ' ', record().grid[abi::GridAxis::kInner], ", expected ", expected[0],
       ' ', expected[1], ' ', expected[2]);
}

const Program& RecordCheck::program(int number, int first, ProgramKind kind) const {
  need(number >= 0 && static_cast<size_t>(number) < plan_.programs.size(), "program ", number, " of ",
       plan_.programs.size());
  const Program& p = plan_.programs[static_cast<size_t>(number)];
  need(p.kind == kind, "program ", number, " is of kind ", name(p.kind), ", expected ", name(kind));
  bool fits = first >= 0 && static_cast<size_t>(first + p.num_operands) <= op_.operands.size();
  need(fits, "program ", number, " has operands ", first, " + ", p.num_operands, " of ", op_.operands.size());
  for (const Instr& i : p.instrs) {
    if (i.op == Opcode::kParameter)
      need(op_.operands[static_cast<size_t>(first + i.operand)].slot == abi::kNoSlot, "operand ", first + i.operand,
           " holds parameters and has a slot");
    bool load = i.op == Opcode::kLoad && (i.a >= 0 || i.b >= 0),
         store = i.op == Opcode::kStore && (i.b >= 0 || i.c >= 0);
    if (load || store)
      need(op_.operands[static_cast<size_t>(first + i.operand)].index_operand >= 0, "operand ", first + i.operand,
           " is indexed without index strides");
  }
  return p;
}

void RecordCheck::map(int number, int operand, const std::vector<int64_t>& sizes, const std::vector<int32_t>& box,
                      const std::vector<int64_t>& strides) const {
  need(number >= 0 && static_cast<size_t>(number) < plan_.maps.size(), "map ", number, " of ", plan_.maps.size());
  const plan::TensorMap& m = plan_.maps[static_cast<size_t>(number)];
  const abi::Operand& x = op_.operands[static_cast<size_t>(operand)];
  int64_t bytes = size_bytes(static_cast<DType>(x.dtype));
  bool place = m.slot == x.slot && m.offset_bytes == x.offset * bytes && static_cast<short>(m.dtype) == x.dtype;
  need(place, "map ", number, " shows slot ", m.slot, " + ", m.offset_bytes, " bytes, operand ", operand, " slot ",
       x.slot, " + ", x.offset * bytes);
  need(m.sizes == sizes && m.strides_bytes.size() + 1 == m.sizes.size(), "map ", number, " of operand ", operand,
       " has other sizes than it");
  const auto text = [](const std::vector<int32_t>& sizes_of_box) {
    std::string result;
    for (int32_t n : sizes_of_box) result += cat(' ', n);
    return result;
  };
  need(m.box == box, "map ", number, " of operand ", operand, " has boxes of", text(m.box), ", expected", text(box));
  int64_t last = m.offset_bytes + (m.sizes[0] - 1) * bytes + bytes;
  for (size_t d = 1; d < m.sizes.size(); ++d) {
    need(m.strides_bytes[d - 1] % 16 == 0, "map ", number, ": a stride of ", m.strides_bytes[d - 1], " bytes");
    need(m.sizes[d] == 1 || m.strides_bytes[d - 1] == strides.at(d - 1) * bytes, "map ", number, " of operand ",
         operand, " steps ", m.strides_bytes[d - 1], " bytes along dimension ", d, ", expected ",
         strides.at(d - 1) * bytes);
    last += (m.sizes[d] - 1) * m.strides_bytes[d - 1];
  }
  int64_t whole = plan_.buffers[m.slot].size_bytes;
  need(m.offset_bytes % 16 == 0 && last <= whole, "map ", number, " ends at byte ", last, " of ", whole);
}

}  // namespace ark::planner
