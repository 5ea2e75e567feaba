#include "planner/regions.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/check.h"
#include "planner/mask_range.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// Indices [first, first + count) of a dimension, `stride` elements apart.
struct Range {
  int64_t first, count, stride;
};

/// Range `block` of `length` indices of a dimension of `size`.
Range block_of(int64_t block, int64_t length, int64_t size, int64_t stride) {
  int64_t first = std::min(block * length, size);
  return {first, std::min(length, size - first), stride};
}

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
  void flat_range(std::vector<Range> flat, int64_t begin, int64_t end, const std::vector<Range>& rest) {
    if (begin >= end) return;
    if (flat.empty()) return box(rest);
    int64_t inner = 1;
    for (size_t d = 1; d < flat.size(); ++d) inner *= flat[d].count;
    const Range outer = flat.front();
    flat.erase(flat.begin());
    auto emit = [&](int64_t first, int64_t count, int64_t from, int64_t to) {
      std::vector<Range> fixed = rest;
      fixed.push_back({first, count, outer.stride});
      flat_range(flat, from, to, fixed);
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
std::vector<Range> merged(std::span<const Range> dims) {
  std::vector<Range> out;
  for (const Range& d : dims) {
    if (d.count == 1) continue;
    if (!out.empty() && out.back().stride == d.stride * d.count) {
      out.back() = {0, out.back().count * d.count, d.stride};
    } else {
      out.push_back(d);
    }
  }
  return out;
}

void program_region(const plan::Op& op, const abi::Operand& x, const OperandUse& use, int64_t tile, Emitter& emitter) {
  const abi::ProgramParams& p = op.record.params.program;
  const int64_t length = p.tile;
  std::vector<Range> dims;
  for (int d = 0; d < p.num_dims; ++d) dims.push_back({0, op.record.size[d], x.stride[d]});
  std::span all(dims);
  if (std::any_of(dims.begin(), dims.end(), [](const Range& d) { return d.count == 0; })) return;
  auto total = [](std::span<const Range> part) {
    int64_t n = 1;
    for (const Range& d : part) n *= d.count;
    return n;
  };
  if (op.record.kind != TaskKind::kColumn) {
    size_t outer = static_cast<size_t>(op.record.kind == TaskKind::kRow ? p.num_dims - p.reduce_dims : p.num_dims);
    std::vector<Range> row(dims.begin() + static_cast<std::ptrdiff_t>(outer), dims.end());
    if (use.once)
      for (Range& r : row) r.count = 1;
    return emitter.flat_range(merged(all.first(outer)), tile * length,
                              std::min((tile + 1) * length, total(all.first(outer))), row);
  }
  // Columns: splits of the reduced range, blocks of the kept elements. A partial result of split s lies at x[0] = s.
  std::span reduced = all.first(static_cast<size_t>(p.reduce_dims)),
            kept = all.subspan(static_cast<size_t>(p.reduce_dims));
  int64_t num_kept = total(kept), num_reduced = total(reduced), blocks = (num_kept + length - 1) / length;
  int64_t split = tile / blocks, block = tile % blocks, portion = p.split > 0 ? p.split : num_reduced;
  int64_t begin = block * length, end = std::min(begin + length, num_kept);
  if (use.once) return emitter.flat_range(merged(kept), begin, end, {{split, 1, split > 0 ? x.stride[0] : 0}});
  if (portion >= num_reduced) {
    std::vector<Range> rows(reduced.begin(), reduced.end());
    return emitter.flat_range(merged(kept), begin, end, rows);
  }
  // A range of reduced indices times a range of kept ones: whole reduced rows around it are close enough and a box.
  std::vector<Range> rows(reduced.begin(), reduced.end());
  int64_t inner = num_reduced / rows.front().count;
  int64_t first = split * portion / inner, last = std::min((split + 1) * portion, num_reduced);
  rows.front().first = first;
  rows.front().count = (last + inner - 1) / inner - first;
  emitter.flat_range(merged(kept), begin, end, rows);
}

void matmul_region(const plan::Op& op, const abi::Operand& x, int operand, const std::array<int64_t, 3>& c,
                   Emitter& emitter) {
  const abi::MatmulTileParams& p = op.record.params.matmul;
  Range batch{c[0], 1, x.stride[0]};
  Range m = block_of(c[1], p.tile_m, p.m, x.stride[1]), n = block_of(c[2], p.tile_n, p.n, x.stride[2]);
  if (m.count <= 0 || n.count <= 0) return;
  if (operand == 0) return emitter.box(std::array{batch, m, Range{0, p.k, x.stride[2]}});
  if (operand == 1) return emitter.box(std::array{batch, Range{0, p.k, x.stride[1]}, n});
  emitter.box(std::array{batch, m, n});
}

void rows_region(const plan::Op& op, const std::vector<Program>& programs, const abi::Operand& x, int operand,
                 int64_t unit, Emitter& emitter) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& segment = p.segment[s];
    bool weight = operand == segment.weight || (p.gated && operand == segment.weight2);
    int count = programs[static_cast<size_t>(segment.program)].num_operands;
    bool epilogue = operand >= segment.first_operand && operand < segment.first_operand + count;
    if (!weight && !epilogue) continue;
    int64_t own = unit - segment.first_unit;
    if (own < 0 || own >= segment.num_units) continue;
    bool pair = p.lanes == 2 && !p.gated;
    int64_t distance = p.pair_distance;
    int64_t column = segment.column + (pair ? own / distance * 2 * distance + own % distance : own);
    for (int lane = 0; lane < (pair ? 2 : 1); ++lane, column += distance) {
      if (weight) {
        emitter.box(std::array{Range{column, 1, x.stride[0]}, Range{0, p.k, x.stride[1]}});
      } else {
        emitter.box(std::array{Range{0, p.m, x.stride[1]}, Range{column, 1, x.stride[2]}});
      }
    }
  }
  if (p.prologue < 0) return;
  const Program& prologue = programs[static_cast<size_t>(p.prologue)];
  if (operand < p.prologue_operand || operand >= p.prologue_operand + prologue.num_operands) return;
  int rank = prologue.num_dims;
  emitter.box(std::array{Range{0, p.m, x.stride[rank - 2]}, Range{0, p.k, x.stride[rank - 1]}});
}

