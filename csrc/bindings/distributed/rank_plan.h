// A launch of a plan with exchanges, as its groups see it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "plan/plan.h"
#include "targets/rank_memory.h"

namespace ark::bindings {

/// A plan that is to be launched.
struct RankPlan {
  const plan::Plan& plan;
  const std::string& key;  // what this rank finds the plan's memory by
  size_t state_bytes;      // of its executable
  int device = -1;         // of CUDA, or the host
  void* stream = nullptr;  // cuda
  int32_t group = 0;       // of the plan's, whose memory it is
};

using PlanLaunch = std::function<void(const targets::RankMemory&)>;

}  // namespace ark::bindings
