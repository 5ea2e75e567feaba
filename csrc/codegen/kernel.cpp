#include "codegen/kernel.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/unsupported.h"
#include "codegen/choose_row_form.h"
#include "codegen/column_ways.h"
#include "codegen/epilogue_ways.h"
#include "codegen/program_analysis.h"
#include "device/abi/column_ways.h"
#include "device/abi/launch.h"
#include "device/abi/variants.h"
#include "plan/early_reads.h"
#include "plan/kinds.h"
#include "plan/transposed_operands.h"

namespace ark::codegen {
namespace {

using abi::TaskKind;
using Ops = std::vector<const plan::Op*>;

/// Operands of a program (the first of them is the record's operand `first`) that do not move along the last dimension.
uint32_t broadcast_operands(const plan::Op& op, const Program& program, int first) {
  uint32_t result = 0;
  for (int i = 0; i < std::min(program.num_operands, 32); ++i) {
    const auto at = static_cast<size_t>(first + i);
    if (at < op.operands.size() && op.operands[at].stride[program.num_dims - 1] == 0) result |= 1u << i;
  }
  return result;
}

/// Whether every element of the operand lies within 32 bits, counted in elements.
bool is_near(const plan::Op& op, const Program& program, const abi::Operand& operand) {
  int64_t places = 1;
  for (int d = 0; d < program.num_dims && places <= INT32_MAX; ++d)
    places +=
        std::min<int64_t>(op.record.size[d], INT32_MAX) * std::min<int64_t>(std::abs(operand.stride[d]), INT32_MAX);
  return places <= INT32_MAX;
}

/// Operands of a pointwise op that are contiguous over its whole domain; none where one is too far apart for it.
uint32_t flat_operands(const plan::Op& op, const Program& program) {
  uint32_t result = 0;
  for (int i = 0; i < std::min(program.num_operands, 32); ++i) {
    const auto at = static_cast<size_t>(op.record.params.program.first_operand + i);
    if (at >= op.operands.size() || op.operands[at].slot == abi::kNoSlot || op.operands[at].index_operand >= 0)
      continue;
    if (!is_near(op, program, op.operands[at])) return 0;
    bool flat = true;
    int64_t inner = 1;
    for (int d = program.num_dims - 1; d >= 0; --d) {
      flat = flat && (op.record.size[d] <= 1 || op.operands[at].stride[d] == inner);
      inner *= op.record.size[d];
    }
    if (flat || inner == 0) result |= 1u << i;
  }
  return result;
}

/// Masks of no floating-point type are read as bool (device/attention/mask_range.cuh).
uint32_t mask_type(DType type) { return abi::type_bit(static_cast<int>(is_float(type) ? type : DType::kBool)); }

int slot_capacity(size_t num_slots) {
  for (const int capacity : abi::kSlotCapacities)
    if (num_slots <= static_cast<size_t>(capacity)) return capacity;
  throw UnsupportedError(
      cat("a plan of ", num_slots, " buffers; one launch carries at most ", abi::kSlotCapacities[2]));
}

}  // namespace

namespace {

/// Kinds that end in a program; of all others a kernel has the device's code as it is.
constexpr std::pair<TaskKind, Use> kUses[] = {
    {TaskKind::kPointwise, kPointwiseUse},     {TaskKind::kRow, kRowUse},
    {TaskKind::kColumn, kColumnUse},           {TaskKind::kMatmulRows, kEpilogueRows},
    {TaskKind::kMatmulTile, kEpilogueTile},    {TaskKind::kMatmulFloat, kEpilogueFloat},
    {TaskKind::kMatmulSimple, kEpilogueSimple}};

/// A kind of a family with programs that is missing above would be printed without them.
consteval bool uses_are_complete() {
  using enum plan::Family;
  for (const plan::Kind& kind : plan::kKinds) {
    const bool found = std::ranges::any_of(kUses, [&](const auto& use) { return use.first == kind.kind; });
    if (found != (kind.family == kProgram || kind.family == kRows || kind.family == kMatmul)) return false;
  }
  return true;
}
static_assert(uses_are_complete());

}  // namespace

Use use_of(TaskKind kind) {
  for (const auto& [of, use] : kUses)
    if (of == kind) return use;
  return kNumUses;
}

namespace {

/// What one plan asks for, in its own numbers.
struct Needs {
  struct Program {
    std::set<Use> uses;
    std::vector<std::string> users;  // names of the first ops
    uint32_t broadcast = ~0u, flat = ~0u, epilogue_ways = 0, column_ways = 0, layouts = 0, transposed = 0;
    Ops row_ops;
    std::optional<EpilogueShape> epilogue;
  };
  std::vector<Program> programs;
  std::vector<plan::RowsForm> forms;
  KernelFeatures features;
};

class Analysis {
 public:
  explicit Analysis(const plan::Plan& plan) : plan_(plan) { needs_.programs.resize(plan.programs.size()); }

