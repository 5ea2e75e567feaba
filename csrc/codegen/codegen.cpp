#include "codegen/codegen.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/embedded.h"
#include "codegen/program_source.h"
#include "device/abi/variants.h"
#include "plan/params.h"

namespace ark::codegen {
namespace {

using abi::TaskKind;

constexpr std::array<const char*, kNumUses> kUseNames = {
    "pointwise",     "row",           "column",         "epilogue_rows",
    "prologue_rows", "epilogue_tile", "epilogue_float", "epilogue_simple"};

/// The prologue of several rows whose factor is left to the epilogue (device/matmul/few_rows_factor.cuh), if it has
/// one. Results are rounded to bfloat16, whose range is that of sums: without their factor, float16 could overflow.
std::optional<RowFactor> row_factor(const Kernel& kernel, const plan::RowsForm& form) {
  const abi::MatmulRowsParams& p = form.params;
  const bool flagged = p.prologue_operand < 32 && form.flagged_operands >> p.prologue_operand != 0;
  if (p.m <= 1 || flagged || static_cast<DType>(p.dtype) != DType::kBF16) return std::nullopt;
  return split_row_factor(kernel.code[static_cast<size_t>(p.prologue)].program);
}

std::string programs_text(const Kernel& kernel, const std::set<int>& flagged) {
  std::map<int, RowFactor> scaled;
  for (const plan::RowsForm& form : kernel.forms)
    if (const std::optional<RowFactor> factor = row_factor(kernel, form)) scaled[form.params.prologue] = *factor;
  std::set<int> all;
  for (const std::set<int>& numbers : kernel.uses) all.insert(numbers.begin(), numbers.end());
  std::string text;
  for (const int number : all) {
    const Code& code = kernel.code[static_cast<size_t>(number)];
    std::string comment;
    for (const std::string& user : code.users) comment += cat("// ", user, "\n");
    text += code.row
                ? row_program_source(code.program, *code.row, number, comment)
                : program_source(code.program, number, comment,
                                 {code.broadcast, code.epilogue_ways, code.column_ways, code.transposed, code.flat});
    text += "\n";
    if (flagged.contains(number)) text += flagged_program_source(code.program, number) + "\n";
    if (scaled.contains(number)) text += scaled_program_source(scaled[number], number, {code.broadcast}) + "\n";
  }
  return text;
}

/// A program of a few-row product; with flagged operands it is a template over which of them are.
std::string program_type(const plan::RowsForm& form, int program, int first_operand) {
  const uint32_t flagged = first_operand < 32 ? form.flagged_operands >> first_operand : 0;
  return flagged == 0 ? cat("Program", program) : cat("FlaggedProgram", program, "<", flagged, "u>");
}
/// Programs that some form needs with flagged operands.
std::set<int> flagged_programs(const std::vector<plan::RowsForm>& forms) {
  std::set<int> result;
  for (const plan::RowsForm& form : forms) {
    const abi::MatmulRowsParams& p = form.params;
    if (form.flagged_operands >> p.prologue_operand != 0) result.insert(p.prologue);
    for (int s = 0; s < p.num_segments; ++s)
      if (form.flagged_operands >> p.segment[s].first_operand != 0) result.insert(p.segment[s].program);
  }
  return result;
}

/// One type per form of few-row product: parameters and programs.
std::string forms_text(const Kernel& kernel) {
  std::string text;
  for (size_t i = 0; i < kernel.forms.size(); ++i) {
    const plan::RowsForm& form = kernel.forms[i];
    const abi::MatmulRowsParams& p = form.params;
    const std::string prologue = row_factor(kernel, form) ? cat("ScaledProgram", p.prologue)
                                                          : program_type(form, p.prologue, p.prologue_operand);
    text += cat("struct RowsForm", i, " {\n  static constexpr ark::abi::MatmulRowsParams params() {\n    return {");
    for (int value : {p.m, p.k, p.num_units, p.num_segments, p.lanes, p.pair_distance, p.gated, p.prologue,
                      p.prologue_operand, p.weights_immutable, p.dtype, p.form, p.columns})
      text += cat(value, ", ");
    text += "{}, {";
    for (int s = 0; s < p.num_segments; ++s) {
      const abi::Segment& g = p.segment[s];
      text += cat(s > 0 ? ", {" : "{", g.first_unit, ", ", g.num_units, ", ", g.column, ", ", g.weight, ", ", g.weight2,
                  ", ", g.program, ", ", g.first_operand, ", 0}");
    }
    text += cat("}};\n  }\n  static constexpr u32 kVectorOperands = ", form.vector_operands,
                "u, kFlaggedOperands = ", form.flagged_operands,
                "u;\n  static constexpr bool kEarlyPrologue = ", form.early_prologue ? "true" : "false",
                ";\n  using Prologue = ", prologue, ";\n");
    for (int s = 0; s < p.num_segments; ++s)
      text += cat("  static ", program_type(form, p.segment[s].program, p.segment[s].first_operand),
                  " epilogue(Number<", s, ">);\n");
    text += "};\n";
  }
  return text;
}

bool has_strips(const Kernel& kernel) {
  return std::ranges::any_of(kernel.forms, [](const plan::RowsForm& form) {
    return form.params.m > 1 && size_bytes(static_cast<DType>(form.params.dtype)) == 2;
  });
}
bool has_pages(const Kernel& kernel) {
  return std::ranges::any_of(kernel.forms, [](const plan::RowsForm& form) {
    const abi::MatmulRowsParams& p = form.params;
    return p.m == 1 && p.columns == 0 && size_bytes(static_cast<DType>(p.dtype)) == 2;
  });
}
bool has_columns(const Kernel& kernel) {
  return std::ranges::any_of(kernel.forms, [](const plan::RowsForm& form) { return form.params.columns != 0; });
}

/// wgmma tolerates no calls. Where there are maps, calls beside the activation of several rows cost spills (k 5000,
/// five rows: 4 bytes), and products of fp32 are left as they were measured.
bool calls_waits(const Kernel& kernel) {
  const KernelFeatures& has = kernel.features;
  const bool wgmma = has.matmul_variants != 0 || has.attention_variants != 0;
  return !has.maps || (!wgmma && !has_strips(kernel) && !has.kinds.contains(TaskKind::kMatmulFloat));
}

std::string dispatch_text(const Kernel& kernel) {
  std::string text;
  for (int use = 0; use < kNumUses; ++use) {
    const bool called = std::ranges::any_of(plan::kKinds, [&](const plan::Kind& kind) {
      return kind.reach == plan::Reach::kCallPerProgram && use_of(kind.kind) == use;
    });
    const bool by_form = use == kEpilogueRows || use == kPrologueRows;
    if (called || by_form || kernel.uses[use].empty()) continue;
    text += cat("  template <class F>\n  static ARK_DEVICE void ", kUseNames[use], "(int program, F&& f) {\n");
    if (kernel.uses[use].size() == 1) {
      text += cat("    f(Program", *kernel.uses[use].begin(), "{});\n  }\n");
      continue;
    }
    text += "    switch (program) {\n";
    for (const int number : kernel.uses[use])
      text += cat("      case ", number, ":\n        return f(Program", number, "{});\n");
    text += "    }\n  }\n";
  }
  if (kernel.features.kinds.contains(TaskKind::kMatmulRows))
    text += cat(
        "  static constexpr bool kPages = ", has_pages(kernel) ? "true" : "false", ";  // few_rows_pages.cuh\n",
        "  static constexpr bool kStrips = ", has_strips(kernel) ? "true" : "false", ";  // few_rows_strips.cuh\n",
        "  static constexpr bool kColumns = ", has_columns(kernel) ? "true" : "false", ";  // few_rows_columns.cuh\n");
  if (kernel.features.matmul_variants != 0)
    text += cat("  static constexpr u32 kMatmulVariants = ", kernel.features.matmul_variants, ";\n");
  if (kernel.features.attention_variants != 0)
    text += cat("  static constexpr u32 kAttentionVariants = ", kernel.features.attention_variants, ";\n");
  if (kernel.features.simple_attention != 0)
    text += cat("  static constexpr u64 kSimpleAttention = ", kernel.features.simple_attention, "ull;\n");
  if (kernel.features.kinds.contains(TaskKind::kAttentionDecode)) {
    const auto flag = [](bool b) { return b ? "true" : "false"; };
    text += "  // Decode attention: element types, head sizes, query rows (padded) and keys that occur.\n";
    text += cat("  static constexpr bool kDecodeBF16 = ", flag(kernel.features.decode_types.contains(DType::kBF16)),
                ", kDecodeF16 = ", flag(kernel.features.decode_types.contains(DType::kF16)), ";\n");
    uint32_t dims = 0;
    for (const int dim : kernel.features.decode_dims) dims |= abi::decode_dim_bit(dim);
    text += cat("  static constexpr u32 kDecodeDims = ", dims, ";  // bit d / 16: heads of d columns\n");
    text += cat("  static constexpr bool kDecodeRows4 = ", flag(kernel.features.decode_rows.contains(4)),
                ", kDecodeRows16 = ", flag(kernel.features.decode_rows.contains(16)), ";\n");
    text +=
        cat("  static constexpr bool kDecodeCache = ", flag(kernel.features.decode_caches.contains(true)),
            ", kDecodePlain = ", flag(kernel.features.decode_caches.contains(false)), ";  // where keys come from\n");
    text += "  // Whether some have several queries, are causal, have masks that are added (others are of one byte).\n";
    text += cat("  static constexpr bool kDecodeQueries = ", flag(kernel.features.decode_queries),
                ", kDecodeCausal = ", flag(kernel.features.decode_causal),
                ", kDecodeAddedMasks = ", flag(kernel.features.decode_added_masks), ";\n");
    text += cat("  static constexpr bool kDecodePairs = ", flag(kernel.features.decode_pairs),
                ";  // some have two tiles done at once\n");
  }
  if (kernel.features.mask_types != 0)
    text += cat("  static constexpr u32 kMaskTypes = ", kernel.features.mask_types, ";\n");
  if (kernel.features.scatter_types != 0)
    text += cat("  static constexpr u32 kScatterTypes = ", kernel.features.scatter_types, ";\n");
  return text;
}

/// `case TaskKind::kX: return X<Programs>::load_...(loader, task);` for every kind that has pages.
std::string loader_cases(const Kernel& kernel, const char* role) {
  std::string text;
  for (const plan::Kind& kind : plan::kKinds)
    if (kernel.features.kinds.contains(kind.kind) && kind.loads)
      text += cat("      case TaskKind::k", kind.type, ":\n        return ", kind.type, "<Programs>::", role,
                  "(loader, task);\n");
  return text;
}

/// How a family is reached (device/loop/outline.cuh).
enum class Call { kNone, kWithPages, kWithoutPages };
Call call_of(bool called, bool pages) { return !called ? Call::kNone : pages ? Call::kWithPages : Call::kWithoutPages; }

std::string consume_text(const std::string& type, Call how) {
  switch (how) {
    case Call::kNone:
      return cat("return ", type, "::consume(consumer, task);\n");
    case Call::kWithPages:
      return cat("return call<", type, ">(consumer, task);\n");
    case Call::kWithoutPages:
      return cat("return call_without_pages<", type, ">(consumer, task);\n");
  }
  return "";
}

/// `switch (task.record->params.field)` over numbers, with a statement for each.
template <class Numbers, class Statement>
std::string switch_text(const std::string& field, const Numbers& numbers, const Statement& statement) {
  std::string text = cat("        switch (task.record->params.", field, ") {\n");
  for (const auto& number : numbers) text += cat("          case ", number, ":\n            ", statement(number));
  return text + "        }\n        return;\n";
}

/// A function has 168 registers: too few beside those of a long activation of several rows.
bool fits_function(const abi::MatmulRowsParams& p) {
  constexpr int kMostRegisters = 64;
  const int blocks = (p.m + 7) / 8, vectors = abi::strip_slices(p.k) * abi::strip_page_k(p.k) / 256;
  return p.m == 1 || blocks * vectors * 4 <= kMostRegisters;
}

/// A form that is called, not inlined.
bool is_called(const plan::RowsForm& form) { return form.once && fits_function(form.params); }

/// Whether forms share what is between their prologues and epilogues (device/matmul/few_rows.cuh, RowsGroup).
bool are_alike(const plan::RowsForm& one, const plan::RowsForm& other) {
  const abi::MatmulRowsParams &p = one.params, &q = other.params;
  constexpr int kMostPairs = 4096;  // k of pages with several rows
  const auto rows_of_page = [](const abi::MatmulRowsParams& of) {
    return std::min(2 * kMostPairs / (of.k * of.lanes), abi::kMaxRowsPerPage / of.lanes) * of.lanes;
  };
  return !is_called(one) && !is_called(other) && p.m == 1 && q.m == 1 && p.columns == 0 && q.columns == 0 &&
         p.k == q.k && p.k * std::max(p.lanes, q.lanes) <= 2 * kMostPairs && p.k <= kMostPairs && p.dtype == q.dtype &&
         size_bytes(static_cast<DType>(p.dtype)) == 2 && rows_of_page(p) == rows_of_page(q);
}

/// `switch` over forms; those that are alike have one case.
std::string form_cases(const std::vector<plan::RowsForm>& forms) {
  std::string text = "        switch (task.record->params.rows.form) {\n";
  std::vector<bool> done(forms.size());
  for (size_t i = 0; i < forms.size(); ++i) {
    if (done[i]) continue;
    std::string cases, types;
    int members = 0;
    for (size_t j = i; j < forms.size(); ++j) {
      if (j != i && (done[j] || !are_alike(forms[i], forms[j]))) continue;
      done[j] = true;
      cases += cat("          case ", j, ":\n");
      types += cat(members++ > 0 ? ", " : "", "RowsForm", j);
    }
    const std::string type = cat(members > 1 ? "RowsGroup<" : "RowsTask<", types, ">");
    text += cases + "            " + consume_text(type, call_of(is_called(forms[i]), true));
  }
  return text + "        }\n        return;\n";
}

std::string consumer_case(const Kernel& kernel, const plan::Kind& kind) {
  switch (kind.reach) {
    case plan::Reach::kInline:
    case plan::Reach::kCall:
      return "        " +
             consume_text(cat(kind.type, "<Programs>"), call_of(kind.reach == plan::Reach::kCall, kind.loads));
    case plan::Reach::kPerForm:
      return form_cases(kernel.forms);
    case plan::Reach::kCallPerProgram:
      break;
  }
  const Use use = use_of(kind.kind);
  return switch_text(cat(plan::member(kind.family), ".program"), kernel.uses[use], [&](int program) {
    const uint32_t layouts = kernel.code[static_cast<size_t>(program)].layouts;
    const std::string one = use == kEpilogueFloat ? cat("FloatProgram<Program", program, ", ", layouts, ">")
                                                  : cat("OneProgram<Program", program, ">");
    return consume_text(cat(kind.type, "<", one, ">"), call_of(true, kind.loads));
  });
}

/// The same for consumers; kinds that are called get a call per program, few-row products a case per form.
std::string consumer_cases(const Kernel& kernel) {
  std::string text;
  for (const plan::Kind& kind : plan::kKinds)
    if (kernel.features.kinds.contains(kind.kind))
      text += cat("      case TaskKind::k", kind.type, ":\n", consumer_case(kernel, kind));
  return text;
}

std::string includes_text(const Kernel& kernel) {
  std::set<std::string> headers;
  for (const plan::Kind& kind : plan::kKinds)
    if (kernel.features.kinds.contains(kind.kind)) headers.insert(kind.header);
  if (kernel.features.maps) headers.insert("loop/tensor_map");
  headers.insert({"loop/loop", "loop/outline", "program/support"});
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

constexpr int kSharedBytes = 232448;  // device/loop/worker.cuh

}  // namespace

Source generate(const plan::Plan& plan, const SourceOptions& options) {
  const plan::Plan* const plans[] = {&plan};
  return generate(make_kernel(plans), options);
}

Source generate(const Kernel& kernel, const SourceOptions& options) {
  // Nobody may spill: the loaders of few-row matmuls, of wide heads and of products of two weights, or of small tiles
  // in several layouts, have the longest address arithmetic; main loops on the tensor cores, wide ones above all, and
  // attention's backward need the consumers' 224.
  const bool wide = std::ranges::any_of(kernel.features.decode_dims, [](int dim) { return dim > 128; });
  const uint32_t variants = kernel.features.matmul_variants;
  const bool gated = (variants & abi::kGatedVariants) != 0 && (variants & abi::kWideVariants) == 0;
  const uint32_t small = variants & abi::kSmallVariants & ~abi::kGatedVariants,
                 of_any_type = (small | small >> abi::half_bit(true)) >> abi::kFirstSmallTile;
  const bool layouts =
      std::popcount(of_any_type & ((1u << abi::kNumLayouts) - 1)) > 1 && (variants & abi::kWideVariants) == 0;
  const bool longer = wide || gated || layouts || kernel.features.kinds.contains(TaskKind::kMatmulRows);
  const bool walks = has_columns(kernel) || (has_strips(kernel) && kernel.features.dependent_pages);
  Source source;
  source.slot_capacity = kernel.features.slot_capacity;
  source.groups = kernel.features.groups;
  source.smem_bytes = kSharedBytes;
  source.text = fill(
      template_text(),
      {
          {"title", cat("The loop kernel of ", kernel.name.empty() ? "a plan" : kernel.name, ".")},
          {"trace", options.trace ? "1" : "0"},
          {"dependent_pages", kernel.features.dependent_pages ? "1" : "0"},
          {"called_waits", calls_waits(kernel) ? "1" : "0"},
          {"ranks", kernel.features.ranks > 1 ? cat("#define ARK_RANKS ", kernel.features.ranks, "\n") : ""},
          {"groups", kernel.features.groups > 1 ? cat("#define ARK_GROUPS ", kernel.features.groups, "\n") : ""},
          {"background", kernel.features.background ? "#define ARK_BACKGROUND 1\n" : ""},
          {"loop", kernel.features.loop ? "#define ARK_LOOP 1\n" : ""},
          {"includes", includes_text(kernel)},
          {"programs", programs_text(kernel, flagged_programs(kernel.forms)) + forms_text(kernel)},
          {"dispatch", dispatch_text(kernel)},
          {"service_registers", walks    ? "88"
                                : longer ? "72"
                                         : "56"},
          {"consumer_registers", walks    ? "208"
                                 : longer ? "216"
                                          : "224"},
          {"load_immutable", loader_cases(kernel, "load_immutable")},
          {"load_dependent", loader_cases(kernel, "load_dependent")},
          {"consume", consumer_cases(kernel)},
          {"patch_maps", kernel.features.maps ? "    patch_tensor_maps(worker, slots, thread_index() & 31);\n" : ""},
          {"acquire_maps", kernel.features.maps ? "    acquire_tensor_maps(worker, thread_index() & 31);\n" : ""},
          {"entry", source.entry},
          {"slot_capacity", cat(source.slot_capacity)},
          {"more_groups", source.groups > 1 ? cat(", ", source.groups) : ""},
      });
  return source;
}

}  // namespace ark::codegen
