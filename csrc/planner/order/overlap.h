// How ops share the workers with ops that send to other ranks, so that sends run beside what computes.
//
// A product whose result is sent in parts visits its m blocks in the order in which they are sent and leaves some
// workers to the op that sends. An op that sends much and computes little takes no more workers than fill the link,
// where others can start meanwhile. One that does nothing but copy takes none at all: it is sent in the background.
#pragma once
#include <climits>
#include <vector>

#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

struct Share {
  int spare = 0;             // workers that no op takes from here on until op `until`, which sends
  int until = -1;            // an op of the draft
  int most = INT_MAX;        // workers that it takes at most
  bool background = false;   // it sends beside what the workers do (planner/background.h)
  std::vector<int> m_order;  // of a product: its m blocks, those that are sent first first; empty: in line
};

/// Per op, from records with grids, waits and arrivals. Nothing is shared in a graph without long sends.
std::vector<Share> share_workers(const Draft& draft, const Options& options);

}  // namespace ark::planner
