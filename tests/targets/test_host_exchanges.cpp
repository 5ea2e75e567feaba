// Plans with exchanges on the host target, their ranks threads of this process, against the same in plain loops.
// ThreadSanitizer sees `--short`, and `--damage`, where nobody waits for others.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
#include "support/rank_threads.h"

using namespace ark;
using namespace ark::test;

namespace {

/// Outputs of all ranks from the inputs of all ranks.
using Reference = std::function<std::vector<Tensors>(const std::vector<Tensors>&)>;

struct Case {
  Graph graph;
  Reference reference;
  double tolerance = 0;  // 0: equal bits
  std::vector<int> same = {};
  bool replicated = false;  // all ranks have the same outputs
};

// ---- plain loops ----

Floats add(const Floats& a, const Floats& b) {
  Floats out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] + b[i];
  return out;
}
Floats relu(Floats x) {
  for (float& value : x) value = std::max(value, 0.0f);
  return x;
}
Floats matmul(const Floats& a, const Floats& w, size_t m, size_t k, size_t n, bool transposed = false) {
  Floats out(m * n);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t l = 0; l < k; ++l) sum += double{a[i * k + l]} * double{transposed ? w[j * k + l] : w[l * n + j]};
      out[i * n + j] = static_cast<float>(sum);
    }
  return out;
}
Floats norm(Floats x, size_t rows) {
  const size_t n = x.size() / rows;
  for (size_t i = 0; i < rows; ++i) {
    double sum = 1;
    for (size_t j = 0; j < n; ++j) sum += double{x[i * n + j]} * double{x[i * n + j]};
    for (size_t j = 0; j < n; ++j) x[i * n + j] = static_cast<float>(x[i * n + j] / std::sqrt(sum));
  }
  return x;
}
Floats total(const std::vector<Floats>& of_ranks) {
  Floats sum = of_ranks[0];
  for (size_t r = 1; r < of_ranks.size(); ++r) sum = add(sum, of_ranks[r]);
  return sum;
}
Floats part(const Floats& x, size_t world, size_t rank) {
  const size_t n = x.size() / world;
  return {x.begin() + static_cast<std::ptrdiff_t>(rank * n), x.begin() + static_cast<std::ptrdiff_t>((rank + 1) * n)};
}
void append(Floats& x, const Floats& more) { x.insert(x.end(), more.begin(), more.end()); }

/// Each rank's own value, then all-reduced.
template <class Own>
std::vector<Floats> each(const std::vector<Tensors>& inputs, const Own& own) {
  std::vector<Floats> out;
  for (const Tensors& of_rank : inputs) out.push_back(own(of_rank));
  return out;
}
std::vector<Tensors> everywhere(size_t world, const Floats& value) {
  return std::vector<Tensors>(world, Tensors{value});
}

// ---- collectives alone ----

Case all_reduce(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {6, 40});
  return {b.finish({b.all_reduce(x)}, "all_reduce"),
          [](const std::vector<Tensors>& in) {
            return everywhere(in.size(), total(each(in, [](const Tensors& t) { return t[0]; })));
          },
          0,
          {},
          true};
}

Case all_gather(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {5, 24});
  return {b.finish({b.all_gather(x)}, "all_gather"),
          [](const std::vector<Tensors>& in) {
            Floats out;
            for (const Tensors& t : in) append(out, t[0]);
            return everywhere(in.size(), out);
          },
          0,
          {},
          true};
}

Case reduce_scatter(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {4 * world, 24});
  return {b.finish({b.reduce_scatter(x)}, "reduce_scatter"), [](const std::vector<Tensors>& in) {
            std::vector<Tensors> out;
            for (size_t r = 0; r < in.size(); ++r)
              out.push_back({total(each(in, [&](const Tensors& t) { return part(t[0], in.size(), r); }))});
            return out;
          }};
}

Case all_to_all(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {3 * world, 24});
  return {b.finish({b.all_to_all(x)}, "all_to_all"), [](const std::vector<Tensors>& in) {
            std::vector<Tensors> out(in.size(), Tensors(1));
            for (size_t r = 0; r < in.size(); ++r)
              for (const Tensors& t : in) append(out[r][0], part(t[0], in.size(), r));
            return out;
          }};
}

// ---- along other ops ----

