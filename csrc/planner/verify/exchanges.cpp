// Exchanges between ranks, seen from one of them. All ranks run this plan, so an op that writes out-boxes counts as the
// writer of this rank's boxes (plan/plan.h), and the other checks prove what is read of them like anything else. That
// holds if every tile writes the same part of each box, if whoever waits for the op waits for that op of every rank,
// and if no launch of a rank ends before all ranks have begun it.
#include <algorithm>
#include <map>
#include <vector>

#include "planner/verify/box_reuse.h"
#include "planner/verify/checks.h"
#include "planner/verify/counter_blocks.h"
#include "planner/verify/regions.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

const Buffer& buffer_of(const Plan& plan, int64_t slot) { return plan.buffers[static_cast<size_t>(slot)]; }

// ---- who sends ----

bool same(const Box& a, const Box& b) {
  return a.begin == b.begin && a.width == b.width && a.num_dims == b.num_dims &&
         std::equal(a.dims, a.dims + a.num_dims, b.dims,
                    [](const Box::Dim& x, const Box::Dim& y) { return x.count == y.count && x.stride == y.stride; });
}

int32_t group_world(const Plan& plan, const plan::Op& op, const std::vector<int>& operands) {
  return world_of(plan, buffer_of(plan, op.operands[static_cast<size_t>(operands[0])].slot).group);
}

/// A product has a batch for each rank, and only its tiles write the box there: those that write this rank's boxes are
/// tiles of one batch, whichever rank it is, and all batches write alike.
bool goes_by_batch(const Plan& plan, const plan::Op& op, const std::vector<OperandUse>& uses,
                   const std::vector<int>& operands) {
  using enum abi::TaskKind;
  const abi::TaskKind kind = op.record.kind;
  return (kind == kMatmulTile || kind == kMatmulFloat || kind == kMatmulSimple) &&
         op.record.grid[abi::GridAxis::kBatch] == group_world(plan, op, operands) &&
         std::all_of(operands.begin(), operands.end(), [&](int i) {
           const abi::Operand& x = op.operands[static_cast<size_t>(i)];
           return uses[static_cast<size_t>(i)].batch == buffer_of(plan, x.slot).index && x.stride[0] == 0;
         });
}

/// Each tile writes to all ranks the same bytes of their boxes: so its peers write these bytes here. Or each batch goes
/// to a rank of its own: then every tile is read as one that writes to all of them.
void check_parts(const Plan& plan, size_t index, const std::vector<OperandUse>& uses,
                 const std::vector<int>& operands) {
  const plan::Op& op = plan.ops[index];
  auto name = [&] { return describe(plan, static_cast<int64_t>(index)); };
  const bool by_batch = goes_by_batch(plan, op, uses, operands);
  for (int i : operands) {
    const OperandUse& use = uses[static_cast<size_t>(i)];
    require(plan,
            !use.anywhere && (!use.predicated || by_batch) && op.operands[i].dtype == op.operands[operands[0]].dtype,
            name(), ": values decide what operand ", i, " sends, or its type differs from that of others");
  }
  std::vector<Box> first, other;
  for (int64_t tile = 0; tile < tiles_of(op.record); ++tile) {
    for (int i : operands) {
      std::vector<Box>& boxes = i == operands[0] ? first : other;
      boxes.clear();
      tile_region(op, plan.programs, i, uses[static_cast<size_t>(i)], tile,
                  buffer_of(plan, op.operands[i].slot).size_bytes, boxes);
      require(plan, i == operands[0] || std::equal(first.begin(), first.end(), other.begin(), other.end(), same),
              name(), ", tile ", tile, " sends rank ", buffer_of(plan, op.operands[i].slot).index,
              " another part of its box than rank ", buffer_of(plan, op.operands[operands[0]].slot).index);
    }
  }
}

