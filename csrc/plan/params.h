// The parameters of a record, by its family, and the programs that they name.
#pragma once
#include <utility>

#include "plan/kinds.h"

namespace ark::plan {

/// The member of abi::Params, as generated sources and saved plans call it.
constexpr const char* member(Family family) {
#define ARK_FAMILY(name, member, Params) #member,
  constexpr const char* kMembers[] = {ARK_FAMILIES(ARK_FAMILY)};
#undef ARK_FAMILY
  return kMembers[static_cast<int>(family)];
}

/// Calls visit with the parameters of the record's family.
template <class Record, class Visit>
decltype(auto) visit_params(Record& record, Visit&& visit) {
  switch (kind_of(record).family) {
#define ARK_FAMILY(name, member, Params) \
  case Family::name:                     \
    return visit(record.params.member);
    ARK_FAMILIES(ARK_FAMILY)
#undef ARK_FAMILY
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
    static_assert(
        !requires { params.program; } && !requires { params.first_operand; },
        "programs of a family that are not visited");
  }
}
template <class Record, class Visit>
void for_each_program(Record& record, Visit&& visit) {
  visit_params(record, [&](auto& params) { visit_programs(kind_of(record), params, visit); });
}

}  // namespace ark::plan
