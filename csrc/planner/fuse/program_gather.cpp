// The parts of ProgramBuilder that read elsewhere than where they write: cat, pad, index loads and stores, random
// numbers, attention in parts; and the last step, which makes the domain small and says what may be moved in vectors.
#include <algorithm>

#include "base/check.h"
#include "planner/fuse/canonical_domain.h"
#include "planner/fuse/operand_vectors.h"
#include "planner/fuse/program_builder.h"

namespace ark::planner {

int ProgramBuilder::concatenate(int owner, const ir::Node& node, const Coords& coords, int pred) {
  const auto d = static_cast<size_t>(node.attrs.dim);
  const Expr& e = coords[d];
  const DType type = compute_type(state_.tensor(owner).dtype);
  struct Piece {
    int value;
    int64_t low, high;
  };
  std::vector<Piece> pieces;
  int64_t low = 0;
  for (const ir::ValueId input : node.inputs) {
    const int64_t high = low + state_.tensor(input).sizes[d];
    if (high > low && e.max() >= low && e.min() < high) pieces.push_back({input, low, high});
    low = high;
  }
  check(!pieces.empty(), "cat '", node.name, "' is read outside of its inputs");
  auto eval_piece = [&](const Piece& piece, int condition) {
    Coords own = coords;
    own[d].constant -= piece.low;
    bounds_.push_back({e, piece.low, piece.high});
    int result = -1;
    try {
      result = eval(piece.value, own, condition);
    } catch (const NeedStored&) {
      // Where the piece's coordinate does not divide because it may lie outside of the piece, hide it in a register.
      if (own[d].min() >= 0 && own[d].max() < piece.high - piece.low) {
        bounds_.pop_back();
        throw;
      }
      own[d] = reg_expr(expr_register(own[d]), piece.high - piece.low);
      try {
        result = eval(piece.value, own, condition);
      } catch (const NeedStored&) {
        bounds_.pop_back();
        throw;
      }
    }
    bounds_.pop_back();
    return cast(result, type);
  };
  if (pieces.size() == 1) return eval_piece(pieces[0], pred);
  int result = -1;
  for (size_t i = pieces.size(); i-- > 0;) {
    const int value = eval_piece(pieces[i], in_range(e, pieces[i].low, pieces[i].high, pred));
    result = result < 0 ? value : select(in_range(e, e.min(), pieces[i].high, -1), value, result);
  }
  return result;
}

int ProgramBuilder::pad(const ir::Node& node, const Coords& coords, int pred) {
  const Tensor& t = state_.tensor(node.inputs[0]);
  Coords own = coords;
  int condition = -1;
  for (size_t d = 0; d < own.size(); ++d) {
    const int64_t low = node.attrs.ints[2 * d];
    condition = in_range(coords[d], low, low + t.sizes[d], condition);
    own[d].constant -= low;
  }
  const DType type = compute_type(t.dtype);
  if (condition < 0) return eval(node.inputs[0], own, pred);
  const int inside = pred < 0 ? condition : binary(Opcode::kLogicalAnd, pred, condition, DType::kBool);
  const int value = cast(eval(node.inputs[0], own, inside), type);
  return select(condition, value, constant(type, node.attrs.imm, static_cast<int64_t>(node.attrs.imm)));
}

/// A negative index counts from the end, once; what is outside even so is reported and becomes `extent`.
int ProgramBuilder::wrapped_index(int index, int64_t extent, int pred) {
  if (const Instr& known = instrs_[static_cast<size_t>(index)]; known.op == Opcode::kConst) {
    if (known.imm_int >= 0 && known.imm_int < extent) return index;
    if (known.imm_int < 0 && known.imm_int >= -extent) return integer(known.imm_int + extent);
  }
  return check_index(index, integer(extent), true, pred);
}

int ProgramBuilder::index_load(int owner, const ir::Node& node, const Coords& coords, int pred) {
  const Tensor& out = state_.tensor(owner);
  const int src = node.inputs[0];
  const Tensor& s = state_.tensor(src);
  const bool loaded = in_memory(s.owner) && strided_source(state_, src).owner >= 0;
  Coords own(s.sizes.size());
  std::vector<std::pair<int, int64_t>> checked;
  for (size_t d = 0; d < own.size(); ++d) {
    const int32_t from = node.attrs.map[d];
    if (from >= 0) {
      own[d] = coords[static_cast<size_t>(from)];
      continue;
    }
    int index = eval_broadcast(node.inputs[static_cast<size_t>(1 + ~from)], out.sizes, coords, pred);
    // One register in two dimensions would become one term with one extent, so several indices are wrapped here.
    if (!loaded || node.inputs.size() > 2 || s.sizes[d] == 1 || s.strides[d] == 0) {
      index = wrapped_index(index, s.sizes[d], pred);
      checked.emplace_back(index, s.sizes[d]);
    }
    own[d] = reg_expr(index, s.sizes[d]);
  }
  int value = eval(src, own, pred);
  for (const auto& [index, extent] : checked) value = keep_check(value, index, extent);
  return value;
}

/// `value`, which depends on the check of an index even where what is read does not depend on the index.
int ProgramBuilder::keep_check(int value, int index, int64_t extent) {
  const bool used = std::any_of(instrs_.begin() + index + 1, instrs_.end(), [&](const Instr& i) {
    return i.a == index || i.b == index || i.c == index || i.d == index;
  });
  if (used) return value;
  return select(in_range(reg_expr(index, extent + 1), 0, extent, -1), value, constant(reg(value).type, 0, 0));
}

int ProgramBuilder::select_store(const ir::Node& node, const Coords& coords, int pred) {
  const Tensor& src = state_.tensor(node.inputs[1]);
  const Tensor& dst = state_.tensor(node.inputs[0]);
  Coords own(src.sizes.size());
  int here = -1;  // this element is written
  for (size_t d = 0; d < node.attrs.map.size(); ++d) {
    const int32_t to = node.attrs.map[d];
    if (to < 0) continue;
    own[static_cast<size_t>(to)] = coords[d];
    here = in_range(coords[d], 0, src.sizes[static_cast<size_t>(to)], here);
  }
  const int inside =
      here < 0 || pred < 0 ? std::max(here, pred) : binary(Opcode::kLogicalAnd, here, pred, DType::kBool);
  for (size_t d = 0; d < node.attrs.map.size(); ++d) {
    const int32_t to = node.attrs.map[d];
    if (to >= 0) continue;
    const int raw = eval_broadcast(node.inputs[static_cast<size_t>(2 + ~to)], src.sizes, own, inside);
    const int index = wrapped_index(raw, dst.sizes[d], inside);
    const int equal = binary(Opcode::kEq, expr_register(coords[d]), index, DType::kBool);
    here = here < 0 ? equal : binary(Opcode::kLogicalAnd, here, equal, DType::kBool);
  }
  const DType type = compute_type(dst.dtype);
  const int value = cast(eval(node.inputs[1], own, inside), type);
  if (here < 0) return value;
  return select(here, value, cast(eval(node.inputs[0], coords, pred), type));
}

int ProgramBuilder::random(int owner, const ir::Node& node, const Coords& coords, int pred) {
  const int seed = eval(node.inputs[0], {}, pred), offset = eval(node.inputs[1], {}, pred);
  const Tensor& t = state_.tensor(owner);
  const std::optional<Expr> linear = linearize(coords, contiguous_strides(t.sizes), 0);
  if (!linear) throw NeedStored{owner};
  const int element = expr_register(*linear);
  Reg meta;
  meta.type = meta.rounded = DType::kF32;
  Instr instr{.op = Opcode::kRand, .dtype = DType::kF32, .a = narrow(seed), .b = narrow(offset), .c = narrow(element)};
  return emit(instr, meta);
}

/// See Opcode::kLoadParts. Behind its four operands stands the position of the attention's cache (set where it is
/// found, planner/early_reads.h) with the queries in stride[5]: from it the loop kernel knows how many parts are used,
/// and the others are neither written nor read; the host knows from the visible keys.
int ProgramBuilder::load_parts(int owner, const Coords& coords) {
  if (state_.parts_of_node.empty())
    throw NeedStored{owner};  // parts have no memory yet: an op of its own combines them
  const int which = state_.parts_of_node[static_cast<size_t>(state_.tensor(owner).node)];
  if (which < 0 || state_.tensor(owner).out_index != 0) throw NeedStored{owner};
  // Every worker has a prologue of its own: of one row it may combine them, of several an op does it once for all.
  if (spec_.kind == ProgramKind::kPrologue && spec_.dims[0] > 1) throw NeedStored{owner};
  const State::Parts& parts = state_.parts[static_cast<size_t>(which)];
  const int64_t group = parts.rows / parts.queries, heads = group * parts.kv_heads;
  // row = ((batch * heads + head) * queries + query): kv head and row in its group are what heads and queries make of
  // it.
  Expr row;
  const bool fits =
      row.add(coords[0], heads * parts.queries) && row.add(coords[1], parts.queries) && row.add(coords[2]);
  if (!fits) throw NeedStored{owner};
  const int row_reg = expr_register(row), column = expr_register(coords[3]);
  auto operand = [&](StorageId storage, DType dtype, std::initializer_list<int64_t> numbers, Access access) {
    abi::Operand x{};
    x.slot = storage < 0 ? abi::kNoSlot : static_cast<uint32_t>(storage);
    x.dtype = static_cast<short>(dtype);
    x.vector = 1;
    x.index_operand = -1;
    std::copy(numbers.begin(), numbers.end(), x.stride);
    operands_.push_back(x);
    access_.push_back(access);
    operand_dims_.push_back(~0u);
    raw_operands_.insert(static_cast<int>(operands_.size()) - 1);
  };
  const int first = static_cast<int>(operands_.size());
  if (spec_.trial) {
    operand(owner, DType::kF32, {}, Access::kRead);
  } else {
    operand(parts.out, DType::kF32, {}, Access::kRead);
    operand(parts.max_sum, DType::kF32, {}, Access::kRead);
    operand(parts.range, DType::kI32, {parts.range_stride}, Access::kRead);
    operand(-1, DType::kF32,
            {parts.parts, parts.rows, parts.value_dim, parts.positions_per_part, parts.keys, parts.kv_heads},
            Access::kParameters);
    operand(-1, DType::kI64, {0, 0, 0, 0, 0, parts.queries}, Access::kRead);
    // index_operand >= 0 tells later passes that the strides say nothing about what is touched.
    using P = abi::PartsOperand;
    for (int i : {P::kValues, P::kMaxSum, P::kRange, P::kPosition})
      operands_[static_cast<size_t>(first + i)].index_operand = static_cast<signed char>(first + P::kSizes);
  }
  Reg meta;
  meta.type = meta.rounded = DType::kF32;
  Instr instr{.op = Opcode::kLoadParts, .dtype = DType::kF32, .a = narrow(row_reg), .b = narrow(column)};
  instr.operand = narrow(first);
  return cast(emit(instr, meta), state_.tensor(owner).dtype);
}

// ---- the finished program ----

BuiltProgram ProgramBuilder::finish() {
  check_length(instrs_.size() + stores_.size());
  BuiltProgram built;  // takes what the builder has
  built.program.kind = spec_.kind;
  built.program.instrs = std::move(instrs_);
  built.program.instrs.insert(built.program.instrs.end(), stores_.begin(), stores_.end());
  remove_dead(built.program.instrs);
  built.operands = operands_;
  built.access = std::move(access_);
  built.dims = dims_;
  built.pair_distance = pair_distance_;
  built.nodes = std::move(nodes_);
  built.program.num_operands = static_cast<int>(operands_.size());
  built.program.num_dims = static_cast<int>(dims_.size());
  built.program.reduce_dims = spec_.reduce_dims;
  const DomainFacts facts{dims_, row_mask_, raw_operands_, operand_dims_};
  const bool is_task =
      spec_.kind == ProgramKind::kPointwise || spec_.kind == ProgramKind::kRow || spec_.kind == ProgramKind::kColumn;
  const uint32_t last = dims_.empty() ? 0 : 1u << (dims_.size() - 1);
  const uint32_t innermost = is_task ? make_canonical(facts, built) : last;
  set_vectors(facts, innermost, built);
  return built;
}

}  // namespace ark::planner
