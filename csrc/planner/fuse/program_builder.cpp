#include "planner/fuse/program_builder.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/unsupported.h"

namespace ark::planner {

ProgramBuilder::ProgramBuilder(const State& state, ProgramSpec spec) : state_(state), spec_(std::move(spec)) {
  const int rank = static_cast<int>(spec_.dims.size());
  wanted_splits_.resize(spec_.dims.size());
  constexpr size_t kUsual = 16;  // instructions
  instrs_.reserve(kUsual), regs_.reserve(kUsual), memo_.reserve(kUsual), nodes_.reserve(kUsual);
  operands_.reserve(kUsual / 2), access_.reserve(kUsual / 2), operand_dims_.reserve(kUsual / 2);
  base_.reserve(spec_.dims.size()), dims_.reserve(spec_.dims.size());
  given_.reserve(spec_.dims.size()), inner_.reserve(spec_.dims.size());
  memo_heads_.assign(kUsual, -1);
  std::vector<int64_t> cuts;  // sizes of suffixes, descending
  for (int d = 0; d < rank; ++d) {
    cuts.assign(1, spec_.dims[static_cast<size_t>(d)]);
    if (!spec_.splits.empty()) {
      const std::vector<int64_t>& inner = spec_.splits[static_cast<size_t>(d)];
      cuts.insert(cuts.end(), inner.rbegin(), inner.rend());
    }
    cuts.push_back(1);
    const bool reduced = spec_.kind == ProgramKind::kColumn ? d < spec_.reduce_dims : d >= rank - spec_.reduce_dims;
    Expr whole;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int64_t size = cuts[i] / cuts[i + 1];
      const int refined = static_cast<int>(dims_.size());
      whole.add(Term{.coef = cuts[i + 1], .extent = size, .dim = narrow(refined)});
      if (reduced) row_mask_ |= 1u << refined;
      dims_.push_back(size);
      given_.push_back(d);
      inner_.push_back(cuts[i + 1]);
    }
    base_.push_back(whole);
  }
}

bool ProgramBuilder::refine(ProgramSpec& spec) const {
  if (spec.kind == ProgramKind::kEpilogue || spec.kind == ProgramKind::kPrologue) return false;
  spec.splits.resize(spec.dims.size());
  bool changed = false;
  int refined = 0;
  for (const int64_t size : dims_) refined += size > 1;
  for (size_t d = 0; d < spec.dims.size(); ++d) {
    std::vector<int64_t>& cuts = spec.splits[d];
    for (int64_t cut : wanted_splits_[d]) {
      if (std::find(cuts.begin(), cuts.end(), cut) != cuts.end() || spec.dims[d] % cut != 0) continue;
      const bool fits =
          std::all_of(cuts.begin(), cuts.end(), [&](int64_t c) { return c < cut ? cut % c == 0 : c % cut == 0; });
      if (!fits || refined >= abi::kMaxDims) continue;
      cuts.insert(std::upper_bound(cuts.begin(), cuts.end(), cut), cut);
      changed = true;
      ++refined;
    }
  }
  return changed;
}

Coords ProgramBuilder::lift(const Coords& coords) const {
  if (spec_.splits.empty()) return coords;
  Coords lifted;
  lifted.reserve(coords.size());
  for (const Expr& expr : coords) {
    std::optional<Expr> value = substitute(expr, base_);
    check(value.has_value(), "a place over the domain does not lift to its refinement");
    lifted.push_back(*value);
  }
  return lifted;
}

// ---- where values come from ----

bool ProgramBuilder::computes(int owner) const {
  if (spec_.group >= 0 && state_.group_of[static_cast<size_t>(owner)] == spec_.group) return true;
  return std::find(spec_.computes.begin(), spec_.computes.end(), owner) != spec_.computes.end();
}

bool ProgramBuilder::in_memory(int owner) const {
  if (state_.is_input(owner)) return true;
  if (computes(owner)) return false;
  const auto o = static_cast<size_t>(owner);
  if (spec_.trial) return state_.forced[o] || state_.group_of[o] >= 0;
  const int reader = spec_.group >= 0 ? spec_.group : spec_.reader;
  const bool before = spec_.group < 0 && reader == state_.kept_by[o];  // the prologue of the op that stores it
  if (reader >= 0 && (reader < state_.kept_by[o] || before)) return false;
  return state_.stored[o];
}