  Needs run() {
    for (const plan::Op& op : plan_.ops) {
      needs_.features.kinds.insert(op.record.kind);
      needs_.features.background |= op.record.background != 0;
      note(op);
    }
    needs_.forms = plan::rows_forms(plan_);
    needs_.features.maps = !plan_.maps.empty();
    for (int32_t group = 0; group < num_groups(plan_); ++group)
      needs_.features.ranks = std::max(needs_.features.ranks, int{world_of(plan_, group)});
    needs_.features.groups = std::max(1, int{num_groups(plan_)});
    needs_.features.loop = !plan_.loop.carried.empty();
    needs_.features.slot_capacity = slot_capacity(plan_.buffers.size());
    return std::move(needs_);
  }

 private:
  /// `first_operand` -1: nothing is known of the operands' strides.
  Needs::Program& note_program(const plan::Op& op, Use use, int number, int first_operand) {
    check(number >= 0 && number < static_cast<int>(plan_.programs.size()), "op '", op.name, "': program ", number,
          " of ", plan_.programs.size());
    Needs::Program& program = needs_.programs[static_cast<size_t>(number)];
    program.uses.insert(use);
    program.broadcast &=
        first_operand < 0 ? 0 : broadcast_operands(op, plan_.programs[static_cast<size_t>(number)], first_operand);
    if (program.users.size() < 4) program.users.push_back(op.name);
    return program;
  }

  /// An op without operands, which no planner makes, may be anything.
  void note_column(const plan::Op& op) {
    const abi::ProgramParams& p = op.record.params.program;
    Needs::Program& need = note_program(op, kColumnUse, p.program, -1);
    const ColumnShape shape = ProgramAnalysis(plan_.programs[static_cast<size_t>(p.program)]).column_shape();
    const bool known = static_cast<size_t>(p.first_operand + shape.num_operands) <= op.operands.size();
    need.column_ways |=
        known ? column_ways(shape, op.record, op.operands.data() + p.first_operand) : abi::kAllColumnWays;
  }

  void note_pointwise(const plan::Op& op) {
    const abi::ProgramParams& p = op.record.params.program;
    Needs::Program& need = note_program(op, kPointwiseUse, p.program, p.first_operand);
    need.flat &= flat_operands(op, plan_.programs[static_cast<size_t>(p.program)]);
    need.transposed |= plan::transposed_operands(op, plan_.programs[static_cast<size_t>(p.program)]);
    need.transposed = plan::most_transposed(plan_.programs[static_cast<size_t>(p.program)], need.transposed);
  }

  void note_rows(const plan::Op& op) {
    const abi::MatmulRowsParams& p = op.record.params.rows;
    const int most = size_bytes(static_cast<DType>(p.dtype)) == 2 ? abi::kMostFewRows : abi::kMostFewFloatRows;
    check_node(p.m >= 1 && p.m <= most, op.node, "op '", op.name, "': a few-row matmul has 1 to ", most, " rows, not ",
               p.m);
    for (int s = 0; s < p.num_segments; ++s) note_program(op, kEpilogueRows, p.segment[s].program, -1);
    check(p.prologue >= 0, "op '", op.name, "': a few-row matmul needs a prologue that yields its activation");
    note_program(op, kPrologueRows, p.prologue, p.prologue_operand);
  }

  void note_decode(const plan::Op& op) {
    const abi::AttentionParams& p = op.record.params.attention;
    const int rows = p.kv_heads > 0 ? p.heads / p.kv_heads * p.queries : 0;
    check_node(p.head_dim == p.value_dim && abi::is_decode_dim(p.head_dim) && rows >= 1 && rows <= 16, op.node, "op '",
               op.name, "': decode attention of head size ", p.head_dim, ", value size ", p.value_dim, " and ", rows,
               " query rows per kv head");
    needs_.features.decode_types.insert(static_cast<DType>(p.dtype));
    needs_.features.decode_dims.insert(p.head_dim);
    needs_.features.decode_rows.insert(rows <= 4 ? 4 : 16);
    needs_.features.decode_caches.insert(plan::has_early_cache(op));
    needs_.features.decode_queries |= p.queries != 1;
    needs_.features.decode_causal |= p.causal != 0;
    needs_.features.decode_added_masks |= p.mask_kind == abi::MaskKind::kAdded;
    needs_.features.decode_pairs |= p.tiles_at_once > 1;
  }

  /// Not of weights and caches, which are read ahead of every wait.
  static bool has_dependent_pages(const plan::Op& op) {
    if (op.record.kind == TaskKind::kMatmulRows) return !plan::has_early_weights(op);
    if (op.record.kind == TaskKind::kAttentionDecode) return !plan::has_early_cache(op);
    return plan::kind_of(op.record).loads;
  }

