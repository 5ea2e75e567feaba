#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "planner/counter_order.h"
#include "planner/regions.h"
#include "planner/verify_checks.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

/// A box of one tile. Boxes are relative to the buffer; the buffer's place in its memory is added when buffers differ.
struct TileBox {
  Box box;
  int64_t end;
  int32_t tile;
};

/// All that an op touches through one operand.
struct Use {
  int32_t op = 0, operand = 0;
  uint32_t slot = 0;
  bool write = false, anywhere = false, fresh = false;
  int64_t place = 0;           // of the buffer in its memory
  int64_t low = 0, high = 0;   // hull, in the memory
  int64_t longest = 0;         // largest hull of one box
  std::vector<TileBox> boxes;  // by begin
};

Box moved(Box box, int64_t distance) {
  box.begin += distance;
  return box;
}

bool same_box(const Box& a, const Box& b) {
  return a.begin == b.begin && a.width == b.width && a.num_dims == b.num_dims &&
         std::equal(a.dims, a.dims + a.num_dims, b.dims,
                    [](const Box::Dim& x, const Box::Dim& y) { return x.count == y.count && x.stride == y.stride; });
}

/// Runs of few rows that lie far apart (a column of a small batch), one box each: the hull of all of them would meet
/// those of all other columns.
void split_far_rows(const Box& box, std::vector<Box>& out) {
  constexpr int64_t kFew = 8, kFar = 4;
  if (box.num_dims > 0 && box.dims[0].count <= kFew) {
    Box row = box;
    --row.num_dims;
    std::copy(box.dims + 1, box.dims + box.num_dims, row.dims);
    if ((row.end() - row.begin) * kFar <= box.dims[0].stride) {
      for (int64_t i = 0; i < box.dims[0].count; ++i) split_far_rows(moved(row, i * box.dims[0].stride), out);
      return;
    }
  }
  out.push_back(box);
}

class MemoryVerifier {
 public:
  MemoryVerifier(const Plan& plan, VerifyReport& report) : plan_(plan), report_(report), order_(plan) {}

  void run() {
    find_written();
    for (size_t op = 0; op < plan_.ops.size(); ++op) {
      classes_ = order_.next();
      add_arrivals(op);
      for (Use& use : uses_of(op)) current_.push_back(std::move(use));
      for (const Use& use : current_) check_bounds(use);
      within(op);
      against_earlier(op);
      for (Use& use : current_)  // what nobody writes had its bounds checked; that was all
        if (written_.contains(memory_of(use.slot))) memory_[memory_of(use.slot)].push_back(std::move(use));
      current_.clear();
    }
  }

 private:
  /// -1: the arena; else the slot.
  int64_t memory_of(uint32_t slot) const {
    return plan_.buffers[slot].kind == BufferKind::kArena ? -1 : static_cast<int64_t>(slot);
  }

  void find_written() {
    for (const plan::Op& op : plan_.ops) {
      std::vector<OperandUse> uses = operand_uses(op, plan_.programs);
      for (size_t i = 0; i < uses.size(); ++i)
        if (uses[i].write) written_[memory_of(op.operands[i].slot)] = true;
    }
  }

  std::vector<Use> uses_of(size_t index) {
    const plan::Op& op = plan_.ops[index];
    std::vector<OperandUse> operand = operand_uses(op, plan_.programs);
    std::vector<Use> uses;
    for (size_t i = 0; i < operand.size(); ++i) {
      if (!operand[i].used()) continue;
      Use use;
      use.op = static_cast<int32_t>(index);
      use.operand = static_cast<int32_t>(i);
      use.slot = op.operands[i].slot;
      use.write = operand[i].write;
      use.anywhere = operand[i].anywhere;
      use.fresh = op.record.kind == abi::TaskKind::kAttentionDecode && (i == 1 || i == 2);
      const Buffer& buffer = plan_.buffers[use.slot];
      use.place = buffer.kind == BufferKind::kArena ? buffer.arena_offset : 0;
      fill_boxes(op, operand[i], buffer.size_bytes, use);
      if (use.low < use.high) uses.push_back(std::move(use));
    }
    return uses;
  }

