// The meaning of a plan by enumeration: every element that every tile touches, every tile that every tile waits for.
// Slow and plain; shares no code with the planner or its verifier. For plans of some hundred tiles over some megabytes.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "plan/plan.h"
#include "support/mark_lists.h"

namespace ark::test {

class BrutePlan {
 public:
  explicit BrutePlan(const plan::Plan& plan) : plan_(plan) {
    for (const plan::Op& op : plan.ops) {
      first_tile_.push_back(num_tiles_);
      num_tiles_ += int64_t{op.record.grid[0]} * op.record.grid[1] * op.record.grid[2];
    }
    first_tile_.push_back(num_tiles_);
  }

  /// Pairs (earlier, later) of tiles of different ops that share an element which one of them writes.
  std::set<std::pair<int64_t, int64_t>> conflicts() const {
    MarkLists lists;
    std::map<int64_t, std::vector<MarkLists::List>> memories;  // per two bytes: marks 2 * tile + writes
    for (size_t op = 0; op < plan_.ops.size(); ++op)
      for (int64_t t = first_tile_[op]; t < first_tile_[op + 1]; ++t)
        touch(op, t - first_tile_[op], [&](uint32_t slot, int64_t byte, int64_t bytes, bool write) {
          const plan::Buffer& buffer = plan_.buffers[slot];
          check(byte >= 0 && byte + bytes <= buffer.size_bytes, "brute: out of bounds in slot ", slot);
          bool arena = buffer.kind == plan::BufferKind::kArena;
          const bool sent = buffer.kind == plan::BufferKind::kBoxOut;  // what peers' tiles write here
          const plan::Buffer& place = sent ? plan_.buffers[static_cast<size_t>(buffer.twin)] : buffer;
          const bool box = plan::is_read_box(place.kind);
          auto& memory = memories[arena ? -1 : box ? -2 : static_cast<int64_t>(slot)];
          int64_t at = (byte + (arena || box ? place.arena_offset : 0)) / 2, end = at + (bytes + 1) / 2;
          if (static_cast<int64_t>(memory.size()) < end) memory.resize(static_cast<size_t>(end));
          int64_t mark = 2 * t + write;
          for (; at < end; ++at) memory[static_cast<size_t>(at)] = lists.add(memory[static_cast<size_t>(at)], mark);
        });
    std::set<MarkLists::List> different;
    for (const auto& [name, memory] : memories) add_different(memory, different);
    std::set<std::pair<int64_t, int64_t>> found;
    for (const MarkLists::List list : different) {
      const std::vector<int64_t> marks = lists.marks(list);
      for (size_t i = 0; i < marks.size(); ++i)
        for (size_t j = i + 1; j < marks.size(); ++j) {
          int64_t a = std::min(marks[i] / 2, marks[j] / 2), b = std::max(marks[i] / 2, marks[j] / 2);
          if (((marks[i] | marks[j]) & 1) && op_of(a) != op_of(b)) found.emplace(a, b);
        }
    }
    return found;
  }

  /// Whether a tile of every pair is finished before the other starts, by waits alone.
  bool all_ordered(const std::set<std::pair<int64_t, int64_t>>& pairs) const {
    size_t words = static_cast<size_t>(num_tiles_ + 63) / 64;
    std::vector<std::vector<uint64_t>> before(static_cast<size_t>(num_tiles_));  // bit sets of tiles
    auto has = [](const std::vector<uint64_t>& set, int64_t tile) {
      return set[static_cast<size_t>(tile / 64)] >> (tile % 64) & 1;
    };
    std::vector<std::vector<int64_t>> arrived(static_cast<size_t>(plan_.num_counters));
    for (size_t op = 0; op < plan_.ops.size(); ++op) {
      const abi::OpRecord& r = plan_.ops[op].record;
      for (int64_t t = first_tile_[op]; t < first_tile_[op + 1]; ++t) {
        auto& own = before[static_cast<size_t>(t)];
        own.assign(words, 0);
        for (int w = 0; w < r.num_waits; ++w)
          for (int64_t k : counters(r.wait[w], r, t - first_tile_[op]))
            for (int64_t other : arrived[static_cast<size_t>(k)]) {
              if (has(own, other)) continue;
              own[static_cast<size_t>(other / 64)] |= uint64_t{1} << (other % 64);
              for (size_t i = 0; i < words; ++i) own[i] |= before[static_cast<size_t>(other)][i];
            }
      }
      for (int64_t t = first_tile_[op]; t < first_tile_[op + 1]; ++t)
        for (int a = 0; a < r.num_arrivals; ++a)
          for (int64_t k : counters(r.arrive[a], r, t - first_tile_[op])) arrived[static_cast<size_t>(k)].push_back(t);
    }
    return std::all_of(pairs.begin(), pairs.end(),
                       [&](const auto& pair) { return has(before[static_cast<size_t>(pair.second)], pair.first); });
  }

