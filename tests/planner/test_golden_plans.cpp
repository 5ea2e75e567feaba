// Whole plans as text, against tests/data/golden. After an intended change: ARK_UPDATE_GOLDEN=1 test_golden_plans, and
// read the diff.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support/sample_graphs.h"

using namespace ark;
using namespace ark::test;

namespace {

std::string golden_path(const std::string& name) { return cat(ARK_TEST_DATA, "/golden/", name, ".txt"); }

void check_golden(const std::string& name, Builder&& builder, planner::Options options = {}) {
  plan::Plan plan = planner::plan_fused(std::move(builder.graph), options);
  plan.name = name;
  const std::string text = plan::to_string(plan);
  if (std::getenv("ARK_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(golden_path(name)) << text;
    return;
  }
  std::ifstream file(golden_path(name));
  std::stringstream wanted;
  wanted << file.rdbuf();
  expect(file.good(), "golden: cannot read " + golden_path(name));
  if (text == wanted.str()) return;
  std::istringstream a(text), b(wanted.str());
  std::string got_line, wanted_line;
  for (int line = 1;; ++line) {
    const bool more = static_cast<bool>(std::getline(a, got_line)),
               expected = static_cast<bool>(std::getline(b, wanted_line));
    if (!more && !expected) break;
    if (more && expected && got_line == wanted_line) continue;
    return expect(false,
                  cat("golden ", name, ", line ", line, "\n  got      ", got_line, "\n  expected ", wanted_line));
  }
}

/// Forward, loss-free backward of one linear layer: input gradient, weight gradient, bias gradient split over the rows.
Builder linear_backward() {
  Builder b;
  auto dy = b.input("dy", {1024, 256}, false), x = b.input("x", {1024, 512}, false), w = b.input("w", {256, 512});
  auto g = b.storage("g", {1024, 256}), dx = b.storage("dx", {1024, 512}), dw = b.storage("dw", {256, 512});
  auto db = b.storage("db", {256}, DType::kF32);
  b.output(dx);
  b.output(dw);
  b.output(db);
  b.program_op(TaskKind::kPointwise, "scale", {1024, 256}, 0, {b.dense_ref(dy)}, {b.dense_ref(g)});
  b.matmul("dx", 1, 1024, 512, 256, {g, {0, 256, 1}}, {w, {0, 512, 1}}, {dx, {0, 512, 1}});
  b.matmul("dw", 1, 256, 512, 1024, {g, {0, 1, 256}}, {x, {0, 512, 1}}, {dw, {0, 512, 1}});
  b.program_op(TaskKind::kColumn, "db", {1024, 256}, 1, {b.dense_ref(g)}, {{db, {0, 1}}});
  return b;
}

}  // namespace

int main() {
  planner::Options few;
  few.machine.num_workers = 16;
  check_golden("encoder", encoder({.batch = 2, .seq = 256, .width = 256, .heads = 4, .hidden = 1024}), few);
  planner::Options sequential = few;
  sequential.schedule = planner::Schedule::kSequential;
  check_golden("encoder_sequential", encoder({.batch = 2, .seq = 256, .width = 256, .heads = 4, .hidden = 1024}),
               sequential);
  check_golden("decoder",
               decoder({.width = 256, .heads = 4, .kv_heads = 2, .hidden = 512, .layers = 2, .vocabulary = 1000}), few);
  check_golden("linear_backward", linear_backward(), few);
  return finish("golden plans");
}
