// Plans of several groups as kernels read them: the launch's table of groups, counters and boxes by group, against what
// the host target does in the same memory; errors that name a group; the order of turns.
#include <cstddef>
#include <cstring>
#include <memory>

#include "codegen/codegen.h"
#include "plan/as_run.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
#include "targets/cuda/ranks.h"
#include "targets/host/peers.h"

using namespace ark;
using namespace ark::test;
using plan::BufferKind;

namespace {

/// Layers over a mesh of 2 x 4 ranks, and over all of them.
plan::Plan mesh_plan() {
  ExchangeBuilder b(2);
  b.group = "tensor";
  ValueId x = b.input(DType::kF32, {16, 16});
  for (int layer = 0; layer < 2; ++layer) {
    b.world = 2, b.group = "tensor";
    const ValueId y = b.all_reduce(b.matmul(b.unary(Opcode::kRelu, x), b.input(DType::kF32, {16, 16})));
    b.world = 4, b.group = "data";
    const ValueId z = b.all_reduce(b.unary(Opcode::kRelu, y));
    b.world = 8, b.group = "all";
    x = b.binary(Opcode::kAdd, b.all_reduce(b.unary(Opcode::kRelu, z)), y);
  }
  return planner::make_plan(b.finish({x}, "mesh"), {});
}

plan::Plan plan_of_one() {
  ExchangeBuilder b(2);
  return planner::make_plan(b.finish({b.all_reduce(b.input(DType::kF32, {16, 16}))}, "one"), {});
}

constexpr int kGroups = 3;

/// Memory of all ranks of each group, as one rank sees it, which is rank 1 + group.
struct Memory {
  std::vector<std::unique_ptr<std::byte[]>> segments;
  targets::RankMemory view;

  explicit Memory(const plan::Plan& plan) {
    const size_t state_bytes =
        sizeof(abi::RunState) + static_cast<size_t>(plan.num_counters) * abi::kCounterStride * sizeof(abi::u32);
    for (int32_t group = 0; group < num_groups(plan); ++group) {
      targets::RankMemory one{.rank = std::min(1 + group, world_of(plan, group) - 1), .deadline_ns = 7};
      for (int r = 0; r < world_of(plan, group); ++r) {
        segments.push_back(std::make_unique<std::byte[]>(targets::rank_segment_bytes(plan, state_bytes, 0, group)));
        one.segments.push_back(segments.back().get());
      }
      if (group == 0)
        view = one;
      else
        view.more_groups.push_back(one);
    }
  }
};

struct Launch {
  abi::LaunchHeader header{};
  std::vector<abi::GroupLaunch> groups;