std::optional<Expr> ProgramBuilder::linear_place(int value, const Coords& coords, StorageId* storage) const {
  const Tensor& t = state_.tensor(value);
  const Tensor& owner = state_.tensor(t.owner);
  if (spec_.trial) {
    *storage = t.owner;
    return linearize(coords, t.strides, t.offset);
  }
  const Place& place = state_.places[static_cast<size_t>(t.owner)];
  check(place.storage >= 0, "value %", t.owner, " is read before it has a storage");
  *storage = place.storage;
  if (place.strides == owner.strides) return linearize(coords, t.strides, t.offset + place.offset);
  if (value == t.owner) return linearize(coords, place.strides, place.offset);
  const Coords* map = view_map(state_, value);
  if (map == nullptr) return std::nullopt;
  Coords owner_coords;
  for (const Expr& expr : *map) {
    std::optional<Expr> c = substitute(expr, coords);
    if (!c) return std::nullopt;
    owner_coords.push_back(*c);
  }
  return linearize(owner_coords, place.strides, place.offset);
}

int ProgramBuilder::eval(int value, const Coords& coords, int pred) {
  const Tensor& t = state_.tensor(value);
  // Nobody runs what is done with the elements of nothing; a reduction over it still has a program.
  if (t.numel == 0) return constant(compute_type(t.dtype), 0, 0);
  if (in_memory(t.owner)) {
    StorageId storage = -1;
    const std::optional<Expr> linear = linear_place(value, coords, &storage);
    if (!linear)
      throw NodeUnsupported(
          state_.node_name(value),
          cat("value '", state_.graph.values[static_cast<size_t>(value)].name, "' is read at too many terms"));
    return load(*linear, t.dtype, storage, pred);
  }
  if (t.owner == value) return eval_owner(value, coords, pred);
  const Coords* map = view_map(state_, value);
  if (map == nullptr) throw NeedStored{t.owner};
  Coords owner_coords;
  owner_coords.reserve(map->size());
  for (const Expr& expr : *map) {
    std::optional<Expr> c = substitute(expr, coords);
    if (!c) throw NeedStored{t.owner};
    owner_coords.push_back(*c);
  }
  return eval_owner(t.owner, owner_coords, pred);
}

int ProgramBuilder::eval_owner(int owner, const Coords& coords, int pred) {
  if (pred >= 0 && is_reduced_everywhere(owner, coords)) pred = -1;
  for (int i = memo_head(owner); i >= 0; i = memo_[static_cast<size_t>(i)].next) {
    const Memo& m = memo_[static_cast<size_t>(i)];
    if (m.owner == owner && m.pred == pred && m.coords == coords) return m.reg;
  }
  const int reg = compute(owner, coords, pred);
  remember(owner, pred, reg, coords);
  return reg;
}

/// A reduction that lies in its tensor at every element of the domain: it needs no predicate, whatever arm of a
/// concatenation reads it. (What a register holds lies there only where its predicate does.)
bool ProgramBuilder::is_reduced_everywhere(int owner, const Coords& coords) const {
  const Tensor& t = state_.tensor(owner);
  if (t.node < 0 || state_.node(t.node).op != ir::OpKind::kReduce) return false;
  for (size_t d = 0; d < coords.size(); ++d) {
    const bool by_register = std::ranges::any_of(coords[d].view(), [](const Term& term) { return term.reg >= 0; });
    if (by_register || coords[d].min() < 0 || coords[d].max() >= t.sizes[d]) return false;
  }
  return true;
}

void ProgramBuilder::remember(int owner, int pred, int reg, const Coords& coords) {
  if (memo_.size() == memo_heads_.size()) {
    memo_heads_.assign(2 * memo_heads_.size(), -1);
    for (size_t i = 0; i < memo_.size(); ++i)
      memo_[i].next = std::exchange(memo_head(memo_[i].owner), static_cast<int>(i));
  }
  const int next = std::exchange(memo_head(owner), static_cast<int>(memo_.size()));
  memo_.push_back({owner, pred, reg, next, coords});
}

int ProgramBuilder::compute(int owner, const Coords& coords, int pred) {
  const Tensor& t = state_.tensor(owner);
  const ir::Node& node = state_.node(t.node);
  nodes_.push_back(t.node);
  switch (node.op) {
    case ir::OpKind::kPointwise:
      return wrapped(pointwise(owner, node, coords, pred), t.dtype);
    case ir::OpKind::kFull:
      return constant(compute_type(t.dtype), node.attrs.imm, node.attrs.imm_int);
    case ir::OpKind::kIota: {
      Expr expr = constant_expr(node.attrs.imm_int);
      if (!expr.add(coords[0], node.attrs.step)) throw NeedStored{owner};
      const int reg = expr_register(expr);
      return is_float(t.dtype) ? cast(reg, t.dtype) : reg;
    }
    case ir::OpKind::kReduce:
      return wrapped(reduce(owner, node, coords, pred), t.dtype);
    case ir::OpKind::kMatmul:
      return root(owner, coords);
    case ir::OpKind::kAttention:
      return load_parts(owner, coords);
    case ir::OpKind::kIndexLoad:
      return index_load(owner, node, coords, pred);
    case ir::OpKind::kIndexStore:
      if (!is_select_store(state_, node) || state_.in_place[static_cast<size_t>(owner)]) throw NeedStored{owner};
      return select_store(node, coords, pred);
    case ir::OpKind::kCat:
      return concatenate(owner, node, coords, pred);
    case ir::OpKind::kPad:
      return pad(node, coords, pred);
    case ir::OpKind::kPost:
      return eval_broadcast(node.inputs[0], t.sizes, coords, pred);
    case ir::OpKind::kRand:
      return random(owner, node, coords, pred);
    default:  // an exchange: what another rank sends has no register here
      throw NeedStored{owner};
  }
}

