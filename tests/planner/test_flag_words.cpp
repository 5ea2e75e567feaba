// Flagged words: which vectors of a decode step travel in them, and that the waits that are left order everything else.
#include <algorithm>
#include <cstring>
#include <set>

#include "planner/flag_words.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/model_graph.h"
#include "support/plan_brute.h"

using namespace ark;
using namespace ark::test;

namespace {

plan::Plan decode_plan() {
  auto [m, x] = decode_step();
  planner::Options options;
  m.graph.outputs = {x};
  return planner::make_plan(m.graph, options);
}

/// Behind the step, words of which some are selected, by values of an op of their own (they are no distances below the
/// best, which the select would make itself): a part of the row waits for the tiles that it reads.
plan::Plan select_plan() {
  auto [m, x] = decode_step();
  constexpr int64_t kWords = 17000;
  const ValueId scores = m.matmul(x, m.transposed(m.input(kBF16, {kWords, kHidden})), kBF16);
  const ValueId far = m.cast(scores, kF32), best = m.reduce(ReduceOp::kMax, far, {1}, true, kF32);
  const ValueId distance = m.pointwise(Opcode::kSub, {far, best}, kF32, {1, kWords});
  const ValueId found = m.value(kI64, {1});
  m.node(ir::OpKind::kRowSelect, {distance, m.input(kI64, {1})}, {found});
  m.graph.outputs = {found};
  return planner::make_plan(m.graph, planner::Options());
}

/// Behind the step, a product whose columns are scaled head by head, eight heads a tile, before another product.
plan::Plan heads_plan() {
  auto [m, x] = decode_step();
  constexpr int64_t kNormed = 16, kColumns = 128;
  const ValueId heads = m.matmul(x, m.transposed(m.input(kBF16, {kNormed * kColumns, kHidden})), kBF16);
  const ValueId wide = m.cast(m.view(heads, {kNormed, kColumns}, {kColumns, 1}), kF32);
  const ValueId best = m.reduce(ReduceOp::kMax, wide, {1}, true, kF32);
  const ValueId scaled = m.cast(m.pointwise(Opcode::kDiv, {wide, best}, kF32, {kNormed, kColumns}), kBF16);
  const ValueId row = m.view(scaled, {1, kNormed * kColumns}, {kNormed * kColumns, 1});
  const ValueId y = m.matmul(row, m.transposed(m.input(kBF16, {kHidden, kNormed * kColumns})), kBF16);
  m.graph.outputs = {m.matmul(y, m.transposed(m.input(kBF16, {kHidden, kHidden})), kBF16)};
  return planner::make_plan(m.graph, planner::Options());
}

/// The plan without its flagged accesses, waiting as the loop kernel does: as the records say that it is given.
plan::Plan unflagged_part(plan::Plan plan) {
  const plan::Packed packed = plan::pack(plan);
  size_t at = 0;
  for (plan::Op& op : plan.ops) {
    for (size_t k = 0; k < op.operands.size(); ++k)
      if ((op.flags.operands >> k & 1) != 0) op.operands[k].slot = abi::kNoSlot;
    op.flags = {};
    abi::OpRecord record;
    std::memcpy(&record, packed.records.data() + at, sizeof record);
    at += (static_cast<size_t>(record.record_bytes) + 63) / 64 * 64;
    op.record.num_waits = record.num_waits;
    op.record.num_arrivals = record.num_arrivals;
    std::memcpy(op.record.wait, record.wait, sizeof record.wait);
    std::memcpy(op.record.arrive, record.arrive, sizeof record.arrive);
  }
  plan.num_flag_words = 0;
  for (plan::Buffer& buffer : plan.buffers) buffer.first_word = -1;
  return plan;
}

void expect_ordered(const plan::Plan& rest) {
  BrutePlan brute(rest);
  EXPECT(brute.all_ordered(brute.conflicts()));
}

void test_decode() {
  const plan::Plan plan = decode_plan(), rest = unflagged_part(plan);
  EXPECT(plan.num_flag_words > 0);
  int waits = 0, left = 0, arrivals = 0, arrivals_left = 0;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    waits += plan.ops[i].record.num_waits;
    left += rest.ops[i].record.num_waits;
    arrivals += plan.ops[i].record.num_arrivals;
    arrivals_left += rest.ops[i].record.num_arrivals;
  }
  std::printf("%zu ops: %d of %d waits and %d of %d arrivals are left\n", plan.ops.size(), left, waits, arrivals_left,
              arrivals);
  EXPECT(arrivals_left < arrivals);
  expect_ordered(rest);
  EXPECT_EQ(plan::counter_lines(plan), plan.num_counters + plan.num_flag_words / abi::kCounterStride);
}

