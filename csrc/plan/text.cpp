// plan::to_string: a plan for people and golden tests. One op a paragraph, one list a line.
#include <cctype>

#include "base/check.h"
#include "plan/param_fields.h"
#include "plan/params.h"
#include "plan/plan.h"

namespace ark::plan {
namespace {

/// "MatmulTile" -> "matmul_tile".
std::string snake_case(const char* type) {
  std::string out;
  for (; *type != 0; ++type) {
    if (std::isupper(static_cast<unsigned char>(*type)) && !out.empty()) out += '_';
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(*type)));
  }
  return out;
}

}  // namespace

const char* name(abi::TaskKind kind) {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const Kind& row : kKinds) names.push_back(snake_case(row.type));
    return names;
  }();
  const bool known = kind >= abi::TaskKind{} && kind < abi::TaskKind::kCount;
  return known ? kNames[static_cast<size_t>(kind)].c_str() : "unknown";
}

namespace {

template <class T>
std::string list(const T& items) {
  std::string out = "[";
  for (const auto& x : items) out += cat(out.size() > 1 ? ", " : "", x);
  return out + "]";
}

std::string buffer_text(const Buffer& b) {
  constexpr const char* kKinds[] = {"input",   "output", "arena", "constant", "box",
                                    "box out", "boxes",  "part",  "part out"};
  std::string where;
  if (b.kind == BufferKind::kInput || b.kind == BufferKind::kOutput) where = cat(' ', b.index);
  if (b.kind == BufferKind::kArena) where = cat(" at ", b.arena_offset, ", ops ", b.first_op, " to ", b.last_op);
  if (b.kind == BufferKind::kBox) where = cat(" from rank ", b.index, " at ", b.arena_offset);
  if (b.kind == BufferKind::kBoxes) where = cat(" of all ranks at ", b.arena_offset);
  if (b.kind == BufferKind::kBoxOut) where = cat(" to rank ", b.index, ", twin of slot ", b.twin);
  if (is_part(b.kind))
    where = cat(b.kind == BufferKind::kPart ? " from rank " : " to rank ", b.index, " of exchange ", b.arena_offset);
  if (b.group > 0) where += cat(" in group ", b.group);
  return cat(kKinds[static_cast<int>(b.kind)], where, ", ", b.size_bytes, " bytes", b.immutable ? ", immutable" : "",
             b.name.empty() ? "" : "  # ", b.name);
}

std::string params_text(const abi::ProgramParams& p) {
  return cat("program ", p.program, ", operands from ", p.first_operand, ", dims ", p.num_dims, ", reduced ",
             p.reduce_dims, ", tile ", p.tile, ", split ", p.split, ", rows ", p.num_rows, " of ", p.row_size,
             p.whole != 0 ? cat(", whole vectors of ", p.whole) : "");
}

std::string params_text(const abi::MatmulRowsParams& p) {
  std::string out =
      cat("m ", p.m, ", k ", p.k, ", units ", p.num_units, ", lanes ", p.lanes, ", pair distance ", p.pair_distance,
          p.gated ? ", gated" : "", p.weights_immutable ? ", immutable weights" : "", ", prologue ", p.prologue);
  if (p.columns != 0) out += cat(", strips of ", p.columns, " columns");
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& g = p.segment[s];
    out += cat("; segment units ", g.first_unit, " + ", g.num_units, ", column ", g.column, ", weights ", g.weight, ' ',
               g.weight2, ", program ", g.program, ", operands from ", g.first_operand,
               p.columns != 0 ? cat(", map ", p.map[s]) : "",
               p.columns != 0 && p.gated ? cat(' ', p.map[p.num_segments + s]) : "");
  }
  return out;
}

std::string params_text(const abi::MatmulTileParams& p) {
  return cat("batch ", p.batch, ", m ", p.m, ", n ", p.n, ", k ", p.k, ", tile ", p.tile_m, " x ", p.tile_n, " x ",
             p.tile_k, ", maps ", p.map_a, ' ', p.map_b, ", k major ", p.a_k_major, ' ', p.b_k_major, ", program ",
             p.program, ", operands from ", p.first_operand, ", pair distance ", p.pair_distance,
             p.a_immutable || p.b_immutable ? cat(", immutable ", p.a_immutable, ' ', p.b_immutable) : "",
             p.own_rows ? cat(", own rows through map ", p.map_own) : "", p.gated ? ", gated" : "");
}

