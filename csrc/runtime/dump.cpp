#include "runtime/dump.h"

#include <map>
#include <mutex>

#include "base/check.h"
#include "base/env.h"
#include "base/files.h"
#include "base/log.h"
#include "codegen/codegen.h"
#include "planner/fuse/fused.h"

namespace ark::runtime {
namespace {

/// How many graphs of a name have failed in this process.
class Failures {
 public:
  int of(const std::string& folder) {
    std::lock_guard lock(mutex_);
    auto found = counts_.find(folder);
    return found == counts_.end() ? 0 : found->second;
  }
  void add(const std::string& folder) {
    std::lock_guard lock(mutex_);
    ++counts_[folder];
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> counts_;
};

Failures& failures() {
  static Failures all;
  return all;
}

/// The folder of one graph and its files.
class Folder {
 public:
  Folder(const std::string& root, const ir::Graph& graph, std::span<const int64_t> symbols) {
    if (root.empty()) return;
    std::string name = graph.name.empty() ? "graph" : graph.name;
    for (size_t i = 0; i < symbols.size(); ++i) name += cat('-', graph.symbols[i], '=', symbols[i]);
    for (char& c : name)
      if (c == '/') c = '_';
    name_ = path_ = root + "/" + name;
    if (const int n = failures().of(name_)) path_ += cat('.', n + 1);
    if (files::make_folders(path_)) return;
    log::warn("ARK_DUMP: cannot make the folder ", path_);
    path_.clear();
  }
  explicit operator bool() const { return !path_.empty(); }
  void write(const char* file, const std::string& text) const {
    std::string problem = files::write(path_ + "/" + file, text);
    if (!problem.empty()) log::warn("ARK_DUMP: cannot write ", path_, "/", file, " (", problem, ")");
  }
  void write_graph(const ir::Graph& graph) const {
    write("graph.json", ir::to_json(graph));
    write("graph.txt", ir::to_string(graph));
  }
  void write_stages(const ir::Graph& bound, const planner::Options& options) const {
    write("bound.txt", ir::to_string(bound));
    write("fused.txt", planner::to_string(
                           planner::fuse(bound, options.tensor_cores, options.machine.num_workers, options.few_rows)));
  }
  void write_plan(const plan::Plan& plan) const {
    write("plan.txt", plan::to_string(plan));
    write("plan.json", plan::to_json(plan));
  }
  void write_error(const std::string& error) const {
    write("error.txt", error + "\n");
    failures().add(name_);
  }
  void remove(const char* file) const { files::remove(path_ + "/" + file); }

 private:
  std::string name_, path_;
};

/// Plans again, without the proof, up to the stage that throws.
void write_until_failure(const Folder& folder, const Options& options, TargetKind target, const ir::Graph& graph,
                         std::span<const int64_t> symbols) {
  const ir::Graph bound = ir::bind(graph, symbols);
  folder.write_stages(bound, options.planner);
  planner::Options unverified = options.planner;
  unverified.verify = false;
  const plan::Plan plan =
      options.saved_plan.empty() ? planner::make_plan(bound, unverified) : plan::from_json(options.saved_plan);
  folder.write_plan(plan);
  if (target == TargetKind::kCuda)
    folder.write("source.cu", codegen::generate(plan, {.trace = options.cuda.trace}).text);
}

}  // namespace

std::string dump_folder_from_environment() { return env::text("ARK_DUMP", ""); }

void dump_graph(const std::string& root, const ir::Graph& graph, std::span<const int64_t> symbols) {
  const Folder folder(root, graph, symbols);
  if (!folder) return;
  folder.remove("error.txt");  // of an earlier process
  folder.write_graph(graph);
}

void dump(const Options& options, const ir::Graph& graph, const Instance& instance) {
  const Folder folder(options.dump_folder, graph, instance.symbols);
  if (!folder) return;
  folder.write_stages(ir::bind(graph, instance.symbols), options.planner);
  folder.write_plan(instance.plan());
  const std::string& source = instance.executable->build_info().source;
  if (!source.empty()) folder.write("source.cu", source);
}

void dump_failure(const Options& options, TargetKind target, const ir::Graph& graph, std::span<const int64_t> symbols,
                  const std::string& error) noexcept {
  try {
    const Folder folder(options.dump_folder, graph, symbols);
    if (!folder) return;
    folder.write_error(error);
    write_until_failure(folder, options, target, graph, symbols);
  } catch (const std::exception&) {  // the stage that fails: its error is known
  }
}

void dump_refused(const std::string& root, const ir::Graph& graph, const std::string& error) {
  const Folder folder(root, graph, {});
  if (!folder) return;
  folder.write("graph.json", ir::to_json(graph));
  folder.write_error(error);
}

}  // namespace ark::runtime
