#include "codegen/program_source.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/check.h"
#include "codegen/expression_printer.h"
#include "codegen/expressions.h"
#include "codegen/held_loads.h"
#include "codegen/operand_sizes.h"
#include "codegen/transposed_source.h"

namespace ark::codegen {
namespace {

/// Prints one program: a function per part of the struct.
class Printer : public ExpressionPrinter {
 public:
  using ExpressionPrinter::ExpressionPrinter;

  std::string text(int number, const std::string& comment, const ProgramUse& use = {}, bool flagged = false,
                   const RowFactor* scaled = nullptr) {
    out_ = comment;
    flagged_ = flagged;
    transposed_ = use.transposed;
    line(flagged ? cat("template <u32 kFlags>\nstruct FlaggedProgram", number, " {")
                 : cat("struct ", scaled != nullptr ? "ScaledProgram" : "Program", number, " {"));
    line(cat("  static constexpr bool kFlagged = ", flagged ? "true;" : "false;"));
    line(cat("  static constexpr int kDims = ", program_.num_dims, ", kReduceDims = ", program_.reduce_dims,
             ", kNumOperands = ", program_.num_operands, ", kVector = ", vector_length(), ", kPasses = ", num_passes_,
             ", kCachedChunks = ", cached_chunks(), ", kUnroll = ", unroll(), ";"));
    if (program_.kind == ProgramKind::kPointwise)
      line(cat("  static constexpr int kLongestVector = ", longest_vector(program_), ", kWholeVector = ",
               whole_vector(), "; static constexpr bool kFreeRows = ", has_free_rows(program_) ? "true" : "false",
               ", kPlain = ", is_plain(program_) ? "true;" : "false;"));
    if (column_) out_ += column_source(use.column_ways);
    if (program_.kind == ProgramKind::kPointwise)
      out_ += operand_sizes_source(program_, broadcast_) + transposed_source(program_, transposed_);
    if (form_ != nullptr) out_ += form_source();
    // How an element of what a prologue copies lies in memory.
    if (program_.kind == ProgramKind::kPrologue)
      line(cat("  using Copied = ", only_copies() ? input_type(instr(0)) : "void",
               ";\n  static constexpr bool kScaled = ", scaled != nullptr ? "true" : "false",
               ", kOfSquares = ", scaled != nullptr && is_of_squares(*scaled) ? "true;" : "false;"));
    if (program_.kind == ProgramKind::kEpilogue)
      line(cat("  static constexpr bool kPairs = ", int{reads_pairs()}, ", kGated = ", int{reads_two_products()},
               ";\n  static constexpr u32 kLoads = ", plain_operands(Opcode::kLoad),
               "u, kStores = ", plain_operands(Opcode::kStore), "u;"));
    if (by_batch_.count > 0)
      line(cat("  using ByBatch = BatchStores<", by_batch_.count, ", ", by_batch_.first, ", ", by_batch_.rest, ">;"));
    if (use.epilogue_ways != 0) line(cat("  static constexpr u32 kEpilogueWays = ", use.epilogue_ways, ";"));
    print_inputs();
    if (flagged_) print_ready();
    if (row_ || column_) {
      if (form_ != nullptr) print_scalars();
      out_ += accumulators();
      if (form_ != nullptr) print_row_loads();
      for (int pass = 0; pass < num_passes_; ++pass) print_element(pass);
      print_uniform_stores();
      if (scaled != nullptr) print_factor(*scaled);
    } else {
      print_run();
      if (program_.kind == ProgramKind::kPointwise && has_free_rows(program_) && is_plain(program_) && !flagged_)
        print_held();
      if (program_.kind == ProgramKind::kPointwise) print_flat(transposed_ != 0 ? FlatForm{} : flat_form(use.flat));
    }
    line("};");
    return std::move(out_);
  }

 private:
  void line(const std::string& text) { out_ += text + "\n"; }

  void print_flat(const FlatForm& form) {
    line(cat("  static constexpr bool kFlat = ", form.exists ? "true;" : "false;"));
    if (!form.exists) return;
    const auto instruction = [&](int i, bool of_row) {
      const std::string before = std::exchange(out_, "");
      const std::vector<Info> info = info_;
      for (int k = 0; k < count_; ++k) info_[k].scalar = info_[k].scalar && (of_row || !form.border[k]);
      instr(i).op == Opcode::kStore ? print_narrowed(i) : print_instruction(i, true);
      info_ = info;
      return std::exchange(out_, before);
    };
    out_ += flat_source(program_, form,
                        {instruction, [&](int i) { return std::string(register_type(info_[i].type)); },
                         [&](int i) { return std::string(storage_type(instr(i).dtype)); }});
  }