bool waits_by_tile(const plan::Op& op) {
  return op.record.num_waits > 0 && std::ranges::any_of(op.record.wait[0].coef, [](int coef) { return coef > 0; });
}

/// The op of this kind whose tiles wait for different tiles of others.
template <class Plan>
auto& op_by_tile(Plan& plan, abi::TaskKind kind) {
  const auto op = std::ranges::find_if(plan.ops, [&](const plan::Op& x) {
    return x.record.kind == kind && plan::num_tiles(x.record) > 1 && waits_by_tile(x);
  });
  check(op != plan.ops.end(), "no op waits by tile");
  return *op;
}

/// Who waits for some tiles of an op only, and is not known to wait for the others, waits for all of them instead of
/// costing the plan its words.
void test_waits_for_some_tiles() {
  const plan::Plan plan = select_plan();
  const plan::Op& select = op_by_tile(plan, abi::TaskKind::kRowSelect);
  EXPECT_EQ(select.flags.added_waits.size(), size_t{1});
  EXPECT(plan.num_flag_words > 0);
  expect_ordered(unflagged_part(plan));
}

/// Then a wait for the tiles alone is needless, and what is left falls on one counter each.
void test_implied_waits() {
  const plan::Plan plan = heads_plan(), rest = unflagged_part(plan);
  const plan::Op& rows = op_by_tile(plan, abi::TaskKind::kRow);
  EXPECT_EQ(rows.flags.dropped_waits, (1u << rows.record.num_waits) - 1);
  const std::vector<abi::Wait>& added = rows.flags.added_waits;  // of the product's two counters, one each
  EXPECT_EQ(added.size(), size_t{2});
  EXPECT(added.at(0).counter == added.at(1).counter && added.at(0).base < added.at(1).base);
  for (const plan::Op& op : rest.ops)
    for (int w = 0; w < op.record.num_waits; ++w) {
      const abi::Wait& wait = op.record.wait[w];
      EXPECT(wait.coef[0] == 0 && wait.coef[1] == 0 && wait.coef[2] == 0);
      EXPECT_EQ(wait.base / wait.div, (wait.base + wait.extent - 1) / wait.div);
    }
  expect_ordered(rest);
}

/// A needless wait leaves its place to the one that implies it: an op with as many waits as fit keeps the plan's words.
void test_full_of_waits() {
  plan::Plan plan = heads_plan();
  plan::Op& rows = op_by_tile(plan, abi::TaskKind::kRow);
  const auto has_waits = [](const plan::Op& op) { return op.record.num_waits > 0; };
  const plan::Op& first = *std::ranges::find_if(plan.ops, has_waits);
  const abi::Wait early = first.record.wait[0];  // of an op that has long ended
  while (rows.record.num_waits < abi::kMaxWaits) rows.record.wait[rows.record.num_waits++] = early;
  planner::flag_words(plan);
  EXPECT(plan.num_flag_words > 0);
  EXPECT_EQ(rows.flags.dropped_waits, 1u);
  EXPECT_EQ(rows.flags.added_waits.size(), size_t{1});
  expect_ordered(unflagged_part(plan));
}