/// Boxes are read, out-boxes written: all of an exchange by one op, each once, which does not read its boxes.
void check_senders(const Plan& plan) {
  std::map<ExchangeKey, int64_t> sender;  // per exchange
  for (size_t index = 0; index < plan.ops.size(); ++index) {
    const plan::Op& op = plan.ops[index];
    const std::vector<OperandUse> uses = read_uses(op, plan.programs);
    auto name = [&] { return describe(plan, static_cast<int64_t>(index)); };
    std::map<ExchangeKey, std::vector<int>> sent;  // per exchange: operands
    for (size_t i = 0; i < uses.size(); ++i) {
      if (!uses[i].used()) continue;
      const Buffer& b = buffer_of(plan, op.operands[i].slot);
      require(plan, !is_read_box(b.kind) || !uses[i].write, name(), " writes slot ", op.operands[i].slot,
              ", a box of its own rank");
      require(plan, b.kind != BufferKind::kBoxOut || !uses[i].read, name(), " reads slot ", op.operands[i].slot,
              ", a box of another rank");
      if (b.kind == BufferKind::kBoxOut) sent[exchange_of(b)].push_back(static_cast<int>(i));
    }
    for (const auto& [exchange, operands] : sent) {
      const auto [other, first] = sender.emplace(exchange, static_cast<int64_t>(index));
      require(plan, first, describe(plan, other->second), " and ", name(), " write the same boxes");
      require(plan, exchange.second == static_cast<int32_t>(index), name(), " writes boxes of what op ",
              exchange.second, " sends");
      const int32_t world = group_world(plan, op, operands);
      std::vector<bool> ranks(static_cast<size_t>(world), false);
      for (int i : operands) ranks[static_cast<size_t>(buffer_of(plan, op.operands[i].slot).index)] = true;
      const bool all = operands.size() == ranks.size() && std::find(ranks.begin(), ranks.end(), false) == ranks.end();
      require(plan, all, name(), " does not write to the boxes of ", world, " ranks once each");
      for (size_t i = 0; i < uses.size(); ++i) {
        const bool own = uses[i].read && is_read_box(buffer_of(plan, op.operands[i].slot).kind) &&
                         exchange_of(buffer_of(plan, op.operands[i].slot)) == exchange;
        require(plan, !own, name(), " reads slot ", op.operands[i].slot, ", a box of the exchange for which it sends");
      }
      check_parts(plan, index, uses, operands);
    }
  }
}

/// Parts for other ranks are stored by one op, all of each, before the op that sends; those of other ranks are read.
/// Which comes first is seen in memory (uses.cpp).
void check_parts_of_ranks(const Plan& plan) {
  std::map<uint32_t, size_t> writer;  // per slot
  for (size_t index = 0; index < plan.ops.size(); ++index) {
    const plan::Op& op = plan.ops[index];
    const std::vector<OperandUse> uses = read_uses(op, plan.programs);
    for (size_t i = 0; i < uses.size(); ++i) {
      const uint32_t slot = op.operands[i].slot;
      if (!uses[i].used() || !is_part(buffer_of(plan, slot).kind)) continue;
      const Buffer& part = buffer_of(plan, slot);
      const bool out = part.kind == BufferKind::kPartOut;
      const int32_t sender = sender_of_part(plan, part);
      const bool good =
          uses[i].write == out && uses[i].read != out && !(out && (uses[i].predicated || uses[i].anywhere));
      const std::string name = cat(describe(plan, static_cast<int64_t>(index)), ", slot ", slot);
      require(plan, good, name, ": a part ", out ? "for rank " : "of rank ", part.index, ", which it ",
              uses[i].write ? "writes" : "reads", " or stores in part");
      require(plan, (static_cast<int32_t>(index) < sender) == out && static_cast<int32_t>(index) != sender, name,
              ": a part of the exchange for which op ", sender, " sends");
      if (!out) continue;
      const auto [known, first] = writer.emplace(slot, index);
      require(plan, first, name, ": is stored by op ", known->second, " too");
    }
  }
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot)
    require(plan, plan.buffers[slot].kind != BufferKind::kPartOut || writer.contains(static_cast<uint32_t>(slot)),
            "slot ", slot, ", a part for rank ", plan.buffers[slot].index, ", is never stored");
}

// ---- counters ----

/// An arrival that a counter belongs to.
struct Owner {
  int32_t op = -1, rank = 0, rank_stride = 0;
};

/// The group to whose ranks the op sends, or -1. It is one: an arrival is counted by ranks of one group.
int32_t group_sent_to(const Plan& plan, const plan::Op& op) {
  int32_t group = -1;
  for (const abi::Operand& x : op.operands) {
    if (x.slot == abi::kNoSlot || buffer_of(plan, x.slot).kind != BufferKind::kBoxOut) continue;
    const int32_t other = buffer_of(plan, x.slot).group;
    require(plan, group < 0 || group == other, "op '", op.name, "' sends in groups ", group, " and ", other);
    group = other;
  }
  return group;
}

/// Where there are several groups, a counter says by its number whose ranks count on it: own ones lie behind all.
template <class Name>
void check_range(const Plan& plan, const Name& name, int32_t group, int64_t begin, int64_t end) {
  if (plan.more_groups.empty() || begin >= end) return;
  const bool own = group == num_groups(plan);
  const bool right = own ? group_of_counter(plan, begin) == group - 1
                         : group_of_counter(plan, begin) == group && group_of_counter(plan, end - 1) == group;
  require(plan, right, name, " is on counters ", begin, " to ", end - 1, ", those of ",
          own ? "this rank alone lie behind all groups'" : "its group lie elsewhere");
}

