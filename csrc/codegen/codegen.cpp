#include "codegen/codegen.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/embedded.h"
#include "codegen/program_source.h"
#include "device/launch.h"
#include "planner/rows_form.h"

namespace ark::codegen {
namespace {

using abi::TaskKind;

/// Where a task meets a program; each is one dispatch function of the generated `Programs`.
enum Use { kPointwiseUse, kRowUse, kColumnUse, kEpilogueRows, kPrologueRows, kEpilogueTile, kEpilogueSimple, kNumUses };
constexpr std::array<const char*, kNumUses> kUseNames = {
    "pointwise", "row", "column", "epilogue_rows", "prologue_rows", "epilogue_tile", "epilogue_simple"};

/// How the kernel reaches a family's consume().
enum class Reach {
  kInline,      // part of the kernel's body
  kCall,        // a function of its own (device/outline.cuh)
  kCallPerUse,  // one function per program
};
struct Family {
  TaskKind kind;
  const char* name;    // of the kind's enumerator; without the k, of the device struct
  const char* header;  // where that is
  const char* type() const { return name + 1; }
  Reach reach = Reach::kInline;
  Use use = kNumUses;             // kCallPerUse: the programs,
  const char* program = nullptr;  // and where a record says which
};
constexpr Family kFamilies[] = {
    {TaskKind::kPointwise, "kPointwise", "pointwise", Reach::kCallPerUse, kPointwiseUse, "program.program"},
    {TaskKind::kRow, "kRow", "row", Reach::kCallPerUse, kRowUse, "program.program"},
    {TaskKind::kColumn, "kColumn", "column", Reach::kCallPerUse, kColumnUse, "program.program"},
    {TaskKind::kMatmulRows, "kMatmulRows", "matmul_rows"},
    {TaskKind::kMatmulTile, "kMatmulTile", "matmul_tile"},
    {TaskKind::kMatmulSimple, "kMatmulSimple", "matmul_simple", Reach::kCallPerUse, kEpilogueSimple, "matmul.program"},
    {TaskKind::kAttentionDecode, "kAttentionDecode", "attention_decode"},
    {TaskKind::kAttentionForward, "kAttentionForward", "attention_forward"},
    {TaskKind::kAttentionBackwardRows, "kAttentionBackwardRows", "attention_backward", Reach::kCall},
    {TaskKind::kAttentionBackward, "kAttentionBackward", "attention_backward"},
    {TaskKind::kAttentionBackwardQuery, "kAttentionBackwardQuery", "attention_backward"},
    {TaskKind::kAttentionSimple, "kAttentionSimple", "attention_simple", Reach::kCall},
    {TaskKind::kMaskRange, "kMaskRange", "mask_range", Reach::kCall},
};

/// What the source depends on: the kinds and, per use, the programs. Ordered containers: the text is deterministic.
struct Needs {
  std::set<TaskKind> kinds;
  std::array<std::set<int>, kNumUses> programs;
  std::map<int, std::vector<std::string>> users;         // program -> names of the ops
  std::map<int, uint32_t> broadcast;                     // program -> operands with stride 0 along the last dimension
  std::map<int, std::vector<const plan::Op*>> row_ops;   // row program -> ops
  uint32_t matmul_variants = 0, attention_variants = 0;  // tensor-core main loops
  std::set<DType> decode_types;
  std::set<int> decode_dims, decode_rows;  // decode attention: head sizes, padded query rows per kv head
};

/// Operands of a program (the first of them is the record's operand `first`) that do not move along the last dimension.
uint32_t broadcast_operands(const plan::Op& op, const Program& program, int first) {
  uint32_t result = 0;
  for (int i = 0; i < std::min(program.num_operands, 32); ++i) {
    const auto at = static_cast<size_t>(first + i);
    if (at < op.operands.size() && op.operands[at].stride[program.num_dims - 1] == 0) result |= 1u << i;
  }
  return result;
}

/// `first_operand` -1: nothing is known of the operands' strides.
void note_program(const plan::Plan& plan, const plan::Op& op, Use use, int program, int first_operand, Needs& needs) {
  check(program >= 0 && program < static_cast<int>(plan.programs.size()), "op '", op.name, "': program ", program,
        " of ", plan.programs.size());
  needs.programs[use].insert(program);
  const uint32_t broadcast =
      first_operand < 0 ? 0 : broadcast_operands(op, plan.programs[static_cast<size_t>(program)], first_operand);
  const auto known = needs.broadcast.try_emplace(program, broadcast).first;
  known->second &= broadcast;
  std::vector<std::string>& users = needs.users[program];
  if (users.size() < 4) users.push_back(op.name);
}

void note_rows(const plan::Plan& plan, const plan::Op& op, Needs& needs) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  check<UnsupportedError>(p.m >= 1 && p.m <= 8, "op '", op.name, "': a few-row matmul has 1 to 8 rows, not ", p.m);
  for (int s = 0; s < p.num_segments; ++s) note_program(plan, op, kEpilogueRows, p.segment[s].program, -1, needs);
  check(p.prologue >= 0, "op '", op.name, "': a few-row matmul needs a prologue that yields its activation");
  note_program(plan, op, kPrologueRows, p.prologue, -1, needs);
}

/// Bit (f16 << 3 | tile_n 256 << 2 | a mn-major << 1 | b mn-major), see device/matmul_tile.cuh.
uint32_t matmul_variant(const abi::MatmulTileParams& p) {
  const bool half = p.dtype == static_cast<int>(DType::kF16);
  return 1u << (half << 3 | (p.tile_n == 256) << 2 | (p.a_k_major == 0) << 1 | (p.b_k_major == 0));
}
/// Bit (f16 << 1 | head_dim 128), see device/attention_common.cuh.
uint32_t attention_variant(const abi::AttentionParams& p) {
  return 1u << ((p.dtype == static_cast<int>(DType::kF16)) << 1 | (p.head_dim == 128));
}

void note_decode(const plan::Op& op, Needs& needs) {
  const abi::AttentionParams& p = op.record.params.attention;
  const int rows = p.kv_heads > 0 ? p.heads / p.kv_heads * p.queries : 0;
  check<UnsupportedError>(
      p.head_dim == p.value_dim && (p.head_dim == 64 || p.head_dim == 128) && rows >= 1 && rows <= 16, "op '", op.name,
      "': decode attention of head size ", p.head_dim, ", value size ", p.value_dim, " and ", rows,
      " query rows per kv head");
  needs.decode_types.insert(static_cast<DType>(p.dtype));
  needs.decode_dims.insert(p.head_dim);
  needs.decode_rows.insert(rows <= 4 ? 4 : 16);
}

Needs analyse(const plan::Plan& plan) {
  Needs needs;
  for (const plan::Op& op : plan.ops) {
    const abi::OpRecord& r = op.record;
    needs.kinds.insert(r.kind);
    switch (r.kind) {
      case TaskKind::kPointwise:
        note_program(plan, op, kPointwiseUse, r.params.program.program, r.params.program.first_operand, needs);
        break;
      case TaskKind::kRow:
        note_program(plan, op, kRowUse, r.params.program.program, -1, needs);
        needs.row_ops[r.params.program.program].push_back(&op);
        break;
      case TaskKind::kColumn:
        note_program(plan, op, kColumnUse, r.params.program.program, -1, needs);
        break;
      case TaskKind::kMatmulRows:
        note_rows(plan, op, needs);
        break;
      case TaskKind::kMatmulTile:
        note_program(plan, op, kEpilogueTile, r.params.matmul.program, r.params.matmul.first_operand, needs);
        needs.matmul_variants |= matmul_variant(r.params.matmul);
        break;
      case TaskKind::kMatmulSimple:
        note_program(plan, op, kEpilogueSimple, r.params.matmul.program, r.params.matmul.first_operand, needs);
        break;
      case TaskKind::kAttentionDecode:
        note_decode(op, needs);
        break;
      case TaskKind::kAttentionForward:
      case TaskKind::kAttentionBackwardRows:
      case TaskKind::kAttentionBackward:
      case TaskKind::kAttentionBackwardQuery:
        needs.attention_variants |= attention_variant(r.params.attention);
        break;
      default:
        break;
    }
  }
  return needs;
}

std::string programs_text(const plan::Plan& plan, const Needs& needs, const std::set<int>& flagged) {
  std::set<int> all;
  for (const std::set<int>& programs : needs.programs) all.insert(programs.begin(), programs.end());
  std::string text;
  for (const int number : all) {
    std::string comment;
    for (const std::string& user : needs.users.at(number)) comment += cat("// ", user, "\n");
    const Program& program = plan.programs[number];
    const auto rows = needs.row_ops.find(number);
    const std::string source = rows == needs.row_ops.end()
                                   ? program_source(program, number, comment, needs.broadcast.at(number))
                                   : row_program_source(program, row_form(program, rows->second), number, comment);
    text += source + "\n";
    if (flagged.contains(number)) text += flagged_program_source(plan.programs[number], number) + "\n";
  }
  return text;
}

/// A program of a few-row product; with flagged operands it is a template over which of them are.
std::string program_type(const plan::RowsForm& form, int program, int first_operand) {
  const uint32_t flagged = first_operand < 32 ? form.flagged_operands >> first_operand : 0;
  return flagged == 0 ? cat("Program", program) : cat("FlaggedProgram", program, "<", flagged, "u>");
}
/// Programs that some form needs with flagged operands.
std::set<int> flagged_programs(const plan::RowsForms& forms) {
  std::set<int> result;
  for (const plan::RowsForm& form : forms.forms) {
    const abi::MatmulRowsParams& p = form.params;
    if (form.flagged_operands >> p.prologue_operand != 0) result.insert(p.prologue);
    for (int s = 0; s < p.num_segments; ++s)
      if (form.flagged_operands >> p.segment[s].first_operand != 0) result.insert(p.segment[s].program);
  }
  return result;
}

/// One type per form of few-row product: parameters and programs.
std::string forms_text(const plan::RowsForms& forms) {
  std::string text;
  for (size_t i = 0; i < forms.forms.size(); ++i) {
    const plan::RowsForm& form = forms.forms[i];
    const abi::MatmulRowsParams& p = form.params;
    text += cat("struct RowsForm", i, " {\n  static constexpr ark::abi::MatmulRowsParams params() {\n    return {");
    for (int value : {p.m, p.k, p.num_units, p.num_segments, p.lanes, p.pair_distance, p.gated, p.prologue,
                      p.prologue_operand, p.weights_immutable, p.dtype, p.form})
      text += cat(value, ", ");
    text += "{";
    for (int s = 0; s < p.num_segments; ++s) {
      const abi::Segment& g = p.segment[s];
      text += cat(s > 0 ? ", {" : "{", g.first_unit, ", ", g.num_units, ", ", g.column, ", ", g.weight, ", ", g.weight2,
                  ", ", g.program, ", ", g.first_operand, ", 0}");
    }
    text += cat("}};\n  }\n  static constexpr u32 kVectorOperands = ", form.vector_operands,
                "u, kFlaggedOperands = ", form.flagged_operands,
                "u;\n  static constexpr bool kEarlyPrologue = ", form.early_prologue ? "true" : "false",
                ";\n  using Prologue = ", program_type(form, p.prologue, p.prologue_operand), ";\n");
    for (int s = 0; s < p.num_segments; ++s)
      text += cat("  static ", program_type(form, p.segment[s].program, p.segment[s].first_operand),
                  " epilogue(Number<", s, ">);\n");
    text += "};\n";
  }
  return text;
}

std::string dispatch_text(const Needs& needs, const plan::RowsForms& forms) {
  std::string text;
  for (int use = 0; use < kNumUses; ++use) {
    const bool called = std::any_of(std::begin(kFamilies), std::end(kFamilies),
                                    [&](const Family& f) { return f.reach == Reach::kCallPerUse && f.use == use; });
    const bool by_form = use == kEpilogueRows || use == kPrologueRows;
    if (called || by_form || needs.programs[use].empty()) continue;
    text += cat("  template <class F>\n  static ARK_DEVICE void ", kUseNames[use], "(int program, F&& f) {\n");
    if (needs.programs[use].size() == 1) {
      text += cat("    f(Program", *needs.programs[use].begin(), "{});\n  }\n");
      continue;
    }
    text += "    switch (program) {\n";
    for (const int number : needs.programs[use])
      text += cat("      case ", number, ":\n        return f(Program", number, "{});\n");
    text += "    }\n  }\n";
  }
  if (!forms.forms.empty()) {
    text += "  template <class F>\n  static ARK_DEVICE void rows_form(int form, F&& f) {\n    switch (form) {\n";
    for (size_t i = 0; i < forms.forms.size(); ++i)
      text += cat("      case ", i, ":\n        return f(RowsForm", i, "{});\n");
    text += "    }\n  }\n";
  }
  if (needs.matmul_variants != 0)
    text += cat("  static constexpr u32 kMatmulVariants = ", needs.matmul_variants, ";\n");
  if (needs.attention_variants != 0)
    text += cat("  static constexpr u32 kAttentionVariants = ", needs.attention_variants, ";\n");
  if (needs.kinds.contains(TaskKind::kAttentionDecode)) {
    const auto flag = [](bool b) { return b ? "true" : "false"; };
    text += "  // Decode attention: element types, head sizes and query rows (padded) that occur.\n";
    text += cat("  static constexpr bool kDecodeBF16 = ", flag(needs.decode_types.contains(DType::kBF16)),
                ", kDecodeF16 = ", flag(needs.decode_types.contains(DType::kF16)), ";\n");
    text += cat("  static constexpr bool kDecode64 = ", flag(needs.decode_dims.contains(64)),
                ", kDecode128 = ", flag(needs.decode_dims.contains(128)),
                ", kDecodeRows4 = ", flag(needs.decode_rows.contains(4)),
                ", kDecodeRows16 = ", flag(needs.decode_rows.contains(16)), ";\n");
  }
  return text;
}

/// `case TaskKind::kX: return X<Programs>::load_...(loader, task);` for every kind that has pages.
std::string loader_cases(const Needs& needs, const char* role) {
  std::string text;
  for (const Family& family : kFamilies)
    if (needs.kinds.contains(family.kind) && family.reach == Reach::kInline)
      text += cat("      case TaskKind::", family.name, ":\n        return ", family.type(), "<Programs>::", role,
                  "(loader, task);\n");
  return text;
}

/// The same for consumers; families that are called get a call per program.
std::string consumer_cases(const Needs& needs) {
  std::string text;
  for (const Family& family : kFamilies) {
    if (!needs.kinds.contains(family.kind)) continue;
    text += cat("      case TaskKind::", family.name, ":\n");
    if (family.reach == Reach::kInline) {
      text += cat("        return ", family.type(), "<Programs>::consume(consumer, task);\n");
    } else if (family.reach == Reach::kCall) {
      text += cat("        return call<", family.type(), "<Programs>>(consumer, task);\n");
    } else {
      text += cat("        switch (task.record->params.", family.program, ") {\n");
      for (const int number : needs.programs[family.use])
        text += cat("          case ", number, ":\n            return call<", family.type(), "<OneProgram<Program",
                    number, ">>>(consumer, task);\n");
      text += "        }\n        return;\n";
    }
  }
  return text;
}

std::string includes_text(const Needs& needs, bool maps) {
  std::set<std::string> headers;
  for (const Family& family : kFamilies)
    if (needs.kinds.contains(family.kind)) headers.insert(family.header);
  if (maps) headers.insert("tensor_map");
  headers.insert({"loop", "outline", "program_support"});
  std::string text;
  for (const std::string& header : headers) text += cat("#include \"device/", header, ".cuh\"\n");
  return text;
}

std::string_view template_text() {
  for (const EmbeddedFile& file : embedded_files())
    if (file.name == "codegen/loop.cu.in") return file.text;
  throw InternalError("codegen/loop.cu.in is not among the embedded files");
}

/// Replaces every @field@; unknown fields and fields left over are errors.
std::string fill(std::string_view text, const std::map<std::string, std::string>& fields) {
  std::string out;
  std::set<std::string> used;
  for (size_t at = 0; at < text.size();) {
    const size_t open = text.find('@', at);
    out += text.substr(at, open - at);
    if (open == std::string_view::npos) break;
    const size_t close = text.find('@', open + 1);
    check(close != std::string_view::npos, "loop.cu.in: unbalanced @");
    const std::string name(text.substr(open + 1, close - open - 1));
    const auto field = fields.find(name);
    check(field != fields.end(), "loop.cu.in: unknown field '", name, "'");
    used.insert(name);
    out += field->second;
    at = close + 1;
  }
  for (const auto& [name, value] : fields) check(used.contains(name), "loop.cu.in has no field '", name, "'");
  return out;
}

int slot_capacity(size_t num_slots) {
  for (const int capacity : abi::kSlotCapacities)
    if (num_slots <= static_cast<size_t>(capacity)) return capacity;
  throw UnsupportedError(
      cat("a plan of ", num_slots, " buffers; one launch carries at most ", abi::kSlotCapacities[2]));
}

constexpr int kSharedBytes = 232448;  // device/pipeline.cuh

}  // namespace