std::string params_text(const abi::AttentionParams& p) {
  return cat("batch ", p.batch, ", heads ", p.heads, " / ", p.kv_heads, ", queries ", p.queries, ", keys ", p.keys,
             ", dims ", p.head_dim, ' ', p.value_dim, p.causal ? cat(", causal ", p.causal_offset) : "", ", mask kind ",
             p.mask_kind, ", parts ", p.parts, " of ", p.positions_per_part, ", tile ", p.tile_q, " x ", p.tile_k,
             ", scale ", p.scale, p.fresh_operand > 0 ? cat(", position operand ", p.fresh_operand) : "",
             p.head_parts > 1 ? cat(", head parts ", p.head_parts) : "",
             p.tiles_at_once > 1 ? cat(", ", p.tiles_at_once, " tiles at once") : "");
}

/// Of families without words of their own: all fields, by their names.
template <class Params>
std::string params_text(const Params& params) {
  std::string out;
  for_each_field(
      params, [&](std::string_view name, const auto& value) { out += cat(out.empty() ? "" : ", ", name, ' ', value); });
  return out;
}

/// Of what the kernel reads as another group's than the first.
std::string group_text(uint32_t group) { return group == 0 ? "" : cat(" of group ", group); }

template <class Map>
std::string map_text(const Map& m) {
  return cat("rows [", m.base, " + ", m.coef[0], " c0 + ", m.coef[1], " c1 + ", m.coef[2], " c2, + ", m.extent, ") of ",
             m.limit, " / ", m.div, " -> counter ", m.counter & abi::kCounterNumber,
             group_text(m.counter >> abi::kCounterGroupShift));
}

std::string ranks_text(int stride) { return stride == 0 ? "" : cat(", all ranks, ", stride, " apart"); }

std::string wait_text(const abi::Wait& wait) {
  return cat(map_text(wait), " target ", wait.target, ", last ", wait.last_target,
             wait.role == static_cast<int>(abi::WaitRole::kFresh) ? ", fresh" : "",
             wait.role == static_cast<int>(abi::WaitRole::kSource) ? ", the batch's rank of" : "",
             ranks_text(wait.rank_stride), "\n");
}

std::vector<int> places(uint32_t mask) {
  std::vector<int> result;
  for (int i = 0; i < 32; ++i)
    if ((mask >> i & 1) != 0) result.push_back(i);
  return result;
}

std::string flags_text(const Flags& flags) {
  auto line = [](const char* what, uint32_t mask) {
    return mask == 0 ? std::string() : cat("  ", what, ' ', list(places(mask)), "\n");
  };
  std::string out = line("flagged operands", flags.operands) + line("drops waits", flags.dropped_waits);
  for (const abi::Wait& wait : flags.added_waits) out += cat("  adds wait ", wait_text(wait));
  return out + line("drops arrivals", flags.dropped_arrivals);
}

/// Where the flagged words of buffers begin.
std::string words_text(const Plan& plan) {
  if (plan.num_flag_words == 0) return "";
  std::string out = cat("flagged words: ", plan.num_flag_words);
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].first_word >= 0) out += cat(", slot ", i, " from ", plan.buffers[i].first_word);
  return out + "\n";
}

/// As in a plan, or as the kernel reads it (plan/as_run.h).
std::string slot_text(uint32_t slot) {
  if (slot == abi::kFlagSlot) return "flag words";
  if ((slot & abi::kBoxSlot) == 0) return cat("slot ", slot);
  return cat("box slot ", slot & abi::kSlotNumber, group_text((slot & ~abi::kBoxSlot) >> abi::kBoxGroupShift));
}