/// Who sends arrives everywhere, and each rank has counters of its own.
std::vector<Owner> owners_of(const Plan& plan) {
  std::vector<Owner> owners(static_cast<size_t>(plan.num_counters));
  for (size_t index = 0; index < plan.ops.size(); ++index) {
    const abi::OpRecord& r = plan.ops[index].record;
    const int32_t group = group_sent_to(plan, plan.ops[index]);
    const bool everywhere = group >= 0;
    for (int a = 0; a < r.num_arrivals; ++a) {
      const int32_t stride = r.arrive_rank_stride[a], count = num_counters(r.arrive[a]);
      auto name = [&] { return cat(describe(plan, static_cast<int64_t>(index)), ", arrival ", a); };
      require(plan, everywhere == (stride != 0), name(), everywhere ? " is not on all ranks" : " is on all ranks",
              everywhere ? ", but it sends" : ", but it sends nothing");
      require(plan, stride == 0 || stride >= std::max(count, 1), name(), ": ", count, " counters of ranks that lie ",
              stride, " apart");
      const int32_t ranks = stride == 0 ? 1 : world_of(plan, group);
      const int64_t end = int64_t{r.arrive[a].counter} + int64_t{ranks - 1} * stride + count;
      require(plan, end <= plan.num_counters, name(), " of all ranks reaches counter ", end - 1, " of ",
              plan.num_counters);
      check_range(plan, name(), stride == 0 ? num_groups(plan) : group, r.arrive[a].counter, end);
      for (int32_t rank = 0; rank < ranks; ++rank)
        for (int32_t k = 0; k < count; ++k) {
          Owner& owner = owners[r.arrive[a].counter + static_cast<uint32_t>(rank * stride + k)];
          const bool alone = owner.op < 0 || (owner.rank_stride == 0 && stride == 0);
          require(plan, alone, name(), " of rank ", rank, " falls on a counter of ", describe(plan, owner.op),
                  " of rank ", owner.rank);
          owner = {static_cast<int32_t>(index), rank, stride};
        }
    }
  }
  return owners;
}

/// Who waits for an op that sends waits for that of all ranks. Per group, whether some tile does.
std::vector<bool> check_waits(const Plan& plan, const std::vector<Owner>& owners) {
  std::vector<bool> awaited(static_cast<size_t>(num_groups(plan)), false);
  for (size_t index = 0; index < plan.ops.size(); ++index) {
    const abi::OpRecord& r = plan.ops[index].record;
    for (int w = 0; w < r.num_waits; ++w) {
      for (int32_t k = 0; k < num_counters(r.wait[w]); ++k) {
        const Owner& owner = owners[r.wait[w].counter + static_cast<uint32_t>(k)];
        require(plan, owner.rank == 0 && owner.rank_stride == r.wait[w].rank_stride,
                describe(plan, static_cast<int64_t>(index)), ", wait ", w, ": counters of ranks that lie ",
                r.wait[w].rank_stride, " apart, counter ", int64_t{r.wait[w].counter} + k, " is of rank ", owner.rank,
                " and those of others lie ", owner.rank_stride, " apart");
      }
      const RowMap map = row_map(r.wait[w]);
      const CounterBlocks blocks = counter_blocks(r, {&map, 1});
      const bool any = std::ranges::any_of(blocks.ranges, [](const CounterRange& range) { return !range.empty(); });
      if (r.wait[w].rank_stride != 0 && any)
        awaited.at(static_cast<size_t>(group_of_counter(plan, r.wait[w].counter))) = true;
    }
  }
  return awaited;
}

/// Who sends to boxes that an earlier exchange had comes after all that touches them, on every rank.
void check_reuse(const Plan& plan) {
  for (const BoxReuse& reuse : box_reuses(plan))
    require(plan, reuse.witness >= 0, "race: ", describe(plan, reuse.later), " writes boxes to which ",
            describe(plan, reuse.earlier), " sends, and is not known to start after all ranks have read them");
}

}  // namespace

void verify_exchanges(const Plan& plan) {
  if (plan.world > 1) check_senders(plan);
  if (plan.world > 1) check_parts_of_ranks(plan);
  const std::vector<bool> awaited = check_waits(plan, owners_of(plan));
  for (const plan::Op& op : plan.ops) {
    const int32_t group = tiles_of(op.record) > 0 ? group_sent_to(plan, op) : -1;
    require(plan, group < 0 || awaited[static_cast<size_t>(group)], "no op waits for an exchange",
            group > 0 ? cat(" of group ", group) : "", ": a rank could be two launches ahead of another");
  }
  check_reuse(plan);
}

}  // namespace ark::planner