/// Every buffer of words has one writer and lies alone.
void test_words() {
  const plan::Plan plan = decode_plan();
  std::vector<int> users(static_cast<size_t>(plan.num_flag_words), 0);
  for (const plan::Buffer& buffer : plan.buffers) {
    if (buffer.first_word < 0) continue;
    for (int64_t w = 0; w < buffer.size_bytes / 2; ++w) ++users.at(static_cast<size_t>(buffer.first_word + w));
  }
  for (int n : users) EXPECT(n <= 1);
}

/// Without a wait that is left, something is not ordered any more: the brute check of test_decode can fail.
void test_left_waits_matter() {
  const plan::Plan rest = unflagged_part(decode_plan());
  const auto conflicts = BrutePlan(rest).conflicts();  // of accesses, whatever the waits
  int needed = 0;
  for (size_t i = 0; i < rest.ops.size(); ++i)
    for (int w = 0; w < rest.ops[i].record.num_waits; ++w) {
      plan::Plan damaged = rest;
      abi::OpRecord& record = damaged.ops[i].record;
      std::copy(record.wait + w + 1, record.wait + record.num_waits--, record.wait + w);
      needed += !BrutePlan(damaged).all_ordered(conflicts);
    }
  EXPECT(needed > 3);
}

bool same_bytes(const plan::Plan& a, const plan::Plan& b) { return plan::pack(a).records == plan::pack(b).records; }

/// A saved plan is packed as the plan itself. One that was saved before flags and forms were a part of it runs with its
/// counters.
void test_saved() {
  const plan::Plan plan = decode_plan();
  const std::string text = plan::to_json(plan);
  const plan::Plan loaded = plan::from_json(text);
  EXPECT(plan::to_json(loaded) == text);
  EXPECT(same_bytes(loaded, plan));
  const std::string printed = plan::to_string(plan);
  for (const char* line : {"flagged words: ", "  flagged operands [2, 4]\n  drops waits [0]\n  drops arrivals [0]\n",
                           "  adds wait rows ", "  form 2\n"})
    EXPECT(printed.find(line) != std::string::npos);
  plan::Plan old = plan;
  old.num_flag_words = 0;
  for (plan::Buffer& buffer : old.buffers) buffer.first_word = -1;
  for (plan::Op& op : old.ops) op.flags = {}, op.form = -1;
  const std::string old_text = plan::to_json(old);
  for (const char* key : {"form\"", "flags", "first_word", "num_flag_words"})
    EXPECT(old_text.find(key) == std::string::npos && text.find(key) != std::string::npos);
  const plan::Plan counting = plan::from_json(old_text);
  EXPECT_EQ(plan::counter_lines(counting), int64_t{counting.num_counters});
  std::set<int32_t> forms;
  for (const plan::Op& op : counting.ops) {
    EXPECT((op.record.kind == abi::TaskKind::kMatmulRows) == (op.form >= 0));
    forms.insert(op.form);
  }
  EXPECT(forms.size() > 2);
  EXPECT(!same_bytes(counting, plan));
}

/// An arrival that is dropped takes its stride between ranks along.
void test_strides_follow_arrivals() {
  plan::Plan plan = decode_plan();
  plan::Op& op = plan.ops[0];
  op.record.num_arrivals = 2;
  op.record.arrive[1] = op.record.arrive[0];
  op.record.arrive[1].counter = 7;
  op.record.arrive_rank_stride[0] = 5, op.record.arrive_rank_stride[1] = 9;
  op.flags.dropped_arrivals = 1;
  const plan::Packed packed = plan::pack(plan);
  abi::OpRecord record;
  std::memcpy(&record, packed.records.data(), sizeof record);
  EXPECT_EQ(record.num_arrivals, 1);
  EXPECT_EQ(record.arrive[0].counter, 7u);
  EXPECT_EQ(record.arrive_rank_stride[0], 9);
}

}  // namespace

int main() {
  test_decode();
  test_waits_for_some_tiles();
  test_implied_waits();
  test_full_of_waits();
  test_words();
  test_left_waits_matter();
  test_saved();
  test_strides_follow_arrivals();
  return test::result("flag_words");
}
