#include <algorithm>
#include <bit>
#include <vector>

#include "planner/verify/checks.h"
#include "planner/verify/kinds/kinds.h"
#include "planner/verify/regions.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

void check_buffers(const Plan& plan) {
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& b = plan.buffers[i];
    require(plan, b.size_bytes >= 0, "slot ", i, " has ", b.size_bytes, " bytes");
    if (b.kind == BufferKind::kArena) {
      bool inside = b.arena_offset >= 0 && b.arena_offset + b.size_bytes <= plan.arena_bytes;
      require(plan, inside, "slot ", i, " is bytes ", b.arena_offset, " + ", b.size_bytes, " of an arena of ",
              plan.arena_bytes);
      require(plan, !b.immutable, "slot ", i, " is in the arena and immutable");
    } else if (b.kind == BufferKind::kConstant) {
      require(plan, static_cast<int64_t>(b.data.size()) == b.size_bytes, "slot ", i, " has ", b.size_bytes,
              " bytes and ", b.data.size(), " of data");
    } else if (b.kind == BufferKind::kInput || b.kind == BufferKind::kOutput) {
      require(plan, b.index >= 0, "slot ", i, " has the index ", b.index);
      bool known = b.kind == BufferKind::kInput || b.index < static_cast<int32_t>(plan.fresh.size());
      require(plan, known, "slot ", i, " is fresh tensor ", b.index, " of ", plan.fresh.size());
    }
  }
  for (const plan::Output& o : plan.outputs) {
    bool one = (o.fresh >= 0) != (o.input >= 0), known = o.fresh < static_cast<int32_t>(plan.fresh.size());
    require(plan, one && known, "an output is fresh tensor ", o.fresh, " of ", plan.fresh.size(), " and input ",
            o.input);
  }
}

template <class Map>
void check_map(const Plan& plan, size_t op, const Map& map, const char* what) {
  bool sane = map.div > 0 && map.extent >= 0 && map.limit >= 0;
  require(plan, sane, describe(plan, static_cast<int64_t>(op)), ": ", what, " with div ", map.div, ", extent ",
          map.extent, ", limit ", map.limit);
  int64_t last = map.limit == 0 ? 0 : int64_t{map.counter} + (map.limit - 1) / map.div;
  require(plan, last < plan.num_counters, describe(plan, static_cast<int64_t>(op)), ": ", what, " reaches counter ",
          last, " of ", plan.num_counters);
}

/// Flags name operands, waits and arrivals that the record has, and leave no more waits than a record can hold.
void check_flags(const Plan& plan, size_t index) {
  const plan::Op& op = plan.ops[index];
  const plan::Flags& flags = op.flags;
  auto name = [&] { return describe(plan, static_cast<int64_t>(index)); };
  auto within = [](uint32_t mask, size_t size) { return size >= 32 || mask >> size == 0; };
  require(plan,
          within(flags.operands, op.operands.size()) &&
              within(flags.dropped_waits, static_cast<size_t>(op.record.num_waits)) &&
              within(flags.dropped_arrivals, static_cast<size_t>(op.record.num_arrivals)),
          name(), " has flags of operands, waits or arrivals that it lacks");
  const size_t left = static_cast<size_t>(op.record.num_waits - std::popcount(flags.dropped_waits));
  require(plan, left + flags.added_waits.size() <= abi::kMaxWaits, name(), ": ", left, " waits and ",
          flags.added_waits.size(), " that were added");
  for (const abi::Wait& wait : flags.added_waits) check_map(plan, index, wait, "an added wait");
}

void check_record(const Plan& plan, size_t index) {
  const plan::Op& op = plan.ops[index];
  const abi::OpRecord& r = op.record;
  auto name = [&] { return describe(plan, static_cast<int64_t>(index)); };
  require(plan, r.kind >= abi::TaskKind{} && r.kind < abi::TaskKind::kCount, name(), ": kind ",
          static_cast<int>(r.kind));
  require(
      plan,
      r.grid[abi::GridAxis::kOuter] >= 0 && r.grid[abi::GridAxis::kMiddle] >= 0 && r.grid[abi::GridAxis::kInner] >= 0,
      name(), ": grid ", r.grid[abi::GridAxis::kOuter], ' ', r.grid[abi::GridAxis::kMiddle], ' ',
      r.grid[abi::GridAxis::kInner]);
  require(plan, 0 <= r.num_waits && r.num_waits <= abi::kMaxWaits, name(), ": ", r.num_waits, " waits");
  require(plan, 0 <= r.num_arrivals && r.num_arrivals <= abi::kMaxArrivals, name(), ": ", r.num_arrivals, " arrivals");
  size_t bytes = sizeof(abi::OpRecord) + op.operands.size() * sizeof(abi::Operand);
  require(plan, bytes <= abi::kMaxRecordBytes, name(), ": a record of ", bytes, " bytes");
  for (int w = 0; w < r.num_waits; ++w) check_map(plan, index, r.wait[w], "a wait");
  for (int a = 0; a < r.num_arrivals; ++a) check_map(plan, index, r.arrive[a], "an arrival");
  check_flags(plan, index);
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const abi::Operand& x = op.operands[i];
    require(plan, x.slot == abi::kNoSlot || x.slot < plan.buffers.size(), name(), ": operand ", i, " in slot ", x.slot,
            " of ", plan.buffers.size());
    bool indexed = x.index_operand < static_cast<int>(op.operands.size());
    require(plan, indexed && x.dtype >= 0 && x.dtype < kNumDTypes, name(), ": operand ", i, " of type ", x.dtype,
            ", indexed by ", int{x.index_operand});
  }
}

