// kRowDraw.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using X = abi::RowDrawOperand;

const abi::RowDrawParams& params(const plan::Op& op) { return op.record.params.row_draw; }

void uses(const plan::Op& op, const std::vector<Program>&, std::vector<OperandUse>& uses) {
  check(uses.size() == X::kCount, "op ", op.name, ": a row draw with ", uses.size(), " operands");
  for (const int read : {X::kValues, X::kNoise, X::kShare, X::kListsBefore, X::kMassesBefore})
    uses[static_cast<size_t>(read)].read = true;
  for (const int written : {X::kToken, X::kBest, X::kLists, X::kMasses})
    uses[static_cast<size_t>(written)].write = true;
}

void region(const Region& r, BoxEmitter& emitter) {
  const abi::RowDrawParams& p = params(r.op);
  const abi::Operand& x = r.x();
  const TileBlock& c = r.tiles;
  const Range rows{c.first[0], c.count[0], x.stride[0]}, parts{c.first[1], c.count[1], x.stride[1]};
  const bool lists = r.operand == X::kLists || r.operand == X::kListsBefore;
  const Range words{0, lists ? abi::kDrawListWords : abi::kDrawMassWords, x.stride[2]};
  switch (r.operand) {
    case X::kValues:
    case X::kNoise:
      if (p.stage == abi::kDrawLast) return emitter.box(std::array{rows, Range{0, p.size, x.stride[1]}});
      return emitter.box(std::array{rows, blocks_of(c.first[1], c.count[1], p.part, p.size, x.stride[1])});
    case X::kListsBefore:
    case X::kMassesBefore:
      return emitter.box(std::array{rows, Range{0, p.parts, x.stride[1]}, words});
    case X::kLists:
    case X::kMasses:
      return emitter.box(std::array{rows, parts, words});
    case X::kShare:
    case X::kToken:
    case X::kBest:
      return emitter.box(std::array{rows});
  }
  throw InternalError(cat("op ", r.op.name, ": operand ", r.operand, " of a row draw"));
}

std::optional<Dims> coordinates(const Region&) { return std::nullopt; }

/// The operand is there where it should be, and of that type.
void operand(const RecordCheck& check, int number, bool wanted, DType dtype) {
  const abi::Operand& x = check.op().operands[static_cast<size_t>(number)];
  check.need((x.slot != abi::kNoSlot) == wanted, "operand ", number, " in slot ", x.slot, " of stage ",
             params(check.op()).stage);
  check.need(!wanted || x.dtype == static_cast<short>(dtype), "operand ", number, " of type ", x.dtype);
}

/// Words between ops move by vectors of 16 bytes, those of a row's parts lie side by side.
void words(const RecordCheck& check, int number, int64_t count) {
  const abi::Operand& x = check.op().operands[static_cast<size_t>(number)];
  if (x.slot == abi::kNoSlot) return;
  check.need(x.stride[2] == 1 && x.stride[1] == count && x.stride[0] % 4 == 0 && x.offset % 4 == 0, "words ",
             x.stride[1], " apart");
}

bool same(const RecordCheck& check, const plan::Op& other, int number) {
  const abi::Operand& a = check.op().operands[static_cast<size_t>(number)];
  const abi::Operand& b = other.operands[static_cast<size_t>(number)];
  return a.slot == b.slot && a.offset == b.offset && std::ranges::equal(a.stride, b.stride);
}

/// The ops whose operand `made` is in that slot.
std::vector<const plan::Op*> makers(const RecordCheck& check, uint32_t slot, int made) {
  std::vector<const plan::Op*> ops;
  for (const plan::Op& op : check.plan().ops)
    if (op.record.kind == abi::TaskKind::kRowDraw && std::ssize(op.operands) == X::kCount &&
        op.operands[static_cast<size_t>(made)].slot == slot)
      ops.push_back(&op);
  return ops;
}