  /// `value` is an expression of element i (of the first element, if it is printed once); declares r<i>.
  void declare(int i, const std::string& value) {
    const char* type = register_type(info_[i].type);
    if (once_per_vector(i))
      line(cat("    const ", type, " r", i, " = ", value, ";"));
    else
      line(cat("    ", type, " r", i, "[V]; ARK_EACH r", i, "[i] = ", value, ";"));
  }

  // Epilogues of tiles reach their operands through contexts of their own (device/matmul/epilogue.cuh), and so do
  // pointwise programs (device/program/pointwise_walk.cuh, pointwise_transposed.cuh), columns off alignment
  // (device/program/column_slots.cuh) and rows that are kept (device/program/row_context.cuh).
  bool own_context() const {
    return program_.kind == ProgramKind::kEpilogue || program_.kind == ProgramKind::kPointwise || column_ ||
           form_ != nullptr;
  }
  const char* context_parameter() const { return own_context() ? ", class Context" : ""; }
  const char* context_type() const { return own_context() ? "Context" : "ProgramContext"; }

  bool may_be_flagged(const Instr& in) const {
    return flagged_ && (in.dtype == DType::kBF16 || in.dtype == DType::kF16);
  }
  std::string flag_of(const Instr& in) const { return cat("(kFlags >> ", in.operand, " & 1) != 0"); }
  std::string input_type(const Instr& in) const {
    const char* type = storage_type(in.dtype);
    return may_be_flagged(in) ? cat("typename Stored<", type, ", ", flag_of(in), ">::type") : type;
  }

  void print_ready() {
    line("  template <int V>");
    line("  static ARK_DEVICE bool ready(const ProgramContext& c, const i32 (&x)[kDims], Inputs<V>& in) {");
    line("    bool all = true;");
    for (int i = 0; i < count_; ++i)
      if (info_[i].plain_load && may_be_flagged(instr(i)))
        line(cat("    all = ready_operand<V>(c, ", instr(i).operand, ", x, in.r", i, ") && all;"));
    line("    return all;");
    line("  }");
  }

  void print_inputs() {
    line("  template <int V> struct Inputs {");
    for (int i = 0; i < count_; ++i)
      if ((info_[i].preloaded || info_[i].gather) && !row_scalar(i))
        line(cat("    Vec<", input_type(instr(i)), info_[i].scalar ? ", 1> r" : ", V> r", i, ";"));
    line("  };");
    if (form_ != nullptr) return;  // loads by pass
    line(cat("  template <int V", context_parameter(), "> static ARK_DEVICE void load(const ", context_type(),
             "& c, const i32 (&x)[kDims], Inputs<V>& in) {"));
    for (int i = 0; i < count_; ++i)
      if (info_[i].plain_load)
        line(cat("    load_operand<", info_[i].scalar ? "1" : "V", ">(c, ", instr(i).operand, ", x, in.r", i, ");"));
    std::vector<bool> wanted(count_);
    for (int i = 0; i < count_; ++i) wanted[i] = info_[i].preloaded && !info_[i].plain_load;
    const std::vector<bool> needed = needed_by(wanted);
    for (int i = 0; i < count_; ++i) {
      if (wanted[i])
        print_indexed("load", cat("in.r", i), i, instr(i).a, instr(i).b, instr(i).c);
      else if (needed[i])
        print_instruction(i, true);
    }
    line("  }");
  }

  void print_held() {
    std::vector<HeldLoad> loads;
    for (int i = 0; i < count_; ++i)
      if (info_[i].plain_load) loads.push_back({i, instr(i).operand, info_[i].scalar, input_type(instr(i))});
    out_ += held_source(loads, held_unroll());
  }

