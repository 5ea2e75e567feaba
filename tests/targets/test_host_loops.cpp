// Loops on the host target: n iterations in one launch leave the bits of n launches. ThreadSanitizer sees `--short`,
// and `--damage`, where nobody waits at the border.
#include <limits>
#include <stdexcept>

#include "planner/planner.h"
#include "support/check.h"
#include "support/loop_graphs.h"
#include "support/loop_run.h"

using namespace ark;
using namespace ark::test;

namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

plan::Plan plan_of(const Graph& graph, int workers) {
  planner::Options options;
  options.machine.num_workers = workers;
  plan::Plan plan = planner::make_plan(graph, options);
  EXPECT(!plan.loop.carried.empty() && plan.loop.arrivals > 0 && plan.loop.arrivals <= workers);
  return plan;
}

/// What the int64 inputs of the graphs are at the start, by name.
std::vector<int64_t> integers_of(const Graph& graph, int64_t limit) {
  return graph.name == "recurrence" ? std::vector<int64_t>{0, limit}
         : graph.name == "few rows" ? std::vector<int64_t>{}
                                    : std::vector<int64_t>{3};
}

/// Launches of several and of single iterations in turn, in one run state.
void test_equal(const Graph& graph, const plan::Plan& plan, int threads, uint64_t seed) {
  LoopRun loop(graph, plan, integers_of(graph, 1000), threads), single(graph, plan, integers_of(graph, 1000), 1);
  uint32_t epoch = 0;
  for (const int64_t most : {0, 1, 2, 9, 3}) {
    EXPECT_EQ(loop.loop(most, seed + static_cast<uint64_t>(most)), most);
    for (int64_t i = 0; i < most; ++i) single.single(0);
    epoch += static_cast<uint32_t>(most);
    if (!same_memory(loop, single))
      test::fail(cat(graph.name, ", ", plan.num_workers, " workers, ", threads, " threads, seed ", seed, ", ", most,
                     " iterations: other bits"),
                 __FILE__, __LINE__);
    EXPECT_EQ(loop.epoch(), epoch);
    loop.single(seed);
    single.single(0);
    ++epoch;
  }
  EXPECT(same_memory(loop, single));
}

void test_results(bool brief) {
  for (const Graph& graph :
       {recurrence(75, 64, false), recurrence(40, 96, true), few_rows_loop(128), decode_loop(64, brief ? 1 : 2)})
    for (const int workers : {1, 2, 8, 132}) {
      const plan::Plan plan = plan_of(graph, workers);
      for (const int threads : brief ? std::vector{4, 2} : std::vector{4, 2, 1})
        for (uint64_t seed = 1; seed <= (brief ? 1 : 2); ++seed) test_equal(graph, plan, threads, 100 * seed);
    }
}

/// The flag ends the loop, whatever `most` is.
void test_stop_flag() {
  const Graph graph = recurrence(24, 32, true);
  const plan::Plan plan = plan_of(graph, 8);
  for (const int64_t limit : {1, 2, 5, 6})
    for (const int threads : {1, 2}) {
      LoopRun loop(graph, plan, {0, limit}, threads), single(graph, plan, {0, limit}, 1);
      EXPECT_EQ(loop.loop(kForever, 7), limit);
      for (int64_t i = 0; i < limit; ++i) single.single(0);
      EXPECT(same_memory(loop, single));
    }
  LoopRun none(graph, plan, {0, 5}, 2), before(graph, plan, {0, 5}, 2);
  none.loop(5, 1);
  before.loop(5, 1);
  EXPECT_EQ(none.loop(0, 1), 0);
  EXPECT(same_memory(none, before));
}

/// A flag that says no before the first iteration.
void test_nothing_runs() {
  const Graph graph = recurrence(24, 32, true);
  const plan::Plan plan = plan_of(graph, 8);
  LoopRun loop(graph, plan, {0, 2}, 2);
  LoopRun kept(graph, plan, {0, 2}, 2);
  for (LoopRun* run : {&loop, &kept}) {
    EXPECT_EQ(run->loop(9, 1), 2);
    run->run_none();
  }
  EXPECT_EQ(loop.loop(9, 1), 0);
  EXPECT(same_memory(loop, kept));
  EXPECT_EQ(loop.epoch(), 2u);
}

/// The cache has 64 rows, and the loop begins at row 3.
void test_index_error() {
  const Graph graph = decode_loop(64, 1);
  for (const int threads : {1, 2}) {
    const plan::Plan plan = plan_of(graph, 8);
    LoopRun loop(graph, plan, {3}, threads);
    EXPECT_THROW(UserError, loop.loop(100, 5), "index 64 is out of range for size 64 in op ");
    EXPECT_EQ(loop.iterations.done, 62);
    EXPECT_EQ(loop.epoch(), 62u);
    const int32_t position = plan.loop.carried[1];
    EXPECT_EQ(loop.integer(position), 65);
    EXPECT_THROW(UserError, loop.loop(100, 5), "', in iteration 0");
    loop.set_integer(position, 60);
    EXPECT_THROW(UserError, loop.loop(100, 5), "', in iteration 4");
    loop.set_integer(position, 0);
    EXPECT_EQ(loop.loop(64, 5), 64);
  }
}

