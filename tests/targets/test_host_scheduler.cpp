// How the host target runs plans: dependencies between tiles, seeds and threads, epochs that wrap, deadlines, errors,
// traces, two launches at once.
#include <atomic>
#include <chrono>
#include <thread>

#include "support/test_host_util.h"
#include "targets/host/patience.h"

using namespace ark;
using namespace ark::test;

namespace {

const DType f = DType::kF32;
constexpr int64_t kRows = 97, kColumns = 33, kBlock = 8;  // rows per counter

/// A chain of stages over [rows, columns] with counters per block of rows: stage i reads stage i - 1 shifted by a row.
/// Every buffer but the first is an intermediate; the last stage's result is checked.
struct Chain {
  HostPlan p;
  std::vector<uint32_t> slots;
  int stages;

  explicit Chain(int count, int workers = 132) : p(workers), stages(count) {
    for (int i = 0; i <= stages; ++i) slots.push_back(p.slot(f, (kRows + 1) * kColumns));
    ProgramMaker m;
    m.p.num_dims = 2;
    m.p.num_operands = 3;
    const int a = m.load(0, f), b = m.load(1, f);
    m.store(2, f,
            m.apply(Opcode::kAdd, f, m.apply(Opcode::kMul, f, a, m.constant(f, 0.5)),
                    m.apply(Opcode::kMul, f, b, m.constant(f, 0.25))));
    const int program = p.program(m.p);
    for (int i = 0; i < stages; ++i) add_stage(i, program);
    reset();
  }
  void reset() {
    for (int64_t i = 0; i < (kRows + 1) * kColumns; ++i)
      write_value(p.memory[slots[0]].data(), f, i, {double(i % 101) / 7, 0});
    for (int i = 1; i <= stages; ++i)
      for (int64_t j = 0; j < (kRows + 1) * kColumns; ++j)
        write_value(p.memory[slots[i]].data(), f, j, {j < kRows * kColumns ? -1e30 : 0, 0});
  }
  void add_stage(int i, int program) {
    plan::Op op;
    op.name = cat("stage", i);
    abi::OpRecord& r = op.record;
    r.kind = abi::TaskKind::kPointwise;
    r.op = i;
    r.size[0] = kRows, r.size[1] = kColumns;
    r.params.program = {.program = program,
                        .first_operand = 0,
                        .num_dims = 2,
                        .reduce_dims = 0,
                        .tile = 4 * kColumns,
                        .split = 1,
                        .num_rows = 1,
                        .row_size = 1};
    const int tiles = int((kRows + 3) / 4);
    r.grid[0] = tiles, r.grid[1] = r.grid[2] = 1;
    const int counters = int((kRows + kBlock - 1) / kBlock);
    const uint32_t last = (kRows - 1) % kBlock / 4 + 1;  // tiles that touch the last block
    if (i > 0) {
      r.num_waits = 1;
      // rows [4c, 4c + 5) of the stage before
      r.wait[0] = {.counter = uint32_t((i - 1) * counters),
                   .base = 0,
                   .coef = {4, 0, 0},
                   .extent = 5,
                   .div = int(kBlock),
                   .limit = int(kRows),
                   .target = uint32_t(kBlock / 4),
                   .last_target = last,
                   .role = 0,
                   .rank_stride = 0};
    }
    r.num_arrivals = 1;
    r.arrive[0] = {.counter = uint32_t(i * counters),
                   .base = 0,
                   .coef = {4, 0, 0},
                   .extent = 4,
                   .div = int(kBlock),
                   .limit = int(kRows)};
    p.plan.num_counters = (i + 1) * counters;
    op.operands = {operand(slots[i], f, {kColumns, 1}), operand(slots[i], f, {kColumns, 1}, kColumns),
                   operand(slots[i + 1], f, {kColumns, 1})};
    for (int t = 0, w = 5 * i; t < tiles; ++w) {
      const int count = std::min(1 + w % 4, tiles - t);
      p.plan.lists[w % p.plan.num_workers].push_back({0, t, count, i});
      t += count;
    }
    p.plan.ops.push_back(op);
  }
  std::vector<float> expected() const {
    std::vector<float> x((kRows + 1) * kColumns);
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(double(i % 101) / 7);
    for (int s = 0; s < stages; ++s) {
      std::vector<float> y((kRows + 1) * kColumns, 0.0f);
      for (int64_t i = 0; i < kRows * kColumns; ++i) y[i] = x[i] * 0.5f + x[i + kColumns] * 0.25f;
      x = y;
    }
    return x;
  }
  bool right(const std::vector<std::vector<char>>& memory) const {
    const std::vector<float> wanted = expected();
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      if (read_value(memory[slots[stages]].data(), f, i).f != double(wanted[i])) return false;
    return true;
  }
};

void test_seeds_and_threads() {
  Chain chain(12);
  for (const int threads : {1, 2, 4}) {
    auto executable = targets::make_host(chain.p.plan, {.num_threads = threads});
    std::vector<uint32_t> state(executable->state_bytes() / 4);
    const std::vector<void*> slots = chain.p.addresses();
    for (uint64_t seed = 0; seed < 100; ++seed) {
      chain.reset();
      executable->launch({.slots = slots, .run_state = state.data(), .seed = seed});
      expect(chain.right(chain.p.memory), cat("chain: seed ", seed, ", ", threads, " threads"));
      expect(state[0] == seed + 1, cat("epoch after ", seed + 1, " launches: ", state[0]));
    }
  }
}

/// Counters and epochs are compared so that they may wrap.
void test_wrap() {
  Chain chain(6);
  auto executable = targets::make_host(chain.p.plan, {.num_threads = 1});
  std::vector<uint32_t> state(executable->state_bytes() / 4);
  const uint32_t epoch = 0xfffffffdu;
  state[0] = epoch;
  for (const plan::Op& op : chain.p.plan.ops) {  // as so many launches would have left them
    const abi::Arrive& a = op.record.arrive[0];
    for (int tile = 0; tile < op.record.grid[0]; ++tile)
      state[32 + int64_t(a.counter + uint32_t(4 * tile / kBlock)) * abi::kCounterStride] += epoch;
  }
  const std::vector<void*> slots = chain.p.addresses();
  for (uint64_t launch = 0; launch < 6; ++launch) {
    chain.reset();
    executable->launch({.slots = slots, .run_state = state.data(), .seed = launch});
    expect(chain.right(chain.p.memory), cat("wrap: launch ", launch));
  }
  expect(state[0] == 3, cat("wrap: epoch ", state[0]));
}

void test_missing_producer(int threads) {
  Chain chain(5);
  plan::Plan broken = chain.p.plan;
  for (auto& list : broken.lists)
    std::erase_if(list, [](const abi::WorkItem& item) { return item.op == 2 && item.first == 0; });
  auto executable = targets::make_host(broken, {.num_threads = threads, .deadline_ns = 50'000'000});
  std::vector<uint32_t> state(executable->state_bytes() / 4);
  const std::vector<void*> slots = chain.p.addresses();
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto begin = std::chrono::steady_clock::now();
    std::string message;
    try {
      executable->launch({.slots = slots, .run_state = state.data(), .seed = uint64_t(attempt)});
    } catch (const DeviceError& error) {
      message = error.what();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    expect(seconds > 0.04 && seconds < 5, cat("deadline: took ", seconds, " s"));
    for (const char* part : {"worker", "op 3 'stage3'", "tile 0", "counter 26", "expected 2", "seen"})
      expect(message.find(part) != std::string::npos, cat("deadline: '", message, "' lacks '", part, "'"));
    for (const uint32_t word : state) expect(word == 0, "deadline: the run state is not as new");
  }
  // the same state serves a whole plan afterwards
  chain.reset();
  auto whole = targets::make_host(chain.p.plan, {.num_threads = threads});
  whole->launch({.slots = slots, .run_state = state.data()});
  expect(chain.right(chain.p.memory), "launch after a failure");
}

/// Deadlines are of what a thread has watched: not of one long look, as when the process is stopped.
void test_patience() {
  constexpr uint64_t kSecond = 1'000'000'000, kDeadline = 5 * kSecond;
  targets::host::Patience patience;
  expect(!patience.ends(7 * kSecond, 1 * kSecond, kDeadline), "patience: the first look");
  expect(!patience.ends(60 * kSecond, 1 * kSecond, kDeadline), "patience: stopped for 53 seconds");
  uint64_t now = 60 * kSecond;
  const auto look = [&](uint64_t progress) { return patience.ends(now += 1'000'000, progress, kDeadline); };
  for (int i = 0; i < 4900; ++i) expect(!look(1 * kSecond), "patience: looks of 4.9 seconds");
  for (int i = 0; i < 4900; ++i) expect(!look(2 * kSecond), "patience: after progress");
  patience.renew();
  for (int i = 0; i < 4900; ++i) expect(!look(2 * kSecond), "patience: after work");
  bool ended = false;
  for (int i = 0; i < 200; ++i) ended |= look(2 * kSecond);
  expect(ended, "patience: 5.1 seconds of looks");
}

/// A plan whose waits were removed gives wrong results under some seed: the random order is worth something.
void test_missing_wait_shows() {
  Chain chain(8);
  plan::Plan broken = chain.p.plan;
  broken.ops[4].record.num_waits = 0;
  auto executable = targets::make_host(broken, {.num_threads = 1});
  std::vector<uint32_t> state(executable->state_bytes() / 4);
  const std::vector<void*> slots = chain.p.addresses();
  int wrong = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    chain.reset();
    executable->launch({.slots = slots, .run_state = state.data(), .seed = seed});
    wrong += !chain.right(chain.p.memory);
  }
  expect(wrong >= 10, cat("a removed wait went unnoticed under ", 20 - wrong, " of 20 seeds"));
}

