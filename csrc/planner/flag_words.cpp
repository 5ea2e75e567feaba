#include "planner/flag_words.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "base/types.h"
#include "plan/operand_uses.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

constexpr size_t kMostOps = 1024;  // decode steps are far smaller; the check below is quadratic

bool is_half_type(int dtype) {
  return dtype == static_cast<int>(DType::kBF16) || dtype == static_cast<int>(DType::kF16);
}

/// An op that may write and read flagged words.
bool is_few(const plan::Op& op) {
  const abi::OpRecord& r = op.record;
  return r.kind == TaskKind::kMatmulRows && r.params.rows.m == 1 && is_half_type(r.params.rows.dtype);
}

struct Range {
  int64_t begin, end;  // counters
};
template <class Map>
Range all_of(const Map& map) {
  return {map.counter, map.counter + (int64_t{map.limit} + map.div - 1) / map.div};
}
/// The counters that every tile waits for, when they are the same for all.
std::optional<Range> same_for_all(const abi::Wait& wait) {
  if (wait.coef[0] != 0 || wait.coef[1] != 0 || wait.coef[2] != 0) return {};
  const int begin = std::max(wait.base, 0), end = std::min(wait.base + wait.extent, wait.limit);
  if (begin >= end) return {};
  return Range{int64_t{wait.counter} + begin / wait.div, int64_t{wait.counter} + (end - 1) / wait.div + 1};
}

struct Choice {
  std::vector<int64_t> first_word;  // per buffer
  int64_t num_words = 0;            // 0: nothing is flagged
  std::vector<plan::Flags> ops;
};

class Finder {
 public:
  explicit Finder(const plan::Plan& plan) : plan_(plan) {}

  Choice find() {
    const Choice none;
    if (plan_.buffers.empty() || plan_.world > 1 || plan_.ops.size() > kMostOps ||
        std::count_if(plan_.ops.begin(), plan_.ops.end(), is_few) < 2)
      return none;
    for (const plan::Op& op : plan_.ops) uses_.push_back(plan::operand_uses(op, plan_.programs));
    choose_buffers();
    if (result_.num_words == 0) return none;
    find_counters();
    drop_waits();
    if (dropped_ == 0 || !add_waits()) return none;
    split_waits();
    drop_arrivals();
    return std::move(result_);
  }

 private:
  size_t size() const { return plan_.ops.size(); }
  const abi::Operand& operand(size_t op, size_t i) const { return plan_.ops[op].operands[i]; }
  bool flagged(size_t op, size_t i) const { return i < 32 && (result_.ops[op].operands >> i & 1) != 0; }

  // ---- which buffers

  /// Whether few-row op `op` stores operand i densely, every element once.
  bool writes_whole(size_t op, size_t i) const {
    const abi::MatmulRowsParams& p = plan_.ops[op].record.params.rows;
    const abi::Operand& x = operand(op, i);
    for (int s = p.num_segments - 1; s >= 0; --s) {
      const abi::Segment& g = p.segment[s];
      if (static_cast<int>(i) < g.first_operand) continue;
      const int last = plan_.programs[static_cast<size_t>(g.program)].num_dims - 1;
      const int64_t columns = int64_t{g.num_units} * (p.gated ? 1 : p.lanes);
      return g.column == 0 && x.offset == 0 && x.stride[last] == 1 &&
             columns * size_bytes(static_cast<DType>(x.dtype)) == plan_.buffers[x.slot].size_bytes;
    }
    return false;  // an operand of the prologue
  }
  /// Whether a few-row op may read operand i as flagged words.
  bool reads_simply(size_t op, size_t i) const {
    const abi::MatmulRowsParams& p = plan_.ops[op].record.params.rows;
    const int at = static_cast<int>(i);
    if (at < p.prologue_operand) return false;          // weights
    if (at >= p.segment[0].first_operand) return true;  // epilogues read element by element
    return operand(op, i).vector * 2 >= 16 && operand(op, i).offset % 8 == 0;
  }

