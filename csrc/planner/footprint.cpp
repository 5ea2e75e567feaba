#include "planner/footprint.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>

#include "base/check.h"
#include "plan/params.h"
#include "planner/extents.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// One dimension of an operand, and how tiles cut it.
struct Dim {
  int64_t size = 1, stride = 0;
  int axis = -1;       // grid coordinate that cuts it, or -1: every tile sees all of it
  int64_t block = 1;   // indices per step of the coordinate
  int64_t repeat = 1;  // so many steps of the coordinate share an index (query heads of a kv head)
};

/// A few of them, without memory of their own.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<Dim> dims) {
    for (const Dim& dim : dims) push_back(dim);
  }
  void push_back(const Dim& dim) {
    check(count_ < kMost, "footprint: an operand of more than ", kMost, " dimensions");
    dims_[count_++] = dim;
  }
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  Dim& back() { return dims_[count_ - 1]; }
  const Dim& operator[](size_t i) const { return dims_[i]; }
  const Dim* begin() const { return dims_; }
  const Dim* end() const { return dims_ + count_; }

 private:
  static constexpr size_t kMost = 8;
  Dim dims_[kMost];
  size_t count_ = 0;
};
static_assert(abi::kMaxDims <= 8);

/// An operand's dimensions. Those before `flat_end` from `flat_begin` on are walked as one flattened range, `flat_tile`
/// at a time, by the grid coordinates together.
struct Layout {
  Dims dims;
  int flat_begin = 0, flat_end = 0;
  int64_t flat_tile = 1;
  int64_t granule = 0;
};

void add_program_dims(const plan::Op& op, const abi::Operand& operand, Layout& layout) {
  const abi::ProgramParams& params = op.record.params.program;
  for (int d = 0; d < params.num_dims; ++d) layout.dims.push_back({op.record.size[d], operand.stride[d]});
  layout.flat_tile = params.tile;
  layout.flat_begin = op.record.kind == TaskKind::kColumn ? params.reduce_dims : 0;
  layout.flat_end = op.record.kind == TaskKind::kRow ? params.num_dims - params.reduce_dims : params.num_dims;
}

/// Dimensions that the table of kinds names.
void add_role_dims(const plan::Op& op, const abi::Operand& x, int operand, Layout& layout) {
  const plan::Axis* axes = axes_of(op.record, operand);
  for (int d = 0; axes[d] != plan::Axis::kNone; ++d) {
    const Cut cut = cut_of(op.record, axes[d]);
    layout.dims.push_back({cut.size, x.stride[d], cut.coordinate, cut.block, cut.repeat});
  }
}

void add_rows_dims(const plan::Op& op, const abi::Operand& x, int operand, const std::vector<Program>& programs,
                   Layout& layout) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& segment = p.segment[s];
    const bool weight = operand == segment.weight || (p.gated && operand == segment.weight2);
    const int count = segment.program < 0 ? 0 : programs[segment.program].num_operands;
    const bool epilogue = operand >= segment.first_operand && operand < segment.first_operand + count;
    if (!weight && !epilogue) continue;
    // Units of the other segments fall outside [first, last] and are clipped, unit first_unit is index `column`.
    const int64_t per_unit = p.gated ? 1 : p.lanes;
    const int64_t columns = segment.column + per_unit * segment.num_units;
    Dim unit{columns, weight ? x.stride[0] : x.stride[2], 0, per_unit};
    if (weight) {
      layout.dims = {unit, {p.k, x.stride[1]}};
    } else {
      layout.dims = {{1, x.stride[0]}, {p.m, x.stride[1]}, unit};
    }
    if (per_unit == 2 && p.pair_distance > 1) layout.granule = 2 * int64_t{p.pair_distance} * unit.stride;
    return;
  }
  // The prologue (domain (m, k), perhaps with a batch of 1 before): every unit reads all of it.
  const int dims = programs[p.prologue].num_dims;
  if (dims == 3) layout.dims.push_back({1, x.stride[0]});
  layout.dims.push_back({p.m, x.stride[dims - 2]});
  layout.dims.push_back({p.k, x.stride[dims - 1]});
}