int ProgramBuilder::eval_broadcast(int value, const std::vector<int64_t>& sizes, const Coords& coords, int pred) {
  const Tensor& t = state_.tensor(value);
  if (t.sizes == sizes) return eval(value, coords, pred);
  Coords own(t.sizes.size());
  const size_t skip = sizes.size() - t.sizes.size();
  for (size_t d = 0; d < own.size(); ++d) {
    if (t.sizes[d] != 1) own[d] = coords[d + skip];
  }
  return eval(value, own, pred);
}

int ProgramBuilder::pointwise(int owner, const ir::Node& node, const Coords& coords, int pred) {
  const Tensor& t = state_.tensor(owner);
  const Opcode op = node.attrs.opcode;
  int args[3] = {-1, -1, -1};
  for (size_t i = 0; i < node.inputs.size(); ++i) args[i] = eval_broadcast(node.inputs[i], t.sizes, coords, pred);
  if (op == Opcode::kCast) {
    const DType from = state_.tensor(node.inputs[0]).dtype;
    if (from == t.dtype) return args[0];
    const bool rounds = !is_float(t.dtype) || node.attrs.rounds;
    return cast(rounds ? as_stored(args[0], from) : args[0], t.dtype);
  }
  DType type = compute_type(t.dtype), operand_type = type;
  const bool compares = op >= Opcode::kEq && op <= Opcode::kGe;
  if (compares || op == Opcode::kIsNan || op == Opcode::kIsInf) {
    operand_type = DType::kBool;
    for (int i = 0; i < 2 && args[i] >= 0; ++i)
      args[i] = as_stored(args[i], state_.tensor(node.inputs[static_cast<size_t>(i)]).dtype);
    for (int i = 0; i < 2 && args[i] >= 0; ++i) operand_type = std::max(operand_type, reg(args[i]).type);
  }
  for (int i = op == Opcode::kWhere ? 1 : 0; i < 3 && args[i] >= 0; ++i) args[i] = cast(args[i], operand_type);
  if (op == Opcode::kWhere) return select(cast(args[0], DType::kBool), args[1], args[2]);
  if (op == Opcode::kCheckIndex) return check_index(args[0], args[1], false, pred);
  if (op == Opcode::kPow) return power(node, args[0], args[1], type);
  if (args[1] < 0) return unary(op, args[0], type);
  if (args[2] < 0) return binary(op, args[0], args[1], type);
  Reg meta;
  meta.type = meta.rounded = type;
  return emit({.op = op, .dtype = type, .a = narrow(args[0]), .b = narrow(args[1]), .c = narrow(args[2])}, meta);
}

/// Powers with small constant exponents are products.
int ProgramBuilder::power(const ir::Node& node, int base, int exponent, DType type) {
  const Tensor& t = state_.tensor(node.inputs[1]);
  if (t.owner == node.inputs[1] && t.node >= 0 && state_.node(t.node).op == ir::OpKind::kFull && is_float(type)) {
    const double number =
        is_float(t.dtype) ? state_.node(t.node).attrs.imm : static_cast<double>(state_.node(t.node).attrs.imm_int);
    if (number == 2) return binary(Opcode::kMul, base, base, type);
    if (number == 1) return base;
    if (number == 3) return binary(Opcode::kMul, binary(Opcode::kMul, base, base, type), base, type);
    if (number == 0.5) return unary(Opcode::kSqrt, base, type);
    if (number == -0.5) return unary(Opcode::kRsqrt, base, type);
    if (number == -1) return unary(Opcode::kReciprocal, base, type);
  }
  return binary(Opcode::kPow, base, exponent, type);
}

