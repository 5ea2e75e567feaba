// A brute-force check of waits: which tiles are finished before which, by the records' counters alone, against which
// tiles touch the same elements. Exact for plans of a few thousand tiles.
#pragma once
#include <algorithm>
#include <vector>

#include "planner/draft.h"
#include "support/fused_builder.h"

namespace ark::test {

class Oracle {
 public:
  /// The draft's ops must have grids, waits and arrivals; slots are storages.
  explicit Oracle(const planner::Draft& draft) : draft_(draft) {
    first_tile_.push_back(0);
    for (const FusedOp& op : draft.graph.ops)
      first_tile_.push_back(first_tile_.back() + planner::num_tiles(op.op.record));
    words_ = (first_tile_.back() + 63) / 64;
    compute();
  }

  /// Pairs of tiles that touch the same element, one of them writing, and are not ordered. Also wrong targets.
  int races() const {
    int races = wrong_targets_;
    const auto& ops = draft_.graph.ops;
    for (size_t i = 0; i < ops.size(); ++i) {
      for (size_t p = 0; p < i; ++p) races += races_between(static_cast<int>(p), static_cast<int>(i));
    }
    return races;
  }
  /// Mean over the op's tiles of the fraction of tiles of `before` that they wait for, directly or not.
  double fraction_awaited(int op, int before) const {
    int64_t count = 0;
    for (int64_t t = first_tile_[op]; t < first_tile_[op + 1]; ++t) {
      for (int64_t s = first_tile_[before]; s < first_tile_[before + 1]; ++s) count += has(t, s);
    }
    return static_cast<double>(count) / static_cast<double>((first_tile_[op + 1] - first_tile_[op]) *
                                                            (first_tile_[before + 1] - first_tile_[before]));
  }

 private:
  bool has(int64_t tile, int64_t earlier) const {
    return ancestors_[tile * words_ + earlier / 64] >> (earlier % 64) & 1;
  }

  template <class Map>
  static void for_each_counter(const Map& map, const abi::OpRecord& r, int64_t tile, auto f) {
    const int64_t c0 = tile / r.grid[2] / r.grid[1], c1 = tile / r.grid[2] % r.grid[1], c2 = tile % r.grid[2];
    const int64_t row = map.base + c0 * map.coef[0] + c1 * map.coef[1] + c2 * map.coef[2];
    const int64_t begin = std::max<int64_t>(row, 0), end = std::min<int64_t>(row + map.extent, map.limit);
    if (begin >= end) return;
    for (int64_t k = begin / map.div; k <= (end - 1) / map.div; ++k) f(map.counter + k, k == (map.limit - 1) / map.div);
  }

  void compute() {
    ancestors_.assign(first_tile_.back() * words_, 0);
    std::vector<std::vector<int64_t>> arrivals(draft_.num_counters);
    const auto& ops = draft_.graph.ops;
    for (size_t i = 0; i < ops.size(); ++i) {
      const abi::OpRecord& r = ops[i].op.record;
      for (int64_t t = 0; t < planner::num_tiles(r); ++t) {
        const int64_t tile = first_tile_[i] + t;
        for (int w = 0; w < r.num_waits; ++w) {
          for_each_counter(r.wait[w], r, t, [&](int64_t counter, bool last) {
            const uint32_t target = last ? r.wait[w].last_target : r.wait[w].target;
            if (arrivals[counter].size() != target) ++wrong_targets_;
            for (int64_t earlier : arrivals[counter]) {
              ancestors_[tile * words_ + earlier / 64] |= uint64_t{1} << (earlier % 64);
              for (int64_t k = 0; k < words_; ++k) ancestors_[tile * words_ + k] |= ancestors_[earlier * words_ + k];
            }
          });
        }
      }
      for (int64_t t = 0; t < planner::num_tiles(r); ++t) {
        for (int a = 0; a < r.num_arrivals; ++a) {
          for_each_counter(r.arrive[a], r, t,
                           [&](int64_t counter, bool) { arrivals[counter].push_back(first_tile_[i] + t); });
        }
      }
    }
  }

  struct Span {
    int64_t first, last;
  };
  Span span(int op, int operand, int64_t tile) const {
    const abi::OpRecord& r = draft_.graph.ops[op].op.record;
    const uint32_t slot = draft_.graph.ops[op].op.operands[operand].slot;
    const planner::Footprint f =
        planner::footprint(draft_.graph.ops[op].op, draft_.graph.programs, operand, draft_.graph.storages[slot]);
    const int64_t c0 = tile / r.grid[2] / r.grid[1], c1 = tile / r.grid[2] % r.grid[1], c2 = tile % r.grid[2];
    const int64_t begin = f.base + c0 * f.step[0] + c1 * f.step[1] + c2 * f.step[2];
    int64_t last = begin + f.extent - 1;
    if (f.granule > 0) last = begin < 0 ? begin : begin / f.granule * f.granule + f.granule - 1;
    return {std::max(begin, f.first), std::min(last, f.last)};
  }

  int races_between(int p, int i) const {
    const FusedOp &a = draft_.graph.ops[p], &b = draft_.graph.ops[i];
    int races = 0;
    for (size_t x = 0; x < a.op.operands.size(); ++x) {
      for (size_t y = 0; y < b.op.operands.size(); ++y) {
        if (a.access[x] == Access::kParameters || b.access[y] == Access::kParameters) continue;
        if (a.op.operands[x].slot == abi::kNoSlot || a.op.operands[x].slot != b.op.operands[y].slot) continue;
        if (a.access[x] == Access::kRead && b.access[y] == Access::kRead) continue;
        const planner::Storage& storage = draft_.graph.storages[a.op.operands[x].slot];
        if (planner::disjoint(a.op, static_cast<int>(x), b.op, static_cast<int>(y), draft_.graph.programs, storage))
          continue;
        for (int64_t s = 0; s < planner::num_tiles(a.op.record); ++s) {
          const Span left = span(p, static_cast<int>(x), s);
          for (int64_t t = 0; t < planner::num_tiles(b.op.record); ++t) {
            const Span right = span(i, static_cast<int>(y), t);
            if (std::max(left.first, right.first) > std::min(left.last, right.last)) continue;
            races += !has(first_tile_[i] + t, first_tile_[p] + s);
          }
        }
      }
    }
    return races;
  }

  const planner::Draft& draft_;
  std::vector<int64_t> first_tile_;
  int64_t words_ = 0;
  std::vector<uint64_t> ancestors_;  // per tile: bit set of the tiles that are finished before it starts
  int wrong_targets_ = 0;
};

}  // namespace ark::test
