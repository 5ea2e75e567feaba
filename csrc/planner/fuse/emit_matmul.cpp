// Ops of matmul groups: tiles with an epilogue, or few rows with a prologue and up to three segments.
#include <algorithm>

#include "base/check.h"
#include "planner/fuse/emit.h"

namespace ark::planner {
namespace {

using ir::Node;

abi::Operand matrix_operand(const Place& place, const StridedSource& source, const Tensor& owner, DType dtype) {
  check(place.storage >= 0, "the operand of a matrix product has no storage");
  check<UnsupportedError>(place.strides == owner.strides, "the operand of a matrix product lies elsewhere");
  abi::Operand x{};
  x.slot = static_cast<uint32_t>(place.storage);
  x.dtype = static_cast<short>(dtype);
  x.vector = 1;
  x.index_operand = -1;
  x.offset = source.offset + place.offset;
  std::copy(source.strides.begin(), source.strides.end(), x.stride);
  return x;
}

}  // namespace

void Emitter::matmul_group(int g) {
  const Group& group = state_.groups[static_cast<size_t>(g)];
  if (product(group.dims) == 0) return;
  if (!group.few_rows) return tile_matmul(g);
  // What shares the activation shares an op, as far as segments, pairs and operands allow.
  std::vector<Unit> open = units_of(g);
  const int activation = state_.node(group.anchors[0]).inputs[0];
  const int last = std::min(static_cast<int>(state_.groups.size()), g + kLookAhead);
  for (int j = g + 1; j < last; ++j) {
    const Group& other = state_.groups[static_cast<size_t>(j)];
    if (!other.few_rows || other.columns != group.columns || emitted_[static_cast<size_t>(j)] ||
        state_.node(other.anchors[0]).inputs[0] != activation)
      continue;
    try {
      const std::vector<Unit> more = units_of(j);
      if (more.empty()) continue;
      free_value_ops(j);
      const bool early =
          std::all_of(more.begin(), more.end(), [&](const Unit& unit) { return reads_only_before(epilogue(unit)); });
      if (!early) continue;
      open.insert(open.end(), more.begin(), more.end());
      emitted_[static_cast<size_t>(j)] = true;
    } catch (const NeedStored& need) {
      missing_.push_back(need.owner);
    }
  }
  while (!open.empty()) {
    std::vector<Unit> batch, rest;
    int64_t pair = 0;
    size_t operands = 4;
    for (const Unit& unit : open) {
      const bool gated = __builtin_popcount(unit.roots) == 2;
      const bool first = batch.empty();
      const bool like = first || gated == (__builtin_popcount(batch[0].roots) == 2);
      const int64_t n = state_.groups[static_cast<size_t>(unit.group)].dims[2];
      const bool pairs = unit.pair == 0 || pair == 0 || unit.pair == pair;
      const int64_t joint = std::max(pair, unit.pair);
      bool fits = like && pairs && batch.size() < abi::kMaxSegments && (joint == 0 || n % (2 * joint) == 0);
      for (const Unit& other : batch) {
        fits = fits && (joint == 0 || state_.groups[static_cast<size_t>(other.group)].dims[2] % (2 * joint) == 0);
      }
      const size_t more = epilogue(unit).operands.size() + (gated ? 2 : 1);
      if (!first && operands + more > kMaxOperands) fits = false;
      (fits ? batch : rest).push_back(unit);
      if (fits) pair = joint, operands += more;
    }
    rows_matmul(batch);
    open = rest;
  }
}

/// The matmuls of a group whose values meet, each set with something to store.
std::vector<Emitter::Unit> Emitter::units_of(int g) const {
  const Group& group = state_.groups[static_cast<size_t>(g)];
  std::vector<Unit> units;
  for (const auto& [roots, pair] : group.components) {
    bool wanted = false;
    for (int v : group.values) {
      const bool stored = state_.stored[static_cast<size_t>(v)] && state_.place[static_cast<size_t>(v)].has_value();
      wanted |= stored && (state_.value_roots[static_cast<size_t>(v)] & roots) != 0;
    }
    for (int i : group.index_stores)
      wanted |= (state_.value_roots[static_cast<size_t>(state_.owner(state_.node(i).inputs[1]))] & roots) != 0;
    if (wanted) units.push_back({g, roots, pair});
  }
  return units;
}

/// True when everything that the program loads has been written by the ops so far.
bool Emitter::reads_only_before(const BuiltProgram& built) const {
  for (size_t i = 0; i < built.operands.size(); ++i) {
    if (built.access[i] != Access::kRead || built.operands[i].slot == abi::kNoSlot) continue;
    const StorageId id = static_cast<StorageId>(built.operands[i].slot);
    const Storage& storage = result_.storages[static_cast<size_t>(id)];
    if (writer_[static_cast<size_t>(id)] >= 0) continue;
    if (storage.input < 0) return false;
    for (size_t v = 0; v < state_.in_place.size(); ++v) {
      if (state_.in_place[v] && state_.places[v].storage == id) return false;
    }
  }
  return true;
}

BuiltProgram Emitter::epilogue(const Unit& unit) {
  const Group& group = state_.groups[static_cast<size_t>(unit.group)];
  ProgramSpec spec;
  spec.kind = ProgramKind::kEpilogue;
  spec.group = unit.group;
  spec.dims = group.dims;
  for (size_t k = 0; k < group.anchors.size(); ++k) {
    if ((unit.roots >> k & 1) != 0) spec.roots.push_back(group.anchors[k]);
  }
  ProgramBuilder builder(state_, spec);
  for (int v : group.values) {
    const auto o = static_cast<size_t>(v);
    if (state_.stored[o] && state_.place[o] && (state_.value_roots[o] & unit.roots) != 0)
      builder.store(v, *state_.place[o]);
  }
  for (int i : group.index_stores) {
    if ((state_.value_roots[static_cast<size_t>(state_.owner(state_.node(i).inputs[1]))] & unit.roots) != 0)
      builder.index_store(i, source_place(i));
  }
  return builder.finish();
}

BuiltProgram Emitter::prologue(int group, int activation, int64_t m, int64_t k) {
  ProgramSpec spec;
  spec.kind = ProgramKind::kPrologue;
  spec.reader = group;
  spec.dims = {m, k};
  spec.reduce_dims = 1;
  ProgramBuilder builder(state_, spec);
  const Coords coords{dim_expr(0, m), dim_expr(1, k)};
  builder.yield(builder.cast(builder.eval(activation, coords), state_.tensor(activation).dtype));
  return builder.finish();
}

void Emitter::rows_matmul(const std::vector<Unit>& units) {
  const Group& first = state_.groups[static_cast<size_t>(units[0].group)];
  const Node& main = state_.node(first.anchors[0]);
  const MatmulShape shape = matmul_shape(state_, main);
  FusedOp op;
  abi::OpRecord& record = op.op.record;
  record.kind = abi::TaskKind::kMatmulRows;
  record.size[0] = 1, record.size[1] = shape.m, record.size[2] = 0;
  for (int d = 3; d < abi::kMaxDims; ++d) record.size[d] = 1;
  abi::MatmulRowsParams& p = record.params.rows;
  p.m = static_cast<int>(shape.m);
  p.k = static_cast<int>(shape.k);
  p.dtype = static_cast<int>(shape.dtype);
  p.gated = __builtin_popcount(units[0].roots) == 2;
  p.num_segments = static_cast<int>(units.size());
  for (const Unit& unit : units) p.pair_distance = std::max(p.pair_distance, static_cast<int>(unit.pair));
  p.lanes = p.gated || p.pair_distance > 0 ? 2 : 1;
  p.columns = first.columns ? abi::kLeastColumns : 0;  // until the planner tiles
  std::fill(std::begin(p.map), std::end(p.map), -1);
  std::vector<int> nodes;
  struct Weights {
    int weight[2];
  };
  std::vector<Weights> weights;
  for (const Unit& unit : units) {  // weights first
    const Group& group = state_.groups[static_cast<size_t>(unit.group)];
    Weights w{{-1, -1}};
    int count = 0;
    for (size_t k = 0; k < group.anchors.size(); ++k) {
      if ((unit.roots >> k & 1) == 0) continue;
      const Node& node = state_.node(group.anchors[k]);
      const MatmulShape own = matmul_shape(state_, node);
      abi::Operand x =
          matrix_operand(state_.places[static_cast<size_t>(own.b.owner)], own.b, state_.tensor(own.b.owner), own.dtype);
      x.stride[0] = own.b.strides[2];  // n
      x.stride[1] = own.b.strides[1];  // k
      x.stride[2] = 0;
      x.vector = static_cast<signed char>(16 / size_bytes(own.dtype));
      w.weight[count++] = static_cast<int>(op.op.operands.size());
      op.op.operands.push_back(x);
      op.access.push_back(Access::kRead);
      op.op.flops += 2 * own.m * own.n * own.k;
      nodes.push_back(group.anchors[k]);
    }
    weights.push_back(w);
  }
  const BuiltProgram head = prologue(units[0].group, main.inputs[0], shape.m, shape.k);
  p.prologue_operand = append(op, head);
  p.prologue = add_program(head.program);
  nodes.insert(nodes.end(), head.nodes.begin(), head.nodes.end());
  op.op.programs = {p.prologue};
  for (size_t s = 0; s < units.size(); ++s) {
    const BuiltProgram tail = epilogue(units[s]);
    abi::Segment& segment = p.segment[s];
    const int64_t n = state_.groups[static_cast<size_t>(units[s].group)].dims[2];
    segment.first_unit = p.num_units;
    segment.num_units = static_cast<int>(p.gated ? n : n / p.lanes);
    segment.weight = weights[s].weight[0];
    segment.weight2 = weights[s].weight[1] < 0 ? weights[s].weight[0] : weights[s].weight[1];
    segment.first_operand = append(op, tail);
    segment.program = add_program(tail.program);
    if (std::find(op.op.programs.begin(), op.op.programs.end(), segment.program) == op.op.programs.end())
      op.op.programs.push_back(segment.program);
    p.num_units += segment.num_units;
    record.size[2] += n;
    nodes.insert(nodes.end(), tail.nodes.begin(), tail.nodes.end());
    for (int i : state_.groups[static_cast<size_t>(units[s].group)].index_stores) nodes.push_back(i);
  }
  finish(std::move(op), nodes, first.anchors[0]);
}

void Emitter::tile_matmul(int g) {
  const Group& group = state_.groups[static_cast<size_t>(g)];
  const Node& node = state_.node(group.anchors[0]);
  const MatmulShape shape = matmul_shape(state_, node);
  FusedOp op;
  abi::OpRecord& record = op.op.record;
  record.kind = shape.way == MatmulWay::kTile    ? abi::TaskKind::kMatmulTile
                : shape.way == MatmulWay::kFloat ? abi::TaskKind::kMatmulFloat
                                                 : abi::TaskKind::kMatmulSimple;
  std::fill(record.size, record.size + abi::kMaxDims, 1);
  std::copy(group.dims.begin(), group.dims.end(), record.size);
  abi::MatmulTileParams& p = record.params.matmul;
  p.batch = static_cast<int>(shape.batch), p.m = static_cast<int>(shape.m), p.n = static_cast<int>(shape.n),
  p.k = static_cast<int>(shape.k);
  p.dtype = static_cast<int>(shape.dtype);
  p.map_a = p.map_b = -1;
  for (const StridedSource* source : {&shape.a, &shape.b}) {
    op.op.operands.push_back(matrix_operand(state_.places[static_cast<size_t>(source->owner)], *source,
                                            state_.tensor(source->owner), shape.dtype));
    op.access.push_back(Access::kRead);
  }
  p.a_k_major = shape.a.strides[2] == 1;
  p.b_k_major = shape.b.strides[1] == 1;
  const BuiltProgram tail = epilogue({g, 1, 0});
  p.first_operand = append(op, tail);
  p.program = add_program(tail.program);
  p.pair_distance = static_cast<int>(tail.pair_distance);
  op.op.programs = {p.program};
  op.op.flops = 2 * shape.batch * shape.m * shape.n * shape.k;
  std::vector<int> nodes = tail.nodes;
  nodes.push_back(group.anchors[0]);
  finish(std::move(op), nodes, group.anchors[0]);
}

}  // namespace ark::planner