constexpr int64_t kRangeBlock = 128;  // queries per entry of a mask range

void decode_region(const plan::Op& op, const abi::Operand& x, int operand, const std::array<int64_t, 3>& c,
                   Emitter& emitter) {
  const abi::AttentionParams& p = op.record.params.attention;
  int64_t group = p.heads / p.kv_heads;
  Range batch{c[0], 1, x.stride[0]}, heads{c[1] * group, group, x.stride[1]}, kv_head{c[1], 1, x.stride[1]};
  Range queries{0, p.queries, x.stride[2]}, keys{0, p.keys, x.stride[2]}, part{c[2], 1, x.stride[2]};
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
      Range inner{0, operand == 7 ? p.value_dim : 2, x.stride[4]};
      return emitter.box(std::array{batch, kv_head, part, Range{0, group * p.queries, x.stride[3]}, inner});
    }
    default:
      throw InternalError(cat("op ", op.name, ": attention has no operand ", operand));
  }
}

/// Letters of the operands of the other attention kinds. q: b h s d; k: b g t d; v: b g t dv; o: b h s dv; r: b h s;
/// m: b h s t; x: mask range.
const char* attention_operands(TaskKind kind) {
  if (kind == TaskKind::kAttentionBackwardRows) return "oor";
  if (kind == TaskKind::kAttentionBackward || kind == TaskKind::kAttentionBackwardQuery) return "qkvorrmxqkv";
  return "qkvormx";
}