  /// Values of a row that are loaded once.
  void print_scalars() {
    line("  struct Scalars {");
    for (int i = 0; i < count_; ++i)
      if (row_scalar(i)) line(cat("    Vec<", storage_type(instr(i).dtype), ", 1> r", i, ";"));
    line("  };");
    line("  static ARK_DEVICE void load_scalars(const ProgramContext& c, const i32 (&x)[kDims], Scalars& s) {");
    for (int i = 0; i < count_; ++i)
      if (same_along_row(i)) line(cat("    load_operand<1>(c, ", instr(i).operand, ", x, s.r", i, ");"));
    print_same_gathers();
    line("  }");
  }

  /// By indices among the scalars before, which they wait for.
  void print_same_gathers() {
    std::vector<bool> wanted(count_);
    bool any = false;
    for (int i = 0; i < count_; ++i)
      if (same_gather(i)) {
        any = true;
        for (const int input : inputs_of(instr(i))) wanted[input] = true;
      }
    if (!any) return;
    const std::vector<bool> needed = needed_by(wanted);
    line("    const struct {\n      const Scalars& scalars;\n    } u{s};");
    for (int i = 0; i < count_; ++i) {
      if (same_gather(i)) print_gather(i, "1", "s");
      if (needed[i]) print_instruction(i, true);
    }
  }

  void print_row_load(int i) {
    const Instr& in = instr(i);
    if (info_[i].plain_load) return line(cat("    load_operand<V>(c, ", in.operand, ", x, in.r", i, ");"));
    std::vector<bool> wanted(count_);
    for (const int input : inputs_of(in)) wanted[input] = true;
    const std::vector<bool> needed = needed_by(wanted);
    line("    {");
    for (int k = 0; k < i; ++k)
      if (needed[k]) print_instruction(k, true);
    if (info_[i].gather)
      print_gather(i, "V", "in");
    else
      print_indexed("load", cat("in.r", i), i, in.a, in.b, in.c);
    line("    }");
  }

  /// Of `length` elements into r<i> of `into`.
  void print_gather(int i, const char* length, const char* into) {
    const Instr& in = instr(i);
    const int indices = (in.a >= 0) + (in.b >= 0);
    const auto or_else = [&](int value, DType type, const char* none) {
      return value < 0 ? none : converted(value, type);
    };
    line(cat("    load_gathered<", length, ", ", indices, ">(c, ", in.operand, ", x, ", or_else(in.a, DType::kI64, "0"),
             ", ", or_else(in.b, DType::kI64, "0"), ", ", or_else(in.c, DType::kBool, "true"), ", ", into, ".r", i,
             ");"));
  }

  /// load: what a pass needs; load_more: what is new in it; load_ahead: of the next row; load_standing: of all rows;
  /// settle: these have come in.
  void print_row_loads() {
    for (const bool more : {false, true}) {
      for (int pass = 0; pass < num_passes_; ++pass) {
        line("  template <int V, class Context>");
        line(cat("  static ARK_DEVICE void ", more ? "load_more" : "load", "(Pass<", pass,
                 ">, const Context& c, const i32 (&x)[kDims], const Uniform& u, Inputs<V>& in) {"));
        for (int i = 0; i < count_; ++i)
          if (loaded_in(i, pass) && !(more && (loaded_before(i, pass) || loaded_ahead(i) || stands(i))))
            print_row_load(i);
        line("  }");
      }
    }
    for (const bool standing : {false, true}) {
      line(cat("  template <int V, class Context>\n  static ARK_DEVICE void load_", standing ? "standing" : "ahead",
               "(const Context& c, const i32 (&x)[kDims], Inputs<V>& in) {"));
      for (int i = 0; i < count_; ++i)
        if (standing ? stands(i) : loaded_ahead(i)) print_row_load(i);
      line("  }");
    }
    line("  template <int V> static ARK_DEVICE void settle(Inputs<V>& in, bool there) {");
    for (int i = 0; i < count_; ++i)
      if (stands(i)) line(cat("    settle_vector(in.r", i, ", there);"));
    line("  }");
  }

  std::string irregular_arguments(int i, int a, int b, int predicate) {
    line(cat("    i64 a", i, "[V], b", i, "[V]; bool p", i, "[V];"));
    line(cat("    ARK_EACH { a", i, "[i] = ", a < 0 ? "0" : converted(a, DType::kI64), "; b", i,
             "[i] = ", b < 0 ? "0" : converted(b, DType::kI64), "; p", i,
             "[i] = ", predicate < 0 ? "true" : converted(predicate, DType::kBool), "; }"));
    return cat("a", i, ", b", i, ", p", i);
  }