std::string op_text(const Op& op, size_t index) {
  const abi::OpRecord& r = op.record;
  std::string out = cat("op ", index, ' ', name(r.kind), " grid ", list(r.grid), " size ", list(r.size),
                        r.background == abi::kToOthers ? " in the background, to others"
                        : r.background != 0            ? " in the background"
                                                       : "",
                        "  # ", op.name, op.module.empty() ? "" : " in ", op.module, "\n  ",
                        visit_params(r, [](const auto& p) { return params_text(p); }), "\n");
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const abi::Operand& o = op.operands[i];
    if (o.slot == abi::kNoSlot) {
      out += cat("  operand ", i, ": none\n");
      continue;
    }
    out += cat("  operand ", i, ": ", slot_text(o.slot), ' ', name(static_cast<DType>(o.dtype)), " + ", o.offset,
               " strides ", list(o.stride), o.vector > 1 ? cat(" vector ", int{o.vector}) : "",
               o.index_operand >= 0 ? cat(" indexed by ", int{o.index_operand}) : "", "\n");
  }
  if (op.early != 0) out += cat("  before the waits: operands ", list(places(op.early)), "\n");
  for (int i = 0; i < r.num_waits; ++i) out += cat("  wait ", wait_text(r.wait[i]));
  for (int i = 0; i < r.num_arrivals; ++i)
    out += cat("  arrive ", map_text(r.arrive[i]), ranks_text(r.arrive_rank_stride[i]), "\n");
  if (op.form >= 0) out += cat("  form ", op.form, "\n");
  return out + flags_text(op.flags);
}

}  // namespace

std::string to_string(const Plan& plan) {
  std::string out = cat("plan ", plan.name, ": ", plan.num_workers, " workers, ", plan.num_counters,
                        " counters, arena ", plan.arena_bytes, " bytes, moves ", plan.bytes, " bytes, ", plan.flops,
                        " flops, predicted ", plan.predicted_ms, " ms, floor ", plan.floor_ms, " ms\n");
  if (plan.world > 1)
    out += cat("group '", plan.group, "' of ", plan.world, " ranks, boxes of ", plan.box_bytes, " bytes, twice\n");
  for (const RankGroup& g : plan.more_groups)
    out += cat("group '", g.name, "' of ", g.world, " ranks, counters from ", g.first_counter, " on, boxes of ",
               g.box_bytes, " bytes, twice\n");
  if (!plan.loop.carried.empty())
    out += cat("loop: carries slots ", list(plan.loop.carried), ", go in slot ", plan.loop.go_slot, ", border of ",
               plan.loop.arrivals, " workers\n");
  for (size_t i = 0; i < plan.buffers.size(); ++i) out += cat("slot ", i, ": ", buffer_text(plan.buffers[i]), "\n");
  out += words_text(plan);
  for (size_t i = 0; i < plan.fresh.size(); ++i)
    out += cat("fresh ", i, ": ", name(plan.fresh[i].dtype), list(plan.fresh[i].sizes), " strides ",
               list(plan.fresh[i].strides), "\n");
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const Output& o = plan.outputs[i];
    out += cat("output ", i, ": ", o.fresh >= 0 ? cat("fresh ", o.fresh) : cat("input ", o.input));
    if (!o.whole) out += cat(" as ", list(o.sizes), " strides ", list(o.strides), " + ", o.offset);
    out += "\n";
  }
  for (size_t i = 0; i < plan.programs.size(); ++i)
    if (!plan.programs[i].instrs.empty()) out += cat("program ", i, ": ", to_string(plan.programs[i]));
  for (size_t i = 0; i < plan.maps.size(); ++i) {
    const TensorMap& m = plan.maps[i];
    out += cat("map ", i, ": ", slot_text(m.slot), " + ", m.offset_bytes, ' ', name(m.dtype), list(m.sizes),
               " strides ", list(m.strides_bytes), " box ", list(m.box), "\n");
  }
  for (size_t i = 0; i < plan.ops.size(); ++i) out += op_text(plan.ops[i], i);
  for (size_t w = 0; w < plan.lists.size(); ++w) {
    out += cat("worker ", w, ':');
    for (const abi::WorkItem& item : plan.lists[w])
      out += item.count == 1 ? cat(' ', item.op, ':', item.first)
                             : cat(' ', item.op, ':', item.first, '-', item.first + item.count - 1);
    out += "\n";
  }
  return out;
}

}  // namespace ark::plan
