// ARK_DUMP=folder: every stage of a compilation as text.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "ir/graph.h"
#include "runtime/compiled_graph.h"

namespace ark::runtime {

// Everything goes into <folder>/<graph name>[-<symbol>=<value>...]/; nothing happens where `folder` is empty. A folder
// that cannot be written costs a log line.

/// Before planning: graph.json and graph.txt, so that they are there whatever happens later.
void dump_graph(const std::string& folder, const ir::Graph& graph, std::span<const int64_t> symbols);
/// After it: bound.txt, fused.txt, plan.txt, plan.json and (cuda) source.cu as well.
void dump(const Options& options, const ir::Graph& graph, const Instance& instance);
/// When planning, proof, compiling or loading has failed: error.txt, and the stages up to the one that fails, made once
/// more; the plan as it is when the verifier refuses it. A later graph of the same name gets another folder.
void dump_failure(const Options& options, TargetKind target, const ir::Graph& graph, std::span<const int64_t> symbols,
                  const std::string& error) noexcept;
/// A graph that ir::verify does not take: graph.json and error.txt.
void dump_refused(const std::string& folder, const ir::Graph& graph, const std::string& error);

}  // namespace ark::runtime
