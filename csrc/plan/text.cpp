// plan::to_string: a plan for people and golden tests. One op a paragraph, one list a line.
#include "base/check.h"
#include "plan/plan.h"

namespace ark::plan {

const char* name(abi::TaskKind kind) {
  constexpr const char* kNames[] = {"pointwise",
                                    "row",
                                    "column",
                                    "matmul_rows",
                                    "matmul_tile",
                                    "matmul_float",
                                    "matmul_simple",
                                    "attention_decode",
                                    "attention_forward",
                                    "attention_backward_rows",
                                    "attention_backward",
                                    "attention_simple",
                                    "mask_range",
                                    "attention_backward_query"};
  static_assert(std::size(kNames) == static_cast<size_t>(abi::TaskKind::kCount));
  bool known = kind >= abi::TaskKind{} && kind < abi::TaskKind::kCount;
  return known ? kNames[static_cast<int>(kind)] : "unknown";
}

namespace {

template <class T>
std::string list(const T& items) {
  std::string out = "[";
  for (const auto& x : items) out += cat(out.size() > 1 ? ", " : "", x);
  return out + "]";
}

std::string buffer_text(const Buffer& b) {
  constexpr const char* kKinds[] = {"input", "output", "arena", "constant"};
  std::string where;
  if (b.kind == BufferKind::kInput || b.kind == BufferKind::kOutput) where = cat(' ', b.index);
  if (b.kind == BufferKind::kArena) where = cat(" at ", b.arena_offset, ", ops ", b.first_op, " to ", b.last_op);
  return cat(kKinds[static_cast<int>(b.kind)], where, ", ", b.size_bytes, " bytes", b.immutable ? ", immutable" : "",
             b.name.empty() ? "" : "  # ", b.name);
}

std::string params_text(const abi::OpRecord& r) {
  using enum abi::TaskKind;
  const abi::Params& p = r.params;
  switch (r.kind) {
    case kPointwise:
    case kRow:
    case kColumn:
      return cat("program ", p.program.program, ", operands from ", p.program.first_operand, ", dims ",
                 p.program.num_dims, ", reduced ", p.program.reduce_dims, ", tile ", p.program.tile, ", split ",
                 p.program.split, ", rows ", p.program.num_rows, " of ", p.program.row_size);
    case kMatmulRows: {
      std::string out = cat("m ", p.rows.m, ", k ", p.rows.k, ", units ", p.rows.num_units, ", lanes ", p.rows.lanes,
                            ", pair distance ", p.rows.pair_distance, p.rows.gated ? ", gated" : "",
                            p.rows.weights_immutable ? ", immutable weights" : "", ", prologue ", p.rows.prologue);
      for (int s = 0; s < p.rows.num_segments; ++s) {
        const abi::Segment& g = p.rows.segment[s];
        out += cat("; segment units ", g.first_unit, " + ", g.num_units, ", column ", g.column, ", weights ", g.weight,
                   ' ', g.weight2, ", program ", g.program, ", operands from ", g.first_operand);
      }
      return out;
    }
    case kMatmulTile:
    case kMatmulFloat:
    case kMatmulSimple:
      return cat("batch ", p.matmul.batch, ", m ", p.matmul.m, ", n ", p.matmul.n, ", k ", p.matmul.k, ", tile ",
                 p.matmul.tile_m, " x ", p.matmul.tile_n, " x ", p.matmul.tile_k, ", maps ", p.matmul.map_a, ' ',
                 p.matmul.map_b, ", k major ", p.matmul.a_k_major, ' ', p.matmul.b_k_major, ", program ",
                 p.matmul.program, ", operands from ", p.matmul.first_operand, ", pair distance ",
                 p.matmul.pair_distance, ", group ", p.matmul.group_m, ", immutable ", p.matmul.a_immutable, ' ',
                 p.matmul.b_immutable);
    case kMaskRange:
      return cat("batch ", p.mask_range.batch, ", heads ", p.mask_range.heads, ", queries ", p.mask_range.queries,
                 ", keys ", p.mask_range.keys, ", block ", p.mask_range.block, ", mask kind ", p.mask_range.mask_kind);
    default:
      return cat("batch ", p.attention.batch, ", heads ", p.attention.heads, " / ", p.attention.kv_heads, ", queries ",
                 p.attention.queries, ", keys ", p.attention.keys, ", dims ", p.attention.head_dim, ' ',
                 p.attention.value_dim, p.attention.causal ? cat(", causal ", p.attention.causal_offset) : "",
                 ", mask kind ", p.attention.mask_kind, ", parts ", p.attention.parts, " of ",
                 p.attention.positions_per_part, ", tile ", p.attention.tile_q, " x ", p.attention.tile_k, ", scale ",
                 p.attention.scale);
  }
}

template <class Map>
std::string map_text(const Map& m) {
  return cat("rows [", m.base, " + ", m.coef[0], " c0 + ", m.coef[1], " c1 + ", m.coef[2], " c2, + ", m.extent, ") of ",
             m.limit, " / ", m.div, " -> counter ", m.counter);
}

std::string op_text(const Op& op, size_t index) {
  const abi::OpRecord& r = op.record;
  std::string out = cat("op ", index, ' ', name(r.kind), " grid ", list(r.grid), " size ", list(r.size), "  # ",
                        op.name, op.module.empty() ? "" : " in ", op.module, "\n  ", params_text(r), "\n");
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const abi::Operand& o = op.operands[i];
    if (o.slot == abi::kNoSlot) {
      out += cat("  operand ", i, ": none\n");
      continue;
    }
    out += cat("  operand ", i, ": slot ", o.slot, ' ', name(static_cast<DType>(o.dtype)), " + ", o.offset, " strides ",
               list(o.stride), o.vector > 1 ? cat(" vector ", int{o.vector}) : "",
               o.index_operand >= 0 ? cat(" indexed by ", int{o.index_operand}) : "", "\n");
  }
  for (int i = 0; i < r.num_waits; ++i)
    out += cat("  wait ", map_text(r.wait[i]), " target ", r.wait[i].target, ", last ", r.wait[i].last_target,
               r.wait[i].role == static_cast<int>(abi::WaitRole::kFresh) ? ", fresh" : "", "\n");
  for (int i = 0; i < r.num_arrivals; ++i) out += cat("  arrive ", map_text(r.arrive[i]), "\n");
  return out;
}

}  // namespace