  /// The arguments of an access whose elements lie one constant step apart, or nothing: index registers that stay the
  /// same or, one of them, count up along the vector.
  std::string run_arguments(int a, int b, int predicate) {
    if (!is_run(a, b, predicate)) return "";
    const bool run_a = a >= 0 && info_[a].run, run_b = b >= 0 && info_[b].run;
    first_element_ = true;
    const std::string arguments =
        cat(a < 0 ? "0" : converted(a, DType::kI64), ", ", b < 0 ? "0" : converted(b, DType::kI64), ", ",
            predicate < 0 ? "true" : converted(predicate, DType::kBool));
    first_element_ = false;
    return cat(run_a ? 0 : run_b ? 1 : -1, "|", arguments);
  }
  /// `what`: load or store of vector `values`, with index registers.
  void print_indexed(const char* what, const std::string& values, int i, int a, int b, int predicate) {
    const int indices = a < 0 ? 0 : b < 0 ? 1 : 2;
    if (const std::string run = run_arguments(a, b, predicate); !run.empty()) {
      const size_t bar = run.find('|');
      return line(cat("    ", what, "_run<V, ", indices, ", ", run.substr(0, bar), ">(c, ", instr(i).operand, ", x, ",
                      run.substr(bar + 1), ", ", values, ");"));
    }
    const std::string arguments = irregular_arguments(i, a, b, predicate);
    line(cat("    ", what, "_irregular<V, ", indices, ">(c, ", instr(i).operand, ", x, ", arguments, ", ", values,
             ");"));
  }

  /// By words, where registers are not scarce: prologues and epilogues beside main loops spilled 128 to 312 bytes.
  void declare_widened(int i, const std::string& loaded) {
    const bool beside = program_.kind == ProgramKind::kPrologue || program_.kind == ProgramKind::kEpilogue;
    if (!beside && by_pairs(i, instr(i).dtype) && !info_[i].run && !may_be_flagged(instr(i)))
      return line(cat("    float r", i, "[V]; widen_vector(", loaded, ", r", i, ");"));
    declare(i, cat("widen(", loaded, info_[i].scalar ? ".v[0])" : ".v[i])"));
  }

  void print_load(int i, bool preloaded) {
    const Instr& in = instr(i);
    if (row_scalar(i)) return declare(i, cat("widen(u.scalars.r", i, ".v[0])"));
    const char* length = info_[i].scalar ? "1" : "V";
    if ((info_[i].preloaded || info_[i].gather) && preloaded) return declare_widened(i, cat("in.r", i));
    line(cat("    Vec<", storage_type(in.dtype), ", ", length, "> m", i, ";"));
    if (info_[i].plain_load)
      line(cat("    load_operand<", length, ">(c, ", in.operand, ", x, m", i, ");"));
    else
      print_indexed("load", cat("m", i), i, in.a, in.b, in.c);
    declare_widened(i, cat("m", i));
  }

  /// What a store takes, as s<i>.
  void print_narrowed(int i) {
    const Instr& in = instr(i);
    const char* type = storage_type(in.dtype);
    const int value = stored_value(in);
    if (instr(value).op == Opcode::kLoad && instr(value).dtype == in.dtype && info_[value].preloaded &&
        !info_[value].scalar && !flagged_)
      line(cat("    const Vec<", type, ", V>& s", i, " = in.r", value, ";"));
    else if (by_pairs(value, in.dtype))
      line(cat("    Vec<", type, ", V> s", i, "; narrow_vector(r", value, ", s", i, ");"));
    else
      line(cat("    Vec<", type, ", V> s", i, "; ARK_EACH s", i, ".v[i] = narrow<", type, ">(",
               converted(value, compute_type(in.dtype)), ");"));
  }

  void print_store(int i) {
    const Instr& in = instr(i);
    print_narrowed(i);
    if (in.operand == by_batch_.first) return line(cat("    store_by_batch<ByBatch, V>(c, x, s", i, ");"));
    if (in.b < 0 && in.c < 0 && in.d < 0 && may_be_flagged(in))
      return line(cat("    store_flagged<V, ", flag_of(in), ">(c, ", in.operand, ", x, s", i, ");"));
    if (in.b < 0 && in.c < 0 && in.d < 0) return line(cat("    store_operand<V>(c, ", in.operand, ", x, s", i, ");"));
    print_indexed("store", cat("s", i), i, in.b, in.c, in.d);
  }

