#include "planner/fuse/canonical_domain.h"

#include <algorithm>

#include "base/check.h"
#include "planner/fuse/domain_order.h"
#include "planner/fuse/index_sums.h"

namespace ark::planner {
namespace {

/// A dimension of the new domain and the old ones that it is made of, outermost first.
struct Merged {
  int64_t size = 1;
  std::vector<int> parts;
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
        strides[d] = dims_[d].parts.empty() ? 0 : o.stride[dims_[d].parts.back()];
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
