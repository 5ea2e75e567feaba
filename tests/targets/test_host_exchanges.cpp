// Plans with exchanges on the host target, their ranks threads of this process, against the same in plain loops.
// ThreadSanitizer sees `--short`, and `--damage`, where nobody waits for others.
#include <atomic>
#include <cmath>
#include <mutex>

#include "planner/planner.h"
#include "planner/verify/rank_interface.h"
#include "support/check.h"
#include "support/exchange_cases.h"

using namespace ark;
using namespace ark::test;
using namespace ark::test::exchange_cases;

namespace {

plan::Plan plan_of(const Graph& graph, int workers, bool tensor_cores = true) {
  planner::Options options;
  options.machine.num_workers = workers;
  options.tensor_cores = tensor_cores;
  return planner::make_plan(graph, options);
}

// ---- comparison ----

bool close(const Floats& a, const Floats& b, double tolerance) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = tolerance == 0 ? a[i] == b[i] : std::abs(double{a[i]} - double{b[i]}) <= tolerance;
    if (!same) return false;
  }
  return true;
}

void check_run(const Case& c, const plan::Plan& plan, const RankRun& run) {
  const auto results = run_ranks(c.graph, plan, run);
  for (int launch = 0; launch < run.launches; ++launch) {
    std::vector<Tensors> inputs;
    for (int r = 0; r < plan.world; ++r) inputs.push_back(make_inputs(c.graph, r, launch, c.same));
    const std::vector<Tensors> expected = c.reference(inputs);
    const std::vector<Tensors>& actual = results[static_cast<size_t>(launch)];
    for (size_t r = 0; r < actual.size(); ++r)
      for (size_t o = 0; o < actual[r].size(); ++o) {
        const std::string where = cat(c.graph.name, ", ", plan.world, " ranks, launch ", launch, ", rank ", r,
                                      ", output ", o, ", seed ", run.seed);
        if (!close(actual[r][o], expected[r][o], c.tolerance)) test::fail("wrong: " + where, __FILE__, __LINE__);
        const bool equal = std::memcmp(actual[r][o].data(), actual[0][o].data(), actual[r][o].size() * 4) == 0;
        if (c.replicated && !equal) test::fail("other bits than rank 0: " + where, __FILE__, __LINE__);
      }
  }
}

void test_results(bool brief) {
  for (auto make : kCases) {
    for (int world : {2, 3, 4, 8}) {
      if (brief && (world == 3 || world == 8)) continue;
      Case c = make(world);
      for (int workers : {1, 6}) {
        const plan::Plan plan = plan_of(c.graph, workers);
        EXPECT_EQ(plan.world, world);
        EXPECT_EQ(plan.group, std::string("tensor"));
        RankRun run{.launches = brief ? 6 : 12, .same = c.same};
        for (uint64_t seed : {1, 2, 3}) {
          if (world == 8 && seed != 2) continue;
          run.seed = seed, run.stragglers = seed > 1, run.num_threads = seed == 3 ? 2 : 1, run.shared = seed == 2;
          check_run(c, plan, run);
          if (brief) run.launches = 3;
        }
      }
    }
  }
  if (brief) return;
  Case c = in_a_row(4);  // many launches: counters and boxes come round
  check_run(c, plan_of(c.graph, 6, false), {.launches = 400, .seed = 7, .stragglers = false, .same = c.same});
}

/// Waits that reuse of memory needs are for exchanges too.
void test_shared_memory() {
  Case c = shared_memory(2);
  const plan::Plan plan = plan_of(c.graph, 6);
  int waits = 0;
  for (const plan::Op& op : plan.ops)
    if (op.record.kind == abi::TaskKind::kMatmulFloat)  // reads inputs alone
      for (int w = 0; w < op.record.num_waits; ++w) waits += op.record.wait[w].rank_stride != 0;
  EXPECT(waits > 0);
  check_run(c, plan, {.launches = 6, .seed = 11, .stragglers = true, .same = c.same});
}

