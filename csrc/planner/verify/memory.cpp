// Bounds and races. What whole ops touch is compared first, then blocks of tiles that wait or arrive alike; single
// tiles only where that does not prove the plan right. Every step errs on the side of looking closer, and only the last
// one says that a plan is wrong.
#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "planner/verify/checks.h"
#include "planner/verify/counter_order.h"
#include "planner/verify/uses.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

/// The counters that an op's tiles arrive on.
struct OpArrivals {
  CounterBlocks blocks;
  CounterRange all[abi::kMaxArrivals];  // of all tiles; empty when some tile is left out
};

class MemoryVerifier {
 public:
  MemoryVerifier(const Plan& plan, VerifyReport& report) : plan_(plan), report_(report) {}

  void run() {
    live_.resize(plan_.buffers.size() + 2 + plan_.more_groups.size());
    arrives_.assign(static_cast<size_t>(plan_.num_counters), -1);
    for (size_t op = 0; op < plan_.ops.size(); ++op) find_conflicts(op);
    CounterOrder order(plan_, std::move(needed_until_));
    for (const std::vector<Conflict>& conflicts : conflicts_) {
      waits_ = order.next();
      joint_.reset();
      has_common_[0] = has_common_[1] = false;
      for (auto& known : known_) known.assign(plan_.ops.size(), Known::kUnknown);
      for (const auto& [then, now] : conflicts) {
        if (wholly_before(then->op, now->fresh) || ordered_by_one_wait(*then, *now)) continue;
        if (ordered_by_all_waits(*then, *now)) continue;
        tiles_ordered(*then, *now);
      }
    }
  }

 private:
  struct Conflict {
    Use *then, *now;
  };
  /// Bytes [low, high) of a use by an earlier op.
  struct Part {
    Use* use;
    int64_t low, high;
  };

  /// Buffers of the arena are one memory, boxes of a group (an out-box at its twin) another, every other buffer is one
  /// of its own.
  std::vector<Part>& live(uint32_t slot) {
    const plan::Buffer& memory = plan_.buffers[memory_slot(plan_, slot)];
    if (memory.kind == BufferKind::kArena) return live_[plan_.buffers.size()];
    return live_[is_read_box(memory.kind) ? plan_.buffers.size() + 1 + static_cast<size_t>(memory.group) : slot];
  }

  /// The pairs of uses of which one has to come first, but those that a wait of the later op orders by itself. A use
  /// all of whose bytes an op writes anew is asked for no more: who touches one of them later comes after the tile that
  /// wrote it, and that tile after the use.
  void find_conflicts(size_t op) {
    std::vector<Use*> current;
    for (Use& use : uses_of(plan_, op, read_uses(plan_.ops[op], plan_.programs)))
      current.push_back(&uses_.emplace_back(std::move(use)));
    for (const Use* use : current) check_bounds(*use);
    within(current);
    find_maps(op);
    find_finished(op);
    std::vector<Conflict>& conflicts = conflicts_.emplace_back();
    needed_until_.push_back(static_cast<int32_t>(op));
    for (Use* now : current) {
      const Use* last = nullptr;
      for (const Part& then : live(now->slot)) {
        const bool apart = then.high <= now->low || now->high <= then.low;
        if (apart || !(now->how.write || then.use->how.write) || then.use == last) continue;
        ++report_.op_pairs;
        last = then.use;
        if (ordered_directly(*then.use, *now)) continue;
        conflicts.push_back({then.use, now});
        needed_until_[static_cast<size_t>(then.use->op)] = static_cast<int32_t>(op);
      }
    }
    for (const Use* now : current)
      if (now->how.write && now->dense) take_away(live(now->slot), now->low, now->high);
    for (Use* use : current) live(use->slot).push_back({use, use->low, use->high});
  }

  static void take_away(std::vector<Part>& parts, int64_t low, int64_t high) {
    for (size_t i = 0, count = parts.size(); i < count; ++i) {
      const Part part = parts[i];
      if (part.high <= low || high <= part.low) continue;
      parts[i].high = std::min(part.high, low);
      if (part.high > high) parts.push_back({part.use, std::max(part.low, high), part.high});
    }
    std::erase_if(parts, [](const Part& part) { return part.low >= part.high; });
  }

  void check_bounds(const Use& use) const {
    const Buffer& b = plan_.buffers[use.slot];
    int64_t low = use.low - use.place, high = use.high - use.place;
    require(plan_, low >= 0 && high <= b.size_bytes, describe(plan_, use.op), " touches bytes ", low, " to ", high - 1,
            " of slot ", use.slot, " (", b.name, "), which has ", b.size_bytes);
  }