  using Visit = std::function<void(uint32_t slot, int64_t byte, int64_t bytes, bool write)>;
  /// Everything that a tile reads and writes. A whole buffer, which each element of a gather may read, is told once.
  void touch(size_t index, int64_t tile, const Visit& every) const {
    constexpr int64_t kElement = 8;
    std::set<std::tuple<uint32_t, int64_t, int64_t, bool>> told;
    const Visit visit = [&](uint32_t slot, int64_t byte, int64_t bytes, bool write) {
      if (bytes <= kElement || told.emplace(slot, byte, bytes, write).second) every(slot, byte, bytes, write);
    };
    const plan::Op& op = plan_.ops[index];
    const abi::OpRecord& r = op.record;
    using enum abi::TaskKind;
    int64_t c[3] = {tile / r.grid[2] / r.grid[1], tile / r.grid[2] % r.grid[1], tile % r.grid[2]};
    switch (r.kind) {
      case kPointwise:
      case kRow:
      case kColumn:
        return touch_program(op, tile, visit);
      case kMatmulTile:
      case kMatmulFloat:
      case kMatmulSimple:
        return touch_matmul(op, c, visit);
      case kMatmulRows:
        return touch_rows(op, tile, visit);
      case kAttentionForward:
      case kAttentionSimple:
        return touch_attention(op, c, visit);
      case kAttentionDecode:
        return touch_decode(op, c, visit);
      case kMaskRange:
        return touch_mask_range(op, c, visit);
      case kScatterSum:
        return touch_scatter_sum(op, c, visit);
      case kRowSelect:
        return touch_row_select(op, c, visit);
      case kRowDraw:
        return touch_row_draw(op, c, visit);
      default:
        return touch_backward(op, c, visit);
    }
  }
  /// The counters of a wait or an arrival.
  template <class Map>
  static std::vector<int64_t> counters(const Map& map, const abi::OpRecord& r, int64_t tile) {
    std::vector<int64_t> out;
    int64_t first = map.base + tile / (r.grid[1] * r.grid[2]) * map.coef[0] +
                    tile / r.grid[2] % r.grid[1] * map.coef[1] + tile % r.grid[2] * map.coef[2];
    for (int64_t row = first; row < first + map.extent; ++row)
      if (row >= 0 && row < map.limit && (out.empty() || out.back() != map.counter + row / map.div))
        out.push_back(map.counter + row / map.div);
    return out;
  }

 private:
  using Index = std::vector<int64_t>;

  size_t op_of(int64_t tile) const {
    return static_cast<size_t>(std::upper_bound(first_tile_.begin(), first_tile_.end(), tile) - first_tile_.begin()) -
           1;
  }

  /// All index vectors of `sizes`, innermost fastest.
  static void each(const Index& sizes, const std::function<void(const Index&)>& visit) {
    Index x(sizes.size(), 0);
    for (int64_t n : sizes)
      if (n == 0) return;
    while (true) {
      visit(x);
      size_t d = sizes.size();
      while (d > 0 && ++x[d - 1] == sizes[d - 1]) x[--d] = 0;
      if (d == 0) return;
    }
  }

