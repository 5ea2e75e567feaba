// Boxes that exchanges of a plan have one after the other: how much memory many layers need, and that the proofs refuse
// boxes which somebody may still read.
#include <algorithm>
#include <map>
#include <set>

#include "planner/verify/box_reuse.h"
#include "planner/verify/rank_interface.h"
#include "support/exchange_graphs.h"
#include "support/rank_damages.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

/// Tensor-parallel layers with a residual.
plan::Plan layers(int world, int count, int64_t rows, int64_t width, int64_t own, int workers) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {rows, width});
  for (int l = 0; l < count; ++l) {
    ValueId w1 = b.input(DType::kF32, {own, width}), w2 = b.input(DType::kF32, {width, own});
    ValueId y = b.linear(b.unary(Opcode::kRelu, b.linear(b.norm(x), w1)), w2);
    x = b.binary(Opcode::kAdd, x, b.all_reduce(y));
  }
  return plan_of(b.finish({x}, cat(count, " layers of ", rows, " rows").c_str()), true, true, workers);
}

/// Bytes of the boxes of one exchange.
int64_t bytes_of_exchange(const plan::Plan& plan) {
  for (const plan::Buffer& b : plan.buffers)
    if (b.kind == plan::BufferKind::kBox) return plan::box_stride(b.size_bytes) * plan.world;
  return 0;
}
int64_t num_exchanges(const plan::Plan& plan) {
  std::set<int32_t> senders;
  for (const plan::Buffer& b : plan.buffers)
    if (b.kind == plan::BufferKind::kBox) senders.insert(b.first_op);
  return std::ssize(senders);
}

/// 80 layers need the boxes of a few, in a step of decoding as with tiles of many rows.
void test_memory() {
  struct Shape {
    int world;
    int64_t rows, width, own;
    int workers, most;
  };
  for (const Shape& s : {Shape{2, 24, 64, 32, 6, 2}, Shape{2, 1, 64, 32, 6, 4}, Shape{8, 1, 64, 32, 6, 4},
                         Shape{2, 512, 256, 64, 132, 4}, Shape{8, 512, 256, 64, 132, 4}}) {
    const plan::Plan plan = layers(s.world, 80, s.rows, s.width, s.own, s.workers);
    EXPECT_EQ(num_exchanges(plan), 80);
    const int64_t at_once = plan.box_bytes / bytes_of_exchange(plan);
    std::printf("%s, %d ranks: boxes of %d exchanges\n", plan.name.c_str(), plan.world, static_cast<int>(at_once));
    EXPECT(at_once >= 2 && at_once <= s.most);
  }
}

/// What one rank says of its own plan, without the proof of all ranks together.
std::string own_complaint(plan::Plan plan) {
  const std::string message = complaint(plan, planner::VerifyLevel::kStructure);
  plan.num_counters += 10'000;  // too many for all ranks
  return message.empty() ? complaint(plan, planner::VerifyLevel::kRaces) : message;
}

/// Every wait taken away, and every wait for all ranks made one for a single rank: what is a race, by enumeration, is
/// refused by the proof of all ranks and by that of one.
void test_waits() {
  for (int world : {2, 3}) {
    const plan::Plan plan = layers(world, 4, 24, 16, 16, 4);
    EXPECT(plan.box_bytes < 4 * bytes_of_exchange(plan));
    RankDamages damages(plan);
    damages.check_whole();
    EXPECT_EQ(own_complaint(plan), std::string());
    BruteRanks brute(plan);
    const BruteRanks::Pairs conflicts = brute.conflicts();
    int races = 0;
    for (size_t op = 0; op < plan.ops.size(); ++op)
      for (int w = 0; w < plan.ops[op].record.num_waits; ++w) {
        damages.remove_wait(op, w);
        plan::Plan damaged = plan;
        abi::OpRecord& r = damaged.ops[op].record;
        std::copy(r.wait + w + 1, r.wait + r.num_waits, r.wait + w);
        --r.num_waits;
        const bool race = !BruteRanks(damaged).all_ordered(conflicts);
        races += race;
        EXPECT(!race || !own_complaint(damaged).empty());
        for (int rank = 0; rank < world && plan.ops[op].record.wait[w].rank_stride != 0; ++rank)
          damages.await_one(op, w, rank);
      }
    EXPECT(races > 8);
  }
}

/// Of a plan in which no two exchanges share boxes, those of one put over those of another.
void test_places() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {24, 16});
  for (int l = 0; l < 4; ++l) x = b.all_reduce(b.linear(b.norm(x), b.input(DType::kF32, {16, 16})));
  const plan::Plan plan = plan_of(b.finish({x}, "places"), true, false, 4);
  std::map<int32_t, int64_t> begins;  // of boxes, by the op that sends
  for (const plan::Buffer& box : plan.buffers)
    if (box.kind == plan::BufferKind::kBox && box.index == 0) begins[box.first_op] = box.arena_offset;
  EXPECT_EQ(begins.size(), size_t{4});
  int accepted = 0, refused = 0;
  for (const auto& [earlier, to] : begins)
    for (const auto& [later, from] : begins) {
      if (earlier >= later) continue;
      for (const int64_t shift :
           {int64_t{0}, plan::box_stride(24 * 16 * 4)}) {  // box on box, or on that of the next rank
        plan::Plan damaged = plan;
        for (plan::Buffer& box : damaged.buffers)
          if ((box.kind == plan::BufferKind::kBox || box.kind == plan::BufferKind::kBoxOut) && box.first_op == later)
            box.arena_offset += to + shift - from;
        BruteRanks brute(damaged);
        const bool race = !brute.all_ordered(brute.conflicts());
        const std::string together = refusal(damaged), own = own_complaint(damaged);
        EXPECT_EQ(!together.empty(), race);
        EXPECT_EQ(own.find("all ranks have read them") != std::string::npos, race);
        (race ? refused : accepted) += 1;
      }
    }
  std::printf("boxes over boxes: %d accepted, %d refused\n", accepted, refused);
  EXPECT(accepted > 0 && refused > 0);
}

/// The op that an exchange relies on is part of what ranks compare: of a rank that is done later another one would do.
void test_witness() {
  const plan::Plan plan = layers(2, 6, 24, 16, 16, 4);
  const std::vector<planner::BoxReuse> reuses = planner::box_reuses(plan);
  EXPECT(!reuses.empty());
  for (const planner::BoxReuse& reuse : reuses) EXPECT(reuse.earlier < reuse.witness && reuse.witness < reuse.later);
  int named = 0;
  for (const planner::RankTerm& term : planner::rank_interface(plan))
    named += term.value.find(", in boxes of exchange ") != std::string::npos;
  EXPECT_EQ(named, static_cast<int>(num_exchanges(plan) - plan.box_bytes / bytes_of_exchange(plan)));
}

}  // namespace

int main() {
  test_memory();
  test_waits();
  test_places();
  test_witness();
  return test::result("box_reuse");
}