  /// Arrivals of an op, and the blocks of its waits.
  void find_maps(size_t index) {
    const abi::OpRecord& r = plan_.ops[index].record;
    waits_.clear();
    for (int w = 0; w < r.num_waits; ++w) {
      const RowMap map = row_map(r.wait[w]);
      const bool fresh = r.wait[w].role == static_cast<int32_t>(abi::WaitRole::kFresh);
      const bool source = r.wait[w].role == static_cast<int32_t>(abi::WaitRole::kSource);
      waits_.push_back({fresh, source, counter_blocks(r, {&map, 1}), {}});
    }
    OpArrivals& out = arrivals_.emplace_back();
    out.blocks = counter_blocks(r, arrive_maps(r));
    for (size_t b = 0; b < out.blocks.size(); ++b)
      for (int a = 0; a < r.num_arrivals; ++a) {
        const CounterRange& range = out.blocks.of(b)[static_cast<size_t>(a)];
        CounterRange& all = out.all[a];
        const bool left_out = range.empty() || (b > 0 && all.empty());
        all = left_out ? CounterRange{}
              : b == 0 ? range
                       : CounterRange{std::min(all.first, range.first), std::max(all.last, range.last)};
      }
  }

  /// Ops all of whose tiles every tile of the current op has behind it, as waits say from op to op: the ops that a wait
  /// is for in full, and what every tile of an op had behind it that every tile waits for a tile of.
  void find_finished(size_t index) {
    OpSet& own = finished_.emplace_back((plan_.ops.size() + 63) / 64, 0);
    for (const WaitOrder& wait : waits_) {
      const std::vector<CounterRange>& ranges = wait.blocks.ranges;
      if (wait.fresh || wait.source ||
          std::any_of(ranges.begin(), ranges.end(), [](const CounterRange& r) { return r.empty(); }))
        continue;
      const int32_t op = ranges.empty() ? -1 : arrives_[static_cast<size_t>(ranges.front().first)];
      if (op < 0 || !all_wait_for(ranges, op)) continue;
      for (size_t word = 0; word < own.size(); ++word) own[word] |= finished_[static_cast<size_t>(op)][word];
      for (const CounterRange& all : arrivals_[static_cast<size_t>(op)].all)
        if (held_by_all(all, ranges)) own[static_cast<size_t>(op) / 64] |= uint64_t{1} << (op % 64);
    }
    for (const CounterRange& range : arrivals_[index].blocks.ranges)
      for (int32_t k = range.first; k <= range.last; ++k)
        arrives_[static_cast<size_t>(k)] = static_cast<int32_t>(index);
  }
  bool all_wait_for(const std::vector<CounterRange>& ranges, int32_t op) const {
    return std::all_of(ranges.begin(), ranges.end(),
                       [&](const CounterRange& r) { return arrives_[static_cast<size_t>(r.first)] == op; });
  }
  static bool held_by_all(CounterRange all, const std::vector<CounterRange>& ranges) {
    return !all.empty() && std::all_of(ranges.begin(), ranges.end(), [&](const CounterRange& range) {
      return range.first <= all.first && all.last <= range.last;
    });
  }

  static bool holds_back(const WaitOrder& wait, const Use& now) {
    return (!wait.fresh || now.fresh) && (!wait.source || now.of_source);
  }
  static bool meet(CounterRange a, CounterRange b) { return a.first <= b.last && b.first <= a.last; }

  /// The earlier op is over, or a wait of the current op is for counters that its tiles arrive on: for all of them, or
  /// block by block.
  bool ordered_directly(Use& then, Use& now) {
    const OpArrivals& earlier = arrivals_[static_cast<size_t>(then.op)];
    if (finished_[static_cast<size_t>(now.op)][static_cast<size_t>(then.op) / 64] >> (then.op % 64) & 1) return true;
    now.by_wait.resize(waits_.size());
    for (size_t w = 0; w < waits_.size(); ++w) {
      const CounterBlocks& blocks = waits_[w].blocks;
      auto meets = [&](const CounterRange& range) { return meet(range, blocks.ranges.front()); };
      if (!holds_back(waits_[w], now) || blocks.size() == 0) continue;
      auto held = [&](const CounterRange& all) { return held_by_all(all, blocks.ranges); };
      if (std::any_of(std::begin(earlier.all), std::end(earlier.all), held)) return true;
      if (std::none_of(earlier.blocks.ranges.begin(), earlier.blocks.ranges.end(), meets)) continue;
      const CounterBlocks& arrive = arriving(then);
      if (now.by_wait[w].at.empty()) now.by_wait[w] = pieces_of(plan_, now, blocks.blocks);
      if (meeting(then.arriving, now.by_wait[w], now.place - then.place, [&](const Piece& x, const Piece& y) {
            ++report_.block_pairs;
            const CounterRange awaited = blocks.ranges[static_cast<size_t>(y.number)];
            const auto ranges = arrive.of(static_cast<size_t>(x.number));
            return std::any_of(ranges.begin(), ranges.end(), [&](const CounterRange& r) { return meet(r, awaited); }) ||
                   !overlapping(then, x, now, y);
          }))
        return true;
    }
    return false;
  }

