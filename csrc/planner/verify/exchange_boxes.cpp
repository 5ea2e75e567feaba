// The boxes of exchanges: an exchange has one for each rank, of equal size and side by side, and out-boxes that are
// their twins. Exchanges may share bytes (box_reuse.h).
#include <algorithm>
#include <map>
#include <vector>

#include "planner/verify/checks.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

const Buffer& buffer_of(const Plan& plan, int64_t slot) { return plan.buffers[static_cast<size_t>(slot)]; }

/// Per exchange: a slot for each rank.
using Slots = std::map<ExchangeKey, std::vector<int64_t>>;

void add_slot(const Plan& plan, Slots& slots, int64_t slot) {
  const Buffer& b = buffer_of(plan, slot);
  require(plan, b.group >= 0 && b.group < num_groups(plan), "slot ", slot, " is a box of group ", b.group, " of ",
          num_groups(plan));
  const int32_t world = world_of(plan, b.group);
  require(plan, b.index >= 0 && b.index < world, "slot ", slot, " is the box of rank ", b.index, " of ", world);
  std::vector<int64_t>& of_ranks = slots[exchange_of(b)];
  of_ranks.resize(static_cast<size_t>(world), -1);
  int64_t& known = of_ranks[static_cast<size_t>(b.index)];
  const bool alike = std::ranges::all_of(
      of_ranks, [&](int64_t other) { return other < 0 || buffer_of(plan, other).group == b.group; });
  require(plan, alike, "slot ", slot, " is a box of group ", b.group, ", others of its exchange are of another one");
  require(plan, known < 0, "slots ", known, " and ", slot, " are the same box");
  known = slot;
}

/// Of the boxes of an exchange.
int32_t group_of(const Plan& plan, const std::vector<int64_t>& slots) {
  const auto known = std::ranges::find_if(slots, [](int64_t slot) { return slot >= 0; });
  return known == slots.end() ? 0 : buffer_of(plan, *known).group;
}

/// An exchange has a box for each rank, and out-boxes that are their twins.
void check_places(const Plan& plan, const Slots& boxes, const Slots& outs) {
  for (const auto& [exchange, slots] : boxes) {
    const int64_t begin = exchange.first;
    const int32_t group = group_of(plan, slots), world = static_cast<int32_t>(slots.size());
    const auto lacks = std::find(slots.begin(), slots.end(), -1) - slots.begin();
    require(plan, lacks == world, "the exchange at ", begin, " has no box from rank ", lacks);
    const int64_t bytes = buffer_of(plan, slots[0]).size_bytes, stride = plan::box_stride(bytes);
    for (int64_t slot : slots)
      require(plan, buffer_of(plan, slot).size_bytes == bytes, "slot ", slot, " has ", buffer_of(plan, slot).size_bytes,
              " bytes, other boxes of its exchange ", bytes);
    require(plan, begin >= 0 && begin % plan::box_stride(1) == 0, "the boxes of slot ", slots[0], " begin at byte ",
            begin);
    const int64_t end = begin + stride * world;
    require(plan, end <= box_bytes_of(plan, group), "the boxes end at byte ", end, " of ", box_bytes_of(plan, group));
    require(plan, outs.contains(exchange), "nobody sends to slot ", slots[0]);
  }
  for (const auto& [exchange, slots] : outs)
    for (int64_t rank = 0; rank < static_cast<int64_t>(slots.size()); ++rank) {
      const int64_t slot = slots[static_cast<size_t>(rank)];
      require(plan, slot >= 0, "the exchange at ", exchange.first, " sends nothing to rank ", rank);
      const auto box = boxes.find(exchange);
      const bool twins = box != boxes.end() && buffer_of(plan, slot).group == group_of(plan, box->second) &&
                         box->second[static_cast<size_t>(rank)] == buffer_of(plan, slot).twin &&
                         buffer_of(plan, slot).size_bytes == buffer_of(plan, buffer_of(plan, slot).twin).size_bytes;
      require(plan, twins, "slot ", slot, " is an out-box to rank ", rank, ", its twin is slot ",
              buffer_of(plan, slot).twin);
    }
}

