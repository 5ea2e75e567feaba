#include "plan/regions.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/check.h"
#include "plan/mask_range.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// Indices [first, first + count) of a dimension, `stride` elements apart.
struct Range {
  int64_t first, count, stride;
};

/// A few ranges, without allocation: the dimensions of an operand, some of them cut in two.
struct Ranges {
  Range at[3 * abi::kMaxDims];
  int count = 0;
  void push_back(const Range& r) { at[count++] = r; }
  const Range* begin() const { return at; }
  const Range* end() const { return at + count; }
  operator std::span<const Range>() const { return {at, static_cast<size_t>(count)}; }
};

/// Brings a box into normal form.
void normalise(Box& box) {
  Box::Dim* end = box.dims + box.num_dims;
  for (Box::Dim* d = box.dims; d != end; ++d) {
    if (d->stride >= 0) continue;
    box.begin += (d->count - 1) * d->stride;
    d->stride = -d->stride;
  }
  end = std::remove_if(box.dims, end, [](const Box::Dim& d) { return d.count == 1 || d.stride == 0; });
  std::sort(box.dims, end, [](const Box::Dim& a, const Box::Dim& b) { return a.stride > b.stride; });
  int n = 0;
  for (const Box::Dim* d = box.dims; d != end; ++d) {
    box.dims[n++] = *d;
    if (n > 1 && box.dims[n - 2].stride == box.dims[n - 1].stride * box.dims[n - 1].count) {
      box.dims[n - 2] = {box.dims[n - 2].count * box.dims[n - 1].count, box.dims[n - 1].stride};
      --n;
    }
  }
  // Runs that touch or overlap are one run.
  for (; n > 0 && box.dims[n - 1].stride <= box.width; --n)
    box.width += (box.dims[n - 1].count - 1) * box.dims[n - 1].stride;
  box.num_dims = n;
}

class Emitter {
 public:
  Emitter(const abi::Operand& x, std::vector<Box>& boxes) : x_(x), boxes_(boxes) {}

  void box(std::span<const Range> ranges) {
    int64_t bytes = size_bytes(static_cast<DType>(x_.dtype));
    Box box;
    box.begin = x_.offset * bytes;
    box.width = bytes;
    for (const Range& r : ranges) {
      if (r.count <= 0) return;
      box.begin += r.first * r.stride * bytes;
      if (r.count > 1) box.dims[box.num_dims++] = {r.count, r.stride * bytes};
    }
    normalise(box);
    boxes_.push_back(box);
  }

  /// Flattened indices [begin, end) of the dimensions `flat`, times the ranges `rest`.
  void flat_range(std::span<const Range> flat, int64_t begin, int64_t end, const Ranges& rest) {
    if (begin >= end) return;
    if (flat.empty()) return box(rest);
    int64_t inner = 1;
    for (size_t d = 1; d < flat.size(); ++d) inner *= flat[d].count;
    auto emit = [&](int64_t first, int64_t count, int64_t from, int64_t to) {
      Ranges fixed = rest;
      fixed.push_back({first, count, flat.front().stride});
      flat_range(flat.subspan(1), from, to, fixed);
    };
    int64_t first = begin / inner, last = end / inner, head = begin % inner, tail = end % inner;
    if (first == last) return emit(first, 1, head, tail);
    if (head > 0) emit(first++, 1, head, inner);
    if (first < last) emit(first, last - first, 0, inner);
    if (tail > 0) emit(last, 1, 0, tail);
  }

 private:
  const abi::Operand& x_;
  std::vector<Box>& boxes_;
};

/// Dimensions that continue each other become one, so that a range of flattened indices is fewer boxes.
Ranges merged(std::span<const Range> dims) {
  Ranges out;
  for (const Range& d : dims) {
    if (d.count == 1) continue;
    if (out.count > 0 && out.at[out.count - 1].stride == d.stride * d.count) {
      Range& last = out.at[out.count - 1];
      last = {0, last.count * d.count, d.stride};
    } else {
      out.push_back(d);
    }
  }
  return out;
}