void test_trace() {
  Chain chain(4);
  auto executable = targets::make_host(chain.p.plan, {.num_threads = 2});
  std::vector<uint32_t> state(executable->state_bytes() / 4);
  const std::vector<void*> slots = chain.p.addresses();
  std::vector<abi::TraceRecord> trace(executable->trace_capacity());
  executable->launch({.slots = slots, .run_state = state.data(), .trace = trace.data(), .seed = 1});
  size_t record = 0;
  for (size_t w = 0; w < chain.p.plan.lists.size(); ++w)
    for (const abi::WorkItem& item : chain.p.plan.lists[w]) {
      const abi::TraceRecord& r = trace[record++];
      expect(r.op == item.op && r.first == item.first && r.count == item.count && r.worker == int(w),
             cat("trace record ", record));
      expect(r.begin > 0 && r.begin <= r.wait_end && r.wait_end <= r.load_end && r.load_end <= r.end,
             cat("trace times of record ", record));
    }
  expect(record == trace.size(), cat("trace: ", record, " records of ", trace.size()));
}

/// One executable, two threads, each with a run state and buffers of its own.
void test_two_launches_at_once() {
  Chain a(9), b(9);
  auto executable = targets::make_host(a.p.plan, {.num_threads = 2});
  std::atomic<int> wrong{0};
  const auto drive = [&](Chain& chain, uint64_t first) {
    std::vector<uint32_t> state(executable->state_bytes() / 4);
    const std::vector<void*> slots = chain.p.addresses();
    for (uint64_t seed = first; seed < first + 40; ++seed) {
      chain.reset();
      executable->launch({.slots = slots, .run_state = state.data(), .seed = seed});
      wrong += !chain.right(chain.p.memory);
    }
  };
  std::thread other([&] { drive(b, 1000); });
  drive(a, 0);
  other.join();
  expect(wrong == 0, cat("two launches at once: ", wrong.load(), " wrong"));
}