  void element(const plan::Op& op, int operand, const Index& x, bool write, const Visit& visit) const {
    const abi::Operand& o = op.operands[static_cast<size_t>(operand)];
    if (o.slot == abi::kNoSlot) return;
    int64_t bytes = size_bytes(static_cast<DType>(o.dtype)), at = o.offset;
    if (o.index_operand >= 0) return visit(o.slot, 0, plan_.buffers[o.slot].size_bytes, write);
    for (size_t d = 0; d < x.size(); ++d) at += x[d] * o.stride[d];
    visit(o.slot, at * bytes, bytes, write);
  }

  /// Loads and stores of a program at one element; `last` of the phases' elements: 0 for those once per row or column.
  void program(const plan::Op& op, int number, int first, const Index& x, bool once, bool each_element,
               const Visit& visit) const {
    const Program& p = plan_.programs[static_cast<size_t>(number)];
    const bool column = p.kind == ProgramKind::kColumn;
    std::vector<bool> reduced(column ? p.instrs.size() : 0, false);  // of columns alone
    for (size_t i = 0; i < p.instrs.size(); ++i) {
      const Instr& instr = p.instrs[i];
      if (column) {
        for (int arg : {instr.a, instr.b, instr.c, instr.d})
          reduced[i] = reduced[i] || (arg >= 0 && reduced[static_cast<size_t>(arg)]);
        reduced[i] = reduced[i] || instr.op == Opcode::kReduce;
      }
      bool store = instr.op == Opcode::kStore;
      if (instr.op == Opcode::kLoadParts)
        for (int k = first + instr.operand; k < first + instr.operand + 5; ++k) {
          uint32_t slot = op.operands[static_cast<size_t>(k)].slot;
          if (slot != abi::kNoSlot) visit(slot, 0, plan_.buffers[slot].size_bytes, false);
        }
      if (instr.op != Opcode::kLoad && !store) continue;
      bool rare = store && (column ? static_cast<bool>(reduced[i]) : instr.uniform);
      if (!(rare ? once : each_element)) continue;
      bool predicated = (store ? instr.d : instr.c) >= 0;  // happens or not: inside of the buffer it may
      element(op, first + instr.operand, x, store, [&](uint32_t slot, int64_t byte, int64_t bytes, bool write) {
        bool inside = byte >= 0 && byte + bytes <= plan_.buffers[slot].size_bytes;
        if (inside || !predicated) visit(slot, byte, bytes, write);
      });
    }
  }

  void touch_program(const plan::Op& op, int64_t tile, const Visit& visit) const {
    const abi::ProgramParams& p = op.record.params.program;
    Index sizes(op.record.size, op.record.size + p.num_dims);
    int outer = op.record.kind == abi::TaskKind::kRow ? p.num_dims - p.reduce_dims : p.num_dims;
    bool column = op.record.kind == abi::TaskKind::kColumn;
    each(sizes, [&](const Index& x) {
      int64_t flat = 0;
      bool origin = true;  // all reduced coordinates are 0
      for (int d = column ? p.reduce_dims : 0; d < outer; ++d)
        flat = flat * sizes[static_cast<size_t>(d)] + x[static_cast<size_t>(d)];
      for (int d = 0; d < p.num_dims; ++d)
        if (column ? d < p.reduce_dims : d >= outer) origin = origin && x[static_cast<size_t>(d)] == 0;
      if (flat / p.tile == tile) program(op, p.program, p.first_operand, x, origin, true, visit);
    });
  }