/// First unit of the segment that operand belongs to (0 for the prologue).
int64_t first_unit(const plan::Op& op, int operand, const std::vector<Program>& programs) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& segment = p.segment[s];
    const int count = segment.program < 0 ? 0 : programs[segment.program].num_operands;
    const bool epilogue = operand >= segment.first_operand && operand < segment.first_operand + count;
    if (operand == segment.weight || (p.gated && operand == segment.weight2) || epilogue) return segment.first_unit;
  }
  return 0;
}

Layout layout_of(const plan::Op& op, const std::vector<Program>& programs, int operand) {
  Layout layout;
  const abi::Operand& x = op.operands[operand];
  const plan::Family family = plan::kind_of(op.record).family;
  if (family == plan::Family::kProgram)
    add_program_dims(op, x, layout);
  else if (family == plan::Family::kRows)
    add_rows_dims(op, x, operand, programs, layout);
  else
    add_role_dims(op, x, operand, layout);
  return layout;
}

/// Adjacent dimensions that continue each other become one; dimensions of size 1 go.
Dims merged(const Dims& dims, int begin, int end) {
  Dims out;
  for (int d = begin; d < end; ++d) {
    const Dim& dim = dims[d];
    if (dim.size == 1) continue;
    if (!out.empty() && out.back().stride == dim.stride * dim.size) {
      out.back() = {out.back().size * dim.size, dim.stride};
    } else {
      out.push_back(dim);
    }
  }
  return out;
}

struct Hull {
  int64_t low = 0, high = 0;
  void add(int64_t distance) { (distance < 0 ? low : high) += distance; }
};

/// Hull of `count` consecutive flattened indices that start at a multiple of `count`; false when it depends on where.
bool span_of(const Dims& dims, int64_t count, Hull& hull) {
  int64_t inner = 1;
  for (int j = static_cast<int>(dims.size()) - 1; j >= 0; inner *= dims[j].size, --j) {
    if (count <= inner * dims[j].size) {
      const int64_t q = count / inner;
      if (count % inner != 0 || (j > 0 && dims[j].size % q != 0)) return false;
      hull.add((q - 1) * dims[j].stride);
      return true;
    }
    hull.add((dims[j].size - 1) * dims[j].stride);
  }
  return true;
}

/// Distance in elements between flattened indices i * `count` and (i + 1) * `count`, i < steps; false when it varies.
bool step_of(const Dims& dims, int64_t count, int64_t steps, int64_t& step) {
  step = 0;
  if (steps == 1) return true;
  int64_t inner = 1;
  for (int j = static_cast<int>(dims.size()) - 1; j >= 0; inner *= dims[j].size, --j) {
    if (count >= inner * dims[j].size && j > 0) continue;
    const int64_t q = count / inner;
    if (count % inner != 0 || (j > 0 && q * steps > dims[j].size)) return false;
    step = q * dims[j].stride;
    return true;
  }
  return true;
}

/// The flattened part of a layout; false when the tiles' places are not affine in the grid coordinates.
bool walk_flat(const plan::Op& op, const Layout& layout, Hull& tile, int64_t step[3]) {
  const Dims dims = merged(layout.dims, layout.flat_begin, layout.flat_end);
  const abi::OpRecord& record = op.record;
  int64_t total = 1;
  for (const Dim& dim : dims) total *= dim.size;
  if (total == 0) return false;
  if (!span_of(dims, std::min(layout.flat_tile, total), tile)) return false;
  int64_t count = layout.flat_tile;
  for (int axis = 2; axis >= 0; --axis) {
    if (!step_of(dims, count, record.grid[axis], step[axis])) return false;
    count *= record.grid[axis];
  }
  return true;
}

Hull whole_hull(const Layout& layout) {
  Hull hull;
  for (const Dim& dim : layout.dims) hull.add((dim.size - 1) * dim.stride);
  return hull;
}

}  // namespace

bool is_indirect(const plan::Op& op, const std::vector<Program>& programs, int operand) {
  if (op.operands[operand].index_operand >= 0) return true;
  bool parts = false;
  plan::for_each_program(op.record, [&](int program, int first, ProgramKind) {
    if (program < 0) return;
    for (const Instr& instr : programs[program].instrs) {
      const int number = operand - first - instr.operand;
      parts |= instr.op == Opcode::kLoadParts && number >= 0 && number < abi::PartsOperand::kCount;
    }
  });
  return parts;
}

