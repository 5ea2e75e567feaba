// The arena: overlapping buffers are never alive at once, by the waits alone; layers reuse the memory of earlier ones.
#include <map>
#include <set>

#include "planner/order/order_ops.h"
#include "planner/order/place_memory.h"
#include "planner/tile/tile.h"
#include "support/plan_oracle.h"
#include "support/sample_graphs.h"

using namespace ark;
using namespace ark::test;

namespace {

struct Placed {
  planner::Draft draft;
  plan::Plan plan;
  std::map<std::string, std::set<int>> users, writers;  // by storage name
  int races = 0;
};

Placed placed(Builder& builder, const planner::Options& options = {}) {
  Placed p;
  planner::Draft& draft = p.draft;
  draft.graph = std::move(builder.graph);
  planner::tile(draft, options);
  planner::order_ops(draft, options);
  planner::Sync sync = planner::synchronize(draft, options);
  const planner::Timeline timeline = planner::schedule(draft, options);
  p.races = Oracle(draft).races();
  for (size_t i = 0; i < draft.graph.ops.size(); ++i) {
    const FusedOp& op = draft.graph.ops[i];
    for (size_t x = 0; x < op.access.size(); ++x) {
      if (op.op.operands[x].slot == abi::kNoSlot) continue;
      const std::string& name = draft.graph.storages[op.op.operands[x].slot].name;
      p.users[name].insert(static_cast<int>(i));
      if (op.access[x] != Access::kRead) p.writers[name].insert(static_cast<int>(i));
    }
  }
  planner::place_memory(draft, options, timeline, sync, p.plan);
  return p;
}

/// Every op that touches `old` is finished before any tile that writes `now` starts.
bool dead(const Oracle& oracle, const Placed& p, const std::string& old, const std::string& now) {
  for (int writer : p.writers.at(now)) {
    for (int user : p.users.at(old)) {
      if (user >= writer || oracle.fraction_awaited(writer, user) < 1) return false;
    }
  }
  return true;
}

int64_t check_arena(const Placed& p, const std::string& what) {
  expect_equal(p.races, 0, what + "races");
  const Oracle oracle(p.draft);
  int64_t total = 0;
  int shared = 0;
  for (const plan::Buffer& a : p.plan.buffers) {
    if (a.kind != plan::BufferKind::kArena) continue;
    total += (a.size_bytes + planner::kArenaAlignment - 1) / planner::kArenaAlignment * planner::kArenaAlignment;
    expect(a.arena_offset % planner::kArenaAlignment == 0, what + "alignment of " + a.name);
    expect(a.arena_offset + a.size_bytes <= p.plan.arena_bytes, what + a.name + " lies outside of the arena");
    for (const plan::Buffer& b : p.plan.buffers) {
      if (b.kind != plan::BufferKind::kArena || &a >= &b) continue;
      if (a.arena_offset + a.size_bytes <= b.arena_offset || b.arena_offset + b.size_bytes <= a.arena_offset) continue;
      ++shared;
      expect(dead(oracle, p, a.name, b.name) || dead(oracle, p, b.name, a.name),
             cat(what, a.name, " and ", b.name, " overlap"));
    }
  }
  for (const FusedOp& op : p.draft.graph.ops) {
    expect(op.op.record.num_waits <= abi::kMaxWaits && op.op.record.num_arrivals <= abi::kMaxArrivals,
           what + "record is full");
  }
  std::printf("%sarena %ld KB of %ld KB, %d pairs share memory\n", what.c_str(),
              static_cast<long>(p.plan.arena_bytes >> 10), static_cast<long>(total >> 10), shared);
  return total;
}

void test_layers() {
  Builder b = encoder({.batch = 2, .seq = 384, .layers = 6});
  const Placed p = placed(b);
  const int64_t total = check_arena(p, "layers: ");
  expect(p.plan.arena_bytes * 2 < total, "layers: less than half of the memory is reused");
}

void test_no_reuse() {
  Builder b = encoder({.batch = 1, .seq = 256, .layers = 2});
  planner::Options options;
  options.reuse_memory = false;
  const Placed p = placed(b, options);
  expect_equal(p.plan.arena_bytes, check_arena(p, "no reuse: "), "no reuse: arena");
}

void test_sequential() {
  Builder b = encoder({.batch = 1, .seq = 256, .layers = 3});
  planner::Options options;
  options.schedule = planner::Schedule::kSequential;
  check_arena(placed(b, options), "sequential: ");
}

/// A value that is read again much later must keep its memory although its first reader is long done.
void test_long_life() {
  Builder b;
  auto x = b.input("x", {2048, 512}, false), kept = b.storage("kept", {2048, 512});
  b.program_op(TaskKind::kPointwise, "first", {2048, 512}, 0, {b.dense_ref(x)}, {b.dense_ref(kept)});
  auto last = kept;
  for (int i = 0; i < 6; ++i) {
    auto next = b.storage(cat("t", i), {2048, 512});
    b.program_op(TaskKind::kRow, cat("step", i), {2048, 512}, 1, {b.dense_ref(last)}, {b.dense_ref(next)});
    last = next;
  }
  auto out = b.storage("out", {2048, 512});
  b.output(out);
  b.program_op(TaskKind::kPointwise, "end", {2048, 512}, 0, {b.dense_ref(last), b.dense_ref(kept)}, {b.dense_ref(out)});
  const Placed p = placed(b);
  check_arena(p, "long life: ");
  for (const plan::Buffer& buffer : p.plan.buffers) {
    if (buffer.name != "kept") continue;
    expect_equal(buffer.first_op, 0, "long life: first op");
    expect_equal(buffer.last_op, 7, "long life: last op");
  }
}

/// More buffers than a launch has addresses for: the arena becomes one buffer. plan_fused verifies the result.
void test_few_slots() {
  Builder b = encoder({.batch = 1, .seq = 256, .layers = 3});
  planner::Options options;
  options.max_slots = 20;
  const plan::Plan plan = planner::plan_fused(std::move(b.graph), options);
  int arenas = 0;
  for (const plan::Buffer& buffer : plan.buffers) arenas += buffer.kind == plan::BufferKind::kArena;
  expect_equal(arenas, 1, "few slots: arena buffers");
  expect(plan.buffers.size() <= 20, "few slots: too many");
  expect_equal(plan.buffers.back().size_bytes, plan.arena_bytes, "few slots: size");
  try {
    options.max_slots = 5;
    Builder again = encoder({.batch = 1, .seq = 256, .layers = 3});
    planner::plan_fused(std::move(again.graph), options);
    expect(false, "few slots: 15 inputs do not fit 5 slots");
  } catch (const UnsupportedError&) {
  }
}

}  // namespace

int main() {
  test_layers();
  test_no_reuse();
  test_sequential();
  test_long_life();
  test_few_slots();
  return finish("place_memory");
}