  void touch_matmul(const plan::Op& op, const int64_t* c, const Visit& visit) const {
    const abi::MatmulTileParams& p = op.record.params.matmul;
    int64_t m0 = c[1] * p.tile_m, n0 = c[2] * p.tile_n;
    int64_t rows = std::min<int64_t>(p.tile_m, p.m - m0), columns = std::min<int64_t>(p.tile_n, p.n - n0);
    each({rows, p.k}, [&](const Index& x) { element(op, 0, {c[0], m0 + x[0], x[1]}, false, visit); });
    if (op.record.kind == abi::TaskKind::kMatmulTile && p.own_rows != 0)  // of any batch: it knows no rank
      each({rows, p.k}, [&](const Index& x) { element(op, 2, {c[0], m0 + x[0], x[1]}, false, visit); });
    for (int weight : p.gated != 0 ? std::vector<int>{1, 2} : std::vector<int>{1})
      each({p.k, columns}, [&](const Index& x) { element(op, weight, {c[0], x[0], n0 + x[1]}, false, visit); });
    each({rows, columns}, [&](const Index& x) {
      program(op, p.program, p.first_operand, {c[0], m0 + x[0], n0 + x[1]}, true, true, visit);
    });
  }

  void touch_rows(const plan::Op& op, int64_t unit, const Visit& visit) const {
    const abi::MatmulRowsParams& p = op.record.params.rows;
    bool ranked = plan_.programs[static_cast<size_t>(p.prologue)].num_dims == 3;
    each({p.m, p.k}, [&](const Index& x) {
      program(op, p.prologue, p.prologue_operand, ranked ? Index{0, x[0], x[1]} : x, true, true, visit);
    });
    for (int s = 0; s < p.num_segments; ++s) {
      const abi::Segment& g = p.segment[s];
      int64_t u = unit - g.first_unit, d = p.pair_distance;
      if (u < 0 || u >= g.num_units) continue;
      std::vector<int64_t> columns{g.column + u};
      if (p.lanes == 2 && !p.gated) columns = {g.column + u / d * 2 * d + u % d, g.column + u / d * 2 * d + u % d + d};
      for (int64_t n : columns) {
        for (int64_t k = 0; k < p.k; ++k) {
          element(op, g.weight, {n, k}, false, visit);
          if (p.gated) element(op, g.weight2, {n, k}, false, visit);
        }
        for (int64_t m = 0; m < p.m; ++m) program(op, g.program, g.first_operand, {0, m, n}, true, true, visit);
      }
    }
  }

  void touch_attention(const plan::Op& op, const int64_t* c, const Visit& visit) const {
    const abi::AttentionParams& p = op.record.params.attention;
    int64_t block = p.tile_q, first = c[2] * block;
    int64_t count = std::min(block, p.queries - first), kv = c[1] / (p.heads / p.kv_heads);
    each({count, p.head_dim}, [&](const Index& x) { element(op, 0, {c[0], c[1], first + x[0], x[1]}, false, visit); });
    each({p.keys, p.head_dim}, [&](const Index& x) { element(op, 1, {c[0], kv, x[0], x[1]}, false, visit); });
    each({p.keys, p.value_dim}, [&](const Index& x) { element(op, 2, {c[0], kv, x[0], x[1]}, false, visit); });
    each({count, p.value_dim}, [&](const Index& x) { element(op, 3, {c[0], c[1], first + x[0], x[1]}, true, visit); });
    for (int64_t s = first; s < first + count; ++s) element(op, 4, {c[0], c[1], s}, true, visit);
    each({count, p.keys}, [&](const Index& x) { element(op, 5, {c[0], c[1], first + x[0], x[1]}, false, visit); });
    for (int64_t i : {0, 1}) element(op, 6, {c[0], c[1], first / 128, i}, false, visit);
  }

  /// A part reads some of the keys, which ones the mask says: all of them here.
  void touch_decode(const plan::Op& op, const int64_t* c, const Visit& visit) const {
    const abi::AttentionParams& p = op.record.params.attention;
    int64_t group = p.heads / p.kv_heads, h = c[1] * group;
    auto all = [&](int operand, int64_t first_head, const Index& sizes, bool write) {
      each(sizes, [&](Index x) {
        x[0] += first_head;
        x.insert(x.begin(), c[0]);
        element(op, operand, x, write, visit);
      });
    };
    all(0, h, {group, p.queries, p.head_dim}, false);
    all(1, c[1], {1, p.keys, p.head_dim}, false);
    all(2, c[1], {1, p.keys, p.value_dim}, false);
    all(3, h, {group, p.queries, p.value_dim}, true);
    all(4, h, {group, p.queries}, true);
    all(5, h, {group, p.queries, p.keys}, false);
    for (int64_t head = h; head < h + group; ++head)
      for (int64_t i : {0, 1}) element(op, 6, {c[0], head, 0, i}, false, visit);
    for (int operand : {7, 8})
      if (static_cast<int>(op.operands.size()) > operand)
        each({group * p.queries, operand == 7 ? p.value_dim : 2},
             [&](const Index& x) { element(op, operand, {c[0], c[1], c[2], x[0], x[1]}, true, visit); });
    if (op.operands.size() > 9) element(op, 9, {}, false, visit);
  }

