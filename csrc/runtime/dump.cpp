#include "runtime/dump.h"

#include "base/check.h"
#include "base/env.h"
#include "base/files.h"
#include "base/log.h"
#include "planner/fused.h"

namespace ark::runtime {
namespace {

std::string folder_name(const ir::Graph& graph, const Instance& instance) {
  std::string name = graph.name.empty() ? "graph" : graph.name;
  for (size_t i = 0; i < instance.symbols.size(); ++i) name += cat('-', graph.symbols[i], '=', instance.symbols[i]);
  for (char& c : name)
    if (c == '/') c = '_';
  return name;
}

}  // namespace

void dump(const ir::Graph& graph, const Instance& instance, const planner::Options& options) {
  std::string root = env::text("ARK_DUMP", "");
  if (root.empty()) return;
  std::string folder = root + "/" + folder_name(graph, instance);
  if (!files::make_folders(folder)) {
    log::warn("ARK_DUMP: cannot make the folder ", folder);
    return;
  }
  auto write = [&](const char* file, const std::string& text) {
    std::string problem = files::write(folder + "/" + file, text);
    if (!problem.empty()) log::warn("ARK_DUMP: cannot write ", folder, "/", file, " (", problem, ")");
  };
  write("graph.json", ir::to_json(graph));
  write("graph.txt", ir::to_string(graph));
  write("bound.txt", ir::to_string(instance.bound));
  write("fused.txt", planner::to_string(planner::fuse(instance.bound, options.tensor_cores, options.machine.num_workers,
                                                      options.few_rows)));
  write("plan.txt", plan::to_string(instance.plan()));
  write("plan.json", plan::to_json(instance.plan()));
  if (const std::string& source = instance.executable->build_info().source; !source.empty()) write("source.cu", source);
}

}  // namespace ark::runtime
