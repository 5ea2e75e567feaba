#include "planner/schedule.h"

#include <algorithm>

namespace ark::planner {

void schedule(Draft& draft, const Options& options) {
  const int workers = options.machine.num_workers;
  draft.lists.assign(workers, {});
  int rotation = 0;
  for (int i = 0; i < static_cast<int>(draft.graph.ops.size()); ++i) {
    const int64_t tiles = num_tiles(draft.graph.ops[i].op.record);
    for (int64_t share = 0; share < workers; ++share) {
      const int64_t begin = share * tiles / workers, end = (share + 1) * tiles / workers;
      if (begin == end) continue;
      draft.lists[(share + rotation) % workers].push_back(
          {0, static_cast<int>(begin), static_cast<int>(end - begin), i});
    }
    rotation = static_cast<int>((rotation + tiles) % workers);
  }
}

}  // namespace ark::planner