Footprint footprint(const plan::Op& op, const std::vector<Program>& programs, int operand, const Storage& storage) {
  const abi::Operand& x = op.operands[operand];
  Footprint out;
  if (is_indirect(op, programs, operand)) {  // anywhere
    out.extent = storage.num_elements;
    out.last = storage.num_elements - 1;
    return out;
  }
  const Layout layout = layout_of(op, programs, operand);
  const Hull whole = whole_hull(layout);
  out.first = x.offset + whole.low;
  out.last = x.offset + whole.high;
  out.granule = layout.granule;
  Hull tile;
  if (!walk_flat(op, layout, tile, out.step)) {
    std::fill(out.step, out.step + 3, 0);
    out.base = out.first;
    out.extent = out.last - out.first + 1;
    return out;
  }
  for (int d = 0; d < static_cast<int>(layout.dims.size()); ++d) {
    if (d >= layout.flat_begin && d < layout.flat_end) continue;
    const Dim& dim = layout.dims[d];
    if (dim.axis < 0) {
      tile.add((dim.size - 1) * dim.stride);
    } else if (dim.repeat > 1 && dim.stride % dim.repeat == 0) {
      // index = floor(c / repeat): stride / repeat per step, up to (repeat - 1) / repeat of a stride too far
      out.step[dim.axis] += dim.stride / dim.repeat;
      tile.add(-(dim.stride - dim.stride / dim.repeat));
    } else if (dim.repeat > 1) {
      tile.add((dim.size - 1) * dim.stride);
    } else {
      out.step[dim.axis] += dim.block * dim.stride;
      tile.add((std::min(dim.block, dim.size) - 1) * dim.stride);
    }
  }
  out.base = x.offset + tile.low;
  out.extent = tile.high - tile.low + 1;
  if (op.record.kind == TaskKind::kMatmulRows) {
    const int64_t column = out.step[0];
    out.base -= first_unit(op, operand, programs) * column;
  }
  return out;
}

bool disjoint(const plan::Op& a, int operand_a, const plan::Op& b, int operand_b, const std::vector<Program>& programs,
              const Storage& storage) {
  const bool anywhere_a = is_indirect(a, programs, operand_a), anywhere_b = is_indirect(b, programs, operand_b);
  const Layout la = layout_of(a, programs, operand_a), lb = layout_of(b, programs, operand_b);
  auto reach = [&](const plan::Op& op, int operand, const Layout& layout, bool anywhere) {
    if (anywhere) return std::array<int64_t, 2>{0, storage.num_elements - 1};
    const Hull hull = whole_hull(layout);
    const int64_t offset = op.operands[operand].offset;
    return std::array<int64_t, 2>{offset + hull.low, offset + hull.high};
  };
  const auto x = reach(a, operand_a, la, anywhere_a), y = reach(b, operand_b, lb, anywhere_b);
  if (x[1] < y[0] || y[1] < x[0]) return true;
  if (anywhere_a || anywhere_b) return false;
  // Disjoint columns of a common row: modulo a stride of either, the two hulls may not meet.
  auto hull_modulo = [](const Layout& layout, int64_t offset, int64_t modulus) {
    Hull hull;
    for (const Dim& dim : layout.dims) {
      if (dim.stride % modulus != 0) hull.add((dim.size - 1) * dim.stride);
    }
    const int64_t begin = ((offset + hull.low) % modulus + modulus) % modulus;
    return std::array<int64_t, 2>{begin, begin + hull.high - hull.low};
  };
  for (const Layout* layout : {&la, &lb})
    for (const Dim& dim : layout->dims) {
      const int64_t modulus = std::abs(dim.stride);
      if (dim.size <= 1 || modulus <= 1) continue;
      const auto p = hull_modulo(la, a.operands[operand_a].offset, modulus);
      if (p[1] - p[0] + 1 >= modulus) continue;
      const auto q = hull_modulo(lb, b.operands[operand_b].offset, modulus);
      // Neither may reach around the end of the row.
      if (p[1] < modulus && q[1] < modulus && (p[1] < q[0] || q[1] < p[0])) return true;
    }
  return false;
}

}  // namespace ark::planner
