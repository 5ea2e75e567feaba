#include "planner/fuse/canonical_domain.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "plan/transposed_operands.h"
#include "planner/fuse/domain_order.h"
#include "planner/fuse/index_sums.h"

namespace ark::planner {
namespace {

/// A dimension of the new domain and the old ones that it is made of, outermost first. `step`: places of the innermost
/// of them from one of its own to the next.
struct Merged {
  int64_t size = 1;
  std::vector<int> parts;
  int64_t step = 1;
};

bool places_by_index(const Program& program) {
  return std::any_of(program.instrs.begin(), program.instrs.end(),
                     [](const Instr& in) { return in.op == Opcode::kStore && (in.b >= 0 || in.c >= 0 || in.d >= 0); });
}

/// Reductions that yield a place count along the dimensions as they stand.
bool yields_place(const Program& program) {
  return std::any_of(program.instrs.begin(), program.instrs.end(), [](const Instr& in) {
    const auto reduce = static_cast<ReduceOp>(in.aux);
    return in.op == Opcode::kReduce && (reduce == ReduceOp::kArgMax || reduce == ReduceOp::kArgMin);
  });
}

class Canonical {
 public:
  Canonical(const DomainFacts& facts, BuiltProgram& built) : facts_(facts), built_(built), sums_(built.program) {}

  uint32_t run() {
    const ProgramKind kind = built_.program.kind;
    const bool reduced_first = kind == ProgramKind::kColumn;
    if (kind == ProgramKind::kPointwise) {
      dims_ = merged(false, true);
      place_transposed();
    } else {
      dims_ = merged(reduced_first, false);
      const size_t first = dims_.size();
      for (Merged& dim : merged(!reduced_first, true)) dims_.push_back(std::move(dim));
      built_.program.reduce_dims = static_cast<int>(reduced_first ? first : dims_.size() - first);
    }
    built_.dims.clear();
    for (const Merged& dim : dims_) built_.dims.push_back(dim.size);
    built_.program.num_dims = static_cast<int>(dims_.size());
    rewrite_program();
    rewrite_strides();
    uint32_t innermost = 0;
    for (const int d : dims_.back().parts) innermost |= 1u << d;
    return innermost;
  }

 private:
  /// The kept or the reduced dimensions. `innermost`: the domain ends in them. At least one, if of size 1.
  std::vector<Merged> merged(bool reduced, bool innermost) const {
    std::vector<int> dims;
    for (int d = 0; d < static_cast<int>(facts_.sizes.size()); ++d)
      if ((facts_.reduced >> d & 1) == reduced && (size(d) != 1 || sums_.names(d))) dims.push_back(d);
    if (!places_by_index(built_.program) && !(reduced && yields_place(built_.program)))
      order_dims(facts_, built_, innermost, dims);
    std::vector<Merged> result;
    for (const int d : dims) {
      if (!result.empty() && continues(result.back(), d)) {
        result.back().size *= size(d);
        result.back().parts.push_back(d);
      } else {
        result.push_back({size(d), {d}});
      }
    }
    if (result.empty()) result.push_back({});
    return result;
  }

  /// Whether every operand, and every index, walks the two as one.
  bool continues(const Merged& outer, int inner) const {
    if (outer.size != 0 && size(inner) > INT32_MAX / outer.size) return false;  // coordinates have 32 bits
    const int last = outer.parts.back();
    for (size_t i = 0; i < built_.operands.size(); ++i) {
      const abi::Operand& o = built_.operands[i];
      if (walks_domain(facts_, built_, i) && o.stride[last] != o.stride[inner] * size(inner)) return false;
    }
    return sums_.merges(last, inner, size(inner));
  }

  int64_t stride(size_t operand, const Merged& dim) const { return built_.operands[operand].stride[dim.parts.back()]; }

  /// Bytes of an element of all that is read along the dimension, and not along the last one.
  int transposed_bytes(const Merged& dim) const {
    int bytes = 0;
    for (size_t i = 0; i < built_.operands.size(); ++i) {
      if (!walks_domain(facts_, built_, i) || built_.access[i] != Access::kRead) continue;
      if (built_.operands[i].index_operand < 0 && plan::is_contiguous_across(stride(i, dim), stride(i, dims_.back())) &&
          plan::is_read_everywhere(built_.program, static_cast<int>(i)))
        bytes += size_bytes(static_cast<DType>(built_.operands[i].dtype));
    }
    return bytes;
  }