/// Whoever has written what operand `before` reads cuts rows as this op does, and has the same values (and share).
void writer(const RecordCheck& check, int before, int made) {
  const abi::RowDrawParams& p = params(check.op());
  const abi::Operand& read = check.op().operands[static_cast<size_t>(before)];
  if (read.slot == abi::kNoSlot) return;
  const std::vector<const plan::Op*> ops = makers(check, read.slot, made);
  for (const plan::Op* one : ops) {
    const plan::Op& other = *one;
    const abi::Operand& out = other.operands[static_cast<size_t>(made)];
    const abi::RowDrawParams& w = params(other);
    check.need(out.offset == read.offset && std::ranges::equal(out.stride, read.stride), "words at ", read.offset,
               ", those of op ", other.name, " at ", out.offset, ", or strides apart");
    check.need(w.rows == p.rows && w.size == p.size, p.rows, " rows of ", p.size, ", of op ", other.name, " ", w.rows,
               " of ", w.size);
    check.need(w.parts == p.parts && w.part == p.part, p.parts, " parts of ", p.part, ", of op ", other.name, " ",
               w.parts, " of ", w.part);
    check.need(same(check, other, X::kValues), "other values than op ", other.name);
    check.need(p.stage != abi::kDrawLast || same(check, other, X::kShare), "another share than op ", other.name);
  }
  check.need(!ops.empty(), "words in slot ", read.slot, ", which no row draw writes");
}

/// What is chosen has the noise that it was listed with.
void noise(const RecordCheck& check) {
  const abi::Operand& masses = check.op().operands[X::kMassesBefore];
  if (masses.slot == abi::kNoSlot) return;
  for (const plan::Op* weighs : makers(check, masses.slot, X::kMasses)) {
    const abi::Operand& lists = weighs->operands[X::kListsBefore];
    if (lists.slot == abi::kNoSlot) continue;
    for (const plan::Op* listing : makers(check, lists.slot, X::kLists))
      check.need(same(check, *listing, X::kNoise), "other noise than op ", listing->name);
  }
}

void record(const RecordCheck& check) {
  const abi::RowDrawParams& p = params(check.op());
  check.need(p.size > 0 && p.size <= abi::kSelectMost, "rows of ", p.size, ", at most ", abi::kSelectMost);
  check.need(p.parts <= abi::kDrawMostParts, p.parts, " parts, at most ", abi::kDrawMostParts);
  check.need(p.part > 0 && p.part % 4 == 0 && p.parts == ceil_div(p.size, p.part), p.parts, " parts of ", p.part,
             " in rows of ", p.size);
  const bool whole = p.parts == 1, last = p.stage == abi::kDrawLast;
  check.need(last || (!whole && (p.stage == 0 || p.stage == 1)), "stage ", p.stage, " of ", p.parts, " parts");
  operand(check, X::kValues, true, DType::kF32);
  operand(check, X::kNoise, p.stage != 1, DType::kF32);
  operand(check, X::kShare, p.stage != 0, DType::kF32);
  operand(check, X::kToken, last, DType::kI64);
  operand(check, X::kBest, last, DType::kF32);
  operand(check, X::kListsBefore, p.stage == 1, DType::kI32);
  operand(check, X::kLists, p.stage == 0, DType::kI32);
  operand(check, X::kMassesBefore, last && !whole, DType::kI64);
  operand(check, X::kMasses, p.stage == 1, DType::kI64);
  writer(check, X::kListsBefore, X::kLists);
  writer(check, X::kMassesBefore, X::kMasses);
  noise(check);
  for (const int number : {X::kListsBefore, X::kLists}) words(check, number, abi::kDrawListWords);
  for (const int number : {X::kMassesBefore, X::kMasses}) words(check, number, abi::kDrawMassWords);
  for (const int number : {X::kValues, X::kNoise}) {
    const abi::Operand& x = check.op().operands[static_cast<size_t>(number)];
    if (x.slot == abi::kNoSlot) continue;
    const bool aligned = x.stride[1] == 1 && x.stride[0] % 4 == 0 && x.offset % 4 == 0;
    check.need(p.vector == 1 || (p.vector == 4 && aligned), "vectors of ", p.vector, " in rows ", x.stride[0],
               " apart");
  }
  check.grid({p.rows, last ? 1 : p.parts, 1});
}

}  // namespace

extern const Reading kReadRowDraw = {uses, region, coordinates, record};

}  // namespace ark::planner