  Launch(const plan::Plan& plan, const targets::RankMemory& memory, int room) : groups(static_cast<size_t>(room)) {
    targets::add_ranks(header, plan, memory);
    header.state = header.peers[memory.rank];
    targets::add_groups(reinterpret_cast<unsigned char*>(groups.data()), header, plan, &memory, room);
  }
  /// As the kernel finds it (Worker::count_in_group, Worker::rank_counter).
  abi::u32* counter(abi::u32 run_counter, int rank) const {
    const abi::GroupLaunch& group = groups.at(run_counter >> abi::kCounterGroupShift);
    return reinterpret_cast<abi::u32*>(group.peers[rank] + 1) +
           static_cast<size_t>(run_counter & abi::kCounterNumber) * abi::kCounterStride;
  }
};

void test_layout() {
  using Two = abi::LaunchParams<64, 2>;
  EXPECT_EQ(offsetof(Two, groups), sizeof(abi::LaunchHeader) + 64 * sizeof(abi::u64) + sizeof(abi::LoopLaunch));
  EXPECT_EQ(offsetof(Two, loop), offsetof(abi::LaunchParams<64>, loop));
  const plan::Plan plan = mesh_plan(), one = plan_of_one();
  const codegen::Source of_three = codegen::generate(plan, {}), of_one = codegen::generate(one, {});
  EXPECT_EQ(of_three.groups, kGroups);
  for (const char* part : {"#define ARK_RANKS 8\n", "#define ARK_GROUPS 3\n", "LaunchParams<64, 3> params"})
    EXPECT(of_three.text.find(part) != std::string::npos);
  EXPECT_EQ(of_one.groups, 1);
  EXPECT(of_one.text.find("ARK_GROUPS") == std::string::npos);
  EXPECT(of_one.text.find("LaunchParams<64> params") != std::string::npos);
}

void test_table() {
  const plan::Plan plan = mesh_plan();
  const Memory memory(plan);
  const Launch launch(plan, memory.view, 5);
  for (int32_t group = 0; group < kGroups; ++group) {
    const targets::RankMemory& of = memory_of(memory.view, group);
    const abi::GroupLaunch& in = launch.groups[static_cast<size_t>(group)];
    EXPECT(in.world == world_of(plan, group) && in.rank == of.rank && in.box_bytes == box_bytes_of(plan, group));
    for (int r = 0; r < in.world; ++r) {
      const auto* state = reinterpret_cast<const std::byte*>(in.peers[r]);
      EXPECT(state == of.segments[static_cast<size_t>(r)] + 2 * in.box_bytes);
    }
    EXPECT(in.state == in.peers[of.rank]);
  }
  EXPECT(launch.groups[0].state == launch.header.state && launch.groups[0].box_bytes == launch.header.box_bytes);
  for (size_t more : {3, 4}) EXPECT(launch.groups[more].state == launch.header.state && launch.groups[more].world == 0);
  EXPECT_THROW(InternalError, Launch(plan, memory.view, 2), "of 3 groups, in a kernel of 2");
  // a plan without exchanges in a kernel that was made for others too
  plan::Plan alone = plan;
  alone.world = 1, alone.more_groups.clear();
  std::vector<abi::GroupLaunch> groups(2);
  targets::add_groups(reinterpret_cast<unsigned char*>(groups.data()), launch.header, alone, nullptr, 2);
  EXPECT(groups[0].state == launch.header.state && groups[1].state == launch.header.state && groups[0].world == 0);
}

/// Arrivals of the host target are where the kernel polls, and those of the kernel where the host target looks.
void test_counters() {
  const plan::Plan plan = mesh_plan();
  const Memory memory(plan);
  const Launch launch(plan, memory.view, kGroups);
  const targets::host::Peers peers(plan, &memory.view);
  int waits = 0, arrivals = 0;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const abi::OpRecord &planned = plan.ops[i].record, run = plan::run_op(plan, i).record;
    for (int a = 0; a < run.num_arrivals; ++a) {
      const int stride = run.arrive_rank_stride[a];
      EXPECT(stride != 0 || run.arrive[a].counter == planned.arrive[a].counter);
      if (stride == 0) continue;
      const int32_t group = group_of_counter(plan, planned.arrive[a].counter);
      const targets::RankMemory& of = memory_of(memory.view, group);
      const abi::u32 own = run.arrive[a].counter + static_cast<abi::u32>(of.rank * stride);
      EXPECT_EQ(plan::planned_counter(plan, run.arrive[a].counter), planned.arrive[a].counter);
      peers.arrive(planned.arrive[a].counter, stride);
      for (int r = 0; r < world_of(plan, group); ++r) EXPECT_EQ((*launch.counter(own, r))++, 1u);
      const abi::u32 of_plan = planned.arrive[a].counter + static_cast<abi::u32>(of.rank * stride);
      EXPECT_EQ(peers.counter(of_plan).load(), 2u);
      ++arrivals;
    }
    for (int w = 0; w < run.num_waits; ++w) {
      if (run.wait[w].rank_stride == 0) continue;
      EXPECT_EQ(plan::planned_counter(plan, run.wait[w].counter), planned.wait[w].counter);
      const int rank = static_cast<int>(run.wait[w].counter >> abi::kCounterGroupShift) + 1;
      const abi::u32 before = peers.counter(planned.wait[w].counter).load();
      const int own = memory_of(memory.view, rank - 1).rank;
      EXPECT_EQ(*launch.counter(run.wait[w].counter, own), before);
      ++waits;
    }
  }
  EXPECT(arrivals == 6 && waits >= 6);
}

/// In odd launches too.
void test_boxes() {
  const plan::Plan plan = mesh_plan();
  const Memory memory(plan);
  const Launch launch(plan, memory.view, kGroups);
  std::vector<bool> seen(kGroups, false);
  for (uint32_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const plan::Buffer& buffer = plan.buffers[slot];
    const uint32_t run = plan::run_slot(plan, slot);
    EXPECT_EQ((run & abi::kBoxSlot) != 0, plan::is_among_ranks(buffer.kind));
    if (!plan::is_among_ranks(buffer.kind)) continue;
    const uint32_t group = (run & ~abi::kBoxSlot) >> abi::kBoxGroupShift;
    EXPECT(group == static_cast<uint32_t>(buffer.group) && (run & abi::kSlotNumber) == slot);
    const auto* even = static_cast<const std::byte*>(targets::box_address(plan, buffer, memory.view, 2));
    EXPECT(even + launch.groups.at(group).box_bytes == targets::box_address(plan, buffer, memory.view, 3));
    seen[group] = true;
  }
  EXPECT(seen == std::vector<bool>(kGroups, true));
  const std::string text = plan::to_string(plan::as_run(plan));
  for (const char* part : {": box slot ", " of group 1", " of group 2"}) EXPECT(text.find(part) != std::string::npos);
  EXPECT(plan::to_string(plan).find(" of group 1") == std::string::npos);
}

