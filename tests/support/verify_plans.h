// Plans of the real planner for the tests of the verifier, and what it says of a damaged one.
#pragma once
#include "planner/planner.h"
#include "planner/verify/verify_plan.h"
#include "support/verify_graphs.h"

namespace ark::test {

inline plan::Plan plan_of(const Graph& graph, bool tensor_cores, bool reuse_memory, int workers = 16) {
  planner::Options options;
  options.machine.num_workers = workers;
  options.tensor_cores = tensor_cores;
  options.reuse_memory = reuse_memory;
  return planner::make_plan(graph, options);
}

/// What the tests damage.
inline std::vector<plan::Plan> sample_plans() {
  std::vector<plan::Plan> plans;
  auto add = [&](const char* name, const Graph& graph, bool tensor_cores) {
    plans.push_back(plan_of(graph, tensor_cores, true));
    plans.back().name = name;
  };
  add("tensor cores", layers(2, 256, 64, 2, DType::kBF16), true);
  add("simple", layers(1, 96, 64, 2, DType::kF32), false);
  add("float", layers(1, 96, 64, 2, DType::kF32), true);
  add("chain", decode_chain(32, 3), true);
  add("attention", attention_step(256), true);
  add("decode", decode_step(512, 1), true);
  return plans;
}

/// The verifier's complaint, or nothing.
inline std::string complaint(const plan::Plan& plan, planner::VerifyLevel level = planner::VerifyLevel::kFull) {
  try {
    verify_plan(plan, level);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

}  // namespace ark::test
