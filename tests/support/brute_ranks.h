// Ranks and launches of a plan with exchanges by enumeration: memory of segments byte by byte, counters that go on
// counting from launch to launch, every tile of every rank. Knows what abi.h and plan.h say of waits, arrivals and
// boxes, and shares no code with the verifier; no order of ops is taken for granted. For plans of some dozen tiles.
#pragma once
#include <optional>
#include <tuple>

#include "support/plan_brute.h"

namespace ark::test {

class BruteRanks {
 public:
  using Pairs = std::set<std::pair<int64_t, int64_t>>;

  explicit BruteRanks(const plan::Plan& plan, int launches = 3) : plan_(plan) {
    for (int launch = 0; launch < launches; ++launch)
      for (size_t op = 0; op < plan.ops.size(); ++op)
        for (int rank = 0; rank < num_ranks(); ++rank)
          for (int64_t tile = 0; tile < plan::num_tiles(plan.ops[op].record); ++tile)
            tiles_.push_back({launch, rank, op, tile});
    words_ = tiles_.size() / 64 + 1;
  }

  /// Pairs of tiles of different ops, ranks or launches that share bytes which one of them writes; the first one is of
  /// an earlier launch, or op.
  Pairs conflicts(int box_sets = 2) const {
    MarkLists lists;
    std::map<Place, std::vector<MarkLists::List>> memory;  // per two bytes: marks 2 * tile + writes
    const BrutePlan brute(plan_);
    for (size_t i = 0; i < tiles_.size(); ++i) {
      const Tile& t = tiles_[i];
      std::vector<MarkLists::List>* marks = nullptr;
      std::optional<uint32_t> last;  // the slot of the marks
      brute.touch(t.op, t.tile, [&](uint32_t slot, int64_t byte, int64_t bytes, bool write) {
        const plan::Buffer& b = plan_.buffers[slot];
        if (b.kind == plan::BufferKind::kConstant || !reads(t, slot, write)) return;
        if (last != slot) marks = &memory[place_of(t, slot, box_sets)], last = slot;
        const int64_t at = byte + begin_of(b, coordinate(t.rank, b.group)), end = (at + bytes + 1) / 2;
        if (static_cast<int64_t>(marks->size()) < end) marks->resize(static_cast<size_t>(end));
        const int64_t mark = 2 * static_cast<int64_t>(i) + write;
        for (int64_t unit = at / 2; unit < end; ++unit) {
          MarkLists::List& here = (*marks)[static_cast<size_t>(unit)];
          here = lists.add(here, mark);
        }
      });
    }
    std::set<MarkLists::List> different;
    for (const auto& [place, marks] : memory) add_different(marks, different);
    Pairs found;
    for (const MarkLists::List list : different) {
      const std::vector<int64_t> here = lists.marks(list);
      for (size_t i = 0; i < here.size(); ++i)
        for (size_t j = i + 1; j < here.size(); ++j)
          if (((here[i] | here[j]) & 1) && !same_op(here[i] / 2, here[j] / 2))
            found.emplace(std::min(here[i] / 2, here[j] / 2), std::max(here[i] / 2, here[j] / 2));
    }
    return found;
  }

  /// Whether the first tile of every pair has always ended before the second begins. `in_order`: a rank begins a launch
  /// when it has ended the one before.
  bool all_ordered(const Pairs& pairs, bool in_order = true) {
    find_order(in_order);
    return std::all_of(pairs.begin(), pairs.end(),
                       [&](const auto& pair) { return is_before(pair.first, pair.second); });
  }

 private:
  struct Tile {
    int launch, rank;
    size_t op;
    int64_t tile;
  };
  using Counter = std::pair<int, int64_t>;  // rank where it lies, number
  using Set = std::vector<uint64_t>;        // of tiles

  using Place =
      std::tuple<int, int, int64_t>;  // rank, launch or set of boxes, slot (-1: arena, -2, -3, ..: boxes of groups)

  Place place_of(const Tile& t, uint32_t slot, int box_sets) const {
    const plan::Buffer& b = plan_.buffers[slot];
    switch (b.kind) {
      case plan::BufferKind::kArena:
        return {t.rank, 0, -1};
      case plan::BufferKind::kOutput:
        return {t.rank, t.launch, static_cast<int64_t>(slot)};
      case plan::BufferKind::kBox:
      case plan::BufferKind::kBoxes:
        return {t.rank, t.launch % box_sets, -2 - b.group};
      case plan::BufferKind::kBoxOut:
        return {peer(t.rank, b.group, b.index), t.launch % box_sets, -2 - b.group};
      default:
        return {t.rank, 0, static_cast<int64_t>(slot)};
    }
  }
  /// Groups are the dimensions of a mesh of ranks.
  int num_ranks() const {
    int count = 1;
    for (int g = 0; g < plan::num_groups(plan_); ++g) count *= world_of(plan_, g);
    return count;
  }
  int stride_of(int group) const {
    int stride = 1;
    for (int g = 0; g < group; ++g) stride *= world_of(plan_, g);
    return stride;
  }
  int coordinate(int rank, int group) const { return rank / stride_of(group) % world_of(plan_, group); }
  int peer(int rank, int group, int index) const { return rank + (index - coordinate(rank, group)) * stride_of(group); }
  /// Where a buffer of a rank begins: an out-box at the box for what that rank sends.
  static int64_t begin_of(const plan::Buffer& b, int rank) {
    if (b.kind == plan::BufferKind::kBoxOut) return b.arena_offset + (rank - b.index) * plan::box_stride(b.size_bytes);
    return b.kind == plan::BufferKind::kArena || plan::is_read_box(b.kind) ? b.arena_offset : 0;
  }

