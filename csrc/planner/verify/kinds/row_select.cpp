// kRowSelect.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using X = abi::RowSelectOperand;

const abi::RowSelectParams& params(const plan::Op& op) { return op.record.params.row_select; }

void uses(const plan::Op& op, const std::vector<Program>&, std::vector<OperandUse>& uses) {
  check(uses.size() == X::kCount, "op ", op.name, ": a row select with ", uses.size(), " operands");
  for (const int read : {X::kDistance, X::kBound, X::kSumsBefore, X::kStateBefore, X::kTops, X::kShare})
    uses[static_cast<size_t>(read)].read = true;
  for (const int written : {X::kOut, X::kSums, X::kState, X::kMade, X::kCut})
    uses[static_cast<size_t>(written)].write = true;
}

void region(const Region& r, BoxEmitter& emitter) {
  const abi::RowSelectParams& p = params(r.op);
  const abi::Operand& x = r.x();
  const TileBlock& c = r.tiles;
  const int64_t words = p.listed != 0 ? abi::kSelectListWords : abi::kSelectWords;
  const Range rows{c.first[0], c.count[0], x.stride[0]}, parts{c.first[1], c.count[1], x.stride[1]};
  switch (r.operand) {
    case X::kDistance:
    case X::kMade:
      if (p.round == abi::kSelectLast) return emitter.box(std::array{rows, Range{0, p.size, x.stride[1]}});
      return emitter.box(std::array{rows, blocks_of(c.first[1], c.count[1], p.part, p.size, x.stride[1])});
    case X::kSumsBefore:
      return emitter.box(std::array{rows, Range{0, p.parts, x.stride[1]}, Range{0, words, x.stride[2]}});
    case X::kSums:
      return emitter.box(std::array{rows, parts, Range{0, words, x.stride[2]}});
    case X::kStateBefore:
    case X::kState:
      return emitter.box(std::array{rows, parts, Range{0, abi::kSelectState, x.stride[2]}});
    case X::kTops:
      return emitter.box(std::array{rows, Range{0, p.tops, x.stride[1]}});
    case X::kBound:
    case X::kOut:
    case X::kShare:
    case X::kCut:
      return emitter.box(std::array{rows});
  }
  throw InternalError(cat("op ", r.op.name, ": operand ", r.operand, " of a row select"));
}

std::optional<Dims> coordinates(const Region&) { return std::nullopt; }

/// The operand is there where it should be, and of that type.
void operand(const RecordCheck& check, int number, bool wanted, DType dtype) {
  const abi::Operand& x = check.op().operands[static_cast<size_t>(number)];
  check.need((x.slot != abi::kNoSlot) == wanted, "operand ", number, " in slot ", x.slot, " of round ",
             params(check.op()).round);
  check.need(!wanted || x.dtype == static_cast<short>(dtype), "operand ", number, " of type ", x.dtype);
}

/// Sums move by vectors of 16 bytes.
void sums(const RecordCheck& check, int number) {
  const abi::Operand& x = check.op().operands[static_cast<size_t>(number)];
  if (x.slot == abi::kNoSlot) return;
  check.need(x.stride[2] == 1 && x.stride[1] % 4 == 0 && x.stride[0] % 4 == 0 && x.offset % 4 == 0, "sums ",
             x.stride[1], " words apart");
}

/// Whoever has written the sums cuts rows as this op does; beside lists, both ask for the same.
void writer_of_sums(const RecordCheck& check) {
  const abi::RowSelectParams& p = params(check.op());
  const abi::Operand& sums = check.op().operands[X::kSumsBefore];
  if (sums.slot == abi::kNoSlot) return;
  bool written = false;
  for (const plan::Op& other : check.plan().ops) {
    if (other.record.kind != abi::TaskKind::kRowSelect || std::ssize(other.operands) != X::kCount) continue;
    if (other.operands[X::kSums].slot != sums.slot) continue;
    written = true;
    const abi::RowSelectParams& w = params(other);
    const abi::Operand& made = other.operands[X::kSums];
    check.need(made.offset == sums.offset && std::ranges::equal(made.stride, sums.stride), "sums at ", sums.offset,
               ", those of op ", other.name, " at ", made.offset, ", or strides apart");
    check.need(w.rows == p.rows && w.size == p.size, p.rows, " rows of ", p.size, ", of op ", other.name, " ", w.rows,
               " of ", w.size);
    check.need(w.parts == p.parts && w.part == p.part, p.parts, " parts of ", p.part, ", of op ", other.name, " ",
               w.parts, " of ", w.part);
    check.need(w.listed == p.listed && w.by_mass == p.by_mass, "lists ", p.listed, " by mass ", p.by_mass, ", of op ",
               other.name, " ", w.listed, " and ", w.by_mass);
    if (p.listed == 0) continue;
    const abi::Operand &a = check.op().operands[X::kBound], &b = other.operands[X::kBound];
    check.need(a.slot == b.slot && a.offset == b.offset && (p.rows == 1 || a.stride[0] == b.stride[0]),
               "another bound than op ", other.name, ": slot ", a.slot, " at ", a.offset, ", expected ", b.slot, " at ",
               b.offset);
  }
  check.need(written, "sums in slot ", sums.slot, ", which no row select writes");
}

