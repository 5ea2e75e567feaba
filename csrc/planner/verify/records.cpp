// Programs are in SSA form and fit the records that name them; grids cover the domains; tensor maps show what the
// operands that they stand for do.
#include <array>
#include <vector>

#include "plan/regions.h"
#include "planner/verify/checks.h"

namespace ark::planner {
namespace {

using abi::TaskKind;
using plan::Plan;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check_instr(const Plan& plan, size_t number, const Program& program, size_t at, std::vector<bool>& reduced) {
  const Instr& i = program.instrs[at];
  auto where = [&](bool good, const char* what) {
    require(plan, good, "program ", number, ", instruction ", at, " (", static_cast<int>(i.op), "): ", what);
  };
  where(i.op >= Opcode{} && static_cast<int>(i.op) < kNumOpcodes, "unknown opcode");
  where(static_cast<int>(i.dtype) < kNumDTypes, "unknown type");
  const int16_t args[4] = {i.a, i.b, i.c, i.d};
  for (int16_t arg : args) where(arg >= -1 && arg < static_cast<int>(at), "uses a later instruction");
  bool parameter = i.op == Opcode::kParameter;
  bool memory = i.op == Opcode::kLoad || i.op == Opcode::kStore || i.op == Opcode::kLoadParts || parameter;
  where(!parameter || (i.aux >= 0 && i.aux < abi::kMaxDims), "names a parameter that is not there");
  int needed = i.op == Opcode::kStore ? 1 : arity(i.op);
  for (int k = 0; k < needed; ++k) where(args[k] >= 0, "lacks an argument");
  int entries = i.op == Opcode::kLoadParts ? 5 : 1;
  where(!memory || (i.operand >= 0 && i.operand + entries <= program.num_operands),
        "names an operand that is not there");
  where(i.op != Opcode::kIndex || (i.aux >= 0 && i.aux < program.num_dims), "names a dimension that is not there");
  where(i.op != Opcode::kRoot || program.kind == ProgramKind::kEpilogue, "a root outside of an epilogue");
  where(i.op != Opcode::kYield || program.kind == ProgramKind::kPrologue, "a yield outside of a prologue");
  for (int16_t arg : args)
    if (arg >= 0 && reduced[static_cast<size_t>(arg)]) reduced[at] = true;
  if (i.op != Opcode::kReduce) return;
  bool rows = program.kind == ProgramKind::kRow || program.kind == ProgramKind::kPrologue;
  where(rows || program.kind == ProgramKind::kColumn, "a reduction in a program without one");
  where(i.aux >= 0 && i.aux < kNumReduceOps, "unknown reduction");
  where(rows || !reduced[at], "a column program reduces twice");
  reduced[at] = true;
}

void check_program(const Plan& plan, size_t number) {
  const Program& p = plan.programs[number];
  bool dims = p.num_dims >= 0 && p.num_dims <= abi::kMaxDims && p.reduce_dims >= 0 && p.reduce_dims <= p.num_dims;
  require(plan, dims, "program ", number, ": ", p.num_dims, " dimensions, ", p.reduce_dims, " of them reduced");
  std::vector<bool> reduced(p.instrs.size(), false);
  for (size_t i = 0; i < p.instrs.size(); ++i) check_instr(plan, number, p, i, reduced);
}

class RecordCheck {
 public:
  RecordCheck(const Plan& plan, size_t index)
      : plan_(plan), index_(static_cast<int64_t>(index)), op_(plan.ops[index]), r_(op_.record) {}

  void run() const {
    switch (r_.kind) {
      case TaskKind::kPointwise:
        return program_task(ProgramKind::kPointwise);
      case TaskKind::kRow:
        return program_task(ProgramKind::kRow);
      case TaskKind::kColumn:
        return program_task(ProgramKind::kColumn);
      case TaskKind::kMatmulTile:
      case TaskKind::kMatmulFloat:
      case TaskKind::kMatmulSimple:
        return matmul();
      case TaskKind::kMatmulRows:
        return rows();
      case TaskKind::kMaskRange: {
        const abi::MaskRangeParams& p = r_.params.mask_range;
        need(p.block > 0, "block ", p.block);
        return grid({p.batch, p.heads, ceil_div(p.queries, p.block)});
      }
      default:
        return attention();
    }
  }

 private:
  template <class... Args>
  void need(bool condition, const Args&... message) const {
    require(plan_, condition, describe(plan_, index_), ": ", message...);
  }

  void grid(std::array<int64_t, 3> expected) const {
    bool good = r_.grid[0] == expected[0] && r_.grid[1] == expected[1] && r_.grid[2] == expected[2];
    need(good || expected[0] * expected[1] * expected[2] == 0, "grid ", r_.grid[0], ' ', r_.grid[1], ' ', r_.grid[2],
         ", expected ", expected[0], ' ', expected[1], ' ', expected[2]);
  }