  /// What all tiles of the current op have behind them.
  CounterSet common(bool fresh) {
    if (has_common_[fresh]) return CounterSet(common_[fresh].ranges());
    has_common_[fresh] = true;
    common_[fresh].clear();
    CounterUnion of_wait;
    for (const WaitOrder& wait : waits_) {
      if ((wait.fresh && !fresh) || wait.done.empty()) continue;
      of_wait.clear();
      of_wait.add(wait.done.front().ranges());
      for (size_t i = 1; i < wait.done.size(); ++i)
        if (!wait.done[i].same(wait.done[i - 1])) of_wait.keep_common(wait.done[i].ranges());
      common_[fresh].add(of_wait.ranges());
    }
    return CounterSet(common_[fresh].ranges());
  }
  /// All tiles of `op` precede all tiles of the current op.
  bool wholly_before(int32_t op, bool fresh) {
    Known& known = known_[fresh][static_cast<size_t>(op)];
    if (known == Known::kUnknown) {
      const OpArrivals& a = arrivals_[static_cast<size_t>(op)];
      const bool yes = std::any_of(std::begin(a.all), std::end(a.all), [&](const CounterRange& all) {
        return !all.empty() && common(fresh).contains(all);
      });
      known = yes ? Known::kYes : Known::kNo;
    }
    return known == Known::kYes;
  }

  /// An out-box to which a batch of its own goes is written by the tiles of that batch alone.
  bool touches(const Use& use, int32_t tile) const {
    const abi::OpRecord& r = plan_.ops[static_cast<size_t>(use.op)].record;
    return use.how.batch < 0 || block_of_tile(r, tile).first[0] == use.how.batch;
  }

  /// Tiles of one op must not disturb each other. Elements chosen by values are the graph's own business.
  void within(const std::vector<Use*>& current) {
    for (const Use* one : current)
      for (const Use* other : current) {
        const Use &a = *one, &b = *other;
        if (!a.how.write || a.how.anywhere || b.how.anywhere || a.slot != b.slot) continue;
        if (a.high <= b.low || b.high <= a.low || apart_by_shape(plan_, a, b)) continue;
        meeting(tiles_of(plan_, a), tiles_of(plan_, b), 0, [&](const Piece& x, const Piece& y) {
          if (x.number == y.number || !touches(a, x.number) || !touches(b, y.number)) return true;
          ++report_.tile_pairs;
          require(plan_, overlap(x.box, y.box) != Overlap::kYes, describe(plan_, a.op), ": tile ", x.number,
                  " writes what tile ", y.number, b.how.write ? " writes" : " reads", " in slot ", a.slot,
                  ", from byte ", std::max(x.box.begin, y.box.begin));
          return true;
        });
      }
  }

  static bool overlapping(const Use& then, const Piece& x, const Use& now, const Piece& y) {
    Box earlier = x.box, later = y.box;
    if (then.slot != now.slot) earlier.begin += then.place, later.begin += now.place;
    return overlap(earlier, later) != Overlap::kNo;
  }

