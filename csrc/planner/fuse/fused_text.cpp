#include <algorithm>
#include <sstream>

#include "plan/param_fields.h"
#include "plan/params.h"
#include "planner/fuse/fused.h"

namespace ark::planner {
namespace {

void print_list(std::ostream& out, const int64_t* first, size_t count) {
  out << '[';
  for (size_t i = 0; i < count; ++i) out << (i > 0 ? ", " : "") << first[i];
  out << ']';
}

void print_operand(std::ostream& out, const FusedGraph& graph, const FusedOp& op, size_t i) {
  const abi::Operand& x = op.op.operands[i];
  constexpr const char* kAccess[] = {"read", "write", "update", "parameters"};
  out << "    " << i << ' ' << kAccess[static_cast<int>(op.access[i])];
  if (x.slot != abi::kNoSlot) {
    out << " s" << x.slot << ' ' << name(static_cast<DType>(x.dtype)) << " +" << x.offset;
  } else if (op.access[i] != Access::kParameters) {
    out << " none\n";
    return;
  }
  out << ' ';
  const std::vector<int64_t> strides(x.stride, x.stride + abi::kMaxDims);
  print_list(out, strides.data(), strides.size());
  if (x.vector > 1) out << " x" << static_cast<int>(x.vector);
  if (x.index_operand >= 0) out << " index " << static_cast<int>(x.index_operand);
  if (x.slot != abi::kNoSlot) out << "  # " << graph.storages[x.slot].name;
  out << '\n';
}

void print_params(std::ostream& out, const abi::ProgramParams& p) {
  if (p.reduce_dims > 0) out << " reduce_dims=" << p.reduce_dims;
}
void print_params(std::ostream& out, const abi::MatmulRowsParams& p) {
  out << " m=" << p.m << " k=" << p.k << " segments=" << p.num_segments << " lanes=" << p.lanes
      << " pair=" << p.pair_distance << " gated=" << p.gated;
}
void print_params(std::ostream& out, const abi::MatmulTileParams& p) {
  out << " batch=" << p.batch << " m=" << p.m << " n=" << p.n << " k=" << p.k << " pair=" << p.pair_distance;
}
void print_params(std::ostream&, const abi::AttentionParams&) {}
/// Of families without words of their own: all fields, by their names.
template <class Params>
void print_params(std::ostream& out, const Params& params) {
  plan::for_each_field(params, [&](std::string_view name, const auto& value) { out << ' ' << name << '=' << value; });
}

}  // namespace

std::string to_string(const FusedGraph& graph) {
  std::ostringstream out;
  for (size_t i = 0; i < graph.storages.size(); ++i) {
    const Storage& s = graph.storages[i];
    out << 's' << i << ' ' << name(s.dtype) << ' ';
    print_list(out, s.sizes.data(), s.sizes.size());
    out << ' ';
    print_list(out, s.strides.data(), s.strides.size());
    if (s.input >= 0) out << " input " << s.input;
    out << (s.immutable ? " immutable" : "") << (s.returned ? " returned" : "");
    if (s.part >= 0) out << " part of exchange " << s.part << " for or of rank " << s.source;
    if (s.joined_boxes()) out << " boxes of exchange " << s.exchange;
    if (s.exchange >= 0 && !s.joined_boxes()) out << " box of exchange " << s.exchange << " from rank " << s.source;
    out << "  # " << s.name << '\n';
  }
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const FusedOp& op = graph.ops[i];
    const abi::OpRecord& record = op.op.record;
    out << "op " << i << ' ' << plan::name(record.kind) << ' ';
    const std::vector<int64_t> sizes(record.size, record.size + abi::kMaxDims);
    print_list(out, sizes.data(), sizes.size());
    out << " programs";
    for (int p : op.op.programs) out << " p" << p;
    plan::visit_params(record, [&](const auto& params) { print_params(out, params); });
    out << "  # " << op.op.name << '\n';
    for (size_t k = 0; k < op.op.operands.size(); ++k) print_operand(out, graph, op, k);
  }
  for (size_t i = 0; i < graph.programs.size(); ++i) out << 'p' << i << ' ' << to_string(graph.programs[i]);
  for (const plan::Output& o : graph.outputs) {
    out << "output " << (o.fresh >= 0 ? "fresh " : "input ") << (o.fresh >= 0 ? o.fresh : o.input) << ' ';
    print_list(out, o.sizes.data(), o.sizes.size());
    out << (o.whole ? "" : " view") << '\n';
  }
  return out.str();
}

}  // namespace ark::planner
