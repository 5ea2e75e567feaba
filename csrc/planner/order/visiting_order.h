// In which order the tiles of an op are given to workers.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ark::planner {

/// How many m blocks of a wide product are visited together, group by group. `sent`: another op sends the result,
/// group by group, to other ranks.
std::vector<int> groups_of_m(const abi::OpRecord& record, bool sent);

/// All tiles of the op. `m_order`: a product's m blocks in the order in which an op sends them (overlap.h); empty: in
/// line. `sends_batches`: a product that sends each batch to another rank (tile/send_by_batch.h).
std::vector<int64_t> visiting_order(const plan::Op& op, const std::vector<int>& m_order, bool sends_batches);

}  // namespace ark::planner
