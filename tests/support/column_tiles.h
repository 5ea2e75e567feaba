// Which way the tiles of a column op take, column by column: the decisions of device/program/column.cuh and of what it
// includes, on addresses, read from there and not from codegen/column_ways.cpp.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "base/types.h"
#include "codegen/column_ways.h"
#include "device/abi/column_ways.h"

namespace ark::test {

/// A way that a kernel without all ways takes where it must not.
inline constexpr uint32_t kWrongWay = 1 << 10;

class ColumnTiles {
 public:
  /// `bases`: the addresses of the operands' slots. `ways`: P::kColumnWays.
  ColumnTiles(const codegen::ColumnShape& program, const abi::OpRecord& record,
              const std::vector<abi::Operand>& operands, const std::vector<int64_t>& bases, uint32_t ways)
      : p_(program), record_(record), at_(record.params.program), o_(operands), ways_(ways) {
    row_ = record.size[p_.dims - 1];
    for (size_t i = 0; i < o_.size(); ++i) o_[i].offset = bases[i] + o_[i].offset * bytes(o_[i]);
  }

  /// Per split and kept column, the way; 0: the column is left out.
  std::vector<uint32_t> run() {
    seen_.assign(static_cast<size_t>(ceil_of(at_.row_size, at_.split) * at_.num_rows), 0);
    const int64_t blocks = ceil_of(at_.num_rows, at_.tile);
    for (int64_t tile = 0; tile < blocks * ceil_of(at_.row_size, at_.split); ++tile) {
      const int64_t begin = tile % blocks * at_.tile;
      run_tile(tile / blocks, begin, std::min(begin + at_.tile, at_.num_rows));
    }
    return seen_;
  }

 private:
  static constexpr int64_t kThreads = 256;

  static int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }
  static int64_t bytes(const abi::Operand& o) { return size_bytes(static_cast<DType>(o.dtype)); }
  /// Elements before the first one, from address 0.
  static int64_t place(const abi::Operand& o) { return o.offset / bytes(o); }
  bool has(uint32_t ways) const { return (ways_ & ways) != 0; }
  bool by_vectors(size_t i) const { return (p_.vector_loads >> i & 1) != 0; }
  bool whole_steps(int64_t elements) const { return elements % p_.vector == 0; }

  void mark(int64_t split, int64_t begin, int64_t end, uint32_t way, bool right = true) {
    for (int64_t c = begin; c < end; ++c) {
      uint32_t& seen = seen_[static_cast<size_t>(split * at_.num_rows + c)];
      seen = seen == 0 && right ? way : way | kWrongWay;
    }
  }

  void run_tile(int64_t split, int64_t begin, int64_t end) {
    const int V = p_.vector;
    if (V == 1) return mark(split, begin, end, abi::kColumnSingle);
    const bool divides = at_.tile % V == 0 && (row_ % V == 0 || row_ == at_.num_rows);
    const bool fits = !walks() || distances_fit();
    if (p_.folds && walks() && has(abi::kColumnFolded)) {
      const bool few = end - begin == row_, full = std::min(at_.split, at_.row_size) * row_ >= 4 * V * kThreads;
      const bool rows = begin % row_ == 0 && end % row_ == 0 && folds(split, begin, end);
      if (ways_ == abi::kColumnFolded || (row_ < 4 * V && (few || full) && rows))
        return mark(split, begin, end, abi::kColumnFolded, rows);
    }
    if (p_.plain && p_.vector_loads != 0 && has(abi::kColumnSlots | abi::kColumnSlotsAsking) && row_ >= 4 * V &&
        !(divides && all_vectors())) {
      const int head = head_of();
      if (head >= 0 && !(divides && is_aligned(o_[static_cast<size_t>(head)]))) {
        const bool asks = has(abi::kColumnSlotsAsking), alike = together(o_[static_cast<size_t>(head)]);
        if (has(abi::kColumnSlots) && (!asks || (alike && fits)))
          return mark(split, begin, end, abi::kColumnSlots, alike && fits);
        return mark(split, begin, end, abi::kColumnSlotsAsking);
      }
    }
    int64_t whole = begin;
    if (divides && has(abi::kColumnWhole | abi::kColumnAsking)) {
      whole = end - end % V;
      const bool asks = has(abi::kColumnAsking), known = all_vectors() && fits;
      if (has(abi::kColumnWhole) && (!asks || known))
        mark(split, begin, whole, abi::kColumnWhole, known);
      else
        mark(split, begin, whole, abi::kColumnAsking);
    }
    if (has(abi::kColumnSingle)) mark(split, whole, end, abi::kColumnSingle);
  }

