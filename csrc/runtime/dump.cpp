#include "runtime/dump.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/env.h"
#include "base/files.h"
#include "base/log.h"
#include "plan/as_run.h"
#include "planner/fuse/fused.h"

namespace ark::runtime {
namespace {

/// Of an earlier process: what this one does not come to must not be there.
constexpr const char* kLaterFiles[] = {"bound.txt", "fused.txt", "plan.txt", "plan.json",
                                       "run.txt",   "source.cu", "error.txt"};

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

std::string folder_of(const std::string& root, const ir::Graph& graph, std::span<const int64_t> symbols) {
  std::string name = graph.name.empty() ? "graph" : graph.name;
  for (size_t i = 0; i < symbols.size(); ++i) name += cat('-', graph.symbols[i], '=', symbols[i]);
  std::ranges::replace(name, '/', '_');
  return root + "/" + name;
}

/// The path of the folder `name`, made: of a later graph of a name that has failed another one. Empty: it cannot be
/// made.
std::string make_folder(const std::string& name) {
  std::string path = name;
  if (const int n = failures().of(name)) path += cat('.', n + 1);
  if (files::make_folders(path)) return path;
  log::warn("ARK_DUMP: cannot make the folder ", path);
  return "";
}

void write_file(const std::string& path, const std::string& text) {
  const std::string problem = files::write(path, text);
  if (!problem.empty()) log::warn("ARK_DUMP: cannot write ", path, " (", problem, ")");
}

}  // namespace

std::string dump_folder_from_environment() { return env::text("ARK_DUMP", ""); }

Dump::Dump(const std::string& root, const ir::Graph& graph, std::span<const int64_t> symbols) {
  if (root.empty()) return;
  name_ = folder_of(root, graph, symbols);
  path_ = make_folder(name_);
  if (path_.empty()) return;
  for (const char* file : kLaterFiles) files::remove(path_ + "/" + file);
  write("graph.json", ir::to_json(graph));
  write("graph.txt", ir::to_string(graph));
}

void Dump::bound(const ir::Graph& graph) {
  if (*this) write("bound.txt", ir::to_string(graph));
}

void Dump::fused(const planner::FusedGraph& graph) {
  if (*this) write("fused.txt", planner::to_string(graph));
}

void Dump::planned(const plan::Plan& plan) {
  if (!*this) return;
  write("plan.txt", plan::to_string(plan));
  write("plan.json", plan::to_json(plan));
}

void Dump::run(const plan::Plan& plan, const plan::KernelNumbers& numbers) {
  if (!*this) return;
  try {
    write("run.txt", plan::to_string(plan::as_run(plan, numbers)));
  } catch (const std::exception& error) {
    // Of a saved plan, which is not verified. The target's error is the same with and without a dump.
    log::warn("ARK_DUMP: no run.txt of ", plan.name, " (", error.what(), ")");
  }
}

void Dump::source(const std::string& text) {
  if (*this) write("source.cu", text);
}

void Dump::failed(const std::string& error) noexcept {
  if (!*this) return;
  try {
    write("error.txt", error + "\n");
    failures().add(name_);
  } catch (const std::exception&) {  // the error itself matters more
  }
}

void Dump::write(const char* file, const std::string& text) const { write_file(path_ + "/" + file, text); }

void dump_refused(const std::string& root, const ir::Graph& graph, const std::string& error) {
  if (root.empty()) return;
  const std::string name = folder_of(root, graph, {}), path = make_folder(name);
  if (path.empty()) return;
  write_file(path + "/graph.json", ir::to_json(graph));
  write_file(path + "/error.txt", error + "\n");
  failures().add(name);
}

}  // namespace ark::runtime