void record(const RecordCheck& check) {
  const abi::RowSelectParams& p = params(check.op());
  check.need(p.by_mass == 0 || p.by_mass == 1, "by mass ", p.by_mass);
  check.need(p.size >= 0 && p.size <= abi::kSelectMost, "rows of ", p.size, ", at most ", abi::kSelectMost);
  check.need(p.parts <= abi::kSelectMostParts, p.parts, " parts, at most ", abi::kSelectMostParts);
  check.need(p.part > 0 && p.part % 4 == 0 && p.part <= abi::kSelectMostPart, "parts of ", p.part);
  check.need(p.parts == std::max<int64_t>(1, ceil_div(p.size, p.part)), p.parts, " parts of ", p.part, " in rows of ",
             p.size);
  const bool whole = p.parts == 1, last = whole || p.round == abi::kSelectLast;
  check.need(p.round >= 0 && p.round <= (whole ? 0 : abi::kSelectLast), "round ", p.round, " of ", p.parts, " parts");
  const DType bound = p.by_mass == 1 ? DType::kF32 : DType::kI64;
  operand(check, X::kDistance, p.size > 0, DType::kF32);
  const bool listed = p.listed == 1;
  check.need(p.listed == 0 || (listed && !whole && p.by_mass == 0 && p.round != 1), "lists ", p.listed, " in round ",
             p.round);
  check.need(!listed || (p.round == 0) == (p.tops > 0), p.tops, " tops of lists in round ", p.round);
  check.need(!listed || p.tops <= abi::kSelectMostTops, p.tops, " tops of lists, at most ", abi::kSelectMostTops);
  operand(check, X::kBound, whole || listed || p.round == 1, bound);
  operand(check, X::kOut, last, DType::kI64);
  operand(check, X::kSumsBefore, p.round > 0, DType::kI32);
  operand(check, X::kStateBefore, !listed && p.round > 1, DType::kI64);
  operand(check, X::kSums, !last, DType::kI32);
  operand(check, X::kState, !last && p.round > 0, DType::kI64);
  const bool cuts = check.op().operands[X::kCut].slot != abi::kNoSlot;
  check.need(!cuts || (listed && last), "a cut in round ", p.round, ", lists ", p.listed);
  operand(check, X::kShare, cuts, DType::kF32);
  operand(check, X::kCut, cuts, DType::kI64);
  check.need(p.tops >= 0 && (p.tops == 0 || (!whole && p.round == 0)), p.tops, " tops in round ", p.round);
  operand(check, X::kTops, p.tops > 0, DType::kF32);
  operand(check, X::kMade, p.tops > 0, DType::kF32);
  writer_of_sums(check);
  sums(check, X::kSumsBefore);
  sums(check, X::kSums);
  for (const int number : {X::kDistance, X::kMade}) {
    const abi::Operand& x = check.op().operands[static_cast<size_t>(number)];
    if (number == X::kMade && p.tops == 0) continue;
    const bool aligned = x.stride[1] == 1 && x.stride[0] % 4 == 0 && x.offset % 4 == 0;
    check.need(p.vector == 1 || (p.vector == 4 && aligned), "vectors of ", p.vector, " in rows ", x.stride[0],
               " apart");
  }
  check.grid({p.rows, last ? 1 : p.parts, 1});
}

}  // namespace

extern const Reading kReadRowSelect = {uses, region, coordinates, record};

}  // namespace ark::planner
