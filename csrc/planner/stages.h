// Who wants to see what a planning makes: told at the end of each stage, so that a stage that throws leaves those
// before.
#pragma once

namespace ark::plan {
struct Plan;
}

namespace ark::planner {
struct FusedGraph;

class Stages {
 public:
  virtual ~Stages() = default;
  /// After `fuse`.
  virtual void fused(const FusedGraph& graph) = 0;
  /// After all passes, before the verifier.
  virtual void planned(const plan::Plan& plan) = 0;
};

}  // namespace ark::planner