/// What each op does to each buffer, in order: lifetimes, immutability, writes before reads.
void check_uses(const Plan& plan) {
  std::vector<bool> written(plan.buffers.size(), false);
  for (size_t index = 0; index < plan.ops.size(); ++index) {
    const plan::Op& op = plan.ops[index];
    auto name = [&] { return describe(plan, static_cast<int64_t>(index)); };
    std::vector<OperandUse> uses = read_uses(op, plan.programs);
    for (bool writes : {false, true})
      for (size_t i = 0; i < uses.size(); ++i) {
        if (!(writes ? uses[i].write : uses[i].read)) continue;
        size_t slot = op.operands[i].slot;
        const Buffer& b = plan.buffers[slot];
        bool own = b.kind == BufferKind::kArena || b.kind == BufferKind::kOutput || is_read_box(b.kind);
        bool nothing = b.size_bytes == 0 || tiles_of(op.record) == 0 || uses[i].write;
        require(plan, writes || written[memory_slot(plan, static_cast<uint32_t>(slot))] || !own || nothing, name(),
                " reads slot ", slot, " (", b.name, "), which no op before it writes");
        require(plan, !writes || !b.immutable, name(), " writes slot ", slot, " (", b.name, "), which is immutable");
        require(plan, !writes || b.kind != BufferKind::kConstant, name(), " writes slot ", slot, ", a constant");
        bool alive = b.kind != BufferKind::kArena ||
                     (b.first_op <= static_cast<int64_t>(index) && static_cast<int64_t>(index) <= b.last_op);
        require(plan, alive, name(), " uses slot ", slot, " (", b.name, "), which lives from op ", b.first_op, " to ",
                b.last_op);
        if (writes) written[memory_slot(plan, static_cast<uint32_t>(slot))] = true;
      }
  }
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const Buffer& b = plan.buffers[slot];
    require(plan, b.kind != BufferKind::kOutput || b.size_bytes == 0 || written[slot], "slot ", slot, " (", b.name,
            "), fresh tensor ", b.index, ", is never written");
  }
}

/// The tiles of every op, as bits.
class TileBits {
 public:
  explicit TileBits(const Plan& plan) {
    for (const plan::Op& op : plan.ops) {
      begin_.push_back(words_.size());
      words_.resize(words_.size() + static_cast<size_t>((tiles_of(op.record) + 63) / 64), 0);
    }
  }
  /// Sets tiles [first, end) of the op; one of them that was set already, or -1.
  int64_t set(size_t op, int64_t first, int64_t end) {
    for (int64_t at = first; at < end; at = (at / 64 + 1) * 64) {
      uint64_t& word = words_[begin_[op] + static_cast<size_t>(at / 64)];
      const uint64_t bits = range(at % 64, std::min<int64_t>(64, end - at / 64 * 64));
      if ((word & bits) != 0) return at / 64 * 64 + std::countr_zero(word & bits);
      word |= bits;
    }
    return -1;
  }
  /// The first tile of the op that is not set, or -1.
  int64_t first_unset(size_t op, int64_t tiles) const {
    for (int64_t at = 0; at < tiles; at += 64) {
      const uint64_t missing =
          ~words_[begin_[op] + static_cast<size_t>(at / 64)] & range(0, std::min<int64_t>(64, tiles - at));
      if (missing != 0) return at + std::countr_zero(missing);
    }
    return -1;
  }

 private:
  static uint64_t range(int64_t first, int64_t end) {
    const uint64_t below = end == 64 ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
    return below & ~((uint64_t{1} << first) - 1);
  }
  std::vector<size_t> begin_;
  std::vector<uint64_t> words_;
};

void check_item(const Plan& plan, const abi::WorkItem& item) {
  const auto op = static_cast<size_t>(item.op);
  const Reading& reading = reading_of(plan.ops[op].record.kind);
  if (reading.item != nullptr) reading.item(RecordCheck(plan, op), item.first, item.count);
}

void check_lists(const Plan& plan) {
  require(plan, static_cast<int>(plan.lists.size()) == plan.num_workers, plan.num_workers, " workers and ",
          plan.lists.size(), " lists");
  TileBits seen(plan);
  for (size_t w = 0; w < plan.lists.size(); ++w)
    for (const abi::WorkItem& item : plan.lists[w]) {
      bool known = item.op >= 0 && static_cast<size_t>(item.op) < plan.ops.size();
      require(plan, known, "worker ", w, " has op ", item.op, " of ", plan.ops.size());
      const auto op = static_cast<size_t>(item.op);
      const int64_t tiles = tiles_of(plan.ops[op].record), end = int64_t{item.first} + item.count;
      bool inside = item.first >= 0 && item.count > 0 && end <= tiles;
      require(plan, inside, "worker ", w, " has tiles ", item.first, " + ", item.count, " of ", describe(plan, item.op),
              ", which has ", tiles);
      const int64_t twice = seen.set(op, item.first, end);
      require(plan, twice < 0, "tile ", twice, " of ", describe(plan, item.op), " is in the lists twice");
      check_item(plan, item);
    }
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const int64_t missing = seen.first_unset(op, tiles_of(plan.ops[op].record));
    require(plan, missing < 0, "tile ", missing, " of ", describe(plan, static_cast<int64_t>(op)), " is in no list");
  }
}

}  // namespace

void verify_structure(const Plan& plan) {
  check_buffers(plan);
  verify_boxes(plan);
  for (size_t i = 0; i < plan.ops.size(); ++i) check_record(plan, i);
  verify_records(plan);
  check_lists(plan);
  check_uses(plan);
}

}  // namespace ark::planner