  void touch_mask_range(const plan::Op& op, const int64_t* c, const Visit& visit) const {
    const abi::MaskRangeParams& p = op.record.params.mask_range;
    int64_t first = c[2] * p.block, count = std::min<int64_t>(p.block, p.queries - first);
    each({count, p.keys}, [&](const Index& x) { element(op, 0, {c[0], c[1], first + x[0], x[1]}, false, visit); });
    for (int64_t i : {0, 1}) element(op, 1, {c[0], c[1], c[2], i}, true, visit);
  }

  void touch_scatter_sum(const plan::Op& op, const int64_t* c, const Visit& visit) const {
    const abi::ScatterSumParams& p = op.record.params.scatter_sum;
    const int64_t wide = int64_t{p.lanes} * p.vector, row = c[0] * p.tile_rows, column = c[1] * wide;
    const int64_t rows = std::min<int64_t>(p.tile_rows, p.rows - row), columns = std::min(wide, p.columns - column);
    each({p.terms}, [&](const Index& x) { element(op, 0, {x[0]}, false, visit); });
    each({p.terms, columns}, [&](const Index& x) { element(op, 1, {x[0], column + x[1]}, false, visit); });
    each({rows, columns}, [&](const Index& x) { element(op, 2, {row + x[0], column + x[1]}, true, visit); });
  }

  void touch_row_select(const plan::Op& op, const int64_t* c, const Visit& visit) const {
    const abi::RowSelectParams& p = op.record.params.row_select;
    const auto has = [&](int operand) { return op.operands[static_cast<size_t>(operand)].slot != abi::kNoSlot; };
    const bool whole = p.parts > 1 && p.round == abi::kSelectLast;  // the last round may look at all of its row
    const int64_t first = c[1] * p.part, count = whole ? p.size : std::min<int64_t>(p.part, p.size - first);
    if (has(0)) each({count}, [&](const Index& x) { element(op, 0, {c[0], first + x[0]}, false, visit); });
    for (const int operand : {1, 2, 9, 10})
      if (has(operand)) element(op, operand, {c[0]}, operand == 2 || operand == 10, visit);
    const int64_t kWords = p.listed != 0 ? 64 : 1056, kState = 3;
    if (has(3)) each({p.parts, kWords}, [&](const Index& x) { element(op, 3, {c[0], x[0], x[1]}, false, visit); });
    if (has(4)) each({kState}, [&](const Index& x) { element(op, 4, {c[0], c[1], x[0]}, false, visit); });
    if (has(5)) each({kWords}, [&](const Index& x) { element(op, 5, {c[0], c[1], x[0]}, true, visit); });
    if (has(7)) each({p.tops}, [&](const Index& x) { element(op, 7, {c[0], x[0]}, false, visit); });
    if (has(8)) each({count}, [&](const Index& x) { element(op, 8, {c[0], first + x[0]}, true, visit); });
    if (has(6)) each({kState}, [&](const Index& x) { element(op, 6, {c[0], c[1], x[0]}, true, visit); });
  }