  /// Tiles that read the same box after and before the same counters need one entry only (queries that read all keys).
  bool can_merge(const plan::Op& op, const Use& use) const {
    if (use.write) return false;
    std::vector<OperandUse> uses = operand_uses(op, plan_.programs);
    for (size_t i = 0; i < uses.size(); ++i)
      if (uses[i].write && op.operands[i].slot == use.slot) return false;
    return true;
  }
  bool alike(const Use& use, const TileBox& last, const Box& box, int32_t tile) const {
    if (!same_box(last.box, box)) return false;
    auto a = static_cast<size_t>(last.tile), b = static_cast<size_t>(tile);
    if (classes_.of_tile[a] != classes_.of_tile[b]) return false;
    const OpArrivals& arrivals = arrivals_[static_cast<size_t>(use.op)];
    return std::all_of(std::begin(arrivals.tiles), std::end(arrivals.tiles),
                       [&](const std::vector<CounterRange>& tiles) { return tiles.empty() || tiles[a] == tiles[b]; });
  }

  void fill_boxes(const plan::Op& op, const OperandUse& operand, int64_t buffer_bytes, Use& use) const {
    std::vector<Box> whole, boxes;
    const bool hull_only = !written_.contains(memory_of(use.slot)), merge = !hull_only && can_merge(op, use);
    use.low = std::numeric_limits<int64_t>::max(), use.high = std::numeric_limits<int64_t>::min();
    for (int64_t t = 0; t < tiles_of(op.record); ++t) {
      whole.clear();
      boxes.clear();
      tile_region(op, plan_.programs, use.operand, operand, t, buffer_bytes, whole);
      for (const Box& box : whole) split_far_rows(box, boxes);
      for (const Box& box : boxes) {
        auto tile = static_cast<int32_t>(t);
        if (hull_only) {  // nobody writes it: its bounds are all that matters
          use.low = std::min(use.low, box.begin + use.place), use.high = std::max(use.high, box.end() + use.place);
          continue;
        }
        if (merge && !use.boxes.empty() && alike(use, use.boxes.back(), box, tile)) continue;
        use.boxes.push_back({box, box.end(), tile});
      }
    }
    for (const TileBox& b : use.boxes) {
      use.low = std::min(use.low, b.box.begin + use.place);
      use.high = std::max(use.high, b.end + use.place);
      use.longest = std::max(use.longest, b.end - b.box.begin);
    }
    std::sort(use.boxes.begin(), use.boxes.end(),
              [](const TileBox& a, const TileBox& b) { return a.box.begin < b.box.begin; });
  }

  void check_bounds(const Use& use) const {
    const Buffer& b = plan_.buffers[use.slot];
    int64_t low = use.low - use.place, high = use.high - use.place;
    require(plan_, low >= 0 && high <= b.size_bytes, describe(plan_, use.op), " touches bytes ", low, " to ", high - 1,
            " of slot ", use.slot, " (", b.name, "), which has ", b.size_bytes);
  }

  /// The counters that each tile of an op arrives on, and, per arrival, all of them when no tile is left out.
  struct OpArrivals {
    std::vector<CounterRange> tiles[abi::kMaxArrivals];
    CounterRange all[abi::kMaxArrivals];
  };

  void add_arrivals(size_t index) {
    const abi::OpRecord& r = plan_.ops[index].record;
    OpArrivals& out = arrivals_.emplace_back();
    for (int a = 0; a < r.num_arrivals; ++a) {
      bool every = true;
      CounterRange all{std::numeric_limits<int32_t>::max(), -1};
      for (int64_t t = 0; t < tiles_of(r); ++t) {
        CounterRange range = counters_of(r.arrive[a], r, t);
        out.tiles[a].push_back(range);
        every &= !range.empty();
        all = {std::min(all.first, range.first), std::max(all.last, range.last)};
      }
      if (every) out.all[a] = all;
    }
  }

  bool all_before(const CounterSet& done, int32_t op) const {
    const OpArrivals& a = arrivals_[static_cast<size_t>(op)];
    return std::any_of(std::begin(a.all), std::end(a.all),
                       [&](const CounterRange& all) { return !all.empty() && done.contains(all); });
  }
  bool before(const CounterSet& done, int32_t op, int32_t tile) const {
    const OpArrivals& a = arrivals_[static_cast<size_t>(op)];
    return std::any_of(std::begin(a.tiles), std::end(a.tiles), [&](const std::vector<CounterRange>& tiles) {
      return !tiles.empty() && done.meets(tiles[static_cast<size_t>(tile)]);
    });
  }