  /// kColumnsWalk.
  bool walks() const {
    return p_.reduce_dims == 1 && p_.plain && p_.vector_loads != 0 && o_.size() <= 6 && !o_.empty();
  }
  bool distances_fit() const {
    for (size_t i = 0; i < o_.size(); ++i)
      if (const int64_t far = o_[i].stride[0] * bytes(o_[i]);
          (p_.loads >> i & 1) != 0 && (far >= int64_t{1} << 31 || far < -(int64_t{1} << 31)))
        return false;
    return true;
  }
  bool all_vectors() const {
    return std::ranges::all_of(o_, [&](const abi::Operand& o) {
      return o.slot == abi::kNoSlot || o.vector >= std::min<int64_t>(p_.vector, 16 / bytes(o));
    });
  }

  bool folds(int64_t split, int64_t begin, int64_t end) const {
    for (; begin < end; begin += row_)
      if (!fold_exists(split * at_.split, std::min(at_.row_size, (split + 1) * at_.split), begin)) return false;
    return true;
  }
  bool fold_exists(int64_t first, int64_t last, int64_t column) const {
    if (first >= last || (last - first) * row_ >= 1 << 30) return false;
    int64_t phase = -1;
    for (size_t i = 0; i < o_.size(); ++i) {
      if (!by_vectors(i)) continue;
      const abi::Operand& o = o_[i];
      if (o.stride[p_.dims - 1] != 1 || o.stride[0] != row_) return false;
      int64_t at = place(o) + first * row_, rest = column;
      for (int d = p_.dims - 1; d >= p_.reduce_dims; --d)
        at += rest % record_.size[d] * o.stride[d], rest /= record_.size[d];
      if (phase >= 0 && at % p_.vector != phase) return false;
      phase = at % p_.vector;
    }
    return row_ / std::gcd(row_, int64_t{p_.vector}) <= kThreads;
  }

  /// ColumnHead.
  int head_of() const {
    for (size_t i = 0; i < o_.size(); ++i) {
      const abi::Operand& o = o_[i];
      const bool moves = std::any_of(o.stride, o.stride + p_.reduce_dims, [](int64_t s) { return s != 0; });
      if (!by_vectors(i) || o.stride[p_.dims - 1] != 1 || !moves) continue;
      for (int d = 1; d < p_.reduce_dims; ++d)
        if (!whole_steps(o.stride[d - 1] - o.stride[d] * record_.size[d])) return -1;
      return static_cast<int>(i);
    }
    return -1;
  }
  bool is_aligned(const abi::Operand& o) const {
    bool aligned = whole_steps(place(o));
    for (int d = 0; d + 1 < p_.dims; ++d) aligned = aligned && (record_.size[d] <= 1 || whole_steps(o.stride[d]));
    return aligned;
  }
  bool together(const abi::Operand& head) const {
    for (size_t i = 0; i < o_.size(); ++i) {
      if (!by_vectors(i)) continue;
      bool like = o_[i].stride[p_.dims - 1] == 1 && whole_steps(place(o_[i]) - place(head));
      for (int d = 0; d + 1 < p_.dims; ++d)
        like = like && (record_.size[d] <= 1 || whole_steps(o_[i].stride[d] - head.stride[d]));
      if (!like) return false;
    }
    return true;
  }

  const codegen::ColumnShape p_;
  const abi::OpRecord record_;
  const abi::ProgramParams at_;
  std::vector<abi::Operand> o_;
  const uint32_t ways_;
  int64_t row_ = 1;
  std::vector<uint32_t> seen_;
};

}  // namespace ark::test
