// Boxes that exchanges of a plan have one after the other: how much memory many layers need, and that the proofs refuse
// boxes which somebody may still read.
#include <algorithm>
#include <set>

#include "planner/verify/box_reuse.h"
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
  return plan_of(b.finish({x}, cat(count, " layers of ", rows, " rows")), true, true, workers);
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

void test_memory() {
  for (auto [world, rows, width, own, workers] : {std::array<int64_t, 5>{2, 24, 64, 32, 6}, {2, 1, 64, 32, 6}, {8, 1, 64, 32, 6}, {2, 512, 256, 64, 132}, {8, 512, 256, 64, 132}}) {
    const plan::Plan plan = layers(static_cast<int>(world), 80, rows, width, own, static_cast<int>(workers));
    EXPECT_EQ(num_exchanges(plan), 80);
    std::printf("%s, %d ranks: boxes for %lld exchanges\n", plan.name.c_str(), plan.world,
                static_cast<long long>(plan.box_bytes / bytes_of_exchange(plan)));
  }
}

}  // namespace

int main() {
  test_memory();
  return test::result("box_reuse");
}
