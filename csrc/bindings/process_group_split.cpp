// Groups that are split off others.
#include <algorithm>

#include "base/check.h"
#include "bindings/process_group.h"
#include "bindings/tensor_args.h"

namespace ark::bindings {

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupArk::getBackendOptions() {
  return c10::make_intrusive<Options>(timeout_.load());
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupArk::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                         const std::vector<int>& ranks,
                                                         const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_open("split");
  for (int rank : ranks) check_root(rank, getSize(), "split");
  if (splits_.store == store.get() && !splits_.lives.expired())
    return c10::intrusive_ptr<ProcessGroupArk>::reclaim_copy(splits_.group);
  std::string name = opts->group_name.empty() ? cat(name_, ".split") : opts->group_name;
  if (const int times = splits_.times[name]++) name += cat('#', times);
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return nullptr;
  auto group = c10::make_intrusive<ProcessGroupArk>(store, static_cast<int>(own - ranks.begin()),
                                                    static_cast<int>(ranks.size()), opts->timeout, name, setup_);
  splits_.store = store.get();
  splits_.group = group.get();
  splits_.lives = group->life_;
  return group;
}

}  // namespace ark::bindings