  /// Transposed operands go through tiles of the last two dimensions (device/program/pointwise_transposed.cuh): the one
  /// that most of them are contiguous along becomes the last but one. Long rows are cut, so that consecutive elements
  /// of the domain are many rows of a block of columns.
  void place_transposed() {
    if (dims_.size() < 2 || places_by_index(built_.program) || dims_.back().size < abi::kLeastTransposed) return;
    size_t best = dims_.size();
    for (size_t d = 0; d + 1 < dims_.size(); ++d)
      if (dims_[d].size >= abi::kLeastTransposed && transposed_bytes(dims_[d]) > 0 &&
          (best == dims_.size() || transposed_bytes(dims_[d]) > transposed_bytes(dims_[best])))
        best = d;
    if (best == dims_.size()) return;
    std::rotate(dims_.begin() + static_cast<std::ptrdiff_t>(best),
                dims_.begin() + static_cast<std::ptrdiff_t>(best) + 1, dims_.end() - 1);
    Merged& columns = dims_.back();
    const int64_t block = column_block(columns.size, dims_[dims_.size() - 2].size);
    const bool named = std::any_of(columns.parts.begin(), columns.parts.end(), [&](int d) { return sums_.names(d); });
    if (named || block == columns.size || dims_.size() == abi::kMaxDims || !steps_by(columns, block)) return;
    Merged blocks = columns;
    blocks.size /= block;
    blocks.step = block;
    columns.size = block;
    dims_.insert(dims_.end() - 2, std::move(blocks));
  }

  /// Whether a dimension may step by so many places of this one: strides have 32 bits.
  bool steps_by(const Merged& dim, int64_t places) const {
    for (size_t i = 0; i < built_.operands.size(); ++i)
      if (walks_domain(facts_, built_, i) && std::abs(stride(i, dim)) > INT32_MAX / places) return false;
    return true;
  }

  /// A divisor of the columns: whole tiles if possible, else whole vectors, else as they are where there are rows
  /// enough for all workers.
  static int64_t column_block(int64_t columns, int64_t rows) {
    constexpr int64_t kLeast = abi::kTransposedColumns / 2, kMost = 4 * abi::kTransposedColumns, kManyRows = 1024;
    if (columns <= kMost) return columns;
    for (const int64_t multiple : {int64_t{abi::kTransposedColumns}, int64_t{8}, int64_t{1}}) {
      if (multiple == 1 && rows >= kManyRows) break;
      for (int64_t block = kMost; block >= kLeast; --block)
        if (block % multiple == 0 && columns % block == 0) return block;
    }
    return columns;
  }

  void rewrite_program() {
    std::vector<int> new_dim(facts_.sizes.size(), 0), innermost;
    bool merges_index = false;
    for (size_t d = 0; d < dims_.size(); ++d) {
      innermost.push_back(dims_[d].parts.empty() ? -1 : dims_[d].parts.back());
      for (const int part : dims_[d].parts) {
        new_dim[static_cast<size_t>(part)] = static_cast<int>(d);
        merges_index |= dims_[d].parts.size() > 1 && sums_.names(part);
      }
    }
    if (merges_index) {
      std::vector<Instr> instrs = sums_.rewritten(new_dim, innermost);
      remove_dead(instrs);
      built_.program.instrs = std::move(instrs);
      return;
    }
    for (Instr& instr : built_.program.instrs)
      if (instr.op == Opcode::kIndex) instr.aux = static_cast<int16_t>(new_dim[static_cast<size_t>(instr.aux)]);
  }

  void rewrite_strides() {
    for (size_t i = 0; i < built_.operands.size(); ++i) {
      if (!walks_domain(facts_, built_, i)) continue;
      abi::Operand& o = built_.operands[i];
      int64_t strides[abi::kMaxDims] = {};
      for (size_t d = 0; d < dims_.size(); ++d)
        strides[d] = dims_[d].parts.empty() ? 0 : o.stride[dims_[d].parts.back()] * dims_[d].step;
      std::copy(strides, strides + abi::kMaxDims, o.stride);
    }
  }

  int64_t size(int d) const { return facts_.sizes[static_cast<size_t>(d)]; }

  const DomainFacts& facts_;
  BuiltProgram& built_;
  const IndexSums sums_;
  std::vector<Merged> dims_;
};

}  // namespace

uint32_t make_canonical(const DomainFacts& facts, BuiltProgram& built) {
  check<UnsupportedError>(facts.sizes.size() <= abi::kMaxDims, "a domain of ", facts.sizes.size(),
                          " dimensions, at most ", abi::kMaxDims);
  return Canonical(facts, built).run();
}

void remove_dead(std::vector<Instr>& instrs) {
  std::vector<bool> used(instrs.size(), false);
  for (size_t i = instrs.size(); i-- > 0;) {
    const Instr& x = instrs[i];
    if (x.op == Opcode::kStore || x.op == Opcode::kYield) used[i] = true;
    if (!used[i]) continue;
    for (const int arg : {x.a, x.b, x.c, x.d}) {
      if (arg >= 0) used[static_cast<size_t>(arg)] = true;
    }
  }
  std::vector<int16_t> number(instrs.size(), -1);
  size_t kept = 0;
  for (size_t i = 0; i < instrs.size(); ++i) {
    if (!used[i]) continue;
    Instr x = instrs[i];
    for (int16_t* arg : {&x.a, &x.b, &x.c, &x.d}) {
      if (*arg >= 0) *arg = number[static_cast<size_t>(*arg)];
    }
    number[i] = static_cast<int16_t>(kept);
    instrs[kept++] = x;
  }
  instrs.resize(kept);
}

}  // namespace ark::planner