void attention_region(const plan::Op& op, const abi::Operand& x, int operand, const std::array<int64_t, 3>& c,
                      Emitter& emitter) {
  const abi::AttentionParams& p = op.record.params.attention;
  TaskKind kind = op.record.kind;
  bool by_keys = kind == TaskKind::kAttentionBackward;  // tile = key block of a kv head, else query block of a head
  int64_t group = p.heads / p.kv_heads, block = kind == TaskKind::kAttentionSimple ? 1 : p.tile_q;
  Range batch{c[0], 1, x.stride[0]};
  Range heads = by_keys ? Range{c[1] * group, group, x.stride[1]} : Range{c[1], 1, x.stride[1]};
  Range kv_head{by_keys ? c[1] : c[1] / group, 1, x.stride[1]};
  auto queries = [&](int64_t stride) {
    return by_keys ? Range{0, p.queries, stride} : block_of(c[2], block, p.queries, stride);
  };
  auto keys = [&](int64_t stride) {
    return by_keys ? block_of(c[2], p.tile_k, p.keys, stride) : Range{0, p.keys, stride};
  };
  Range qk{0, p.head_dim, x.stride[3]}, value{0, p.value_dim, x.stride[3]};
  std::string_view letters = attention_operands(kind);
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
  int64_t first = by_keys ? 0 : c[2] * block / kRangeBlock;
  int64_t end = by_keys ? (p.queries + kRangeBlock - 1) / kRangeBlock
                        : (std::min((c[2] + 1) * block, int64_t{p.queries}) - 1) / kRangeBlock + 1;
  emitter.box(
      std::array{batch, heads, Range{first, end - first, x.stride[2]}, Range{0, kMaskRangeValues, x.stride[3]}});
}

void mask_range_region(const plan::Op& op, const abi::Operand& x, int operand, const std::array<int64_t, 3>& c,
                       Emitter& emitter) {
  const abi::MaskRangeParams& p = op.record.params.mask_range;
  Range batch{c[0], 1, x.stride[0]}, head{c[1], 1, x.stride[1]};
  if (operand == 0)
    return emitter.box(
        std::array{batch, head, block_of(c[2], p.block, p.queries, x.stride[2]), Range{0, p.keys, x.stride[3]}});
  emitter.box(std::array{batch, head, Range{c[2], 1, x.stride[2]}, Range{0, kMaskRangeValues, x.stride[3]}});
}

/// Marks what one program does with the operands from `first` on.
void program_uses(const plan::Op& op, const Program& program, int first, std::vector<OperandUse>& uses) {
  std::vector<bool> reduced(program.instrs.size(), false);  // depends on a Reduce
  std::vector<bool> everywhere(uses.size(), false);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    for (int16_t arg : {instr.a, instr.b, instr.c, instr.d})
      if (arg >= 0 && reduced[static_cast<size_t>(arg)]) reduced[i] = true;
    if (instr.op == Opcode::kReduce) reduced[i] = true;
    bool parts = instr.op == Opcode::kLoadParts;
    if (instr.op != Opcode::kLoad && instr.op != Opcode::kStore && !parts) continue;
    auto at = static_cast<size_t>(first + instr.operand);
    check(first + instr.operand >= 0 && at + (parts ? 4 : 0) < uses.size(), "op ", op.name,
          ": its program names operand ", at, " of ", uses.size());
    if (parts) {
      for (size_t k : {at, at + 1, at + 2, at + 4}) uses[k].read = uses[k].anywhere = true;
      continue;
    }
    OperandUse& use = uses[at];
    bool store = instr.op == Opcode::kStore;
    (store ? use.write : use.read) = true;
    use.predicated |= (store ? instr.d : instr.c) >= 0;
    use.anywhere |= op.operands[at].index_operand >= 0;
    bool once = store && (program.kind == ProgramKind::kColumn ? static_cast<bool>(reduced[i]) : instr.uniform);
    use.once |= once;
    if (!once) everywhere[at] = true;
  }
  for (size_t i = 0; i < uses.size(); ++i)
    if (everywhere[i]) uses[i].once = false;
}

void attention_uses(TaskKind kind, const plan::Op& op, std::vector<OperandUse>& uses) {
  auto written = [&](size_t i) {
    if (kind == TaskKind::kAttentionBackwardRows) return i == 2;
    if (kind == TaskKind::kAttentionBackward) return i == 9 || i == 10;
    if (kind == TaskKind::kAttentionBackwardQuery) return i == 8;
    if (kind == TaskKind::kAttentionDecode && (i == 7 || i == 8))
      return op.record.params.attention.fresh_operand != static_cast<int>(i);
    return i == 3 || i == 4;
  };
  for (size_t i = 0; i < uses.size(); ++i) (written(i) ? uses[i].write : uses[i].read) = true;
}

}  // namespace