void test_constants_and_bad_arguments() {
  HostPlan p;
  const uint32_t c = p.slot(f, 3), y = p.slot(f, 3);
  plan::Buffer& constant = p.plan.buffers[c];
  constant.kind = plan::BufferKind::kConstant;
  const float values[3] = {1, 2, 3};
  constant.data.assign(reinterpret_cast<const char*>(values), sizeof(values));
  ProgramMaker m;
  m.p.num_operands = 2;
  m.store(1, f, m.load(0, f));
  p.add(program_op(p, m.p, {3}, {operand(c, f, {1}), operand(y, f, {1})}, 2));
  auto executable = targets::make_host(p.plan, {.num_threads = 1});
  std::vector<uint32_t> state(executable->state_bytes() / 4);
  std::vector<void*> slots{nullptr, p.memory[y].data()};
  executable->launch({.slots = slots, .run_state = state.data()});
  for (int i = 0; i < 3; ++i) expect(read_value(p.memory[y].data(), f, i).f == values[i], "constant");
  slots.pop_back();
  const auto throws = [&](auto&& what) {
    try {
      what();
    } catch (const std::exception&) {
      return true;
    }
    return false;
  };
  expect(throws([&] { executable->launch({.slots = slots, .run_state = state.data()}); }), "a slot too few");
  plan::Plan broken = p.plan;
  broken.lists[0][0].count = 100;
  expect(throws([&] { targets::make_host(broken, {}); }), "tiles beyond the grid");
  broken = p.plan;
  broken.ops[0].operands.pop_back();
  expect(throws([&] { targets::make_host(broken, {}); }), "an operand too few");
}

}  // namespace

int main() {
  test_seeds_and_threads();
  test_wrap();
  for (const int threads : {1, 3}) test_missing_producer(threads);
  test_patience();
  test_missing_wait_shows();
  test_trace();
  test_two_launches_at_once();
  test_constants_and_bad_arguments();
  return finish("test_host_scheduler");
}