  void choose_buffers() {
    std::vector<int> writer(plan_.buffers.size(), -1);
    std::vector<bool> good(plan_.buffers.size(), true), read(plan_.buffers.size(), false);
    for (size_t op = 0; op < size(); ++op) {
      const bool few = is_few(plan_.ops[op]);
      for (size_t i = 0; i < uses_[op].size(); ++i) {
        const plan::OperandUse& use = uses_[op][i];
        if (!use.used()) continue;
        const abi::Operand& x = operand(op, i);
        const plan::Buffer& buffer = plan_.buffers[x.slot];
        bool fine = few && i < 32 && buffer.kind == plan::BufferKind::kArena && is_half_type(x.dtype) &&
                    !use.anywhere && !use.predicated && !use.once && use.read != use.write;
        if (use.write) {
          fine = fine && writer[x.slot] < 0 && !read[x.slot] && writes_whole(op, i);
          writer[x.slot] = static_cast<int>(op);
        } else {
          fine = fine && writer[x.slot] >= 0 && writer[x.slot] != static_cast<int>(op) && reads_simply(op, i);
          read[x.slot] = true;
        }
        if (!fine) good[x.slot] = false;
      }
    }
    result_.first_word.assign(plan_.buffers.size(), -1);
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      if (!good[b] || writer[b] < 0 || !read[b]) continue;
      result_.first_word[b] = result_.num_words;
      result_.num_words += (plan_.buffers[b].size_bytes / 2 + 31) / 32 * 32;
    }
    result_.ops.resize(size());
    for (size_t op = 0; op < size(); ++op)
      for (size_t i = 0; i < uses_[op].size() && i < 32; ++i)
        if (uses_[op][i].used() && result_.first_word[operand(op, i).slot] >= 0) result_.ops[op].operands |= 1u << i;
  }

  // ---- waits

  /// Who arrives on each counter.
  void find_counters() {
    arriving_.resize(static_cast<size_t>(plan_.num_counters));
    for (size_t op = 0; op < size(); ++op)
      for (int a = 0; a < plan_.ops[op].record.num_arrivals; ++a) {
        const Range range = all_of(plan_.ops[op].record.arrive[a]);
        for (int64_t c = range.begin; c < range.end; ++c) arriving_.at(static_cast<size_t>(c)).push_back({op, range});
      }
  }
  /// The ops that have ended, all tiles of them, when any tile has waited; empty: not known.
  std::vector<size_t> ended_by(const abi::Wait& wait) const {
    const std::optional<Range> range = same_for_all(wait);
    if (!range) return {};
    std::vector<size_t> ops;
    int64_t arrivals = 0, awaited = 0;
    for (int64_t c = range->begin; c < range->end; ++c) {
      const bool last = c - wait.counter == (wait.limit - 1) / wait.div;
      awaited += last ? wait.last_target : wait.target;
      for (const auto& [op, counters] : arriving_.at(static_cast<size_t>(c))) {
        if (counters.begin < range->begin || counters.end > range->end) return {};
        if (std::count(ops.begin(), ops.end(), op) != 0) continue;
        ops.push_back(op);
        arrivals += plan::num_tiles(plan_.ops[op].record);
      }
    }
    // each tile counts at least once: equal sums mean that every tile of every op is waited for
    return arrivals == awaited ? ops : std::vector<size_t>{};
  }

  /// Everything that `reader` reads of `writer` comes in flagged words, and something does.
  bool all_flagged(size_t writer, size_t reader) const {
    bool some = false;
    for (size_t i = 0; i < uses_[writer].size(); ++i) {
      if (!uses_[writer][i].write) continue;
      for (size_t k = 0; k < uses_[reader].size(); ++k) {
        if (!uses_[reader][k].used() || operand(reader, k).slot != operand(writer, i).slot) continue;
        if (!flagged(writer, i) || !flagged(reader, k)) return false;
        some = true;
      }
    }
    return some;
  }

  void drop_waits() {
    for (size_t op = 0; op < size(); ++op) {
      const abi::OpRecord& r = plan_.ops[op].record;
      for (int w = 0; w < r.num_waits; ++w) {
        const std::vector<size_t> ended = ended_by(r.wait[w]);
        const bool needless = is_few(plan_.ops[op]) && !ended.empty() &&
                              std::all_of(ended.begin(), ended.end(), [&](size_t p) { return all_flagged(p, op); });
        dropped_ += needless;
        if (needless) result_.ops[op].dropped_waits |= 1u << w;
      }
    }
  }

  /// As the loop kernel waits.
  std::vector<abi::Wait> waits_of(size_t op) const {
    const abi::OpRecord& r = plan_.ops[op].record;
    std::vector<abi::Wait> waits;
    for (int w = 0; w < r.num_waits; ++w)
      if ((result_.ops[op].dropped_waits >> w & 1) == 0) waits.push_back(r.wait[w]);
    const std::vector<abi::Wait>& added = result_.ops[op].added_waits;
    waits.insert(waits.end(), added.begin(), added.end());
    return waits;
  }

  // ---- what the waits that are left order

  struct Touch {
    size_t op;
    int64_t begin, end;  // bytes of the arena, or of the slot
    int64_t place;       // slot, or -1: the arena
    bool write;
  };
  Touch touch_of(size_t op, size_t i) const {
    const abi::Operand& x = operand(op, i);
    const plan::Buffer& b = plan_.buffers[x.slot];
    if (b.kind == plan::BufferKind::kArena)
      return {op, b.arena_offset, b.arena_offset + b.size_bytes, -1, uses_[op][i].write};
    return {op, 0, b.size_bytes, static_cast<int64_t>(x.slot), uses_[op][i].write};
  }

  void learn(size_t op, const std::vector<size_t>& ended) {
    for (size_t p : ended) {
      ended_[op][p] = true;
      for (size_t q = 0; q < p; ++q)
        if (ended_[p][q]) ended_[op][q] = true;
    }
  }

  /// Adds waits for earlier ops that touch the same memory and are not known to have ended; false: not possible.
  bool add_waits() {
    ended_.assign(size(), std::vector<bool>(size(), false));
    std::vector<Touch> earlier;
    for (size_t op = 0; op < size(); ++op) {
      for (const abi::Wait& wait : waits_of(op))
        // waits for fresh rows only hold up those rows
        if (wait.role == static_cast<int>(abi::WaitRole::kAll)) learn(op, ended_by(wait));
      std::vector<Touch> mine;
      for (size_t i = 0; i < uses_[op].size(); ++i)
        if (uses_[op][i].used() && !flagged(op, i) && !plan_.buffers[operand(op, i).slot].immutable)
          mine.push_back(touch_of(op, i));
      for (auto other = earlier.rbegin(); other != earlier.rend(); ++other) {  // the latest imply most
        if (ended_[op][other->op]) continue;
        const bool conflict = std::any_of(mine.begin(), mine.end(), [&](const Touch& t) {
          return t.place == other->place && (t.write || other->write) && t.begin < other->end && other->begin < t.end;
        });
        if (conflict && !add_wait(op, other->op)) return false;
      }
      drop_implied(op);
      if (waits_of(op).size() > static_cast<size_t>(abi::kMaxWaits)) return false;
      earlier.insert(earlier.end(), mine.begin(), mine.end());
    }
    return true;
  }
  bool add_wait(size_t op, size_t producer) {
    const std::optional<abi::Wait> wait = wait_for(producer);
    if (!wait) return false;
    const std::vector<size_t> ended = ended_by(*wait);
    if (*std::max_element(ended.begin(), ended.end()) >= op) return false;
    result_.ops[op].added_waits.push_back(*wait);
    learn(op, ended);
    return true;
  }
  /// Waits for some tiles of ops whose end another wait of the op means.
  void drop_implied(size_t op) {
    const abi::OpRecord& r = plan_.ops[op].record;
    for (int w = 0; w < r.num_waits; ++w)
      if (r.wait[w].role == static_cast<int>(abi::WaitRole::kAll) && ended_by(r.wait[w]).empty() &&
          all_ended(op, all_of(r.wait[w])))
        result_.ops[op].dropped_waits |= 1u << w;
  }
  /// Whether who arrives on these counters has ended when `op` has waited.
  bool all_ended(size_t op, const Range& counters) const {
    for (int64_t c = counters.begin; c < counters.end; ++c)
      for (const auto& [producer, range] : arriving_.at(static_cast<size_t>(c)))
        if (!ended_[op][producer]) return false;
    return true;
  }
  /// As some op of the plan waits for the end of `producer`, or for the tiles of it that one of its own needs: then for
  /// all of them.
  std::optional<abi::Wait> wait_for(size_t producer) const {
    std::optional<abi::Wait> widened;
    for (const plan::Op& op : plan_.ops)
      for (int w = 0; w < op.record.num_waits; ++w) {
        abi::Wait wait = op.record.wait[w];
        if (wait.role != static_cast<int>(abi::WaitRole::kAll)) continue;
        const bool same = same_for_all(wait).has_value();
        if (!same) wait = for_all_rows(wait);
        const std::vector<size_t> ended = ended_by(wait);
        if (std::count(ended.begin(), ended.end(), producer) == 0) continue;
        if (same) return wait;
        if (!widened) widened = wait;
      }
    return widened;
  }
  static abi::Wait for_all_rows(abi::Wait wait) {
    std::fill(std::begin(wait.coef), std::end(wait.coef), 0);
    wait.base = 0;
    wait.extent = wait.limit;
    return wait;
  }

  // ---- fewer counters: an op whose waits fall on one counter each asks for all of them at once

  /// Waits for several counters become one for each, where the record has room for them and no other wait is left that
  /// would be looked at apart: then they come one after the other, and one wait asks for its counters at once.
  void split_waits() {
    for (size_t op = 0; op < size(); ++op) {
      const abi::OpRecord& r = plan_.ops[op].record;
      plan::Flags& flags = result_.ops[op];
      uint32_t split = 0;
      bool alike = true;
      std::vector<abi::Wait> parts;
      for (int w = 0; w < r.num_waits; ++w) {
        if ((flags.dropped_waits >> w & 1) != 0) continue;
        const int64_t counters = num_counters(r.wait[w]);
        const bool splits = counters > 1 && r.wait[w].role == static_cast<int>(abi::WaitRole::kAll);
        alike = alike && (counters == 1 || splits);
        if (!splits) continue;
        split |= 1u << w;
        append_parts(r.wait[w], parts);
      }
      for (const abi::Wait& wait : flags.added_waits) append_parts(wait, parts);
      const size_t kept = waits_of(op).size() - flags.added_waits.size() - static_cast<size_t>(std::popcount(split));
      if (!alike || kept + parts.size() > static_cast<size_t>(abi::kMaxWaits)) continue;
      flags.dropped_waits |= split;
      flags.added_waits = std::move(parts);
    }
  }
  /// 0: they differ from tile to tile.
  static int64_t num_counters(const abi::Wait& wait) {
    const std::optional<Range> range = same_for_all(wait);
    return range ? range->end - range->begin : 0;
  }
  static void append_parts(const abi::Wait& wait, std::vector<abi::Wait>& parts) {
    const int end = std::min(wait.base + wait.extent, wait.limit);
    for (int row = std::max(wait.base, 0), next; row < end; row = next) {
      next = std::min((row / wait.div + 1) * wait.div, end);
      parts.push_back(wait);
      parts.back().base = row;
      parts.back().extent = next - row;
    }
  }

  /// Arrivals that nobody waits for any more.
  void drop_arrivals() {
    std::vector<bool> wanted(static_cast<size_t>(plan_.num_counters), false);
    for (size_t op = 0; op < size(); ++op)
      for (const abi::Wait& wait : waits_of(op))
        for (int64_t c = all_of(wait).begin; c < all_of(wait).end; ++c) wanted.at(static_cast<size_t>(c)) = true;
    for (size_t op = 0; op < size(); ++op) {
      const abi::OpRecord& r = plan_.ops[op].record;
      for (int a = 0; a < r.num_arrivals; ++a) {
        const Range range = all_of(r.arrive[a]);
        if (std::count(wanted.begin() + range.begin, wanted.begin() + range.end, true) == 0)
          result_.ops[op].dropped_arrivals |= 1u << a;
      }
    }
  }

  const plan::Plan& plan_;
  Choice result_;
  std::vector<std::vector<plan::OperandUse>> uses_;
  std::vector<std::vector<std::pair<size_t, Range>>> arriving_;  // per counter
  std::vector<std::vector<bool>> ended_;
  int dropped_ = 0;
};

}  // namespace

void flag_words(plan::Plan& plan) {
  Choice choice = Finder(plan).find();
  const bool some = choice.num_words > 0;
  plan.num_flag_words = choice.num_words;
  for (size_t b = 0; b < plan.buffers.size(); ++b) plan.buffers[b].first_word = some ? choice.first_word[b] : -1;
  for (size_t op = 0; op < plan.ops.size(); ++op) plan.ops[op].flags = some ? std::move(choice.ops[op]) : plan::Flags();
}

}  // namespace ark::planner