  /// One instruction of a function body. `preloaded`: plain loads come from Inputs.
  void print_instruction(int i, bool preloaded) {
    const Instr& in = instr(i);
    switch (in.op) {
      case Opcode::kConst:
        return declare(i, constant(in));
      case Opcode::kIndex:
        return declare(i, cat("x[", in.aux, "]", once_per_vector(i) ? "" : " + c.further + i",
                              info_[i].run && row_ ? " + c.further" : ""));
      case Opcode::kParameter:
        return declare(i, cat("c.operand(", in.operand, ").stride[", in.aux, "]"));
      case Opcode::kLoad:
        return print_load(i, preloaded);
      case Opcode::kLoadParts:
        line(cat("    i64 a", i, "[V], b", i, "[V]; ARK_EACH { a", i, "[i] = ", converted(in.a, DType::kI64), "; b", i,
                 "[i] = ", converted(in.b, DType::kI64), "; }"));
        line(cat("    float r", i, "[V]; ", load_parts_call(program_, in), ", a", i, ", b", i, ", r", i, ");"));
        return;
      case Opcode::kRoot:
        line(cat("    ", register_type(result_type(in)), " r", i, "[V]; roots.template get<V>(", in.aux, ", ",
                 int{in.delta_sign}, ", r", i, ");"));
        return;
      case Opcode::kStore:
        return print_store(i);
      case Opcode::kYield:
        line(cat("    float y", i, "[V]; ARK_EACH y", i, "[i] = ", converted(in.a, DType::kF32), ";"));
        line(cat("    sink.template yield<V>(y", i, ");"));
        return;
      case Opcode::kReduce:
        return declare(i, cat("u.r", i));
      case Opcode::kRand:
        if (rand_of_vector(i)) return print_rand_of_vector(i);
        [[fallthrough]];
      default:
        if (in.op == Opcode::kCast && !info_[i].scalar && by_pairs(in.a, in.dtype))
          return line(cat("    float r", i, "[V]; cast_vector<", storage_type(in.dtype), ">(r", in.a, ", r", i, ");"));
        check<UnsupportedError>(call_arity(in.op) > 0, "opcode ", name(in.op), " in a ", int(program_.kind),
                                " program");
        if (is_called_in_turn(i))
          return line(cat("    float r", i, "[V]; op::in_turn<V>(r", in.a, ", r", i,
                          ", [](float x) __attribute__((always_inline)) { return ", function(in.op, false),
                          "(x); });"));
        first_element_ = once_per_vector(i);
        declare(i, arithmetic(i));
        first_element_ = false;
        return;
    }
  }

  void print_rand_of_vector(int i) {
    const Instr& in = instr(i);
    const std::string run = long_rows() ? "in_turn" : info_[in.c].run ? "run" : "vector";
    line(cat("    float r", i, "[V]; op::rand_", run, "<V>(", converted(in.a, DType::kI64), ", ",
             converted(in.b, DType::kI64), ", r", in.c, ", r", i, ");"));
  }

  void print_run() {
    line(cat("  template <int V, class Roots", context_parameter(), ">"));
    line(cat("  static ARK_DEVICE void run_loaded(const ", context_type(),
             "& c, const i32 (&x)[kDims], const Inputs<V>& in, const Roots& roots) {"));
    std::vector<bool> wanted(count_);
    for (int i = 0; i < count_; ++i) wanted[i] = is_sink(instr(i).op);
    in_run_ = true;
    const std::vector<bool> needed = needed_by(wanted);
    in_run_ = false;
    for (int i = 0; i < count_; ++i)
      if (needed[i]) print_instruction(i, true);
    line("  }");
    line("  template <int V, class Roots>");
    line("  static ARK_DEVICE void run(const ProgramContext& c, const i32 (&x)[kDims], const Roots& roots) {");
    line("    Inputs<V> in;");
    line("    load<V>(c, x, in);");
    if (flagged_) line("    wait_until_ready(c, [&] { return ready<V>(c, x, in); });");
    line("    run_loaded<V>(c, x, in, roots);");
    line("  }");
  }