int64_t total(std::span<const Range> part) {
  int64_t n = 1;
  for (const Range& d : part) n *= d.count;
  return n;
}

/// Blocks [first, last] of the kept elements of a column task, in splits [split, split + splits) of the reduced range.
/// A partial result of split s lies at x[0] = s.
void column_region(const plan::Op& op, const abi::Operand& x, const OperandUse& use, std::span<const Range> all,
                   int64_t split, int64_t splits, int64_t first, int64_t last, Emitter& emitter) {
  const abi::ProgramParams& p = op.record.params.program;
  const std::span<const Range> reduced = all.first(static_cast<size_t>(p.reduce_dims)),
                               kept = all.subspan(static_cast<size_t>(p.reduce_dims));
  const int64_t num_kept = total(kept), num_reduced = total(reduced), portion = p.split > 0 ? p.split : num_reduced;
  const int64_t begin = first * p.tile, end = std::min((last + 1) * int64_t{p.tile}, num_kept);
  Ranges rows;
  if (use.once) {
    rows.push_back({split, splits, splits > 1 || split > 0 ? x.stride[0] : 0});
    return emitter.flat_range(merged(kept), begin, end, rows);
  }
  for (const Range& r : reduced) rows.push_back(r);
  if (portion < num_reduced) {
    // A range of reduced indices times a range of kept ones: whole reduced rows around it are close enough and a box.
    const int64_t inner = num_reduced / rows.at[0].count, from = split * portion / inner;
    rows.at[0].first = from;
    rows.at[0].count = (std::min((split + splits) * portion, num_reduced) + inner - 1) / inner - from;
  }
  emitter.flat_range(merged(kept), begin, end, rows);
}

/// Tiles [first, last] of a program task.
void program_region(const plan::Op& op, const abi::Operand& x, const OperandUse& use, int64_t first, int64_t last,
                    Emitter& emitter) {
  const abi::ProgramParams& p = op.record.params.program;
  Ranges dims;
  for (int d = 0; d < p.num_dims; ++d) dims.push_back({0, op.record.size[d], x.stride[d]});
  const std::span<const Range> all(dims);
  if (std::any_of(all.begin(), all.end(), [](const Range& d) { return d.count == 0; })) return;
  if (op.record.kind == TaskKind::kColumn) {
    const int64_t blocks = (total(all.subspan(static_cast<size_t>(p.reduce_dims))) + p.tile - 1) / p.tile;
    if (first % blocks == 0 && last % blocks == blocks - 1)
      return column_region(op, x, use, all, first / blocks, (last + 1) / blocks - first / blocks, 0, blocks - 1,
                           emitter);
    for (int64_t split = first / blocks; split <= last / blocks; ++split)
      column_region(op, x, use, all, split, 1, std::max(first - split * blocks, int64_t{0}),
                    std::min(last - split * blocks, blocks - 1), emitter);
    return;
  }
  const auto outer = static_cast<size_t>(op.record.kind == TaskKind::kRow ? p.num_dims - p.reduce_dims : p.num_dims);
  Ranges row;
  for (const Range& r : all.subspan(outer)) row.push_back({0, use.once ? 1 : r.count, r.stride});
  emitter.flat_range(merged(all.first(outer)), first * p.tile,
                     std::min((last + 1) * int64_t{p.tile}, total(all.first(outer))), row);
}

/// Blocks [first, first + count) of `length` indices of a dimension of `size`.
Range blocks_of(int64_t first, int64_t count, int64_t length, int64_t size, int64_t stride) {
  const int64_t begin = std::min(first * length, size);
  return {begin, std::min(count * length, size - begin), stride};
}

