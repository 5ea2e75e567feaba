// Groups that are split off others.
#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/check.h"
#include "bindings/distributed/process_group.h"
#include "bindings/distributed/support/tensor_args.h"

namespace ark::bindings {

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupArk::getBackendOptions() {
  return c10::make_intrusive<Options>(timeout_.load());
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupArk::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                         const std::vector<int>& ranks,
                                                         const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_open("split");
  for (int rank : ranks) check_root(rank, getSize(), "split");
  if (splits_.store == store && !splits_.lives.expired())
    return c10::intrusive_ptr<ProcessGroupArk>::reclaim_copy(splits_.group);
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return nullptr;
  // Torch names a split group, and its store, by how many groups a rank is in, which may differ from rank to rank. The
  // ranks meet by what they share: this group, the ranks, how often these have been split off.
  std::string of_ranks;
  for (int rank : ranks) of_ranks += cat(of_ranks.empty() ? "" : ",", rank);
  std::string name = cat(name_, " split ", of_ranks);
  if (const int times = splits_.times[of_ranks]++) name += cat('#', times);
  auto group = c10::make_intrusive<ProcessGroupArk>(c10::make_intrusive<c10d::PrefixStore>(name, store_),
                                                    static_cast<int>(own - ranks.begin()),
                                                    static_cast<int>(ranks.size()), opts->timeout, name, setup_);
  splits_.store = store;
  splits_.group = group.get();
  splits_.lives = group->life_;
  return group;
}

}  // namespace ark::bindings
