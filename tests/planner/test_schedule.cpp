// Work lists: every tile once, in op order, balanced; the order of ops fills waits with independent work.
#include <algorithm>
#include <chrono>
#include <set>

#include "planner/order/order_ops.h"
#include "planner/order/schedule.h"
#include "planner/order/synchronize.h"
#include "planner/tile/tile.h"
#include "support/sample_graphs.h"

using namespace ark;
using namespace ark::test;

namespace {

struct Scheduled {
  planner::Draft draft;
  planner::Timeline timeline;
};

Scheduled scheduled(Builder& builder, const planner::Options& options = {}) {
  Scheduled s;
  s.draft.graph = std::move(builder.graph);
  planner::tile(s.draft, options);
  planner::order_ops(s.draft, options);
  planner::synchronize(s.draft, options);
  s.timeline = planner::schedule(s.draft, options);
  return s;
}

void check_lists(const planner::Draft& draft, const std::string& what) {
  std::vector<std::vector<int>> seen;
  for (const FusedOp& op : draft.graph.ops) seen.emplace_back(planner::num_tiles(op.op.record), 0);
  for (const auto& list : draft.lists) {
    int last = -1;
    for (const abi::WorkItem& item : list) {
      expect(item.op >= last, what + "a list is not in op order");
      last = item.op;
      expect(item.count > 0, what + "an empty item");
      for (int t = item.first; t < item.first + item.count; ++t) ++seen[item.op].at(t);
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    for (int n : seen[i]) {
      if (n != 1) return expect(false, cat(what, "a tile of '", draft.graph.ops[i].op.name, "' is in ", n, " items"));
    }
  }
}

void test_encoder() {
  Builder b = encoder({.batch = 10, .seq = 384, .width = 1024, .heads = 16, .hidden = 4096, .layers = 4});
  const Scheduled s = scheduled(b);
  check_lists(s.draft, "encoder: ");
  // GEMMs 4 x 3840 x 12 x 1024^2 x 2 flops and attention at 790 Tflop/s: 0.55 ms
  expect(s.timeline.end > 0.5e-3 && s.timeline.end < 4e-3, cat("encoder: predicted ", s.timeline.end * 1e3, " ms"));
  for (int w = 1; w < 132; ++w) expect(!s.draft.lists[w].empty(), "encoder: an idle worker");
}

void test_decoder() {
  Builder b = decoder({});
  const auto begin = std::chrono::steady_clock::now();
  const Scheduled s = scheduled(b);
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  std::printf("decoder: planned in %.1f ms, predicted %.3f ms\n", ms, s.timeline.end * 1e3);
  check_lists(s.draft, "decoder: ");
  std::vector<double> bytes(132, 0);
  for (size_t w = 0; w < s.draft.lists.size(); ++w) {
    for (const abi::WorkItem& item : s.draft.lists[w]) {
      const plan::Op& op = s.draft.graph.ops[item.op].op;
      if (op.record.kind != TaskKind::kMatmulRows) continue;
      expect(item.count * op.record.params.rows.lanes <= abi::kMaxRowsPerItem, "decoder: an item has too many rows");
      bytes[w] += static_cast<double>(op.bytes) * item.count / static_cast<double>(planner::num_tiles(op.record));
    }
  }
  const auto [low, high] = std::minmax_element(bytes.begin(), bytes.end());
  expect(*high / *low < 1.005, cat("decoder: bytes of the busiest to the idlest worker: ", *high / *low));
}

/// A chain of small ops beside independent work: the independent op comes between the links, not after them.
void test_fill() {
  Builder b;
  auto x = b.input("x", {4096, 64}, false);
  for (int i = 0; i < 8; ++i) {
    auto y = b.storage(cat("y", i), {4096, 64});
    b.program_op(TaskKind::kRow, cat("link", i), {4096, 64}, 1, {b.dense_ref(x)}, {b.dense_ref(y)});
    x = y;
  }
  for (int i = 0; i < 3; ++i) {
    auto in = b.input(cat("in", i), {131072, 64}, false), out = b.storage(cat("out", i), {131072, 64});
    b.output(out);
    b.program_op(TaskKind::kPointwise, cat("free", i), {131072, 64}, 0, {b.dense_ref(in)}, {b.dense_ref(out)});
  }
  b.output(x);
  const Scheduled s = scheduled(b);
  std::string order;
  for (const FusedOp& op : s.draft.graph.ops) order += op.op.name + " ";
  expect_equal(order, std::string("link0 free0 link1 free1 link2 free2 link3 link4 link5 link6 link7 "), "fill: order");
  check_lists(s.draft, "fill: ");
}

/// Nine products that nobody reads are 2.2 waves of wide tiles: one of them gets narrow ones, for the third wave, and
/// comes last.
void test_last_wave() {
  Builder b;
  auto dy = b.input("dy", {3840, 1024}, false), x = b.input("x", {3840, 1024}, false);
  for (int i = 0; i < 9; ++i) {
    auto dw = b.storage(cat("dw", i), {1024, 1024});
    b.output(dw);
    b.matmul(cat("dw", i), 1, 1024, 1024, 3840, {dy, {0, 1, 1024}}, {x, {0, 1024, 1}}, {dw, {0, 1024, 1}});
  }
  for (FusedOp& op : b.graph.ops) op.op.flops = 1'000'000'000;
  const Scheduled s = scheduled(b);
  std::string columns;
  for (const FusedOp& op : s.draft.graph.ops) columns += cat(op.op.record.params.matmul.tile_n, " ");
  expect_equal(columns, std::string("256 256 256 256 256 256 256 256 128 "), "last wave: tiles");
  const double wide = s.timeline.finish[0] - s.timeline.start[0];
  expect(s.timeline.end < 2.7 * wide, cat("last wave: ends after ", s.timeline.end / wide, " waves"));
}

/// A copy in a graph where nobody waits: a worker has the cost of an item once; beside a chain, items stay short.
void test_free_copies() {
  for (const bool alone : {true, false}) {
    Builder b;
    auto x = b.input("x", {132 * 6, 32768}, false), y = b.storage("y", {132 * 6, 32768});
    b.output(y);
    b.program_op(TaskKind::kPointwise, "copy", {132 * 6, 32768}, 0, {b.dense_ref(x)}, {b.dense_ref(y)});
    auto link = b.input("in", {4096, 64}, false);
    for (int i = 0; i < (alone ? 0 : 2); ++i) {
      auto next = b.storage(cat("link", i), {4096, 64});
      b.program_op(TaskKind::kRow, cat("link", i), {4096, 64}, 1, {b.dense_ref(link)}, {b.dense_ref(next)});
      link = next;
    }
    if (!alone) b.output(link);
    const Scheduled s = scheduled(b);
    check_lists(s.draft, "copy: ");
    int items = 0;
    for (const abi::WorkItem& item : s.draft.lists[0]) items += s.draft.graph.ops[item.op].op.name == "copy";
    expect(alone ? items == 1 : items > 1, cat("copy: ", items, " items of a worker"));
  }
}

void test_empty() {
  Builder b;
  auto x = b.input("x", {0, 64}, false), y = b.storage("y", {0, 64});
  b.output(y);
  b.program_op(TaskKind::kPointwise, "nothing", {0, 64}, 0, {b.dense_ref(x)}, {b.dense_ref(y)});
  const Scheduled s = scheduled(b);
  check_lists(s.draft, "empty: ");
}

}  // namespace

int main() {
  test_encoder();
  test_decoder();
  test_fill();
  test_last_wave();
  test_free_copies();
  test_empty();
  return finish("schedule");
}