void matmul_region(const plan::Op& op, const abi::Operand& x, int operand, const TileBlock& c, Emitter& emitter) {
  const abi::MatmulTileParams& p = op.record.params.matmul;
  const Range batch{c.first[0], c.count[0], x.stride[0]};
  const Range m = blocks_of(c.first[1], c.count[1], p.tile_m, p.m, x.stride[1]);
  const Range n = blocks_of(c.first[2], c.count[2], p.tile_n, p.n, x.stride[2]);
  if (m.count <= 0 || n.count <= 0) return;
  if (operand == 0) return emitter.box(std::array{batch, m, Range{0, p.k, x.stride[2]}});
  if (operand == 1) return emitter.box(std::array{batch, Range{0, p.k, x.stride[1]}, n});
  emitter.box(std::array{batch, m, n});
}

/// Columns of units [own, end) of a segment whose units are pairs: whole chunks of pairs are one run, a part of a chunk
/// is two. Calls emit(first column, number).
template <class Emit>
void pair_columns(int64_t own, int64_t end, int64_t distance, const Emit& emit) {
  while (own < end) {
    const int64_t chunk = own / distance, in_chunk = own % distance;
    if (in_chunk == 0 && end - own >= distance) {
      const int64_t whole = (end - own) / distance;
      emit(2 * own, 2 * whole * distance);
      own += whole * distance;
      continue;
    }
    const int64_t count = std::min(end - own, distance - in_chunk);
    for (int lane = 0; lane < 2; ++lane) emit(2 * chunk * distance + in_chunk + lane * distance, count);
    own += count;
  }
}

/// Units [first, last] of a few-row product.
void rows_region(const plan::Op& op, const std::vector<Program>& programs, const abi::Operand& x, int operand,
                 int64_t first, int64_t last, Emitter& emitter) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& segment = p.segment[s];
    const bool weight = operand == segment.weight || (p.gated && operand == segment.weight2);
    const int count = programs[static_cast<size_t>(segment.program)].num_operands;
    const bool epilogue = operand >= segment.first_operand && operand < segment.first_operand + count;
    const int64_t own = std::max<int64_t>(first - segment.first_unit, 0);
    const int64_t end = std::min<int64_t>(last + 1 - segment.first_unit, segment.num_units);
    if ((!weight && !epilogue) || own >= end) continue;
    auto columns = [&](int64_t column, int64_t number) {
      column += segment.column;
      if (weight) emitter.box(std::array{Range{column, number, x.stride[0]}, Range{0, p.k, x.stride[1]}});
      if (!weight) emitter.box(std::array{Range{0, p.m, x.stride[1]}, Range{column, number, x.stride[2]}});
    };
    if (p.lanes == 2 && !p.gated) {
      pair_columns(own, end, p.pair_distance, columns);
    } else {
      columns(own, end - own);
    }
  }
  if (p.prologue < 0) return;
  const Program& prologue = programs[static_cast<size_t>(p.prologue)];
  if (operand < p.prologue_operand || operand >= p.prologue_operand + prologue.num_operands) return;
  const int rank = prologue.num_dims;
  emitter.box(std::array{Range{0, p.m, x.stride[rank - 2]}, Range{0, p.k, x.stride[rank - 1]}});
}

constexpr int64_t kRangeBlock = 128;  // queries per entry of a mask range

void decode_region(const plan::Op& op, const abi::Operand& x, int operand, const TileBlock& c, Emitter& emitter) {
  const abi::AttentionParams& p = op.record.params.attention;
  const int64_t group = p.heads / p.kv_heads;
  const Range batch{c.first[0], c.count[0], x.stride[0]}, heads{c.first[1] * group, c.count[1] * group, x.stride[1]};
  const Range kv_head{c.first[1], c.count[1], x.stride[1]}, queries{0, p.queries, x.stride[2]};
  const Range keys{0, p.keys, x.stride[2]}, part{c.first[2], c.count[2], x.stride[2]};
  if (operand == p.fresh_operand && operand >= 0) return emitter.box({});
  switch (operand) {
    case 0:
      return emitter.box(std::array{batch, heads, queries, Range{0, p.head_dim, x.stride[3]}});
    case 1:
      return emitter.box(std::array{batch, kv_head, keys, Range{0, p.head_dim, x.stride[3]}});
    case 2:
      return emitter.box(std::array{batch, kv_head, keys, Range{0, p.value_dim, x.stride[3]}});
    case 3:
      return emitter.box(std::array{batch, heads, queries, Range{0, p.value_dim, x.stride[3]}});
    case 4:
      return emitter.box(std::array{batch, heads, queries});
    case 5:
      return emitter.box(std::array{batch, heads, queries, Range{0, p.keys, x.stride[3]}});
    case 6:
      return emitter.box(std::array{batch, heads, Range{0, 2, x.stride[3]}});
    case 7:
    case 8: {
      const Range inner{0, operand == 7 ? p.value_dim : 2, x.stride[4]};
      return emitter.box(std::array{batch, kv_head, part, Range{0, group * p.queries, x.stride[3]}, inner});
    }
    default:
      throw InternalError(cat("op ", op.name, ": attention has no operand ", operand));
  }
}