  /// A product with own rows reads the boxes of others, and in the own batch the own rows instead.
  bool reads(const Tile& t, uint32_t slot, bool write) const {
    const plan::Op& op = plan_.ops[t.op];
    const abi::OpRecord& r = op.record;
    if (write || r.kind != abi::TaskKind::kMatmulTile || r.params.matmul.own_rows == 0) return true;
    const bool own = t.tile / (r.grid[1] * r.grid[2]) == t.rank;
    return slot == op.operands[0].slot ? !own : slot != op.operands[2].slot || own;
  }

  bool same_op(int64_t a, int64_t b) const {
    const Tile &x = tiles_[static_cast<size_t>(a)], &y = tiles_[static_cast<size_t>(b)];
    return x.launch == y.launch && x.rank == y.rank && x.op == y.op;
  }
  bool is_before(int64_t a, int64_t b) const {
    return before_[static_cast<size_t>(b)][static_cast<size_t>(a / 64)] >> (a % 64) & 1;
  }

  /// What is known to be before what grows until nothing more follows.
  void find_order(bool in_order) {
    in_order_ = in_order;
    before_.assign(tiles_.size(), Set(words_, 0));
    arrivals_.clear();
    for (size_t i = 0; i < tiles_.size(); ++i) count(i);
    for (bool more = true; more;) {
      more = false;
      ended_.clear();
      for (size_t i = 0; i < tiles_.size(); ++i) more |= follow(i);
    }
  }
  void put_before(size_t tile, size_t earlier) {
    before_[tile][earlier / 64] |= uint64_t{1} << (earlier % 64);
    for (size_t word = 0; word < words_; ++word) before_[tile][word] |= before_[earlier][word];
  }

  void count(size_t i) {
    const Tile& t = tiles_[i];
    const abi::OpRecord& r = plan_.ops[t.op].record;
    for (int a = 0; a < r.num_arrivals; ++a)
      for (int64_t k : BrutePlan::counters(r.arrive[a], r, t.tile)) {
        const int stride = r.arrive_rank_stride[a];
        if (stride == 0) arrivals_[{t.rank, k}].push_back(static_cast<int64_t>(i));
        const int group = group_of_counter(plan_, r.arrive[a].counter);
        for (int rank = 0; stride != 0 && rank < world_of(plan_, group); ++rank)
          arrivals_[{peer(t.rank, group, rank), k + coordinate(t.rank, group) * stride}].push_back(
              static_cast<int64_t>(i));
      }
  }

  int ranks_of(const abi::Wait& wait) const {
    return wait.rank_stride == 0 ? 1 : world_of(plan_, group_of_counter(plan_, wait.counter));
  }

  /// Everything before tile i by the launch before and by its waits, as far as the order is known. True when that is
  /// more than it was.
  bool follow(size_t i) {
    const Tile& t = tiles_[i];
    const abi::OpRecord& r = plan_.ops[t.op].record;
    const Set old = before_[i];
    for (size_t a = 0; in_order_ && a < i; ++a)
      if (tiles_[a].rank == t.rank && tiles_[a].launch + 1 == t.launch) put_before(i, a);
    for (int w = 0; w < r.num_waits; ++w)
      for (int64_t k : BrutePlan::counters(r.wait[w], r, t.tile))
        for (int rank = 0; rank < ranks_of(r.wait[w]); ++rank) {
          const abi::Wait& wait = r.wait[w];
          const int64_t batch = t.tile / (r.grid[1] * r.grid[2]);
          if (wait.role == static_cast<int>(abi::WaitRole::kSource) && (rank != batch || rank == t.rank)) continue;
          const bool last = k == wait.counter + (wait.limit - 1) / wait.div;
          const int64_t target = int64_t{t.launch + 1} * (last ? wait.last_target : wait.target);
          for (int64_t earlier : ended({t.rank, k + rank * wait.rank_stride}, target))
            put_before(i, static_cast<size_t>(earlier));
        }
    return before_[i] != old;
  }

  /// The tiles without which a counter cannot reach a number: too few others arrive that do not come after them.
  const std::vector<int64_t>& ended(Counter counter, int64_t number) {
    const auto [known, is_new] = ended_.try_emplace({counter, number});
    if (!is_new) return known->second;
    const std::vector<int64_t>& all = arrivals_[counter];
    for (int64_t tile : all) {
      const auto without = std::count_if(all.begin(), all.end(),
                                         [&](int64_t other) { return other != tile && !is_before(tile, other); });
      if (without < number) known->second.push_back(tile);
    }
    return known->second;
  }

  const plan::Plan& plan_;
  std::vector<Tile> tiles_;
  size_t words_;
  bool in_order_ = true;
  std::vector<Set> before_;
  std::map<Counter, std::vector<int64_t>> arrivals_;
  std::map<std::pair<Counter, int64_t>, std::vector<int64_t>> ended_;
};

}  // namespace ark::test