int ProgramBuilder::reduce(int owner, const ir::Node& node, const Coords& coords, int pred) {
  const bool reduces =
      spec_.kind == ProgramKind::kRow || spec_.kind == ProgramKind::kColumn || spec_.kind == ProgramKind::kPrologue;
  if (!reduces || pred >= 0) throw NeedStored{owner};
  const int x = node.inputs[0];
  const std::vector<int64_t>& sizes = state_.tensor(x).sizes;
  const int rank = static_cast<int>(spec_.dims.size());
  const int first = spec_.kind == ProgramKind::kColumn ? 0 : rank - spec_.reduce_dims;
  Coords x_coords(sizes.size());
  int row = first;
  size_t kept = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const bool is_reduced = std::find(node.attrs.dims.begin(), node.attrs.dims.end(), d) != node.attrs.dims.end();
    if (!is_reduced) {
      x_coords[d] = coords[kept++];
      if ((expr_dims(x_coords[d]) & row_mask_) != 0) throw NeedStored{owner};
      continue;
    }
    kept += node.attrs.keepdim;
    if (sizes[d] == 1) continue;
    while (row < first + spec_.reduce_dims && spec_.dims[static_cast<size_t>(row)] == 1) ++row;
    if (row == first + spec_.reduce_dims || spec_.dims[static_cast<size_t>(row)] != sizes[d]) throw NeedStored{owner};
    x_coords[d] = base_[static_cast<size_t>(row++)];
  }
  while (row < first + spec_.reduce_dims && spec_.dims[static_cast<size_t>(row)] == 1) ++row;
  if (row != first + spec_.reduce_dims) throw NeedStored{owner};
  const bool picks = node.attrs.reduce == ReduceOp::kArgMax || node.attrs.reduce == ReduceOp::kArgMin;
  int value = eval(x, x_coords, -1);
  if (picks) value = as_stored(value, state_.tensor(x).dtype);
  if (spec_.kind == ProgramKind::kColumn && reg(value).phase > 0) throw NeedStored{owner};
  const DType type = compute_type(state_.tensor(owner).dtype);
  Reg meta;
  meta.type = type;
  meta.rounded = type;
  const int arg = type == DType::kBool ? cast(value, type) : value;
  const int result = emit(
      {.op = Opcode::kReduce, .dtype = type, .a = narrow(arg), .aux = static_cast<int16_t>(node.attrs.reduce)}, meta);
  regs_[static_cast<size_t>(result)].dims &= ~row_mask_;
  regs_[static_cast<size_t>(result)].phase = reg(arg).phase + 1;
  return result;
}

int ProgramBuilder::root(int owner, const Coords& coords) {
  const Tensor& t = state_.tensor(owner);
  const auto which = std::find(spec_.roots.begin(), spec_.roots.end(), t.node);
  if (spec_.kind != ProgramKind::kEpilogue || which == spec_.roots.end()) throw NeedStored{owner};
  const size_t rank = coords.size();
  const Expr batch = rank == 3 ? coords[0] : Expr{};
  Expr n = coords[rank - 1];
  if (!(batch == base_[0]) || !(coords[rank - 2] == base_[1])) throw NeedStored{owner};
  if (t.sizes[rank - 1] != spec_.dims[2]) throw NeedStored{owner};
  const int64_t delta = n.constant;
  n.constant = 0;
  if (!(n == base_[2])) throw NeedStored{owner};
  const int64_t pair = std::abs(delta);
  if (pair != 0) {
    // The partner column is there only where a predicate on n % 2p (or on n modulo a multiple of it) says which half
    // this is.
    bool proved = false;
    for (const Bound& bound : bounds_) {
      if (bound.expr.num_terms != 1 || bound.expr.constant != 0 || bound.low >= bound.high) continue;
      const Term& term = bound.expr.terms[0];
      const bool column = term.dim == 2 && term.div == 1 && term.coef == 1 && (term.mod % (2 * pair) == 0);
      if (!column || bound.low / pair != (bound.high - 1) / pair) continue;
      proved |= (bound.low / pair) % 2 == (delta > 0 ? 0 : 1);
    }
    if (!proved || !std::has_single_bit(static_cast<uint64_t>(pair)) || spec_.dims[2] % (2 * pair) != 0)
      throw NeedStored{owner};
  }
  Reg meta;
  meta.type = compute_type(t.dtype);
  meta.rounded = meta.type;
  Instr instr{.op = Opcode::kRoot, .dtype = meta.type, .aux = static_cast<int16_t>(which - spec_.roots.begin())};
  instr.delta_sign = static_cast<int8_t>(delta > 0 ? 1 : delta < 0 ? -1 : 0);
  const int result = emit(instr, meta);
  Reg& made = regs_[static_cast<size_t>(result)];
  made.dims = expr_dims(base_[0]) | expr_dims(base_[1]) | expr_dims(base_[2]);
  made.roots = 1u << (which - spec_.roots.begin());
  made.pair = pair;
  if (pair != 0) pair_distance_ = pair;
  return cast(result, t.dtype);
}

}  // namespace ark::planner
