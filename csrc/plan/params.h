// The parameters of a record, by its family, and the programs that they name.
#pragma once
#include <utility>

#include "plan/kinds.h"

namespace ark::plan {

/// The member of abi::Params, as generated sources and saved plans call it.
constexpr const char* member(Family family) {
  switch (family) {
    case Family::kProgram:
      return "program";
    case Family::kRows:
      return "rows";
    case Family::kMatmul:
      return "matmul";
    case Family::kAttention:
      return "attention";
    case Family::kMaskRange:
      return "mask_range";
    case Family::kScatterSum:
      return "scatter_sum";
    case Family::kRowSelect:
      return "row_select";
  }
  return "";
}

/// Calls visit with the parameters of the record's family: the only switch over families.
template <class Record, class Visit>
decltype(auto) visit_params(Record& record, Visit&& visit) {
  switch (kind_of(record).family) {
    case Family::kProgram:
      return visit(record.params.program);
    case Family::kRows:
      return visit(record.params.rows);
    case Family::kMatmul:
      return visit(record.params.matmul);
    case Family::kAttention:
      return visit(record.params.attention);
    case Family::kMaskRange:
      return visit(record.params.mask_range);
    case Family::kScatterSum:
      return visit(record.params.scatter_sum);
    case Family::kRowSelect:
      return visit(record.params.row_select);
  }
  throw InternalError("a family of tasks without parameters");
}

/// Calls visit(program, first operand, kind) for every program that the parameters name; `program` may be assigned to.
template <class Visit>
void visit_programs(const Kind& kind, auto& params, Visit&& visit) {
  using Params = std::remove_cvref_t<decltype(params)>;
  if constexpr (std::is_same_v<Params, abi::ProgramParams> || std::is_same_v<Params, abi::MatmulTileParams>) {
    visit(params.program, params.first_operand, kind.program);
  } else if constexpr (std::is_same_v<Params, abi::MatmulRowsParams>) {
    visit(params.prologue, params.prologue_operand, ProgramKind::kPrologue);
    for (int s = 0; s < params.num_segments; ++s)
      visit(params.segment[s].program, params.segment[s].first_operand, ProgramKind::kEpilogue);
  } else {
    static_assert(std::is_same_v<Params, abi::AttentionParams> || std::is_same_v<Params, abi::MaskRangeParams> ||
                  std::is_same_v<Params, abi::ScatterSumParams> || std::is_same_v<Params, abi::RowSelectParams>);
  }
}
template <class Record, class Visit>
void for_each_program(Record& record, Visit&& visit) {
  visit_params(record, [&](auto& params) { visit_programs(kind_of(record), params, visit); });
}

}  // namespace ark::plan
