// The parts of ProgramBuilder that touch memory: addresses over the domain, loads and stores.
#include <algorithm>

#include "base/check.h"
#include "planner/fuse/program_builder.h"

namespace ark::planner {

uint32_t ProgramBuilder::expr_dims(const Expr& expr) const {
  uint32_t mask = 0;
  for (const Term& t : expr.view()) mask |= t.dim >= 0 ? 1u << t.dim : reg(t.reg).dims;
  return mask;
}

void ProgramBuilder::note_split(const Term& term) {
  const auto d = static_cast<size_t>(term.dim);
  const auto given = static_cast<size_t>(given_[d]);
  if (term.div > 1) wanted_splits_[given].insert(int64_t{term.div} * inner_[d]);
  if (term.mod > 0) wanted_splits_[given].insert(int64_t{term.div} * term.mod * inner_[d]);
}

ProgramBuilder::Address ProgramBuilder::address(const Expr& linear, DType dtype, StorageId storage, int pred) {
  Address result;
  result.pred = pred;
  result.operand.slot = static_cast<uint32_t>(storage);
  result.operand.dtype = static_cast<short>(dtype);
  result.operand.vector = 1;
  result.operand.index_operand = -1;
  result.operand.offset = linear.constant;
  Expr structural;  // what strides cannot say
  std::vector<Term> indices;
  for (const Term& t : linear.view()) {
    if (t.dim >= 0 && t.pure()) {
      if (dims_.size() <= abi::kMaxDims) result.operand.stride[t.dim] += t.coef;
    } else if (t.reg >= 0 && t.pure()) {
      indices.push_back(t);
    } else {
      if (t.dim >= 0) note_split(t);
      structural.add(t);
    }
  }
  // Rare: more indices than registers. Those that are added up are checked here; where one is out of range, the access
  // does not take place.
  while (indices.size() + (structural.num_terms > 0 ? 1 : 0) > 2) {
    const Term t = indices.back();
    indices.pop_back();
    const int index = wrapped_index(t.reg, t.extent, pred);
    result.pred = in_range(reg_expr(index, t.extent + 1), 0, t.extent, result.pred);
    structural.add(reg_expr(index, t.extent), t.coef);
  }
  int count = 0;
  for (const Term& t : indices) {
    result.index[count] = t.reg;
    result.index_stride[count] = t.coef;
    result.index_extent[count++] = t.extent;
  }
  if (structural.num_terms > 0) {
    const int64_t low = structural.min();
    if (low < 0) {  // an index may not be negative (it would count from the end)
      structural.constant -= low;
      result.operand.offset += low;
    }
    result.index[count] = expr_register(structural);
    result.index_stride[count] = 1;
    result.index_extent[count++] = structural.max() + 1;
  }
  return result;
}

int ProgramBuilder::add_operand(const Address& address, Access access) {
  abi::Operand operand = address.operand;
  uint32_t depends = 0;
  if (address.index[0] >= 0) {
    abi::Operand parameters{};
    parameters.slot = abi::kNoSlot;
    parameters.dtype = operand.dtype;
    parameters.vector = 1;
    parameters.index_operand = -1;
    for (int i = 0; i < 2; ++i) {
      parameters.stride[i] = address.index_stride[i];
      parameters.stride[2 + i] = address.index_extent[i];
      if (address.index[i] >= 0) depends |= reg(address.index[i]).dims;
    }
    int found = -1;
    for (size_t i = 0; i < operands_.size(); ++i) {
      // All numbers: those of an attention's parts (Opcode::kLoadParts) leave share_programs no room behind the
      // extents.
      if (access_[i] == Access::kParameters && operands_[i].dtype == parameters.dtype &&
          std::equal(parameters.stride, parameters.stride + abi::kMaxDims, operands_[i].stride)) {
        found = static_cast<int>(i);
      }
    }
    if (found < 0) {
      found = static_cast<int>(operands_.size());
      operands_.push_back(parameters);
      access_.push_back(Access::kParameters);
      operand_dims_.push_back(0);
    }
    operand.index_operand = static_cast<signed char>(found);
  }
  for (size_t i = 0; i < operands_.size(); ++i) {
    const abi::Operand& o = operands_[i];
    if (access_[i] == access && o.slot == operand.slot && o.dtype == operand.dtype && o.offset == operand.offset &&
        o.index_operand == operand.index_operand && std::equal(o.stride, o.stride + abi::kMaxDims, operand.stride)) {
      operand_dims_[i] |= depends;
      return static_cast<int>(i);
    }
  }
  operands_.push_back(operand);
  access_.push_back(access);
  operand_dims_.push_back(depends);
  return static_cast<int>(operands_.size()) - 1;
}

int ProgramBuilder::load(const Expr& linear, DType dtype, StorageId storage, int pred) {
  for (const Loaded& l : loaded_) {
    if (l.storage == storage && l.pred == pred && l.dtype == dtype && l.linear == linear) return l.reg;
  }
  const Address where = address(linear, dtype, storage, pred);
  const int operand = add_operand(where, Access::kRead);
  Reg meta;
  meta.type = compute_type(dtype);
  meta.rounded = dtype;
  meta.dims = expr_dims(linear);
  Instr instr{.op = Opcode::kLoad,
              .dtype = dtype,
              .a = narrow(where.index[0]),
              .b = narrow(where.index[1]),
              .c = narrow(where.pred)};
  instr.operand = narrow(operand);
  const int result = emit(instr, meta);
  if (where.pred >= 0) operand_dims_[static_cast<size_t>(operand)] |= reg(where.pred).dims;
  loaded_.push_back({linear, storage, dtype, pred, result});
  return result;
}

void ProgramBuilder::store(int owner, const Coords& coords) {
  copy(owner, coords, state_.places[static_cast<size_t>(owner)]);
}

void ProgramBuilder::copy(int source, const Coords& coords, const Place& place) {
  const Coords lifted = lift(coords);
  const bool sends = is_box(state_, source) && computes(source);
  if (sends) nodes_.push_back(state_.tensor(source).node);
  const int value = eval(sends ? sent_value(state_, source) : source, lifted);
  const Tensor& t = state_.tensor(source);
  const std::optional<Expr> linear = linearize(lifted, place.strides, place.offset);
  check(linear.has_value(), "value %", source, " is stored at too many terms");
  const Address where = address(*linear, t.dtype, place.storage, -1);
  const int operand = add_operand(where, Access::kWrite);
  Instr instr{.op = Opcode::kStore,
              .dtype = t.dtype,
              .a = narrow(value),
              .b = narrow(where.index[0]),
              .c = narrow(where.index[1])};
  instr.operand = narrow(operand);
  const uint32_t placed = expr_dims(*linear);
  // Every element of the domain must have an address of its own, except that a row may store once.
  if ((reg(value).dims & row_mask_ & ~placed) != 0) throw NeedStored{t.owner};
  if (spec_.kind == ProgramKind::kColumn && (placed & row_mask_) != 0) throw NeedStored{t.owner};
  instr.uniform = spec_.kind == ProgramKind::kRow && ((reg(value).dims | placed) & row_mask_) == 0;
  stores_.push_back(instr);
}

void ProgramBuilder::index_store(int node_number, const Coords& src_coords) {
  const ir::Node& node = state_.node(node_number);
  const int out = node.outputs[0], src = node.inputs[1];
  const Coords lifted = lift(src_coords);
  const Tensor& s = state_.tensor(src);
  const Place& place = state_.places[static_cast<size_t>(out)];
  nodes_.push_back(node_number);
  const int value = eval(src, lifted, -1);
  Coords coords;
  int pred = -1;
  for (size_t d = 0; d < node.attrs.map.size(); ++d) {
    const int32_t from = node.attrs.map[d];
    if (from >= 0) {
      coords.push_back(lifted[static_cast<size_t>(from)]);
    } else {
      const int64_t extent = state_.tensor(out).sizes[d];
      int index = eval_broadcast(node.inputs[static_cast<size_t>(2 + ~from)], s.sizes, lifted, -1);
      if (node.inputs.size() > 3 || extent == 1) {  // see index_load; as a predicate, for joined terms have one bound
        index = wrapped_index(index, extent, -1);
        pred = in_range(reg_expr(index, extent + 1), 0, extent, pred);
      }
      coords.push_back(reg_expr(index, extent));
    }
  }
  const std::optional<Expr> linear = linearize(coords, place.strides, place.offset);
  check(linear.has_value(), "index store '", node.name, "' has too many terms");
  const Address where = address(*linear, s.dtype, place.storage, pred);
  const int operand = add_operand(where, Access::kReadWrite);
  Instr instr{.op = Opcode::kStore,
              .dtype = s.dtype,
              .a = narrow(value),
              .b = narrow(where.index[0]),
              .c = narrow(where.index[1]),
              .d = narrow(where.pred)};
  instr.operand = narrow(operand);
  const uint32_t asked = where.pred < 0 ? 0 : reg(where.pred).dims;
  operand_dims_[static_cast<size_t>(operand)] |= asked;
  // A token behind the extreme of its row of scores is stored once.
  instr.uniform = spec_.kind == ProgramKind::kRow && ((reg(value).dims | expr_dims(*linear) | asked) & row_mask_) == 0;
  stores_.push_back(instr);
}

void ProgramBuilder::yield(int value) {
  Instr instr{.op = Opcode::kYield, .dtype = reg(value).type, .a = narrow(value)};
  stores_.push_back(instr);
}

}  // namespace ark::planner
