// One kernel for all sizes of a graph. Sizes are data of a kernel, but a plan of other sizes may ask for other code: a
// product too small for the machine is split along k, a long reduction in two, rows are kept or streamed. The kernel is
// therefore made for the sizes asked for first and for several others, far smaller and far larger, so that later sizes
// find their code in it and nothing is compiled for them.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codegen/kernel.h"
#include "ir/graph.h"
#include "planner/planner.h"

namespace ark::runtime {

/// Other values of the symbols: each (and all that equal it) far smaller and far larger, and all of them odd.
/// `few_rows`: few-row products are a kind of their own, so that more rows stay more.
std::vector<std::vector<int64_t>> probe_sizes(std::span<const int64_t> symbols, bool few_rows);

struct KernelUse {
  std::shared_ptr<const codegen::Kernel> kernel;
  plan::KernelNumbers numbers;
};

/// Not thread-safe.
class SharedKernel {
 public:
  SharedKernel(const ir::Graph& graph, const planner::Options& options);

  /// Plans sizes as its kernel can run them. Code of few-row products takes registers from the main loops beside it:
  /// they keep a kind of their own only in graphs that have few rows altogether when they first run.
  plan::Plan plan(ir::Graph bound, bool verify_races, planner::Stages* stages = nullptr);
  /// The kernel for a plan of these sizes, made or extended where there is none that has its code.
  KernelUse use(const plan::Plan& plan, std::span<const int64_t> symbols);

 private:
  codegen::Kernel make(const plan::Plan& plan, std::span<const int64_t> symbols) const;

  const ir::Graph& graph_;
  planner::Options options_;  // what of them depends on sizes is decided with the first
  std::shared_ptr<const codegen::Kernel> kernel_;
};

}  // namespace ark::runtime
