#include "codegen/column_ways.h"

#include "base/types.h"
#include "device/abi/column_slots.h"
#include "device/abi/column_ways.h"

namespace ark::codegen {
namespace {

using abi::Operand;

class ColumnWays {
 public:
  ColumnWays(const ColumnShape& shape, const abi::OpRecord& record, const abi::Operand* operands, int threads)
      : s_(shape),
        r_(record),
        p_(record.params.program),
        o_(operands),
        threads_(threads),
        row_(record.size[shape.dims - 1]) {}

  /// In the device's order (Column::run_tile).
  uint32_t find() {
    const int length = s_.vector;
    if (p_.num_rows <= 0) return 0;
    if (length == 1) return abi::kColumnSingle;
    const bool divides = p_.tile % length == 0 && (row_ % length == 0 || row_ == p_.num_rows);
    if (add_folded() || add_slots(divides)) return ways_;
    if (divides && p_.num_rows >= length)
      ways_ |= all_vectors() && walk_fits() ? abi::kColumnWhole : abi::kColumnAsking;
    if (!divides || p_.num_rows % length != 0) ways_ |= abi::kColumnSingle;
    return ways_;
  }

 private:
  enum class Answer { kNo, kPerhaps, kYes };

  static int bytes(const Operand& o) { return size_bytes(static_cast<DType>(o.dtype)); }
  /// Elements after which addresses are known to be aligned again, at most a vector.
  int granule(const Operand& o) const { return 16 / bytes(o) < s_.vector ? 16 / bytes(o) : s_.vector; }
  bool divides_vector(int64_t elements) const { return (elements & (s_.vector - 1)) == 0; }
  bool by_vectors(int i) const { return (s_.vector_loads >> i & 1) != 0; }

  /// device/program/operand.cuh's.
  bool all_vectors() const {
    for (int i = 0; i < s_.num_operands; ++i)
      if (o_[i].slot != abi::kNoSlot && o_[i].vector < granule(o_[i])) return false;
    return true;
  }
  /// ColumnWalk::fits.
  bool walk_fits() const {
    if (!s_.walks()) return true;
    for (int i = 0; i < s_.num_operands; ++i) {
      const int64_t distance = o_[i].stride[0] * bytes(o_[i]);
      if ((s_.loads >> i & 1) != 0 && distance != static_cast<int32_t>(distance)) return false;
    }
    return true;
  }
  /// Whether the first elements of both are as far behind addresses that divide by a vector.
  Answer begin_alike(const Operand& a, const Operand& b) const {
    const int least = granule(a) < granule(b) ? granule(a) : granule(b);
    if (((a.offset - b.offset) & (least - 1)) != 0) return Answer::kNo;
    if (least < s_.vector) return Answer::kPerhaps;
    return Answer::kYes;
  }
  /// Whether this holds wherever dimensions [first, dims - 1) lead.
  Answer lie_alike(const Operand& a, const Operand& b, int first) const {
    for (int d = first; d + 1 < s_.dims; ++d)
      if (r_.size[d] > 1 && !divides_vector(a.stride[d] - b.stride[d])) return Answer::kNo;
    return begin_alike(a, b);
  }

  /// ColumnFold::exists.
  Answer folds() const {
    const int64_t rows = p_.split < p_.row_size ? p_.split : p_.row_size;
    if (rows <= 0 || row_ >= threads_ || abi::folding_threads(static_cast<int>(row_), s_.vector, threads_) == 0)
      return Answer::kNo;
    Answer all = rows * row_ < (1 << 30) ? Answer::kYes : Answer::kPerhaps;
    const Operand* first = nullptr;
    for (int i = 0; i < s_.num_operands; ++i) {
      if (!by_vectors(i)) continue;
      if (o_[i].stride[s_.dims - 1] != 1 || o_[i].stride[0] != row_) return Answer::kNo;
      if (first == nullptr) first = &o_[i];
      if (first != &o_[i] && lie_alike(*first, o_[i], s_.reduce_dims) != Answer::kYes) all = Answer::kPerhaps;
    }
    return all;
  }
  /// Returns whether all tiles are done so.
  bool add_folded() {
    if (!s_.folds || !s_.walks() || row_ >= 4 * s_.vector) return false;
    const int64_t rows = p_.split < p_.row_size ? p_.split : p_.row_size, tile = p_.tile;
    const bool at_rows = tile >= p_.num_rows || tile % row_ == 0,
               full = rows * row_ >= int64_t{4} * s_.vector * threads_;
    const bool one = (tile < p_.num_rows ? tile : p_.num_rows) == row_;  // row in every tile
    if (!full && !(tile >= row_ && (!at_rows || one || p_.num_rows % tile == row_))) return false;
    const Answer answer = folds();
    if (answer != Answer::kNo) ways_ |= abi::kColumnFolded;
    return answer == Answer::kYes && at_rows && (full || one);
  }

  /// ColumnHead::operand.
  const Operand* head() const {
    for (int i = 0; i < s_.num_operands; ++i) {
      const Operand& o = o_[i];
      if (!by_vectors(i) || o.stride[s_.dims - 1] != 1) continue;
      bool moves = false;
      for (int d = 0; d < s_.reduce_dims; ++d) moves = moves || o.stride[d] != 0;
      if (!moves) continue;
      for (int d = 0; d + 1 < s_.reduce_dims; ++d)
        if (!divides_vector(o.stride[d] - o.stride[d + 1] * r_.size[d + 1])) return nullptr;
      return &o;
    }
    return nullptr;
  }
  /// ColumnHead::aligned.
  Answer aligned(const Operand& o) const {
    Operand origin{};
    origin.dtype = o.dtype;
    return lie_alike(o, origin, 0);
  }
  /// ColumnHead::all_together.
  Answer together(const Operand& head) const {
    Answer all = Answer::kYes;
    for (int i = 0; i < s_.num_operands; ++i) {
      if (!by_vectors(i) || &o_[i] == &head) continue;
      const Answer answer = o_[i].stride[s_.dims - 1] == 1 ? lie_alike(o_[i], head, 0) : Answer::kNo;
      if (answer == Answer::kNo) return answer;
      if (answer == Answer::kPerhaps) all = answer;
    }
    return all;
  }
  /// Returns whether all tiles are done so.
  bool add_slots(bool divides) {
    if (!s_.plain || s_.vector_loads == 0 || row_ < 4 * s_.vector || (divides && all_vectors())) return false;
    const Operand* own = head();
    if (own == nullptr) return false;
    const Answer on = divides ? aligned(*own) : Answer::kNo;
    if (on == Answer::kYes) return false;
    const Answer alike = walk_fits() ? together(*own) : Answer::kNo;
    if (alike != Answer::kNo) ways_ |= abi::kColumnSlots;
    if (alike != Answer::kYes) ways_ |= abi::kColumnSlotsAsking;
    return on == Answer::kNo;
  }

  const ColumnShape& s_;
  const abi::OpRecord& r_;
  const abi::ProgramParams& p_;
  const Operand* o_;
  const int threads_;
  const int64_t row_;
  uint32_t ways_ = 0;
};

}  // namespace

bool ColumnShape::walks() const { return abi::columns_walk(reduce_dims, plain, vector_loads, num_operands); }

uint32_t column_ways(const ColumnShape& shape, const abi::OpRecord& record, const abi::Operand* operands, int threads) {
  return ColumnWays(shape, record, operands, threads).find();
}

}  // namespace ark::codegen
