// ARK_DUMP=folder: every stage of a compilation as text.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "ir/graph.h"
#include "plan/plan.h"
#include "planner/stages.h"

namespace ark::runtime {

// Everything goes into <folder>/<graph name>[-<symbol>=<value>...]/; nothing happens where `folder` is empty. A folder
// that cannot be written costs a log line.

/// Of one compilation: every stage is written when it ends, as it is used, so that one that fails (or takes the process
/// with it) leaves those before it. The graph (graph.json, graph.txt) is there from the start.
class Dump final : public planner::Stages {
 public:
  Dump(const std::string& root, const ir::Graph& graph, std::span<const int64_t> symbols);
  explicit operator bool() const { return !path_.empty(); }

  void bound(const ir::Graph& graph);                     // bound.txt
  void fused(const planner::FusedGraph& graph) override;  // fused.txt
  void planned(const plan::Plan& plan) override;  // plan.txt, plan.json: before the verifier, which may refuse it
  /// run.txt: the ops as the GPU runs them (plan/as_run.h); no file where they cannot, which the target tells.
  void run(const plan::Plan& plan, const plan::KernelNumbers& numbers);
  void source(const std::string& text);  // source.cu, before it is compiled
  /// error.txt. A later graph of the same name gets another folder.
  void failed(const std::string& error) noexcept;

 private:
  void write(const char* file, const std::string& text) const;

  std::string name_, path_;  // without and with the number of a later one of the name; path_ empty: nothing is written
};

/// A graph that ir::verify does not take: graph.json and error.txt.
void dump_refused(const std::string& root, const ir::Graph& graph, const std::string& error);

}  // namespace ark::runtime