void test_errors() {
  const plan::Plan plan = mesh_plan();
  abi::ErrorRecord e{};
  e.set = abi::kErrorRank, e.rank = 1, e.fault.seen = 3, e.group = 1;
  EXPECT_EQ(targets::describe_ranks(plan, e),
            std::string("launch of 'mesh' on rank 1 of group 'tensor': rank 3 of group 'data' has given up, in this "
                        "launch or an earlier one. Outputs are not valid"));
  e.set = abi::kErrorDeadline;
  int told = 0;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const abi::OpRecord run = plan::run_op(plan, i).record;
    for (int w = 0; w < run.num_waits; ++w) {
      if (run.wait[w].rank_stride == 0) continue;
      const auto group = static_cast<int32_t>(run.wait[w].counter >> abi::kCounterGroupShift);
      const int last = world_of(plan, group) - 1;
      e.fault.name = {static_cast<int>(i), 0, static_cast<int>(run.wait[w].counter) + last * run.wait[w].rank_stride};
      const std::string want =
          cat(" of 'mesh' on rank 1 of group 'tensor': rank ", last, " of group '", group_at(plan, group).name,
              "' has not sent in time what op ", i, " '", plan.ops[i].name, "', tile 0, ");
      for (uint32_t launch : {0u, 2u, 100'000'000u}) {
        const auto target = run.wait[w].limit <= run.wait[w].div ? run.wait[w].last_target : run.wait[w].target;
        e.fault.expected = (launch + 1) * target;
        EXPECT(targets::describe_ranks(plan, e).starts_with(cat("launch ", launch, want)));
      }
      told |= 1 << group;
    }
  }
  EXPECT_EQ(told, 7);
  const plan::Plan one = plan_of_one();
  e.set = abi::kErrorRank, e.group = 0;
  EXPECT(targets::describe_ranks(one, e).starts_with("launch of 'one' on rank 1: rank 3 has given up, "));
  EXPECT_EQ(targets::counter_text(plan, 5), std::string("counter 5"));
  EXPECT_EQ(targets::counter_text(plan, (1 << abi::kCounterGroupShift) + 1),
            cat("counter ", first_counter_of(plan, 1) + 1, " of group 'data'"));
}

/// Who gives up says so in every group; turns are taken in the order of names, whatever the plan's.
void test_order() {
  const plan::Plan plan = mesh_plan();
  EXPECT(plan::groups_by_name(plan) == std::vector<int32_t>({2, 1, 0}));
  EXPECT(plan::groups_by_name(plan_of_one()) == std::vector<int32_t>({0}));
  plan::Plan other = plan;  // another rank's, which meets the groups in another order
  std::swap(other.group, other.more_groups[0].name);
  std::vector<std::string> names, of_other;
  for (int32_t group : plan::groups_by_name(plan)) names.push_back(group_at(plan, group).name);
  for (int32_t group : plan::groups_by_name(other)) of_other.push_back(group_at(other, group).name);
  EXPECT(names == of_other && names == std::vector<std::string>({"all", "data", "tensor"}));
  Memory memory(plan);
  std::vector<std::string> heard;
  memory.view.give_up = [&](const std::string& why) { heard.push_back(cat("tensor ", why)); };
  memory.view.more_groups[1].give_up = [&](const std::string& why) { heard.push_back(cat("all ", why)); };
  targets::give_up_all(memory.view, "late");
  EXPECT(heard == std::vector<std::string>({"tensor late", "all late"}));
}

void test_launches() {
  for (const abi::u32 target : {1u, 2u, 3u, 6u, 48u, 100u, 1u << 20, 3u << 20})
    for (const abi::u32 launch : {0u, 1u, 7u, 1000u}) {
      EXPECT_EQ(targets::launches_before((launch + 1) * target, target), launch);
    }
  EXPECT_EQ(targets::launches_before(90'000'001u * 48u, 48), 90'000'000u);  // counters have come round
  EXPECT_EQ(targets::launches_before(5, 0), 0u);                            // such a wait is never late
}

void test_refusals() {
  plan::Plan plan = mesh_plan();
  EXPECT(!plan::pack(plan).records.empty());
  plan::Plan many = plan;
  many.more_groups.resize(abi::kMostPlanGroups, {.name = "more", .world = 2});
  EXPECT_THROW(UnsupportedError, plan::pack(many), "exchanges of 9 groups, expected at most 8");
  plan.more_groups[0].world = abi::kMostPlanRanks + 1;
  EXPECT_THROW(UnsupportedError, plan::pack(plan), "exchanges between 9 ranks, expected at most 8");
}

}  // namespace

int main() {
  test_layout();
  test_table();
  test_counters();
  test_boxes();
  test_errors();
  test_launches();
  test_order();
  test_refusals();
  return test::result("cuda_groups");
}