  static bool meets_any(const CounterSet& done, std::span<const CounterRange> ranges) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const CounterRange& range) { return done.meets(range); });
  }
  const CounterBlocks& arriving(Use& then) {
    const CounterBlocks& blocks = arrivals_[static_cast<size_t>(then.op)].blocks;
    if (then.arriving.at.empty()) then.arriving = pieces_of(plan_, then, blocks.blocks);
    return blocks;
  }

  /// Blocks of the current op that wait alike, by one of its waits, against blocks of the earlier one that arrive
  /// alike.
  bool ordered_by_one_wait(Use& then, Use& now) {
    const CounterBlocks& arrive = arriving(then);
    now.by_wait.resize(waits_.size());
    for (size_t w = 0; w < waits_.size(); ++w) {
      const WaitOrder& wait = waits_[w];
      if ((wait.fresh && !now.fresh) || wait.done.empty() || !meets_any(wait.done.back(), arrive.ranges)) continue;
      BoxPieces& waiting = now.by_wait[w];
      if (waiting.at.empty()) waiting = pieces_of(plan_, now, wait.blocks.blocks);
      const bool all = meeting(then.arriving, waiting, now.place - then.place, [&](const Piece& x, const Piece& y) {
        ++report_.block_pairs;
        return meets_any(wait.done[static_cast<size_t>(y.number)], arrive.of(static_cast<size_t>(x.number))) ||
               !overlapping(then, x, now, y);
      });
      if (all) return true;
    }
    return false;
  }

  /// Some wait of the block that holds a tile has one of the counters behind it.
  bool behind(const TileBlock& tile, const Use& now, std::span<const CounterRange> ranges) const {
    return std::any_of(waits_.begin(), waits_.end(), [&](const WaitOrder& wait) {
      if (!holds_back(wait, now)) return false;
      const size_t block = find_block(wait.blocks, tile);
      if (!wait.source) return meets_any(wait.done[block], ranges);
      return std::any_of(ranges.begin(), ranges.end(),
                         [&](const CounterRange& range) { return meet(range, wait.blocks.ranges[block]); });
    });
  }

  bool ordered_by_all_waits(Use& then, Use& now) {
    const CounterBlocks& arrive = arriving(then);
    if (!joint_) {
      const abi::OpRecord& r = plan_.ops[static_cast<size_t>(now.op)].record;
      joint_ = counter_blocks(r, wait_maps(r));
    }
    if (now.waiting.at.empty()) now.waiting = pieces_of(plan_, now, joint_->blocks);
    return meeting(then.arriving, now.waiting, now.place - then.place, [&](const Piece& x, const Piece& y) {
      ++report_.block_pairs;
      return behind(joint_->blocks[static_cast<size_t>(y.number)], now, arrive.of(static_cast<size_t>(x.number))) ||
             !overlapping(then, x, now, y);
    });
  }

  void tiles_ordered(const Use& then, const Use& now) {
    const abi::OpRecord &earlier = plan_.ops[static_cast<size_t>(then.op)].record,
                        &later = plan_.ops[static_cast<size_t>(now.op)].record;
    meeting(tiles_of(plan_, then), tiles_of(plan_, now), now.place - then.place, [&](const Piece& x, const Piece& y) {
      ++report_.tile_pairs;
      for (int a = 0; a < earlier.num_arrivals; ++a) {
        const CounterRange range = counters_of(earlier.arrive[a], earlier, x.number);
        if (behind(block_of_tile(later, y.number), now, {&range, 1})) return true;
      }
      if (!overlapping(then, x, now, y)) return true;
      throw InternalError(cat("plan ", plan_.name, ": race: ", describe(plan_, now.op), ", tile ", y.number,
                              now.how.write ? " writes" : " reads", " bytes ", y.box.begin, " to ", y.end - 1,
                              " of slot ", now.slot, " (", plan_.buffers[now.slot].name, "); ",
                              describe(plan_, then.op), ", tile ", x.number, then.how.write ? " writes" : " reads",
                              " bytes ", x.box.begin, " to ", x.end - 1, " of slot ", then.slot, " (",
                              plan_.buffers[then.slot].name, ") and is not known to be finished"));
    });
  }

  enum class Known : uint8_t { kUnknown, kYes, kNo };

  const Plan& plan_;
  VerifyReport& report_;
  std::deque<Use> uses_;
  std::vector<std::vector<Part>> live_;           // per memory: what is still to be asked for
  std::vector<std::vector<Conflict>> conflicts_;  // per later op
  std::vector<int32_t> needed_until_;             // per op: the last op that it conflicts with
  std::vector<OpArrivals> arrivals_;
  std::vector<int32_t> arrives_;  // per counter: the last op so far, if any
  using OpSet = std::vector<uint64_t>;
  std::vector<OpSet> finished_;         // per op
  std::vector<WaitOrder> waits_;        // of the current op
  std::optional<CounterBlocks> joint_;  // by all of them
  CounterUnion common_[2];              // before the start, before fresh rows
  bool has_common_[2] = {false, false};
  std::vector<Known> known_[2];  // per op: wholly before the current one
};

}  // namespace

void verify_memory(const Plan& plan, VerifyReport& report) { MemoryVerifier(plan, report).run(); }

}  // namespace ark::planner