void check_twin(const Plan& plan, size_t slot) {
  const int64_t twin = plan.buffers[slot].twin, slots = static_cast<int64_t>(plan.buffers.size());
  const bool known = twin >= 0 && twin < slots && buffer_of(plan, twin).kind == BufferKind::kBox;
  require(plan, known, "slot ", slot, " is for other ranks, its twin is slot ", twin, " of ", slots, ", no box");
}

/// Boxes that are one tensor lie without gaps, from the first one on.
void check_joined(const Plan& plan) {
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const Buffer& b = plan.buffers[slot];
    if (b.kind != BufferKind::kBoxes) continue;
    check_twin(plan, slot);
    const Buffer& first = buffer_of(plan, b.twin);
    require(plan, exchange_of(b) == exchange_of(first) && b.group == first.group && first.index == 0, "slot ", slot,
            " has all boxes from byte ", b.arena_offset, " on, its twin, slot ", b.twin, ", is the box of rank ",
            first.index, " at ", first.arena_offset);
    require(plan,
            b.size_bytes == world_of(plan, b.group) * first.size_bytes &&
                plan::box_stride(first.size_bytes) == first.size_bytes,
            "slot ", slot, " has ", b.size_bytes, " bytes of ", world_of(plan, b.group), " boxes of ",
            first.size_bytes);
  }
}

/// A part's twin says which exchange it is of, and that it is there.
void check_part(const Plan& plan, size_t slot, std::map<int64_t, ExchangeKey>& exchanges) {
  const Buffer& part = plan.buffers[slot];
  check_twin(plan, slot);
  const Buffer& box = buffer_of(plan, part.twin);
  require(plan, part.index == box.index && part.size_bytes > 0, "slot ", slot, " is a part of ", part.size_bytes,
          " bytes for or of rank ", part.index, ", its twin is the box of rank ", box.index);
  const auto [known, first] = exchanges.emplace(part.arena_offset, exchange_of(box));
  require(plan, known->second == exchange_of(box), "slot ", slot, " is a part of exchange ", part.arena_offset,
          ", its twin, slot ", part.twin, ", is of another one than those of other parts");
  for (size_t other = 0; other < slot; ++other) {
    const Buffer& b = plan.buffers[other];
    require(plan, b.kind != part.kind || b.index != part.index || b.arena_offset != part.arena_offset, "slots ", other,
            " and ", slot, " are the same part");
  }
}

/// Group 0 and those behind it have ranks, and counters one behind the other. What knows of one group is of such plans.
void check_groups(const Plan& plan) {
  int64_t before = 0;
  for (size_t i = 0; i < plan.more_groups.size(); ++i) {
    const plan::RankGroup& g = plan.more_groups[i];
    require(plan, plan.world > 1 && g.world > 1 && g.box_bytes >= 0, "group ", i + 1, " has ", g.world,
            " ranks and boxes of ", g.box_bytes, " bytes, group 0 has ", plan.world, " ranks");
    require(plan, g.first_counter >= before && g.first_counter <= plan.num_counters, "counters of group ", i + 1,
            " begin at ", g.first_counter, ", those of the group before at ", before);
    before = g.first_counter;
  }
  const bool parts = std::ranges::any_of(plan.buffers, [](const Buffer& b) { return is_part(b.kind); });
  require(plan, plan.more_groups.empty() || !parts, "uneven exchanges in a plan of several groups");
}

}  // namespace

void verify_boxes(const Plan& plan) {
  require(plan, plan.world >= 1 && plan.box_bytes >= 0, "a plan of ", plan.world, " ranks with boxes of ",
          plan.box_bytes, " bytes");
  check_groups(plan);
  Slots boxes, outs;
  std::map<int64_t, ExchangeKey> exchanges;  // uneven ones, by number
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const Buffer& b = plan.buffers[slot];
    if (b.kind == BufferKind::kBox) add_slot(plan, boxes, static_cast<int64_t>(slot));
    if (is_part(b.kind)) check_part(plan, slot, exchanges);
    if (b.kind != BufferKind::kBoxOut) continue;
    check_twin(plan, slot);
    add_slot(plan, outs, static_cast<int64_t>(slot));
  }
  require(plan, plan.world > 1 || boxes.empty(), "a plan of one rank has boxes");
  check_places(plan, boxes, outs);
  check_joined(plan);
}

}  // namespace ark::planner