  // ---- reductions ----

  /// The work of one pass over the elements.
  void print_element(int pass) {
    const std::vector<bool> needed = needed_in(pass);
    line(cat("  template <int V", context_parameter(), ", class Sink>"));
    line(cat("  static ARK_DEVICE void element(Pass<", pass, ">, const ", context_type(),
             "& c, const i32 (&x)[kDims], i64 row_index, const Inputs<V>& in,"));
    line(cat("                                 const Uniform& u, Accumulator", pass, column_ ? " (&acc)[V]" : "& acc",
             ", const Sink& sink) {"));
    const std::vector<LazyArm> arms = lazy_arms_in(pass);
    std::vector<bool> later(count_);
    for (const LazyArm& arm : arms)
      for (const int i : arm.instrs) later[i] = true;
    for (int i = 0; i < count_; ++i) {
      for (const LazyArm& arm : arms)
        if (arm.selection == i) print_lazy(arm);
      if (needed[i] && !later[i]) print_instruction(i, true);
      if (instr(i).op == Opcode::kReduce && reduce_pass(i) == pass)
        line(cat("    ARK_EACH ", keeps_edges() ? "if (c.exists()) " : "", "acc", column_ ? "[i]" : "", ".r", i,
                 adder(i), "(", converted(instr(i).a, accumulated_type(i)),
                 column_ ? ", row_index);" : ", row_index + i);"));
    }
    line("  }");
  }

  /// A thread meets the elements of a row in their order, but for those beside the vectors.
  std::string adder(int i) const {
    const auto reduce = static_cast<ReduceOp>(instr(i).aux);
    if (!row_ || (reduce != ReduceOp::kArgMax && reduce != ReduceOp::kArgMin)) return ".add";
    return cat(".template add_of_row<", form_ != nullptr && form_->edges && form_->vector > 1 ? "(V > 1)>" : "true>");
  }

  void print_lazy(const LazyArm& arm) {
    const std::string before = std::exchange(out_, "");
    for (const int i : arm.instrs) print_instruction(i, true);
    const std::string body = std::exchange(out_, before);
    out_ +=
        lazy_source(arm, register_type(info_[arm.value].type), converted(instr(arm.selection).a, DType::kBool), body);
  }

  void print_uniform_stores() {
    std::vector<bool> wanted(count_);
    bool any = false;
    for (int i = 0; i < count_; ++i) any |= wanted[i] = uniform_store(i);
    const std::vector<bool> needed = needed_by(wanted, true);
    line(cat("  static constexpr bool kUniformStores = ", any ? "true" : "false", ";"));
    line("  static ARK_DEVICE void uniform_stores(const ProgramContext& c, const i32 (&x)[kDims], const Uniform& u) {");
    line("    constexpr int V = 1;");
    for (int i = 0; i < count_; ++i)
      if (needed[i]) print_instruction(i, false);
    line("  }");
  }

  /// What the row's products are multiplied by.
  void print_factor(const RowFactor& of) {
    out_ += squares_source(of);
    const int factor = of.factor;
    std::vector<bool> wanted(count_);
    wanted[factor] = true;
    const std::vector<bool> needed = needed_by(wanted, true);
    line("  static ARK_DEVICE float factor(const Uniform& u) {\n    constexpr int V = 1;");
    for (int i = 0; i < count_; ++i)
      if (needed[i]) print_instruction(i, false);
    line(cat("    return ", converted(factor, DType::kF32), ";\n  }"));
  }

  uint32_t transposed_ = 0;  // operands that may go through tiles of shared memory
  std::string out_;
};

}  // namespace

std::string program_source(const Program& program, int number, const std::string& comment, const ProgramUse& use) {
  return Printer(program, nullptr, use.broadcast).text(number, comment, use);
}

std::string flagged_program_source(const Program& program, int number) {
  return Printer(program).text(number, "", {}, true);
}

std::string scaled_program_source(const RowFactor& of, int number, const ProgramUse& use) {
  return Printer(of.rest, nullptr, use.broadcast).text(number, "", use, false, &of);
}

std::string row_program_source(const Program& program, const RowForm& form, int number, const std::string& comment) {
  return Printer(program, &form).text(number, comment);
}

}  // namespace ark::codegen