void attention_region(const plan::Op& op, const abi::Operand& x, int operand, const TileBlock& c, Emitter& emitter) {
  const abi::AttentionParams& p = op.record.params.attention;
  const TaskKind kind = op.record.kind;
  const bool by_keys =
      kind == TaskKind::kAttentionBackward;  // tile = key block of a kv head, else query block of a head
  const int64_t group = p.heads / p.kv_heads, block = p.tile_q;
  const Range batch{c.first[0], c.count[0], x.stride[0]};
  const int64_t first_kv = by_keys ? c.first[1] : c.first[1] / group;
  const int64_t last_kv = by_keys ? c.last(1) : c.last(1) / group;
  const Range heads =
      by_keys ? Range{c.first[1] * group, c.count[1] * group, x.stride[1]} : Range{c.first[1], c.count[1], x.stride[1]};
  const Range kv_head{first_kv, last_kv - first_kv + 1, x.stride[1]};
  auto queries = [&](int64_t stride) {
    return by_keys ? Range{0, p.queries, stride} : blocks_of(c.first[2], c.count[2], block, p.queries, stride);
  };
  auto keys = [&](int64_t stride) {
    return by_keys ? blocks_of(c.first[2], c.count[2], p.tile_k, p.keys, stride) : Range{0, p.keys, stride};
  };
  const Range qk{0, p.head_dim, x.stride[3]}, value{0, p.value_dim, x.stride[3]};
  const std::string_view letters = attention_operands(kind);
  check(static_cast<size_t>(operand) < letters.size(), "op ", op.name, ": attention has no operand ", operand);
  switch (letters[static_cast<size_t>(operand)]) {
    case 'q':
      return emitter.box(std::array{batch, heads, queries(x.stride[2]), qk});
    case 'k':
      return emitter.box(std::array{batch, kv_head, keys(x.stride[2]), qk});
    case 'v':
      return emitter.box(std::array{batch, kv_head, keys(x.stride[2]), value});
    case 'o':
      return emitter.box(std::array{batch, heads, queries(x.stride[2]), value});
    case 'r':
      return emitter.box(std::array{batch, heads, queries(x.stride[2])});
    case 'm':
      return emitter.box(std::array{batch, heads, queries(x.stride[2]), keys(x.stride[3])});
    default:
      break;
  }
  const int64_t first = by_keys ? 0 : c.first[2] * block / kRangeBlock;
  const int64_t end = by_keys ? (p.queries + kRangeBlock - 1) / kRangeBlock
                              : (std::min((c.last(2) + 1) * block, int64_t{p.queries}) - 1) / kRangeBlock + 1;
  emitter.box(
      std::array{batch, heads, Range{first, end - first, x.stride[2]}, Range{0, kMaskRangeValues, x.stride[3]}});
}

void mask_range_region(const plan::Op& op, const abi::Operand& x, int operand, const TileBlock& c, Emitter& emitter) {
  const abi::MaskRangeParams& p = op.record.params.mask_range;
  const Range batch{c.first[0], c.count[0], x.stride[0]}, head{c.first[1], c.count[1], x.stride[1]};
  if (operand == 0) {
    const Range queries = blocks_of(c.first[2], c.count[2], p.block, p.queries, x.stride[2]);
    return emitter.box(std::array{batch, head, queries, Range{0, p.keys, x.stride[3]}});
  }
  const Range block{c.first[2], c.count[2], x.stride[2]};
  emitter.box(std::array{batch, head, block, Range{0, kMaskRangeValues, x.stride[3]}});
}