  /// Calls visit(box of a, box of b) for all pairs whose hulls meet.
  template <class Visit>
  void pairs(const Use& a, const Use& b, const Visit& visit) {
    int64_t shift = b.place - a.place;
    for (const TileBox& y : b.boxes) {
      int64_t begin = y.box.begin + shift, end = y.end + shift;
      auto x = std::lower_bound(a.boxes.begin(), a.boxes.end(), begin - a.longest,
                                [](const TileBox& box, int64_t at) { return box.box.begin < at; });
      for (; x != a.boxes.end() && x->box.begin < end; ++x)
        if (x->end > begin) visit(*x, y);
    }
  }

  /// Tiles of one op must not disturb each other. Elements chosen by values are the graph's own business.
  void within(size_t op) {
    for (const Use& a : current_)
      for (const Use& b : current_) {
        if (!a.write || a.anywhere || b.anywhere || a.slot != b.slot) continue;
        pairs(a, b, [&](const TileBox& x, const TileBox& y) {
          if (x.tile == y.tile) return;
          ++report_.tile_pairs;
          require(plan_, overlap(x.box, y.box) != Overlap::kYes, describe(plan_, static_cast<int64_t>(op)), ": tile ",
                  x.tile, " writes what tile ", y.tile, b.write ? " writes" : " reads", " in slot ", a.slot,
                  ", from byte ", std::max(x.box.begin, y.box.begin));
        });
      }
  }

  void against_earlier(size_t op) {
    std::map<std::pair<int32_t, bool>, std::vector<bool>>
        covered;  // earlier op and role: classes that all its tiles precede
    for (const Use& now : current_) {
      for (const Use& then : memory_[memory_of(now.slot)]) {
        bool apart = then.high <= now.low || now.high <= then.low;
        if (apart || !(now.write || then.write)) continue;
        ++report_.op_pairs;
        const std::vector<CounterSet>& done = now.fresh ? classes_.before_fresh : classes_.before_start;
        std::vector<bool>& known = covered[{then.op, now.fresh}];
        if (known.empty())
          for (const CounterSet& set : done) known.push_back(all_before(set, then.op));
        if (std::all_of(known.begin(), known.end(), [](bool x) { return x; })) continue;
        ordered(then, now, done, known, static_cast<int64_t>(op));
      }
    }
  }

  void ordered(const Use& then, const Use& now, const std::vector<CounterSet>& done, const std::vector<bool>& known,
               int64_t op) {
    pairs(then, now, [&](const TileBox& x, const TileBox& y) {
      ++report_.tile_pairs;
      auto number = static_cast<size_t>(classes_.of_tile[static_cast<size_t>(y.tile)]);
      if (known[number] || before(done[number], then.op, x.tile)) return;
      Overlap meets =
          then.slot == now.slot ? overlap(x.box, y.box) : overlap(moved(x.box, then.place), moved(y.box, now.place));
      if (meets == Overlap::kNo) return;
      throw InternalError(cat("plan ", plan_.name, ": race: ", describe(plan_, op), ", tile ", y.tile,
                              now.write ? " writes" : " reads", " bytes ", y.box.begin, " to ", y.end - 1, " of slot ",
                              now.slot, " (", plan_.buffers[now.slot].name, "); ", describe(plan_, then.op), ", tile ",
                              x.tile, then.write ? " writes" : " reads", " bytes ", x.box.begin, " to ", x.end - 1,
                              " of slot ", then.slot, " (", plan_.buffers[then.slot].name,
                              ") and is not known to be finished"));
    });
  }

  const Plan& plan_;
  VerifyReport& report_;
  CounterOrder order_;
  WaitClasses classes_;
  std::map<int64_t, bool> written_;
  std::map<int64_t, std::vector<Use>> memory_;  // uses by earlier ops
  std::vector<Use> current_;
  std::vector<OpArrivals> arrivals_;
};

}  // namespace

void verify_memory(const Plan& plan, VerifyReport& report) { MemoryVerifier(plan, report).run(); }

}  // namespace ark::planner