/// Who asks for an end gets a whole number of iterations.
void test_interruption() {
  const Graph graph = recurrence(24, 32, false);
  const plan::Plan plan = plan_of(graph, 8);
  for (const int threads : {1, 2}) {
    LoopRun loop(graph, plan, {0}, threads), again(graph, plan, {0}, threads);
    int asked = 0;
    loop.iterations.look_up = [&] {
      if (++asked == 2) throw std::runtime_error("enough");
    };
    EXPECT_THROW(std::runtime_error, loop.loop(kForever, 3), "enough");
    const int64_t done = loop.iterations.done;
    EXPECT(done > 0);
    EXPECT_EQ(asked, 2);
    EXPECT_EQ(loop.epoch(), static_cast<uint32_t>(done));
    EXPECT_EQ(again.loop(done, 3), done);
    EXPECT(same_memory(loop, again));
    EXPECT_EQ(loop.loop(2, 3), 2);  // it goes on
  }
}

void test_refusals() {
  const Graph graph = recurrence(24, 32, false);
  plan::Plan plan = plan_of(graph, 8);
  LoopRun loop(graph, plan, {0}, 1);
  EXPECT_THROW(UserError, loop.loop(-1, 0), "-1 iterations");
  plan.loop.arrivals = 0;
  EXPECT_THROW(InternalError, LoopRun(graph, plan, {0}, 1), "a border of 0 arrivals");
  plan.loop = {};
  LoopRun none(graph, plan, {0}, 1);
  EXPECT_THROW(UserError, none.loop(2, 0), "is no loop");
}

/// Nobody waits at the border: some order shows it.
void test_open_border() {
  const Graph graph = recurrence(75, 64, false);
  const plan::Plan whole = plan_of(graph, 8);
  plan::Plan open = whole;
  open.loop.arrivals = 1;
  int wrong = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    LoopRun damaged(graph, open, {0}, 1), right(graph, whole, {0}, 1);
    damaged.loop(9, seed);
    right.loop(9, seed);
    wrong += !same_memory(damaged, right);
  }
  if (wrong < 15)
    test::fail(cat("an open border went unnoticed under ", 20 - wrong, " of 20 seeds"), __FILE__, __LINE__);
}

/// A border that waits for a worker without a list.
void test_closed_border() {
  const Graph graph = recurrence(75, 64, false);
  plan::Plan plan = plan_of(graph, 8);
  ++plan.loop.arrivals;
  const std::string all = cat(plan.loop.arrivals - 1, " of ", plan.loop.arrivals, " workers have ended their lists");
  for (const int threads : {1, 2}) {
    LoopRun loop(graph, plan, {0}, threads, 30'000'000);
    EXPECT_THROW(DeviceError, loop.loop(9, 1), cat(", iteration 0: no progress for 30000000 ns; ", all));
    EXPECT_EQ(loop.iterations.done, 0);
  }
}

/// One more arrival is expected than comes, and four are there already: the fifth iteration waits for ever.
void test_deadline() {
  const Graph graph = recurrence(75, 64, false);
  plan::Plan plan = plan_of(graph, 8);
  abi::Wait* last = nullptr;
  for (plan::Op& op : plan.ops)
    if (op.record.num_waits > 0) last = &op.record.wait[0];
  EXPECT(last != nullptr);
  ++last->target, ++last->last_target;
  for (const int threads : {1, 2}) {
    LoopRun loop(graph, plan, {0}, threads, 30'000'000);
    for (int64_t k = 0; k <= (last->limit - 1) / last->div; ++k)
      loop.add_arrivals(last->counter + static_cast<uint32_t>(k), 4);
    EXPECT_THROW(DeviceError, loop.loop(9, 1), "host launch of 'recurrence', iteration 4: worker ");
    EXPECT_EQ(loop.iterations.done, 4);
    EXPECT_EQ(loop.epoch(), 0u);  // as new
  }
}

/// ThreadSanitizer must find the race, also where one thread at a time is awake: so many launches.
void run_damaged() {
  const Graph graph = recurrence(75, 64, false);
  plan::Plan plan = plan_of(graph, 8);
  plan.loop.arrivals = 1;
  for (uint64_t seed = 0; seed < 100; ++seed) LoopRun(graph, plan, {0}, 4).loop(20, seed);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--damage") {
    run_damaged();
    return 0;
  }
  test_results(mode == "--short");
  test_stop_flag();
  test_nothing_runs();
  test_index_error();
  test_interruption();
  if (mode != "--short") {
    test_refusals();
    test_open_border();
    test_closed_border();
    test_deadline();
  }
  return test::result("host loops");
}