/// Over a slow link the op that sends a product's parts has workers of its own while the product runs.
void test_sends_beside(bool brief) {
  constexpr size_t kRows = 2048, kDepth = 8, kColumns = 512;
  for (int world : {2, 4}) {
    ExchangeBuilder b(world);
    ValueId x = b.input(DType::kF32, {kRows, kDepth}), w = b.input(DType::kF32, {kDepth, kColumns});
    const ValueId y = b.matmul(x, w);  // stored too: else it would go to the boxes at once
    const Case c = {b.finish({b.reduce_scatter(y), y}, "sends beside"), [](const std::vector<Tensors>& in) {
                      auto own = [](const Tensors& t) { return matmul(t[0], t[1], kRows, kDepth, kColumns); };
                      const Floats sum = total(each(in, own));
                      std::vector<Tensors> out;
                      for (size_t r = 0; r < in.size(); ++r) out.push_back({part(sum, in.size(), r), own(in[r])});
                      return out;
                    }};
    planner::Options options;
    options.machine.num_workers = 32;
    options.machine.link_bytes_per_second = 60e9, options.machine.worker_link_bytes_per_second = 10e9;
    options.machine.long_send_seconds = 10e-6;
    options.background = false;
    const plan::Plan plan = planner::make_plan(c.graph, options);
    const auto computes = [](const std::vector<abi::WorkItem>& list) { return !list.empty() && list[0].op == 0; };
    EXPECT_EQ(std::ranges::count_if(plan.lists, computes), 24);  // a quarter is left to the sends
    for (uint64_t seed : {1, 2, 3})
      check_run(c, plan,
                {.launches = brief ? 2 : 4,
                 .num_threads = seed == 3 ? 2 : 1,
                 .seed = seed,
                 .stragglers = seed > 1,
                 .shared = seed == 2});
  }
}

/// A saved plan is the same plan.
void test_saved() {
  Case c = layers(3);
  const plan::Plan plan = plan_of(c.graph, 6);
  const plan::Plan read = plan::from_json(plan::to_json(plan));
  EXPECT_EQ(plan::to_json(read), plan::to_json(plan));
  EXPECT_EQ(plan::to_string(read), plan::to_string(plan));
  check_run(c, read, {.launches = 4, .same = c.same});
}

// ---- faults ----