/// Part of the columns of the first weight, of the rows of the second: the pushes go along the product.
Case product(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {96, 48}), w = b.input(DType::kF32, {48, 160});
  return {b.finish({b.all_reduce(b.unary(Opcode::kRelu, b.matmul(x, w)))}, "product"),
          [](const std::vector<Tensors>& in) {
            auto own = [](const Tensors& t) { return relu(matmul(t[0], t[1], 96, 48, 160)); };
            return everywhere(in.size(), total(each(in, own)));
          },
          0,
          {},
          true};
}

/// The parts of a long product meet in an op of its own, which sends.
Case long_product(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {32, 2048}), w = b.input(DType::kF32, {2048, 64});
  return {b.finish({b.all_reduce(b.matmul(x, w))}, "long product"),
          [](const std::vector<Tensors>& in) {
            auto own = [](const Tensors& t) { return matmul(t[0], t[1], 32, 2048, 64); };
            return everywhere(in.size(), total(each(in, own)));
          },
          0,
          {},
          true};
}

/// A few rows, as in decoding: both products are of the kind that streams weights, the second reads boxes.
Case few_rows(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {1, 64});
  ValueId w1 = b.input(DType::kF32, {48, 64}), w2 = b.input(DType::kF32, {64, 48});
  ValueId y = b.all_reduce(b.linear(x, w1));
  return {b.finish({b.all_reduce(b.linear(b.unary(Opcode::kRelu, y), w2))}, "few rows"),
          [](const std::vector<Tensors>& in) {
            const Floats y =
                relu(total(each(in, [](const Tensors& t) { return matmul(t[0], t[1], 1, 64, 48, true); })));
            return everywhere(in.size(),
                              total(each(in, [&](const Tensors& t) { return matmul(y, t[2], 1, 48, 64, true); })));
          },
          0,
          {},
          true};
}

Case residual_norm(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {24, 96}), r = b.input(DType::kF32, {24, 96});
  ValueId h = b.binary(Opcode::kAdd, b.all_reduce(x), r);
  return {b.finish({h, b.norm(h)}, "residual + norm"),
          [](const std::vector<Tensors>& in) {
            const Floats h = add(total(each(in, [](const Tensors& t) { return t[0]; })), in[0][1]);
            return std::vector<Tensors>(in.size(), Tensors{h, norm(h, 24)});
          },
          1e-5,
          {1},
          true};
}

/// Gradients of a bias: the sums over rows are cut in two, and the second part sends. The own value is used as well.
Case column_sums(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {512, 64});
  ValueId own = b.row_sum(x, 0, false);
  return {b.finish({b.all_reduce(own), b.binary(Opcode::kSub, own, b.all_reduce(own))}, "column sums"),
          [](const std::vector<Tensors>& in) {
            auto sums = each(in, [](const Tensors& t) {
              Floats out(64);
              for (size_t i = 0; i < t[0].size(); ++i) out[i % 64] += t[0][i];
              return out;
            });
            const Floats all = total(sums);
            std::vector<Tensors> out;
            for (Floats& own : sums) {
              for (size_t i = 0; i < own.size(); ++i) own[i] -= all[i];
              out.push_back({all, own});
            }
            return out;
          }};
}

/// One op reads the boxes of an exchange and writes those of the next; gather and scatter in between.
Case in_a_row(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {2 * world, 32});
  ValueId y = b.unary(Opcode::kRelu, b.all_reduce(x));
  y = b.unary(Opcode::kNeg, b.all_reduce(y));
  ValueId part_of_rank = b.reduce_scatter(y);
  ValueId back = b.all_gather(part_of_rank);
  return {b.finish({b.all_to_all(back), b.binary(Opcode::kAdd, y, x)}, "in a row"), [](const std::vector<Tensors>& in) {
            const auto world = static_cast<float>(in.size());
            Floats y = relu(total(each(in, [](const Tensors& t) { return t[0]; })));
            for (float& value : y) value *= -world;
            Floats back = y;
            for (float& value : back) value *= world;
            std::vector<Tensors> out;
            for (size_t r = 0; r < in.size(); ++r) {
              Floats swapped;
              for (size_t from = 0; from < in.size(); ++from) append(swapped, part(back, in.size(), r));
              out.push_back({swapped, add(y, in[r][0])});
            }
            return out;
          }};
}