Source generate(const plan::Plan& plan, const SourceOptions& options) {
  const Needs needs = analyse(plan);
  const plan::RowsForms forms = plan::rows_forms(plan, planner::flag_words(plan));
  const bool maps = !plan.maps.empty();
  // Nobody may spill: the loaders of few-row matmuls have the longest address arithmetic, main loops on the tensor
  // cores and attention's backward need the consumers' 224.
  const bool rows = needs.kinds.contains(TaskKind::kMatmulRows);
  Source source;
  source.slot_capacity = slot_capacity(plan.buffers.size());
  source.smem_bytes = kSharedBytes;
  source.text = fill(template_text(),
                     {
                         {"title", cat("The loop kernel of ", plan.name.empty() ? "a plan" : plan.name, ".")},
                         {"trace", options.trace ? "1" : "0"},
                         {"called_waits", maps ? "0" : "1"},  // wgmma reads by tensor maps
                         {"includes", includes_text(needs, maps)},
                         {"programs", programs_text(plan, needs, flagged_programs(forms)) + forms_text(forms)},
                         {"dispatch", dispatch_text(needs, forms)},
                         {"service_registers", rows ? "72" : "56"},
                         {"consumer_registers", rows ? "216" : "224"},
                         {"load_immutable", loader_cases(needs, "load_immutable")},
                         {"load_dependent", loader_cases(needs, "load_dependent")},
                         {"consume", consumer_cases(needs)},
                         {"patch_maps", maps ? "    patch_tensor_maps(launch, slots, thread_index() & 31);\n" : ""},
                         {"entry", source.entry},
                         {"slot_capacity", cat(source.slot_capacity)},
                     });
  return source;
}

}  // namespace ark::codegen
