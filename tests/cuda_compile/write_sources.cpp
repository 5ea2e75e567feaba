// write_sources FOLDER: the source of every hand-made plan, with and without tracing, as FOLDER/<name>.cu. Each also as
// one of ranks, of several groups of ranks, and as a loop, but for those whose rows go to ranks; those with most
// registers in use also as one of ranks that sends in the background.
// write_sources FOLDER GRAPH.json ...: the sources of these graphs' plans instead.
#include <fstream>
#include <iostream>
#include <optional>
#include <set>
#include <string>

#include "base/check.h"
#include "base/files.h"
#include "codegen/codegen.h"
#include "ir/graph.h"
#include "planner/planner.h"
#include "plans.h"

namespace {
const std::set<std::string> kCrowded = {"training_backward", "small_tiles_backward"};

/// FOLDER/<stem of the graph's file>.cu
void write_graph(const std::string& folder, const std::string& path) {
  const std::string stem = path.substr(path.rfind('/') + 1, path.rfind('.') - path.rfind('/') - 1);
  const std::optional<std::string> text = ark::files::read(path);
  ark::check(text.has_value(), "cannot read ", path);
  const ark::plan::Plan plan = ark::planner::make_plan(ark::ir::bind(ark::ir::from_json(*text), {}), {});
  std::ofstream(ark::cat(folder, "/", stem, ".cu")) << ark::codegen::generate(plan, {}).text;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: write_sources FOLDER [GRAPH.json ...]\n";
    return 2;
  }
  for (int i = 2; i < argc; ++i) write_graph(argv[1], argv[i]);
  if (argc > 2) return 0;
  std::vector<ark::cuda_compile::NamedPlan> plans = ark::cuda_compile::plans();
  for (const ark::cuda_compile::NamedPlan& plan : ark::cuda_compile::row_product_plans()) plans.push_back(plan);
  for (const ark::cuda_compile::NamedPlan& plan : ark::cuda_compile::training_plans()) plans.push_back(plan);
  for (const ark::cuda_compile::NamedPlan& plan : ark::cuda_compile::small_tile_plans()) plans.push_back(plan);
  for (const ark::cuda_compile::NamedPlan& plan : ark::cuda_compile::short_row_plans()) plans.push_back(plan);
  for (size_t i = 0, alone = plans.size(); i < alone; ++i) {
    plans.push_back(plans[i]);
    plans.back().name += "_ranks";
    plans.back().plan.world = 4;
    plans.push_back(plans.back());
    plans.back().name = plans[i].name + "_groups";
    plans.back().plan.more_groups = {{.name = "b", .world = 2}, {.name = "c", .world = 8}};
    std::swap(plans.back(), *(plans.end() - 2));
    if (kCrowded.contains(plans[i].name)) {
      plans.push_back(plans.back());
      plans.back().name = plans[i].name + "_background";
      plans.back().plan.ops[0].record.background = 1;
    }
    plans.push_back(plans[i]);
    plans.back().name += "_loop";
    plans.back().plan.loop.carried = {0};
  }
  for (const ark::cuda_compile::NamedPlan& plan : ark::cuda_compile::scattered_plans()) plans.push_back(plan);
  for (const ark::cuda_compile::NamedPlan& plan : ark::cuda_compile::kept_row_plans()) plans.push_back(plan);
  for (const ark::cuda_compile::NamedPlan& plan : ark::cuda_compile::group_plans()) plans.push_back(plan);
  for (const ark::cuda_compile::NamedPlan& named : plans) {
    for (const bool trace : {false, true}) {
      const ark::codegen::Source source = ark::codegen::generate(named.plan, {.trace = trace});
      ark::check(source.text == ark::codegen::generate(named.plan, {.trace = trace}).text, named.name,
                 ": not deterministic");
      const std::string path = ark::cat(argv[1], "/", named.name, trace ? "_trace" : "", ".cu");
      std::ofstream(path) << source.text;
      std::cout << path << "\n";
    }
  }
}
