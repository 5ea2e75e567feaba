#include <algorithm>
#include <numeric>

#include "plan/plan.h"

namespace ark::plan {

std::vector<int32_t> groups_by_name(const Plan& plan) {
  std::vector<int32_t> order(static_cast<size_t>(num_groups(plan)));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int32_t group) { return group_at(plan, group).name; });
  return order;
}

}  // namespace ark::plan
