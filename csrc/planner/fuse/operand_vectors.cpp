#include "planner/fuse/operand_vectors.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "planner/fuse/domain_order.h"

namespace ark::planner {
namespace {

constexpr int64_t kVectorBytes = 16;

int64_t element_bytes(const abi::Operand& o) { return size_bytes(static_cast<DType>(o.dtype)); }

/// Contiguous along the last dimension, with an index, if any, that is the same for a vector. So is a predicate, but of
/// a row: there an arm of a concatenation mostly begins and ends between vectors, and device code looks.
bool is_contiguous(const DomainFacts& facts, uint32_t innermost, const BuiltProgram& built, size_t i) {
  const size_t rank = built.dims.size();
  const bool predicate = built.program.kind == ProgramKind::kRow && built.operands[i].index_operand < 0;
  return walks_domain(facts, built, i) && rank > 0 && built.operands[i].stride[rank - 1] == 1 &&
         ((facts.index_depends[i] & innermost) == 0 || predicate);
}

/// Whether an index moves the operand by whole vectors.
bool index_fits(const BuiltProgram& built, const abi::Operand& o, int64_t vector) {
  if (o.index_operand < 0) return true;
  const abi::Operand& index = built.operands[static_cast<size_t>(o.index_operand)];
  return index.stride[0] % vector == 0 && index.stride[1] % vector == 0;
}

/// Every row begins at a multiple of `vector` elements.
bool rows_begin_at(const BuiltProgram& built, const abi::Operand& o, int64_t vector) {
  if (o.offset % vector != 0) return false;
  for (size_t d = 0; d + 1 < built.dims.size(); ++d)
    if (built.dims[d] > 1 && o.stride[d] % vector != 0) return false;
  return true;
}

/// Vectors at multiples of their length in every row.
bool fits(const BuiltProgram& built, const abi::Operand& o, int64_t vector) {
  if (vector * element_bytes(o) > kVectorBytes) return false;
  const size_t rank = built.dims.size();
  // What is left of columns, and of a pointwise domain of one dimension, goes element by element.
  const bool has_rest =
      built.program.kind == ProgramKind::kColumn || (built.program.kind == ProgramKind::kPointwise && rank == 1);
  if (built.dims[rank - 1] % vector != 0 && !has_rest) return false;
  return rows_begin_at(built, o, vector) && index_fits(built, o, vector);
}

/// Where an operand's rows begin, modulo a vector: of its first element, and from one row to the next.
using Phase = std::array<int64_t, abi::kMaxDims>;
Phase phase_of(const BuiltProgram& built, const abi::Operand& o, int64_t vector) {
  Phase phase{};
  const auto modulo = [&](int64_t x) { return (x % vector + vector) % vector; };
  phase[0] = modulo(o.offset);
  for (size_t d = 0; d + 1 < built.dims.size(); ++d)
    if (built.dims[d] > 1) phase[d + 1] = modulo(o.stride[d]);
  return phase;
}

/// Rows whose length no vector divides, or that are slices of such rows: a pointwise task begins vectors where the
/// operands of one phase are aligned (device/program/pointwise_places.cuh). The phase of what is written goes first,
/// then that of most bytes read.
void set_by_phase(const DomainFacts& facts, uint32_t innermost, int64_t vector, BuiltProgram& built) {
  std::map<Phase, std::array<int64_t, 2>> bytes;
  const auto phase = [&](size_t i) { return phase_of(built, built.operands[i], vector); };
  const auto may = [&](size_t i) {
    return is_contiguous(facts, innermost, built, i) && index_fits(built, built.operands[i], vector);
  };
  for (size_t i = 0; i < built.operands.size(); ++i)
    if (may(i)) bytes[phase(i)][built.access[i] == Access::kRead] += element_bytes(built.operands[i]);
  if (bytes.empty()) return;
  const auto best =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (size_t i = 0; i < built.operands.size(); ++i) {
    abi::Operand& o = built.operands[i];
    if (may(i) && phase(i) == best->first)
      o.vector = static_cast<signed char>(std::min(vector, kVectorBytes / element_bytes(o)));
  }
}

/// A slice of longer rows: what is written there moves by no vector at multiples of its length.
bool writes_off_alignment(const DomainFacts& facts, uint32_t innermost, const BuiltProgram& built, int64_t longest) {
  constexpr int64_t kFewVectors = 4;  // the device begins vectors anew in no shorter rows
  if (built.dims.back() < kFewVectors * longest) return false;
  for (size_t i = 0; i < built.operands.size(); ++i) {
    if (built.access[i] == Access::kRead || !is_contiguous(facts, innermost, built, i)) continue;
    if (!fits(built, built.operands[i], 2)) return true;
  }
  return false;
}

/// A row task begins its vectors where what coordinates alone reach is aligned (codegen/row_form.h). What is reached by
/// an index or under a predicate keeps vectors only where they are aligned then too.
void limit_irregular(const DomainFacts& facts, BuiltProgram& built) {
  const std::vector<bool> irregular = irregular_operands(built.program);
  for (size_t i = 0; i < built.operands.size(); ++i) {
    signed char& vector = built.operands[i].vector;
    for (size_t k = 0; k < built.operands.size() && irregular[i]; ++k) {
      const abi::Operand& plain = built.operands[k];
      if (irregular[k] || !walks_domain(facts, built, k) || plain.stride[built.dims.size() - 1] != 1) continue;
      while (vector > 1 && !rows_begin_at(built, plain, vector)) vector /= 2;
    }
  }
}

}  // namespace

void set_vectors(const DomainFacts& facts, uint32_t innermost, BuiltProgram& built) {
  if (built.dims.empty()) return;
  const int64_t longest = longest_vector(built.program);
  const bool free = built.dims.size() > 1 && has_free_rows(built.program);
  if (free && (built.dims.back() % longest != 0 || writes_off_alignment(facts, innermost, built, longest)))
    return set_by_phase(facts, innermost, longest, built);
  for (size_t i = 0; i < built.operands.size(); ++i) {
    if (!is_contiguous(facts, innermost, built, i)) continue;
    for (const int64_t vector : {8, 4, 2}) {
      if (!fits(built, built.operands[i], vector)) continue;
      built.operands[i].vector = static_cast<signed char>(vector);
      break;
    }
  }
  if (built.program.kind == ProgramKind::kRow) limit_irregular(facts, built);
}

}  // namespace ark::planner
