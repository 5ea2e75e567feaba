#include "planner/fuse/domain_order.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

namespace ark::planner {
namespace {

bool is_written(const BuiltProgram& built, size_t i) { return built.access[i] != Access::kRead; }

/// The operand whose layout the walk follows: the one with most of these dimensions, written rather than read, wide
/// rather than narrow; -1: none.
int leader(const DomainFacts& facts, const BuiltProgram& built, const std::vector<int>& dims) {
  int best = -1;
  std::tuple<int, bool, int> best_rank;
  for (size_t i = 0; i < built.operands.size(); ++i) {
    const abi::Operand& o = built.operands[i];
    if (!walks_domain(facts, built, i) || o.index_operand >= 0) continue;
    int moves = 0;
    for (const int d : dims) moves += o.stride[d] != 0;
    const std::tuple rank{moves, is_written(built, i), size_bytes(static_cast<DType>(o.dtype))};
    if (moves > 0 && (best < 0 || rank > best_rank)) best = static_cast<int>(i), best_rank = rank;
  }
  return best;
}

/// Bytes of an element of all that is contiguous along the dimension: written, read.
std::pair<int, int> contiguous_bytes(const DomainFacts& facts, const BuiltProgram& built, int dim) {
  int written = 0, read = 0;
  for (size_t i = 0; i < built.operands.size(); ++i) {
    const abi::Operand& o = built.operands[i];
    if (walks_domain(facts, built, i) && o.stride[dim] == 1)
      (is_written(built, i) ? written : read) += size_bytes(static_cast<DType>(o.dtype));
  }
  return {written, read};
}

}  // namespace

bool walks_domain(const DomainFacts& facts, const BuiltProgram& built, size_t i) {
  return built.access[i] != Access::kParameters && built.operands[i].slot != abi::kNoSlot &&
         facts.raw_operands.count(static_cast<int>(i)) == 0;
}

void order_dims(const DomainFacts& facts, const BuiltProgram& built, bool innermost, std::vector<int>& dims) {
  if (dims.size() < 2) return;
  const int first = leader(facts, built, dims);
  if (first < 0) return;
  const abi::Operand& lead = built.operands[static_cast<size_t>(first)];
  std::stable_sort(dims.begin(), dims.end(),
                   [&](int a, int b) { return std::abs(lead.stride[a]) > std::abs(lead.stride[b]); });
  if (!innermost) return;
  size_t last = dims.size() - 1;
  for (size_t k = dims.size(); k-- > 0;)
    if (contiguous_bytes(facts, built, dims[k]) > contiguous_bytes(facts, built, dims[last])) last = k;
  std::rotate(dims.begin() + static_cast<std::ptrdiff_t>(last), dims.begin() + static_cast<std::ptrdiff_t>(last) + 1,
              dims.end());
}

}  // namespace ark::planner