  /// The program is there, of this kind, and its operands are.
  const Program& program(int number, int first, ProgramKind kind) const {
    need(number >= 0 && static_cast<size_t>(number) < plan_.programs.size(), "program ", number, " of ",
         plan_.programs.size());
    const Program& p = plan_.programs[static_cast<size_t>(number)];
    need(p.kind == kind, "program ", number, " is of kind ", name(p.kind), ", expected ", name(kind));
    bool fits = first >= 0 && static_cast<size_t>(first + p.num_operands) <= op_.operands.size();
    need(fits, "program ", number, " has operands ", first, " + ", p.num_operands, " of ", op_.operands.size());
    for (const Instr& i : p.instrs) {
      if (i.op == Opcode::kParameter)
        need(op_.operands[static_cast<size_t>(first + i.operand)].slot == abi::kNoSlot, "operand ", first + i.operand,
             " holds parameters and has a slot");
      bool load = i.op == Opcode::kLoad && (i.a >= 0 || i.b >= 0),
           store = i.op == Opcode::kStore && (i.b >= 0 || i.c >= 0);
      if (load || store)
        need(op_.operands[static_cast<size_t>(first + i.operand)].index_operand >= 0, "operand ", first + i.operand,
             " is indexed without index strides");
    }
    return p;
  }

  void program_task(ProgramKind kind) const {
    const abi::ProgramParams& p = r_.params.program;
    const Program& code = program(p.program, p.first_operand, kind);
    need(code.num_dims == p.num_dims && code.reduce_dims == p.reduce_dims, "its program has ", code.num_dims, " and ",
         code.reduce_dims, " dimensions, the record ", p.num_dims, " and ", p.reduce_dims);
    int64_t tiled = 1, reduced = 1;
    for (int d = 0; d < p.num_dims; ++d) {
      bool column = kind == ProgramKind::kColumn, row = kind == ProgramKind::kRow;
      bool inside = (column && d < p.reduce_dims) || (row && d >= p.num_dims - p.reduce_dims);
      (inside ? reduced : tiled) *= r_.size[d];
    }
    if (tiled * reduced == 0) return;
    need(p.tile > 0, "tile ", p.tile);
    int64_t splits = kind == ProgramKind::kColumn && p.split > 0 ? ceil_div(reduced, p.split) : 1;
    int64_t expected = ceil_div(tiled, p.tile) * splits;
    need(tiles_of(r_) == expected, tiles_of(r_), " tiles of ", p.tile, " for ", tiled, " elements, expected ",
         expected);
    if (kind == ProgramKind::kPointwise) return;
    need(p.num_rows == tiled && p.row_size == reduced, "rows ", p.num_rows, " of ", p.row_size, ", expected ", tiled,
         " of ", reduced);
  }

  /// The map lies where the operand does: slot, offset, type.
  void map(int number, int operand, std::vector<int64_t> sizes) const {
    need(number >= 0 && static_cast<size_t>(number) < plan_.maps.size(), "map ", number, " of ", plan_.maps.size());
    const plan::TensorMap& m = plan_.maps[static_cast<size_t>(number)];
    const abi::Operand& x = op_.operands[static_cast<size_t>(operand)];
    int64_t bytes = size_bytes(static_cast<DType>(x.dtype));
    bool place = m.slot == x.slot && m.offset_bytes == x.offset * bytes && static_cast<short>(m.dtype) == x.dtype;
    need(place, "map ", number, " shows slot ", m.slot, " + ", m.offset_bytes, " bytes, operand ", operand, " slot ",
         x.slot, " + ", x.offset * bytes);
    need(m.sizes == sizes && m.strides_bytes.size() + 1 == m.sizes.size() && m.box.size() == m.sizes.size(), "map ",
         number, " of operand ", operand, " has other sizes than it");
    int64_t last = m.offset_bytes + (m.sizes[0] - 1) * bytes + bytes;
    for (size_t d = 1; d < m.sizes.size(); ++d) {
      need(m.strides_bytes[d - 1] % 16 == 0, "map ", number, ": a stride of ", m.strides_bytes[d - 1], " bytes");
      last += (m.sizes[d] - 1) * m.strides_bytes[d - 1];
    }
    int64_t whole = plan_.buffers[m.slot].size_bytes;
    need(m.offset_bytes % 16 == 0 && last <= whole, "map ", number, " ends at byte ", last, " of ", whole);
  }