std::vector<OperandUse> operand_uses(const plan::Op& op, const std::vector<Program>& programs) {
  std::vector<OperandUse> uses(op.operands.size());
  const abi::Params& params = op.record.params;
  auto program = [&](int index, int first) {
    if (index < 0) return;
    check(static_cast<size_t>(index) < programs.size(), "op ", op.name, ": program ", index, " of ", programs.size());
    program_uses(op, programs[static_cast<size_t>(index)], first, uses);
  };
  switch (op.record.kind) {
    case TaskKind::kPointwise:
    case TaskKind::kRow:
    case TaskKind::kColumn:
      program(params.program.program, params.program.first_operand);
      break;
    case TaskKind::kMatmulTile:
    case TaskKind::kMatmulSimple:
      check(uses.size() >= 2, "op ", op.name, ": a matmul with ", uses.size(), " operands");
      uses[0].read = uses[1].read = true;
      program(params.matmul.program, params.matmul.first_operand);
      break;
    case TaskKind::kMatmulRows:
      program(params.rows.prologue, params.rows.prologue_operand);
      for (int s = 0; s < params.rows.num_segments; ++s) {
        const abi::Segment& segment = params.rows.segment[s];
        program(segment.program, segment.first_operand);
        uses.at(static_cast<size_t>(segment.weight)).read = true;
        if (params.rows.gated) uses.at(static_cast<size_t>(segment.weight2)).read = true;
      }
      break;
    case TaskKind::kMaskRange:
      check(uses.size() == 2, "op ", op.name, ": a mask range with ", uses.size(), " operands");
      uses[0].read = uses[1].write = true;
      break;
    default:
      attention_uses(op.record.kind, op, uses);
      break;
  }
  for (size_t i = 0; i < uses.size(); ++i)
    if (op.operands[i].slot == abi::kNoSlot) uses[i] = OperandUse{};
  return uses;
}

void tile_region(const plan::Op& op, const std::vector<Program>& programs, int operand, const OperandUse& use,
                 int64_t tile, int64_t buffer_bytes, std::vector<Box>& boxes) {
  if (!use.used() || buffer_bytes == 0) return;
  if (use.anywhere) {
    boxes.push_back({.begin = 0, .width = buffer_bytes});
    return;
  }
  const abi::OpRecord& r = op.record;
  const abi::Operand& x = op.operands[static_cast<size_t>(operand)];
  std::array<int64_t, 3> c{tile / r.grid[2] / r.grid[1], tile / r.grid[2] % r.grid[1], tile % r.grid[2]};
  size_t first = boxes.size();
  Emitter emitter(x, boxes);
  switch (r.kind) {
    case TaskKind::kPointwise:
    case TaskKind::kRow:
    case TaskKind::kColumn:
      program_region(op, x, use, tile, emitter);
      break;
    case TaskKind::kMatmulTile:
    case TaskKind::kMatmulSimple:
      matmul_region(op, x, operand, c, emitter);
      break;
    case TaskKind::kMatmulRows:
      rows_region(op, programs, x, operand, tile, emitter);
      break;
    case TaskKind::kMaskRange:
      mask_range_region(op, x, operand, c, emitter);
      break;
    case TaskKind::kAttentionDecode:
      decode_region(op, x, operand, c, emitter);
      break;
    default:
      attention_region(op, x, operand, c, emitter);
      break;
  }
  if (!use.predicated) return;
  for (size_t i = first; i < boxes.size();) {
    Box& box = boxes[i];
    int64_t begin = std::max<int64_t>(box.begin, 0), end = std::min(box.end(), buffer_bytes);
    if (begin >= end) {
      boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    if (begin != box.begin || end != box.end()) box = {.begin = begin, .width = end - begin};
    ++i;
  }
}

}  // namespace ark::planner