/// Calls emit(first, last) for the runs of consecutive tiles that make up a block.
template <class Emit>
void tile_runs(const abi::OpRecord& r, const TileBlock& c, const Emit& emit) {
  const bool whole2 = c.count[2] == r.grid[2], whole1 = whole2 && c.count[1] == r.grid[1];
  const int64_t runs0 = whole1 ? 1 : c.count[0], runs1 = whole2 ? 1 : c.count[1];
  for (int64_t i = 0; i < runs0; ++i)
    for (int64_t k = 0; k < runs1; ++k) {
      const int64_t c0 = c.first[0] + i, c1 = c.first[1] + k;
      const int64_t last0 = whole1 ? c.last(0) : c0, last1 = whole2 ? c.last(1) : c1;
      emit((c0 * r.grid[1] + c1) * r.grid[2] + c.first[2], (last0 * r.grid[1] + last1) * r.grid[2] + c.last(2));
    }
}

/// What predicates guard stays within the buffer.
void clip(std::vector<Box>& boxes, size_t first, int64_t buffer_bytes) {
  for (size_t i = first; i < boxes.size();) {
    Box& box = boxes[i];
    const int64_t begin = std::max<int64_t>(box.begin, 0), end = std::min(box.end(), buffer_bytes);
    if (begin >= end) {
      boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    if (begin != box.begin || end != box.end()) box = {.begin = begin, .width = end - begin};
    ++i;
  }
}

}  // namespace

const char* attention_operands(TaskKind kind) {
  if (kind == TaskKind::kAttentionBackwardRows) return "oor";
  if (kind == TaskKind::kAttentionBackward || kind == TaskKind::kAttentionBackwardQuery) return "qkvorrmxqkv";
  return "qkvormx";
}

void block_region(const plan::Op& op, const std::vector<Program>& programs, int operand, const OperandUse& use,
                  const TileBlock& block, int64_t buffer_bytes, std::vector<Box>& boxes) {
  if (!use.used() || buffer_bytes == 0 || block.empty()) return;
  if (use.anywhere) {
    boxes.push_back({.begin = 0, .width = buffer_bytes});
    return;
  }
  const abi::OpRecord& r = op.record;
  const abi::Operand& x = op.operands[static_cast<size_t>(operand)];
  const size_t first = boxes.size();
  Emitter emitter(x, boxes);
  switch (r.kind) {
    case TaskKind::kPointwise:
    case TaskKind::kRow:
    case TaskKind::kColumn:
      tile_runs(r, block, [&](int64_t from, int64_t to) { program_region(op, x, use, from, to, emitter); });
      break;
    case TaskKind::kMatmulTile:
    case TaskKind::kMatmulFloat:
    case TaskKind::kMatmulSimple:
      matmul_region(op, x, operand, block, emitter);
      break;
    case TaskKind::kMatmulRows:
      tile_runs(r, block, [&](int64_t from, int64_t to) { rows_region(op, programs, x, operand, from, to, emitter); });
      break;
    case TaskKind::kMaskRange:
      mask_range_region(op, x, operand, block, emitter);
      break;
    case TaskKind::kAttentionDecode:
      decode_region(op, x, operand, block, emitter);
      break;
    default:
      attention_region(op, x, operand, block, emitter);
      break;
  }
  if (use.predicated) clip(boxes, first, buffer_bytes);
}

void tile_region(const plan::Op& op, const std::vector<Program>& programs, int operand, const OperandUse& use,
                 int64_t tile, int64_t buffer_bytes, std::vector<Box>& boxes) {
  block_region(op, programs, operand, use, block_of_tile(op.record, tile), buffer_bytes, boxes);
}

}  // namespace ark::planner
