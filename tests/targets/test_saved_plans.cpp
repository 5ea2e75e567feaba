// Plans of graphs that the front end has made (tests/data/graphs: a Llama's decode step, BERT forward and backward; see
// tests/support/dump_graphs.py), saved as JSON, loaded again, and run on the host with all 132 workers in many orders:
// every order gives the bits of the sequential plan whose values share no memory.
//
//   test_saved_plans [--seeds N] [--scale X] [--save FOLDER | --load FOLDER] [--damage] [GRAPH.json...]
//
// --scale is that of the random inputs: with 0.3, 24 layers of a backward pass overflow (0.05 does not).
// --save only writes the plans; --load reads them instead of planning (for a program built under ThreadSanitizer).
// --damage takes the waits of one op away: ThreadSanitizer must find the race.
#include <cstring>
#include <functional>

#include "base/files.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/plan_run.h"

using namespace ark;

namespace {

constexpr int kWorkers = 132;

struct Arguments {
  int seeds = 100;
  double scale = 0.3;
  std::string save, load;
  bool damage = false;
  std::vector<std::string> graphs;
};

Arguments parse(int argc, char** argv) {
  Arguments result;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const auto next = [&] { return i + 1 < argc ? argv[++i] : throw UserError(text + " needs a value"); };
    if (text == "--seeds")
      result.seeds = std::stoi(next());
    else if (text == "--scale")
      result.scale = std::stod(next());
    else if (text == "--save")
      result.save = next();
    else if (text == "--load")
      result.load = next();
    else if (text == "--damage")
      result.damage = true;
    else
      result.graphs.push_back(text);
  }
  const std::string folder = cat(ARK_TEST_DATA, "/graphs");
  if (result.graphs.empty())
    for (const std::string& name : files::list(folder)) result.graphs.push_back(cat(folder, '/', name));
  return result;
}

std::string text_of(const std::string& path) {
  auto text = files::read(path);
  check<UserError>(text.has_value(), "cannot read ", path);
  return *text;
}

plan::Plan make(const ir::Graph& graph, bool plain) {
  planner::Options options;
  options.machine.num_workers = kWorkers;
  options.schedule = plain ? planner::Schedule::kSequential : planner::Schedule::kGreedy;
  options.reuse_memory = !plain;
  return planner::make_plan(graph, options);
}

/// A plan of the graph that has been text in between.
plan::Plan saved_plan(const Arguments& arguments, const std::string& path, const ir::Graph& graph, bool plain) {
  const std::string name = cat(files::name_of(path), plain ? ".sequential" : "", ".plan");
  if (!arguments.load.empty()) return plan::from_json(text_of(cat(arguments.load, '/', name)));
  const std::string text = plan::to_json(make(graph, plain));
  if (!arguments.save.empty()) {
    const std::string problem = files::write(cat(arguments.save, '/', name), text);
    check<UserError>(problem.empty(), "cannot write ", name, ": ", problem);
  }
  plan::Plan loaded = plan::from_json(text);
  EXPECT_EQ(plan::to_json(loaded) == text, true);
  return loaded;
}

/// Takes away the waits of the op with the most tiles that has any.
void damage(plan::Plan& plan) {
  plan::Op* most = nullptr;
  const auto tiles = [](const plan::Op& op) { return op.record.grid[0] * op.record.grid[1] * op.record.grid[2]; };
  for (plan::Op& op : plan.ops)
    if (op.record.num_waits > 0 && (!most || tiles(op) > tiles(*most))) most = &op;
  check(most != nullptr, "no op waits");
  most->record.num_waits = 0;
}

/// Positions and seeds are 37, token ids, labels and the like 0 or 1: within every table.
int64_t integer(int64_t i, bool scalar) { return scalar ? 37 : i % 2; }

void expect_numbers(const std::vector<std::vector<double>>& results, const plan::Plan& plan, const ir::Graph& graph) {
  for (const plan::Output& output : plan.outputs) {
    if (output.fresh < 0) continue;
    const ir::Value& value = graph.values[graph.outputs[&output - plan.outputs.data()]];
    const void* data = results[graph.inputs.size() + output.fresh].data();
    for (int64_t i = 0; is_float(value.dtype) && i < 8; ++i) {
      const double x = test::read_value(data, value.dtype, i).f;
      if (!(x == x)) return test::fail(cat("output ", value.name, " is not a number"), __FILE__, __LINE__);
    }
  }
}

void run(const Arguments& arguments, const std::string& path) {
  const ir::Graph graph = ir::bind(ir::from_json(text_of(path)), {});
  const plan::Plan plain = saved_plan(arguments, path, graph, true);
  plan::Plan plan = saved_plan(arguments, path, graph, false);
  if (!arguments.save.empty()) return;
  if (arguments.damage) damage(plan);
  EXPECT_EQ(plan.num_workers, kWorkers);

  test::PlanRun reference(graph, plain, integer, arguments.scale);
  auto first = targets::make_host(plain, {.num_threads = 1});
  std::vector<uint32_t> state(first->state_bytes() / 4);
  const auto expected = reference.launch(*first, state, 0);
  expect_numbers(expected, plain, graph);

  test::PlanRun tested(graph, plan, integer, arguments.scale);
  for (const int threads : {4, 2, 1}) {
    auto executable = targets::make_host(plan, {.num_threads = threads});
    state.assign(executable->state_bytes() / 4, 0);
    for (int seed = threads == 1 ? 0 : threads == 2 ? 1 : 2; seed < arguments.seeds; seed += 3)
      if (!test::same_bits(expected, tested.launch(*executable, state, uint64_t(seed))))
        test::fail(cat(path, ": ", threads, " threads, seed ", seed, ": other bits"), __FILE__, __LINE__);
  }
  std::printf("%s: %zu ops, %d seeds\n", path.c_str(), plan.ops.size(), arguments.seeds);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    EXPECT(!arguments.graphs.empty());
    for (const std::string& path : arguments.graphs) run(arguments, path);
  } catch (const std::exception& error) {
    test::fail(error.what(), __FILE__, __LINE__);
  }
  return test::result("test_saved_plans");
}