std::string launch_error(const std::function<void()>& launch) {
  try {
    launch();
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

/// The last rank stays away from launch `absent_from` on; the others end, say who is missing, and so does it when it
/// comes after all.
void test_absent(int world, int absent_from, int num_threads) {
  Case c = product(world);
  const plan::Plan plan = plan_of(c.graph, 4);
  const RankSegments segments(plan, 300'000'000);
  auto executable = targets::make_host(plan, {.num_threads = num_threads});
  std::vector<std::string> errors(static_cast<size_t>(world));
  auto body = [&](int rank) {
    RankLauncher launcher(plan, *executable, segments.of(rank));
    for (int launch = 0; launch <= absent_from && errors[static_cast<size_t>(rank)].empty(); ++launch) {
      if (rank == world - 1 && launch == absent_from) return;
      Tensors inputs = make_inputs(c.graph, rank, launch, c.same);
      errors[static_cast<size_t>(rank)] = launch_error([&] { launcher.launch(inputs, 5); });
    }
  };
  std::vector<std::jthread> threads;
  for (int r = 0; r < world; ++r) threads.emplace_back(body, r);
  threads.clear();
  int named = 0;
  for (int rank = 0; rank < world; ++rank) {
    std::string& error = errors[static_cast<size_t>(rank)];
    if (rank == world - 1) {
      EXPECT_EQ(error, std::string());
      RankLauncher launcher(plan, *executable, segments.of(rank));
      Tensors inputs = make_inputs(c.graph, rank, absent_from, c.same);
      error = launch_error([&] { launcher.launch(inputs, 5); });
    }
    const std::string begin = cat("host launch ", absent_from, " of 'product' on rank ", rank, ": ");
    const std::string missing = cat(begin, "rank ", world - 1, " has not sent in 300000000 ns what op ");
    const int per_launch = static_cast<int>(plan.ops[1].record.wait[0].target);
    const std::string target =
        cat(": expected ", (absent_from + 1) * per_launch, ", seen ", absent_from * per_launch, ")");
    const bool names = error.find(missing) == 0 && error.find(", waits for (counter ") != std::string::npos &&
                       error.find(", tile ") != std::string::npos;
    named += names;
    const bool follows = error.find(begin) == 0 && error.find(" has given up") != std::string::npos;
    if (!names && !follows) test::fail(cat("rank ", rank, " of ", world, ": \"", error, '"'), __FILE__, __LINE__);
    if (rank == world - 1 && !follows) test::fail("the late rank: " + error, __FILE__, __LINE__);
    if (names && error.find(target) == std::string::npos)
      test::fail(cat("expected \"", target, "\" in \"", error, '"'), __FILE__, __LINE__);
  }
  EXPECT(named >= 1);
}

/// Of a chain of two all-reduces: what reads the first on a worker of its own, behind it what the second needs.
struct TwoInARow {
  TwoInARow() : graph(make()), plan(plan_of(graph, 1)) {
    plan.num_workers = 2;
    plan.lists.resize(2);
    for (size_t i = 0; i < plan.ops.size(); ++i)
      for (int w = 0; w < plan.ops[i].record.num_waits; ++w)
        if (plan.ops[i].record.wait[w].rank_stride != 0) readers.push_back(static_cast<int>(i));
    check(readers.size() == 2 && readers[0] < readers[1], "expected two readers of exchanges");
  }
  static Graph make() {
    ExchangeBuilder b(2);
    ValueId x = b.input(DType::kF32, {6, 40});
    return b.finish({b.all_reduce(b.unary(Opcode::kRelu, b.all_reduce(x)))}, "two in a row");
  }
  Graph graph;
  plan::Plan plan;
  std::vector<int> readers;
};

/// The plan's error on both ranks of launch 1, of which `late` comes `seconds` after the other; negative: not at all.
std::vector<std::string> errors_of(const TwoInARow& two, const std::vector<const plan::Plan*>& plans, int late,
                                   double seconds, uint64_t deadline_ns) {
  const RankSegments segments(two.plan, deadline_ns);
  std::vector<std::string> errors(2);
  std::atomic<int> begun{0};
  auto body = [&](int rank) {
    auto whole = targets::make_host(two.plan, {}), damaged = targets::make_host(*plans[static_cast<size_t>(rank)], {});
    for (int launch = 0; launch < 2; ++launch) {
      RankLauncher launcher(two.plan, launch == 0 ? *whole : *damaged, segments.of(rank));
      Tensors inputs = make_inputs(two.graph, rank, launch, {});
      if (launch == 1 && rank == late) {
        if (seconds < 0) return;
        while (begun == 0) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      }
      begun += launch;
      errors[static_cast<size_t>(rank)] = launch_error([&] { launcher.launch(inputs, 5); });
    }
  };
  std::vector<std::jthread> threads;
  for (int r = 0; r < 2; ++r) threads.emplace_back(body, r);
  threads.clear();
  return errors;
}

/// A peer that stays away is named by the wait for it, wherever in the plan it stands: not by the wait for the second
/// exchange, in which the own rank is as late.
void test_held_up_by_a_peer() {
  const TwoInARow two;
  plan::Plan turned = two.plan;  // the second reader has the first one's number, and a worker of its own
  std::swap(turned.ops[static_cast<size_t>(two.readers[0])], turned.ops[static_cast<size_t>(two.readers[1])]);
  turned.lists.assign(2, {});
  for (const auto& list : two.plan.lists)
    for (abi::WorkItem item : list) {
      const bool second = item.op == two.readers[1];
      if (second || item.op == two.readers[0]) item.op = two.readers[second ? 0 : 1];
      turned.lists[second ? 1 : 0].push_back(item);
    }
  const std::string error = errors_of(two, {&turned, &turned}, 1, -1, 300'000'000)[0];
  EXPECT_EQ(error.find("host launch 1 of 'two in a row' on rank 0: rank 1 has not sent in 300000000 ns what op "), 0u);
  if (error.find(cat(" what op ", two.readers[1], " ")) == std::string::npos)
    test::fail("expected the wait for the first exchange: " + error, __FILE__, __LINE__);
}

/// A rank that waits for itself alone leaves it to a peer, which came later, to say who is missing.
void test_own_patience() {
  const TwoInARow two;
  plan::Plan silent = two.plan;  // never sends what the second reader waits for
  for (auto& list : silent.lists)
    std::erase_if(list, [&](const abi::WorkItem& item) { return item.op == two.readers[0]; });
  for (abi::WorkItem item : two.plan.lists[0])
    if (item.op == two.readers[1]) silent.lists[1].push_back(item);
  std::erase_if(silent.lists[0], [&](const abi::WorkItem& item) { return item.op == two.readers[1]; });
  const auto errors = errors_of(two, {&silent, &two.plan}, 1, 0.5, 1'500'000'000);
  const std::string begin = "host launch 1 of 'two in a row' on rank ";
  if (errors[1].find(begin + "1: rank 0 has not sent in 1500000000 ns") != 0)
    test::fail("the peer: " + errors[1], __FILE__, __LINE__);
  if (errors[0].find(begin + "0: rank 1 has given up") != 0)
    test::fail("the silent rank: " + errors[0], __FILE__, __LINE__);
}

/// One rank does not come, which the others are told of ("has died") or not; who waits for it ends long before the
/// deadline, and so do those that hear from it. A rank that is told to give up itself does.
void test_known_absence(int world, int absent, bool sent) {
  Case c = product(world);
  const plan::Plan plan = plan_of(c.graph, 4);
  const RankSegments segments(plan, 60'000'000'000);
  auto executable = targets::make_host(plan, {});
  std::atomic<bool> gone{false};
  std::mutex mutex;  // of `told`
  std::vector<std::string> errors(static_cast<size_t>(world)), told(static_cast<size_t>(world));
  auto body = [&](int rank) {
    targets::RankMemory memory = segments.of(rank);
    memory.absence = [&](int other) -> std::string {
      const std::lock_guard lock(mutex);
      if (!told[static_cast<size_t>(other)].empty()) return "failed: " + told[static_cast<size_t>(other)];
      return other == absent && gone ? "has died" : "";
    };
    memory.give_up = [&, rank](const std::string& why) {
      const std::lock_guard lock(mutex);
      told[static_cast<size_t>(rank)] = why;
    };
    RankLauncher launcher(plan, *executable, memory);
    for (int launch = 0; launch < 2 && errors[static_cast<size_t>(rank)].empty(); ++launch) {
      if (rank == absent && launch == 1 && !sent) break;
      Tensors inputs = make_inputs(c.graph, rank, launch, c.same);
      errors[static_cast<size_t>(rank)] = launch_error([&] { launcher.launch(inputs, 5); });
    }
    if (rank == absent) gone = true;
  };
  std::vector<std::jthread> threads;
  for (int r = 0; r < world; ++r) threads.emplace_back(body, r);
  threads.clear();
  int named = 0;
  for (int rank = 0; rank < world; ++rank) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    if (sent || rank == absent) {
      EXPECT_EQ(error, std::string());
      continue;
    }
    // Who has not yet ended the launch before may hear of it there.
    auto begin_of = [&](int launch) { return cat("host launch ", launch, " of 'product' on rank ", rank, ": rank "); };
    const std::string begin = begin_of(1);
    const bool names = error.find(cat(begin, absent, " has died. It has not sent what op ")) == 0;
    const bool follows = (error.find(begin) == 0 || error.find(begin_of(0)) == 0) &&
                         error.find(" has given up, in this launch or an earlier one") != std::string::npos;
    named += names;
    if (!names && !follows) test::fail(cat("rank ", rank, " of ", world, ": \"", error, '"'), __FILE__, __LINE__);
  }
  EXPECT_EQ(named >= 1, !sent);
}

void test_told_to_give_up() {
  Case c = all_reduce(2);
  const plan::Plan plan = plan_of(c.graph, 4);
  const RankSegments segments(plan, 60'000'000'000);
  auto executable = targets::make_host(plan, {});
  targets::RankMemory memory = segments.of(0);
  memory.absence = [](int rank) -> std::string { return rank == 0 ? "has destroyed the group" : ""; };
  RankLauncher launcher(plan, *executable, memory);
  Tensors inputs = make_inputs(c.graph, 0, 0, c.same);
  EXPECT_EQ(launch_error([&] { launcher.launch(inputs, 5); }),
            "host launch 0 of 'all_reduce' on rank 0: this rank has destroyed the group");
}

/// Plans that differ in what a rank does by itself run together; what they do to each other has to be the same.
void test_unequal_plans() {
  auto graph_of = [](bool more) {
    ExchangeBuilder b(2);
    ValueId x = b.input(DType::kF32, {24, 96});
    ValueId y = b.all_reduce(x);
    if (more) y = b.binary(Opcode::kAdd, y, b.row_sum(b.norm(y), 0, true));
    return b.finish({b.all_reduce(y)}, "unequal");
  };
  const Graph graphs[] = {graph_of(false), graph_of(true)};
  const plan::Plan plans[] = {plan_of(graphs[0], 4), plan_of(graphs[1], 4)};
  EXPECT(plans[0].num_counters < plans[1].num_counters);
  const auto terms = planner::rank_interface(plans[0]), others = planner::rank_interface(plans[1]);
  EXPECT_EQ(terms.size(), size_t{3});
  EXPECT_EQ(others.size(), size_t{3});
  for (size_t i = 0; i < terms.size() && i < others.size(); ++i) EXPECT_EQ(terms[i].value, others[i].value);
  const RankSegments segments(plans[1], 20'000'000'000);
  std::vector<Tensors> outputs(2);
  auto body = [&](size_t rank) {
    auto executable = targets::make_host(plans[rank], {});
    RankLauncher launcher(plans[rank], *executable, segments.of(static_cast<int>(rank)));
    for (int launch = 0; launch < 20; ++launch) {
      Tensors inputs = make_inputs(graphs[rank], static_cast<int>(rank), launch, {});
      outputs[rank] = launcher.launch(inputs, static_cast<uint64_t>(launch));
    }
  };
  {
    std::jthread first(body, 0), second(body, 1);
  }
  EXPECT(outputs[0] == outputs[1]);
}

/// Each of these is something that a rank does to another.
void test_interface() {
  auto graph_of = [](int world, int64_t rows, DType type, bool scatter) {
    ExchangeBuilder b(world);
    ValueId x = b.input(type, {rows, 24});
    return b.finish({scatter ? b.reduce_scatter(x) : b.all_reduce(x)}, "x");
  };
  auto text_of = [](const plan::Plan& plan) {
    std::string text;
    for (const planner::RankTerm& term : planner::rank_interface(plan)) text += term.value + "\n";
    return text;
  };
  const plan::Plan plan = plan_of(graph_of(2, 512, DType::kF32, false), 4);
  const std::string base = text_of(plan);
  for (const Graph& other : {graph_of(3, 512, DType::kF32, false), graph_of(2, 514, DType::kF32, false),
                             graph_of(2, 512, DType::kI32, false), graph_of(2, 512, DType::kF32, true)})
    EXPECT(text_of(plan_of(other, 4)) != base);
  auto expect_change = [&](const char* what, auto change) {
    plan::Plan changed = plan;
    for (plan::Op& op : changed.ops)
      if (op.record.arrive_rank_stride[0] != 0) change(changed, op);
    if (text_of(changed) == base) test::fail(cat("the interface holds no ", what), __FILE__, __LINE__);
  };
  using plan::Plan;
  using Op = plan::Op;
  expect_change("place of counters", [](Plan&, Op& op) { ++op.record.arrive[0].counter; });
  expect_change("distance of ranks' counters", [](Plan&, Op& op) { ++op.record.arrive_rank_stride[0]; });
  expect_change("rows of counters", [](Plan&, Op& op) { op.record.arrive[0].limit = 1; });
  expect_change("number of tiles", [](Plan&, Op& op) { --op.record.grid[0]; });
  expect_change("sizes of tiles", [](Plan&, Op& op) { op.record.params.program.tile *= 2; });
  expect_change("place of boxes", [](Plan& p, Op&) {
    for (plan::Buffer& buffer : p.buffers)
      if (buffer.kind == plan::BufferKind::kBox) buffer.arena_offset += 256;
  });
}

/// An op may send for several exchanges: those after the first are compared too.
void test_interface_of_several() {
  auto plan_with = [](DType second) {
    ExchangeBuilder b(2);
    const ValueId h = b.norm(b.input(DType::kF32, {2, 16})), r = b.pointwise(Opcode::kCast, {h}, second, {2, 16});
    const std::vector<ValueId> one = b.exchange({h}), other = b.exchange({r});
    return plan_of(b.finish({b.sum(one), b.sum(other)}, "several"), 4);
  };
  const plan::Plan plan = plan_with(DType::kBF16), other_type = plan_with(DType::kF16);
  const auto terms = planner::rank_interface(plan), others = planner::rank_interface(other_type);
  EXPECT_EQ(terms.size(), size_t{3});
  EXPECT_EQ(others.size(), size_t{3});
  EXPECT_EQ(terms[0].name, terms[1].name);
  EXPECT_EQ(terms[0].value, others[0].value);
  EXPECT(terms[1].value != others[1].value);
  EXPECT_EQ(terms[2].value, others[2].value);
}

void test_refusals() {
  Case c = all_reduce(2);
  const plan::Plan plan = plan_of(c.graph, 4);
  auto executable = targets::make_host(plan, {});
  std::vector<void*> slots(plan.buffers.size(), nullptr);
  EXPECT_THROW(UserError, executable->launch({.slots = slots}), "needs the memory of 2 ranks");
  const RankSegments segments(plan, 1);
  targets::RankMemory wrong = segments.of(0);
  wrong.rank = 2;
  EXPECT_THROW(UserError, executable->launch({.slots = slots, .ranks = &wrong}), "launched as rank 2 of 2");
  ExchangeBuilder b(2);
  ValueId y = b.all_reduce(b.input(DType::kF32, {4, 4}));
  b.group = "data";
  const plan::Plan of_two = plan_of(b.finish({b.all_reduce(y)}, "two groups"), 4);
  executable = targets::make_host(of_two, {});
  slots.assign(of_two.buffers.size(), nullptr);
  wrong = RankSegments(of_two, 1).of(0);
  EXPECT_THROW(UserError, executable->launch({.slots = slots, .ranks = &wrong}),
               "of 2 groups: launched with memory of 1");
}

/// As kernels read it: operands that are boxes are marked, the others are not.
void test_packed() {
  const plan::Plan plan = plan_of(all_reduce(2).graph, 4);
  const plan::Packed packed = plan::pack(plan);
  int boxes = 0;
  for (size_t at = 0; at < packed.records.size();) {
    const auto& record = *reinterpret_cast<const abi::OpRecord*>(&packed.records[at]);
    const auto* operands = reinterpret_cast<const abi::Operand*>(&record + 1);
    for (int i = 0; i < record.num_operands; ++i) {
      const abi::u32 slot = operands[i].slot;
      if (slot == abi::kNoSlot) continue;
      const plan::BufferKind kind = plan.buffers.at(slot & ~abi::kBoxSlot).kind;
      const bool box = kind == plan::BufferKind::kBox || kind == plan::BufferKind::kBoxOut;
      EXPECT_EQ(box, (slot & abi::kBoxSlot) != 0);
      boxes += box;
    }
    at += static_cast<size_t>(record.record_bytes + 63) / 64 * 64;
  }
  EXPECT_EQ(boxes, 4);  // two are written, two are read
  plan::Plan many = plan;
  many.world = abi::kMostPlanRanks + 1;
  EXPECT_THROW(UnsupportedError, plan::pack(many), "at most 8");
}

/// Waits for other ranks taken away: ThreadSanitizer must see it.
int run_damaged() {
  Case c = all_reduce(2);
  plan::Plan plan = plan_of(c.graph, 4);
  for (plan::Op& op : plan.ops) op.record.num_waits = 0;
  run_ranks(c.graph, plan, {.launches = 200, .same = c.same});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string argument = argc > 1 ? argv[1] : "";
  if (argument == "--damage") return run_damaged();
  const bool brief = argument == "--short";
  test_results(brief);
  test_shared_memory();
  test_sends_beside(brief);
  test_saved();
  for (int world : {2, 3, 4})
    for (int absent_from : {0, 3}) test_absent(world, absent_from, 1 + absent_from % 2);
  for (int world : {2, 4})
    for (bool sent : {false, true}) test_known_absence(world, world - 1, sent);
  test_told_to_give_up();
  test_held_up_by_a_peer();
  test_own_patience();
  test_unequal_plans();
  test_interface();
  test_interface_of_several();
  test_refusals();
  test_packed();
  return test::result("host_exchanges");
}