  void note_epilogue(const plan::Op& op, Needs::Program& need) const {
    const auto number = static_cast<size_t>(op.record.params.matmul.program);
    if (!need.epilogue) need.epilogue = epilogue_shape(plan_.programs[number]);
    need.epilogue_ways |= epilogue_way(*need.epilogue, op);
  }

  void note_matmul(const plan::Op& op) {
    const abi::MatmulTileParams& p = op.record.params.matmul;
    Needs::Program& need = note_program(op, use_of(op.record.kind), p.program, p.first_operand);
    if (op.record.kind == TaskKind::kMatmulFloat) need.layouts |= 1u << abi::matmul_layout(p);
    if (op.record.kind != TaskKind::kMatmulTile) return;
    note_epilogue(op, need);
    needs_.features.matmul_variants |= 1u << abi::matmul_variant(p);
  }

  void note_attention(const plan::Op& op) {
    const abi::AttentionParams& p = op.record.params.attention;
    if (op.record.kind == TaskKind::kAttentionDecode)
      note_decode(op);
    else if (op.record.kind == TaskKind::kAttentionSimple)
      needs_.features.simple_attention |= uint64_t{1} << abi::simple_attention_form(p);
    else
      needs_.features.attention_variants |= 1u << abi::attention_variant(p);
  }

  /// Programs, and variants of device code. Families without either have nothing here.
  void note(const plan::Op& op) {
    using enum plan::Family;
    const abi::Params& p = op.record.params;
    const plan::Family family = plan::kind_of(op.record).family;
    if (op.record.kind == TaskKind::kPointwise) note_pointwise(op);
    if (op.record.kind == TaskKind::kRow) note_program(op, kRowUse, p.program.program, -1).row_ops.push_back(&op);
    if (op.record.kind == TaskKind::kColumn) note_column(op);
    if (has_dependent_pages(op)) needs_.features.dependent_pages = true;
    if (family == kRows) note_rows(op);
    if (family == kMatmul) note_matmul(op);
    if (family == kAttention) note_attention(op);
    if (family == kMaskRange) needs_.features.mask_types |= mask_type(static_cast<DType>(p.mask_range.dtype));
    if (family == kScatterSum) needs_.features.scatter_types |= abi::type_bit(p.scatter_sum.dtype);
  }

  const plan::Plan& plan_;
  Needs needs_;
};

/// Whether the code serves all uses that the plan makes of the program.
bool serves(const Code& code, const Program& program, const Needs::Program& need) {
  if (code.row.has_value() == need.row_ops.empty() || code.program != program) return false;
  if (code.row)
    return std::all_of(need.row_ops.begin(), need.row_ops.end(),
                       [&](const plan::Op* op) { return row_form_serves(*code.row, *op); });
  return (code.broadcast & ~need.broadcast) == 0 && (code.flat & ~need.flat) == 0 &&
         (need.transposed & ~code.transposed) == 0;
}

int find_code(const Kernel& kernel, const Program& program, const Needs::Program& need) {
  for (size_t i = 0; i < kernel.code.size(); ++i)
    if (serves(kernel.code[i], program, need)) return static_cast<int>(i);
  return -1;
}

/// The form with the kernel's numbers of its programs.
plan::RowsForm renumbered(plan::RowsForm form, const std::vector<int32_t>& code) {
  form.params.prologue = code[static_cast<size_t>(form.params.prologue)];
  for (int s = 0; s < form.params.num_segments; ++s)
    form.params.segment[s].program = code[static_cast<size_t>(form.params.segment[s].program)];
  form.params.form = 0;
  return form;
}

int find_form(const Kernel& kernel, const plan::RowsForm& form) {
  for (size_t i = 0; i < kernel.forms.size(); ++i) {
    plan::RowsForm known = kernel.forms[i];
    known.params.form = 0;
    if (plan::same_form(known, form)) return static_cast<int>(i);
  }
  return -1;
}

class Maker {
 public:
  explicit Maker(std::span<const plan::Plan* const> plans, Kernel kernel = {})
      : plans_(plans), kernel_(std::move(kernel)), is_new_(kernel_.code.empty()) {
    for (const plan::Plan* plan : plans) needs_.push_back(Analysis(*plan).run());
  }

  Kernel run() {
    if (is_new_) kernel_.name = plans_.front()->name;
    for (size_t p = 0; p < plans_.size(); ++p) add(p);
    return std::move(kernel_);
  }