  void matmul() const {
    const abi::MatmulTileParams& p = r_.params.matmul;
    program(p.program, p.first_operand, ProgramKind::kEpilogue);
    need(op_.operands.size() >= 2 && p.tile_m > 0 && p.tile_n > 0, "tiles of ", p.tile_m, " x ", p.tile_n);
    grid({p.batch, ceil_div(p.m, p.tile_m), ceil_div(p.n, p.tile_n)});
    if (r_.kind == TaskKind::kMatmulSimple) return;
    const auto whole = [](int tile) { return tile == 64 || tile == 128; };
    need(r_.kind != TaskKind::kMatmulFloat || (whole(p.tile_m) && whole(p.tile_n)), "fp32 tiles of ", p.tile_m, " x ",
         p.tile_n, ", expected 64 or 128 each");
    auto sizes = [&](bool k_major, int64_t rows) {
      return k_major ? std::vector<int64_t>{p.k, rows, p.batch} : std::vector<int64_t>{rows, p.k, p.batch};
    };
    map(p.map_a, 0, sizes(p.a_k_major, p.m));
    map(p.map_b, 1, sizes(p.b_k_major, p.n));
  }

  void rows() const {
    const abi::MatmulRowsParams& p = r_.params.rows;
    program(p.prologue, p.prologue_operand, ProgramKind::kPrologue);
    need(p.num_segments > 0 && p.num_segments <= abi::kMaxSegments, p.num_segments, " segments");
    need(p.lanes == 1 || (p.lanes == 2 && (p.gated || p.pair_distance > 0)), p.lanes, " lanes, pair distance ",
         p.pair_distance);
    int64_t units = 0;
    for (int s = 0; s < p.num_segments; ++s) {
      const abi::Segment& g = p.segment[s];
      program(g.program, g.first_operand, ProgramKind::kEpilogue);
      need(g.first_unit == units, "segment ", s, " begins at unit ", g.first_unit, ", expected ", units);
      bool whole = p.lanes == 1 || p.gated || g.num_units % p.pair_distance == 0;
      need(whole, "segment ", s, " has ", g.num_units, " units in pairs ", p.pair_distance, " apart");
      units += g.num_units;
    }
    need(units == p.num_units, "segments of ", units, " units, expected ", p.num_units);
    grid({p.num_units, 1, 1});
  }

  void attention() const {
    const abi::AttentionParams& p = r_.params.attention;
    need(p.kv_heads > 0 && p.heads % p.kv_heads == 0, p.heads, " heads, ", p.kv_heads, " kv heads");
    size_t operands = r_.kind == TaskKind::kAttentionBackwardRows                                               ? 3
                      : r_.kind == TaskKind::kAttentionBackward || r_.kind == TaskKind::kAttentionBackwardQuery ? 11
                                                                                                                : 7;
    need(op_.operands.size() >= operands, op_.operands.size(), " operands, expected ", operands);
    if (r_.kind == TaskKind::kAttentionDecode) return grid({p.batch, p.kv_heads, p.parts});
    need(p.tile_q > 0 && p.tile_k > 0, "tiles of ", p.tile_q, " x ", p.tile_k);
    bool by_keys = r_.kind == TaskKind::kAttentionBackward;
    if (by_keys) grid({p.batch, p.kv_heads, ceil_div(p.keys, p.tile_k)});
    if (!by_keys) grid({p.batch, p.heads, ceil_div(p.queries, p.tile_q)});
    if (r_.kind == TaskKind::kAttentionBackwardRows) return;
    const bool half = p.dtype == static_cast<int>(DType::kBF16) || p.dtype == static_cast<int>(DType::kF16);
    const auto columns = [&](int most) {
      const auto fits = [&](int dim) { return dim > 0 && dim % 8 == 0 && dim <= most; };
      need(half && fits(p.head_dim) && fits(p.value_dim), "heads of ", p.head_dim, " and ", p.value_dim, " columns of ",
           name(static_cast<DType>(p.dtype)), ", expected 16 bits and multiples of 8 up to ", most);
    };
    if (r_.kind == TaskKind::kAttentionSimple) {
      need(p.tile_q == abi::kMmaQueries || p.tile_q == abi::kTiledQueries || p.tile_q == abi::kTiledQueriesF64,
           "tiles of ", p.tile_q, " queries");
      if (p.tile_q == abi::kMmaQueries) columns(256);
      return;
    }
    columns(abi::kMostHeadDim);
    need(p.head_dim == p.value_dim, "heads of ", p.head_dim, " and ", p.value_dim, " columns, expected equal ones");
    map(p.map[0], 0, {p.head_dim, p.queries, p.heads, p.batch});
    map(p.map[1], 1, {p.head_dim, p.keys, p.kv_heads, p.batch});
    map(p.map[2], 2, {p.value_dim, p.keys, p.kv_heads, p.batch});
    if (r_.kind != TaskKind::kAttentionForward) map(p.map[3], 3, {p.value_dim, p.queries, p.heads, p.batch});
  }

  const Plan& plan_;
  int64_t index_;
  const plan::Op& op_;
  const abi::OpRecord& r_;
};

}  // namespace

void verify_records(const Plan& plan) {
  for (size_t i = 0; i < plan.programs.size(); ++i) check_program(plan, i);
  for (size_t i = 0; i < plan.ops.size(); ++i) RecordCheck(plan, i).run();
}

}  // namespace ark::planner