  void touch_row_draw(const plan::Op& op, const int64_t* c, const Visit& visit) const {
    const abi::RowDrawParams& p = op.record.params.row_draw;
    const auto has = [&](int operand) { return op.operands[static_cast<size_t>(operand)].slot != abi::kNoSlot; };
    const bool whole = p.stage == abi::kDrawLast;  // it may look at all of its row
    const int64_t first = whole ? 0 : c[1] * p.part, kWords = 64, kMasses = 32;
    const int64_t count = whole ? p.size : std::min<int64_t>(p.part, p.size - first);
    for (const int operand : {0, 1})
      if (has(operand))
        each({count}, [&](const Index& x) { element(op, operand, {c[0], first + x[0]}, false, visit); });
    for (const int operand : {2, 3, 4})
      if (has(operand)) element(op, operand, {c[0]}, operand > 2, visit);
    if (has(5)) each({p.parts, kWords}, [&](const Index& x) { element(op, 5, {c[0], x[0], x[1]}, false, visit); });
    if (has(6)) each({kWords}, [&](const Index& x) { element(op, 6, {c[0], c[1], x[0]}, true, visit); });
    if (has(7)) each({p.parts, kMasses}, [&](const Index& x) { element(op, 7, {c[0], x[0], x[1]}, false, visit); });
    if (has(8)) each({kMasses}, [&](const Index& x) { element(op, 8, {c[0], c[1], x[0]}, true, visit); });
  }

  void touch_backward(const plan::Op& op, const int64_t* c, const Visit& visit) const {
    const abi::AttentionParams& p = op.record.params.attention;
    abi::TaskKind kind = op.record.kind;
    check(kind == abi::TaskKind::kAttentionBackward || kind == abi::TaskKind::kAttentionBackwardRows ||
              kind == abi::TaskKind::kAttentionBackwardQuery,
          "brute: no such kind");
    int64_t group = p.heads / p.kv_heads;
    bool by_keys = kind == abi::TaskKind::kAttentionBackward;
    int64_t key0 = by_keys ? c[2] * p.tile_k : 0, keys = by_keys ? std::min<int64_t>(p.tile_k, p.keys - key0) : p.keys;
    int64_t row0 = by_keys ? 0 : c[2] * p.tile_q,
            rows = by_keys ? p.queries : std::min<int64_t>(p.tile_q, p.queries - row0);
    int64_t parts = by_keys ? std::max(1, p.head_parts) : 1, heads = by_keys ? group / parts : 1, head0 = c[1] * heads,
            kv = c[1] / (by_keys ? parts : group);
    auto by_query = [&](int operand, int64_t inner, bool write) {
      each({heads, rows, inner}, [&](const Index& x) {
        Index at{c[0], head0 + x[0], row0 + x[1], x[2]};
        if (inner == 1) at.pop_back();
        element(op, operand, at, write, visit);
      });
    };
    auto by_key = [&](int operand, int64_t inner, bool write) {
      const int64_t head = write ? c[1] : kv;
      each({keys, inner}, [&](const Index& x) { element(op, operand, {c[0], head, key0 + x[0], x[1]}, write, visit); });
    };
    if (kind == abi::TaskKind::kAttentionBackwardRows) {
      by_query(0, p.value_dim, false), by_query(1, p.value_dim, false), by_query(2, 1, true);
      return;
    }
    by_query(0, p.head_dim, false), by_key(1, p.head_dim, false), by_key(2, p.value_dim, false);
    by_query(3, p.value_dim, false), by_query(4, 1, false), by_query(5, 1, false);
    each({heads, rows, keys},
         [&](const Index& x) { element(op, 6, {c[0], head0 + x[0], row0 + x[1], key0 + x[2]}, false, visit); });
    for (int64_t head = head0; head < head0 + heads; ++head)
      for (int64_t block = row0 / 128; block <= (row0 + rows - 1) / 128; ++block)
        for (int64_t i : {0, 1}) element(op, 7, {c[0], head, block, i}, false, visit);
    if (by_keys) {
      by_key(9, p.head_dim, true), by_key(10, p.value_dim, true);
    } else {
      by_query(8, p.head_dim, true);
    }
  }

  const plan::Plan& plan_;
  std::vector<int64_t> first_tile_;
  int64_t num_tiles_ = 0;
};

}  // namespace ark::test
