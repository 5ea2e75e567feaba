// ARK_DUMP writes each stage when it ends: what comes before a stage that fails, or that ends the process, is there.
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"
#include "planner/planner.h"
#include "runtime/compiled_graph.h"
#include "runtime/dump.h"
#include "support/check.h"
#include "support/graph_builder.h"

using namespace ark;

namespace {

ir::Graph doubled(const std::string& name) {
  test::GraphBuilder b;
  const ir::ValueId x = b.input(DType::kF32, {100});
  b.graph.outputs = {b.pointwise(Opcode::kAdd, {x, x}, DType::kF32, {100})};
  b.graph.name = name;
  return b.graph;
}

void expect_file(const std::string& path) {
  const auto text = files::read(path);
  if (!text || text->empty()) test::fail("nothing in " + path, __FILE__, __LINE__);
}

void test_target_that_does_not_load(const std::string& root) {
  runtime::Options options;
  options.dump_folder = root;
  options.cuda.device = 99;  // where there is a driver there are fewer
  runtime::CompiledGraph graph(doubled("bad"), runtime::TargetKind::kCuda, options);
  EXPECT_THROW(DeviceError, graph.specialise({}), "");
  for (const char* file : {"graph.json", "bound.txt", "fused.txt", "plan.json", "source.cu", "error.txt"})
    expect_file(root + "/bad/" + file);
}

void expect_no_file(const std::string& path) {
  if (files::read(path)) test::fail("there is " + path, __FILE__, __LINE__);
}

/// A pass after `fuse` refuses: nothing of an earlier process stands for what was not reached.
void test_pass_that_refuses(const std::string& root) {
  EXPECT(files::make_folders(root + "/slots") && files::write(root + "/slots/plan.json", "old").empty());
  runtime::Options options;
  options.dump_folder = root;
  options.planner.max_slots = 1;
  runtime::CompiledGraph graph(doubled("slots"), runtime::TargetKind::kHost, options);
  EXPECT_THROW(UnsupportedError, graph.specialise({}), "");
  for (const char* file : {"graph.json", "graph.txt", "bound.txt", "fused.txt", "error.txt"})
    expect_file(root + "/slots/" + file);
  for (const char* file : {"plan.txt", "plan.json"}) expect_no_file(root + "/slots/" + file);
}

/// Hands on to the dump, and ends the process where planning ends.
struct Dying final : planner::Stages {
  runtime::Dump& dump;
  explicit Dying(runtime::Dump& d) : dump(d) {}
  void fused(const planner::FusedGraph& graph) override { dump.fused(graph); }
  void planned(const plan::Plan&) override { _exit(3); }
};

void test_process_that_dies(const std::string& root) {
  const pid_t child = fork();
  if (child == 0) {
    const ir::Graph graph = doubled("dead");
    runtime::Dump dump(root, graph, {});
    Dying stages(dump);
    planner::make_plan(ir::bind(graph, {}), {}, &stages);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 3);
  for (const char* file : {"graph.json", "graph.txt", "fused.txt"}) expect_file(root + "/dead/" + file);
  for (const char* file : {"plan.json", "error.txt"}) expect_no_file(root + "/dead/" + file);
}

void test_nothing_is_written_unasked(const std::string& root) {
  runtime::Options options;
  options.dump_folder = "";
  runtime::CompiledGraph graph(doubled("quiet"), runtime::TargetKind::kHost, options);
  graph.specialise({});
  EXPECT(files::list(root + "/quiet").empty() && files::list("./quiet").empty());
}

}  // namespace

int main() {
  char root[] = "/tmp/ark-dump-XXXXXX";
  if (!mkdtemp(root)) return 1;
  test_target_that_does_not_load(root);
  test_pass_that_refuses(root);
  test_process_that_dies(root);
  test_nothing_is_written_unasked(root);
  for (const char* name : {"bad", "slots", "dead"}) {
    const std::string folder = cat(root, "/", name);
    for (const std::string& file : files::list(folder)) files::remove(cat(folder, "/", file));
    rmdir(folder.c_str());
  }
  rmdir(root);
  return test::result("test_dump");
}
