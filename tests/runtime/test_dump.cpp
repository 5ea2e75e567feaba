// ARK_DUMP writes each stage when it ends: what comes before a stage that fails, or that ends the process, is there.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/files.h"
#include "planner/planner.h"
#include "runtime/compiled_graph.h"
#include "runtime/dump.h"
#include "support/check.h"
#include "support/exchange_cases.h"
#include "support/model_graph.h"

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
  for (const char* file : {"graph.json", "bound.txt", "fused.txt", "plan.json", "run.txt", "source.cu", "error.txt"})
    expect_file(root + "/bad/" + file);
}

/// For a device that is not there: what is written before the kernel is loaded.
runtime::CompiledGraph for_no_device(const std::string& root, ir::Graph graph, const std::string& name) {
  runtime::Options options;
  options.dump_folder = root;
  options.cuda.device = 99;
  graph.name = name;
  return {std::move(graph), runtime::TargetKind::kCuda, options};
}

std::string text_of(const std::string& path) { return files::read(path).value_or(""); }
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// plan.txt says what is decided, run.txt what the kernel reads.
void test_run_of_flags_and_boxes(const std::string& root) {
  auto [m, x] = test::decode_step();
  m.graph.outputs = {x};
  EXPECT_THROW(DeviceError, for_no_device(root, m.graph, "flags").specialise({}), "");
  const std::string planned = text_of(root + "/flags/plan.txt"), run = text_of(root + "/flags/run.txt");
  EXPECT(has(planned, "  drops waits [") && !has(planned, ": flag words "));
  EXPECT(!has(run, "  drops waits [") && !has(run, "flagged operands") && has(run, ": flag words bf16 + "));
  EXPECT_THROW(DeviceError, for_no_device(root, test::exchange_cases::all_reduce(2).graph, "boxes").specialise({}), "");
  EXPECT(!has(text_of(root + "/boxes/plan.txt"), ": box slot "));
  EXPECT(has(text_of(root + "/boxes/run.txt"), ": box slot "));
}

/// x [8, n] -> exp(sums of its rows). Short rows are one op, long ones two, of which the first has another program.
ir::Graph exp_of_sums() {
  test::GraphBuilder b;
  b.graph.symbols = {"n"};
  b.graph.exprs = {{"sym", 0, {}}};
  const ir::ValueId x = b.input(DType::kF32, {8, 1}), sum = b.value(DType::kF32, {8});
  ir::Value& value = b.graph.values[static_cast<size_t>(x)];
  value.sizes[1] = value.strides[0] = {.expr = 0};
  b.node(ir::OpKind::kReduce, {x}, {sum}).attrs.dims = {1};
  b.graph.outputs = {b.pointwise(Opcode::kExp, {sum}, DType::kF32, {8})};
  return b.graph;
}

/// The text of a program of a plan's text; empty: it has none of the number.
std::string program_text(const std::string& plan, int number) {
  const std::string begin = cat("\nprogram ", number, ": ");
  const size_t at = plan.find(begin), end = std::min(plan.find("\nprogram ", at + 1), plan.find("\nop ", at + 1));
  return at == std::string::npos ? "" : plan.substr(at + begin.size(), end - at - begin.size());
}

/// Of the first line of an op's parameters.
int program_of(const std::string& plan, int op) {
  const size_t at = plan.find("\n  program ", plan.find(cat("\nop ", op, ' ')));
  return at == std::string::npos ? -1 : std::stoi(plan.substr(at + 11));
}

/// The plan of other sizes finds its programs under the numbers of the kernel that was made for the first.
void test_run_of_a_shared_kernel(const std::string& root) {
  runtime::CompiledGraph graph = for_no_device(root, exp_of_sums(), "sums");
  for (const int64_t n : {4, 1 << 18}) EXPECT_THROW(DeviceError, graph.specialise(std::vector<int64_t>{n}), "");
  const std::string few = text_of(root + "/sums-n=4/run.txt"), planned = text_of(root + "/sums-n=262144/plan.txt"),
                    run = text_of(root + "/sums-n=262144/run.txt");
  // Number 0 is the code of the first sizes, for rows as short as theirs: the other sizes have theirs behind it.
  EXPECT(!program_text(few, 0).empty() && program_text(run, 0).empty());
  EXPECT(program_of(run, 0) != program_of(planned, 0));
  for (const int op : {0, 1}) {
    EXPECT(program_of(run, op) > 0 && !program_text(planned, program_of(planned, op)).empty());
    EXPECT(program_text(run, program_of(run, op)) == program_text(planned, program_of(planned, op)));
  }
}

/// A saved plan that no kernel can read: its error is what it is without a dump.
void test_run_of_what_cannot(const std::string& root) {
  plan::Plan plan = planner::make_plan(ir::bind(doubled("cannot"), {}), {});
  runtime::Options options;
  options.dump_folder = root;
  plan.ops[0].operands[0].slot = 1000;
  options.saved_plan = plan::to_json(plan);
  options.cuda.device = 99;
  runtime::CompiledGraph graph(doubled("cannot"), runtime::TargetKind::kCuda, options);
  EXPECT_THROW(DeviceError, graph.specialise({}), "");
  for (const char* file : {"plan.txt", "source.cu", "error.txt"}) expect_file(root + "/cannot/" + file);
  if (files::read(root + "/cannot/run.txt")) test::fail("there is a run.txt", __FILE__, __LINE__);
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
  test_run_of_flags_and_boxes(root);
  test_run_of_a_shared_kernel(root);
  test_run_of_what_cannot(root);
  test_pass_that_refuses(root);
  test_process_that_dies(root);
  test_nothing_is_written_unasked(root);
  for (const char* name : {"bad", "flags", "boxes", "sums-n=4", "sums-n=262144", "cannot", "slots", "dead"}) {
    const std::string folder = cat(root, "/", name);
    for (const std::string& file : files::list(folder)) files::remove(cat(folder, "/", file));
    rmdir(folder.c_str());
  }
  rmdir(root);
  return test::result("test_dump");
}
