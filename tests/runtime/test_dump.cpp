// ARK_DUMP of what fails after planning: the plan and the source are there, with the error.
#include <unistd.h>

#include "base/files.h"
#include "runtime/compiled_graph.h"
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
  test_nothing_is_written_unasked(root);
  for (const std::string& file : files::list(std::string(root) + "/bad")) files::remove(cat(root, "/bad/", file));
  rmdir(cat(root, "/bad").c_str());
  rmdir(root);
  return test::result("test_dump");
}
