#include "runtime/dump.h"

#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/env.h"
#include "base/log.h"
#include "planner/fused.h"

namespace ark::runtime {
namespace {

namespace fs = std::filesystem;

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
  fs::path folder = fs::path(root) / folder_name(graph, instance);
  std::error_code error;
  fs::create_directories(folder, error);
  auto write = [&](const char* file, const std::string& text) {
    std::ofstream out(folder / file, std::ios::trunc);
    out << text;
    out.flush();
    if (!out) log::warn("ARK_DUMP: cannot write ", (folder / file).string());
  };
  write("graph.json", ir::to_json(graph));
  write("graph.txt", ir::to_string(graph));
  write("bound.txt", ir::to_string(instance.bound));
  write("fused.txt",
        planner::to_string(planner::fuse(instance.bound, options.tensor_cores, options.machine.num_workers)));
  write("plan.txt", plan::to_string(instance.plan()));
  write("plan.json", plan::to_json(instance.plan()));
  if (const std::string& source = instance.executable->build_info().source; !source.empty()) write("source.cu", source);
}

}  // namespace ark::runtime
