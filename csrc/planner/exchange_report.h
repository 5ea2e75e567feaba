// What a plan's exchanges are, for people: who sends what, who reads it, and what does not have to wait for it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ark::planner {

struct ExchangeReport {
  int32_t op = -1;        // the one that sends
  int64_t bytes = 0;      // to each rank, its own one too
  int64_t box_bytes = 0;  // of the boxes that it writes at this rank, for even and for odd launches
  int32_t ranks = 0;
  std::string group;
  bool parts = false;            // each rank gets another value
  bool background = false;       // it goes on beside the workers' tiles
  std::vector<int32_t> from;     // ranks whose boxes some op reads
  std::vector<int32_t> readers;  // ops that read its boxes, in their order
  /// Ops between the one that sends and its first reader (the end, if none reads) that depend on no tile of it: they
  /// can run while the exchange is under way.
  std::vector<int32_t> meanwhile;
};

/// In the order in which they are sent.
std::vector<ExchangeReport> report_exchanges(const plan::Plan& plan);

}  // namespace ark::planner