/// Boxes themselves are returned, whole and as a view; nobody reads the second exchange.
Case returned_boxes(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {4, 16});
  const std::vector<ValueId> boxes = b.exchange({x});
  b.exchange({b.unary(Opcode::kNeg, x)});
  ValueId row = b.value(DType::kF32, {16}, boxes[0]);
  b.graph.values[row].offset = number(32);
  b.node(OpKind::kView, {boxes[0]}, {row});
  return {b.finish({boxes[1], row}, "returned boxes"),
          [](const std::vector<Tensors>& in) {
            // fresh tensors are whole
            return std::vector<Tensors>(in.size(), Tensors{in[1][0], in[0][0]});
          },
          0,
          {},
          true};
}

Case unread(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {4, 16});
  b.exchange({x});
  return {b.finish({b.unary(Opcode::kNeg, x)}, "unread"), [](const std::vector<Tensors>& in) {
            std::vector<Tensors> out;
            for (const Tensors& t : in) {
              out.push_back({t[0]});
              for (float& value : out.back()[0]) value = -value;
            }
            return out;
          }};
}

/// Tensor parallel: columns, relu, rows, all-reduce, residual, norm.
Case layers(int world) {
  constexpr size_t kRows = 16, kWidth = 64, kOwn = 32, kLayers = 16;
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {kRows, kWidth});
  std::vector<int> same = {0};
  for (size_t l = 0; l < kLayers; ++l) {
    ValueId w1 = b.input(DType::kF32, {kWidth, kOwn}), w2 = b.input(DType::kF32, {kOwn, kWidth});
    b.graph.immutable[b.graph.inputs.size() - 1] = b.graph.immutable[b.graph.inputs.size() - 2] = true;
    ValueId y = b.all_reduce(b.matmul(b.unary(Opcode::kRelu, b.matmul(x, w1)), w2));
    x = b.norm(b.binary(Opcode::kAdd, y, x));
  }
  return {b.finish({x}, "layers"),
          [](const std::vector<Tensors>& in) {
            Floats x = in[0][0];
            for (size_t l = 0; l < kLayers; ++l) {
              auto own = [&](const Tensors& t) {
                return matmul(relu(matmul(x, t[1 + 2 * l], kRows, kWidth, kOwn)), t[2 + 2 * l], kRows, kOwn, kWidth);
              };
              x = norm(add(total(each(in, own)), x), kRows);
            }
            return everywhere(in.size(), x);
          },
          1e-4, same, true};
}

const std::vector<Case (*)(int)> kCases = {all_reduce,   all_gather, reduce_scatter, all_to_all,    product,
                                           long_product, few_rows,   column_sums,    residual_norm, returned_boxes,
                                           unread,       in_a_row,   layers};

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
    for (int world : {2, 3, 4}) {
      if (brief && world == 3) continue;
      Case c = make(world);
      for (int workers : {1, 6}) {
        const plan::Plan plan = plan_of(c.graph, workers);
        EXPECT_EQ(plan.world, world);
        EXPECT_EQ(plan.group, std::string("tensor"));
        RankRun run{.launches = brief ? 6 : 12, .same = c.same};
        for (uint64_t seed : {1, 2, 3}) {
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

void test_refusals() {
  Case c = all_reduce(2);
  const plan::Plan plan = plan_of(c.graph, 4);
  EXPECT_THROW(UnsupportedError, plan::pack(plan), "exchanges between 2 ranks");
  EXPECT_THROW(UnsupportedError, targets::make_cuda(plan, {}), "run on the host alone");
  auto executable = targets::make_host(plan, {});
  std::vector<void*> slots(plan.buffers.size(), nullptr);
  EXPECT_THROW(UserError, executable->launch({.slots = slots}), "needs the memory of 2 ranks");
  const RankSegments segments(plan, 1);
  targets::RankMemory wrong = segments.of(0);
  wrong.rank = 2;
  EXPECT_THROW(UserError, executable->launch({.slots = slots, .ranks = &wrong}), "launched as rank 2 of 2");
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {4, 4});
  ValueId y = b.all_reduce(x), z = b.all_reduce(y);
  b.graph.nodes.back().attrs.group = "tensor";
  for (Node& node : b.graph.nodes)
    if (node.op == OpKind::kExchange) node.attrs.group = node.inputs[0] == x ? "tensor" : "data";
  EXPECT_THROW(UnsupportedError, plan_of(b.finish({z}, "two groups"), 4), "exchanges of the groups 'tensor'");
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
  test_saved();
  for (int world : {2, 3, 4})
    for (int absent_from : {0, 3}) test_absent(world, absent_from, 1 + absent_from % 2);
  test_refusals();
  return test::result("host_exchanges");
}