std::string to_string(const Plan& plan) {
  std::string out = cat("plan ", plan.name, ": ", plan.num_workers, " workers, ", plan.layout.pages, " pages, cluster ",
                        plan.layout.cluster, ", ", plan.num_counters, " counters, arena ", plan.arena_bytes,
                        " bytes, moves ", plan.bytes, " bytes, ", plan.flops, " flops, predicted ", plan.predicted_ms,
                        " ms, floor ", plan.floor_ms, " ms\n");
  for (size_t i = 0; i < plan.buffers.size(); ++i) out += cat("slot ", i, ": ", buffer_text(plan.buffers[i]), "\n");
  for (size_t i = 0; i < plan.fresh.size(); ++i)
    out += cat("fresh ", i, ": ", name(plan.fresh[i].dtype), list(plan.fresh[i].sizes), " strides ",
               list(plan.fresh[i].strides), "\n");
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const Output& o = plan.outputs[i];
    out += cat("output ", i, ": ", o.fresh >= 0 ? cat("fresh ", o.fresh) : cat("input ", o.input));
    if (!o.whole) out += cat(" as ", list(o.sizes), " strides ", list(o.strides), " + ", o.offset);
    out += "\n";
  }
  for (size_t i = 0; i < plan.programs.size(); ++i) out += cat("program ", i, ": ", to_string(plan.programs[i]));
  for (size_t i = 0; i < plan.maps.size(); ++i) {
    const TensorMap& m = plan.maps[i];
    out += cat("map ", i, ": slot ", m.slot, " + ", m.offset_bytes, ' ', name(m.dtype), list(m.sizes), " strides ",
               list(m.strides_bytes), " box ", list(m.box), "\n");
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