 private:
  void add(size_t p) {
    const plan::Plan& plan = *plans_[p];
    const Needs& needs = needs_[p];
    std::vector<int32_t> number;
    for (size_t i = 0; i < plan.programs.size(); ++i) {
      const Needs::Program& need = needs.programs[i];
      int code = -1;
      if (is_new_ && p == 0)  // keeps its numbers, used or not
        code = append(plan.programs[i], need, own_form(plan.programs[i], need));
      else if (!need.uses.empty())
        code = code_of(plan.programs[i], need);
      number.push_back(code);
      for (const Use use : need.uses) kernel_.uses[use].insert(code);
      if (code < 0) continue;
      kernel_.code[static_cast<size_t>(code)].epilogue_ways |= need.epilogue_ways;
      kernel_.code[static_cast<size_t>(code)].column_ways |= need.column_ways;
      kernel_.code[static_cast<size_t>(code)].layouts |= need.layouts;
    }
    for (const plan::RowsForm& form : needs.forms) add_form(renumbered(form, number));
    kernel_.features.merge(needs.features);
  }

  void add_form(plan::RowsForm form) {
    if (const int known = find_form(kernel_, form); known >= 0) {
      kernel_.forms[static_cast<size_t>(known)].once &= form.once;
      return;
    }
    form.params.form = static_cast<int>(kernel_.forms.size());
    kernel_.forms.push_back(form);
  }

  static std::optional<RowForm> own_form(const Program& program, const Needs::Program& need) {
    return need.row_ops.empty() ? std::nullopt : std::optional(row_form(program, need.row_ops));
  }

  int append(const Program& program, const Needs::Program& need, std::optional<RowForm> row) {
    kernel_.code.push_back({program, row, row || need.uses.empty() ? 0 : need.broadcast});
    if (need.uses.contains(kPointwiseUse) && need.transposed == 0) {  // what reaches the text, and no more
      const FlatForm form = ProgramAnalysis(program, nullptr, kernel_.code.back().broadcast).flat_form(need.flat);
      if (form.exists) kernel_.code.back().flat = form.operands;
    }
    kernel_.code.back().transposed = need.transposed;
    kernel_.code.back().users = need.users;
    return static_cast<int>(kernel_.code.size()) - 1;
  }

  int code_of(const Program& program, const Needs::Program& need) {
    if (const int found = find_code(kernel_, program, need); found >= 0) return found;
    if (need.row_ops.empty()) return append(program, need, std::nullopt);
    const RowForm general = row_form(program, all_row_ops(program));
    for (const plan::Op* op : need.row_ops)
      if (!row_form_serves(general, *op)) return append(program, need, own_form(program, need));
    return append(program, need, general);
  }

  /// Of all plans but the one whose own form did not do.
  Ops all_row_ops(const Program& program) const {
    Ops ops;
    for (size_t p = is_new_; p < plans_.size(); ++p)
      for (size_t i = 0; i < plans_[p]->programs.size(); ++i)
        if (const Ops& more = needs_[p].programs[i].row_ops; !more.empty() && plans_[p]->programs[i] == program)
          ops.insert(ops.end(), more.begin(), more.end());
    return ops;
  }

  std::span<const plan::Plan* const> plans_;
  std::vector<Needs> needs_;
  Kernel kernel_;
  const bool is_new_;
};

}  // namespace

Kernel make_kernel(std::span<const plan::Plan* const> plans) { return Maker(plans).run(); }

Kernel extended(Kernel kernel, const plan::Plan& plan) {
  const plan::Plan* const plans[] = {&plan};
  return Maker(plans, std::move(kernel)).run();
}

std::optional<plan::KernelNumbers> find_numbers(const Kernel& kernel, const plan::Plan& plan) {
  const Needs needs = Analysis(plan).run();
  if (!kernel.features.covers(needs.features)) return std::nullopt;
  plan::KernelNumbers numbers;
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    const Needs::Program& need = needs.programs[i];
    numbers.program.push_back(need.uses.empty() ? -1 : find_code(kernel, plan.programs[i], need));
    const int code = numbers.program.back();
    for (const Use use : need.uses)
      if (!kernel.uses[use].contains(code)) return std::nullopt;
    if (code < 0) continue;
    const Code& own = kernel.code[static_cast<size_t>(code)];
    if (!has_epilogue_ways(own.epilogue_ways, need.epilogue_ways) || (need.layouts & ~own.layouts) != 0 ||
        (need.column_ways & ~own.column_ways) != 0)
      return std::nullopt;
  }
  std::vector<int32_t> forms;
  for (const plan::RowsForm& form : needs.forms) {
    forms.push_back(find_form(kernel, renumbered(form, numbers.program)));
    if (forms.back() < 0) return std::nullopt;
  }
  for (const plan::Op& op : plan.ops) numbers.form.push_back(op.form < 0 ? -1 : forms[static_cast<size_t>(op.form)]);
  return numbers;
}

}  // namespace ark::codegen
