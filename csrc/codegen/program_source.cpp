#include "codegen/program_source.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <vector>

#include "base/check.h"
#include "codegen/expressions.h"

namespace ark::codegen {
namespace {

bool is_sink(Opcode op) { return op == Opcode::kStore || op == Opcode::kYield; }

std::vector<int> inputs_of(const Instr& instr) {
  std::vector<int> inputs;
  for (const int input : {int{instr.a}, int{instr.b}, int{instr.c}, int{instr.d}})
    if (input >= 0) inputs.push_back(input);
  return inputs;
}

/// Prints one program. Analysis in the constructor, one public function per part of the struct.
class Printer {
 public:
  /// `form`: of a row program.
  explicit Printer(const Program& program, const RowForm* form = nullptr, uint32_t broadcast = 0)
      : program_(program), form_(form), count_(static_cast<int>(program.instrs.size())), broadcast_(broadcast) {
    row_ = program.kind == ProgramKind::kRow || program.kind == ProgramKind::kPrologue;
    column_ = program.kind == ProgramKind::kColumn;
    check_program();
    classify();
  }

  std::string text(int number, const std::string& comment, bool flagged = false) {
    out_ = comment;
    flagged_ = flagged;
    line(flagged ? cat("template <u32 kFlags>\nstruct FlaggedProgram", number, " {")
                 : cat("struct Program", number, " {"));
    line(cat("  static constexpr bool kFlagged = ", flagged ? "true;" : "false;"));
    line(cat("  static constexpr int kDims = ", program_.num_dims, ", kReduceDims = ", program_.reduce_dims,
             ", kNumOperands = ", program_.num_operands, ", kVector = ", vector_length(), ", kPasses = ", num_passes_,
             ", kCachedChunks = ", cached_chunks(), ", kUnroll = ", unroll(), ";"));
    if (form_ != nullptr) print_form();
    if (program_.kind == ProgramKind::kEpilogue)
      line(cat("  static constexpr bool kPairs = ", reads_pairs() ? "true" : "false", ";"));
    if (program_.kind == ProgramKind::kEpilogue)
      line(cat("  static constexpr u32 kLoads = ", plain_operands(Opcode::kLoad),
               "u, kStores = ", plain_operands(Opcode::kStore), "u;"));
    print_inputs();
    if (flagged_) print_ready();
    if (row_ || column_) {
      if (form_ != nullptr) print_scalars();
      print_accumulators();
      if (form_ != nullptr) print_row_loads();
      for (int pass = 0; pass < num_passes_; ++pass) print_element(pass);
      print_uniform_stores();
    } else {
      print_run();
    }
    line("};");
    return std::move(out_);
  }
  uint32_t gathers() const {
    uint32_t operands = 0;
    for (int i = 0; i < count_; ++i)
      if (info_[i].gather && instr(i).operand < 32) operands |= 1u << instr(i).operand;
    return operands;
  }
  int row_vector_length() const {
    int narrowest = 8, widest = 0;
    for (int i = 0; i < count_; ++i) {
      const Instr& in = instr(i);
      if ((in.op != Opcode::kLoad && in.op != Opcode::kStore) || uniform_store(i) || info_[i].scalar) continue;
      narrowest = std::min(narrowest, size_bytes(in.dtype));
      widest = std::max(widest, in.dtype == DType::kF64 ? 16 : size_bytes(in.dtype));
    }
    if (is_long() || widest == 16 || narrowest == 8) return 2;
    // where types differ, a warp's accesses of either are without gaps
    return narrowest <= 2 && widest <= 2 ? 8 : 4;
  }
  /// Registers of one vector of a kept row, at most: what comes in, or what is kept beside what comes in last. `full`:
  /// the compiler keeps what later passes have in common with the first instead of what it was made of.
  int row_kept_registers(bool full) const {
    int all = 0, most = 0;
    for (int pass = 0; pass < num_passes_; ++pass) {
      int more = 0;
      for (int i = 0; i < count_; ++i)
        if (loaded_in(i, pass) && !loaded_before(i, pass)) more += vector_registers(i);
      all += more;
      most = std::max(most, more + (pass == 0 ? 0 : form_->vector * kept_values()));
    }
    return (full ? std::min(all, most) : all) + function_registers();
  }
  int row_ahead_registers() const {
    int ahead = 0, last = 0;
    for (int i = 0; i < count_; ++i) {
      if (loaded_ahead(i)) ahead += vector_registers(i);
      if (num_passes_ > 1 && loaded_in(i, num_passes_ - 1) && !loaded_before(i, num_passes_ - 1))
        last += vector_registers(i);
    }
    return ahead + last + form_->vector * kept_values() + function_registers();
  }
  /// Functions of many instructions have intermediate values of several vectors at once.
  int function_registers() const {
    const bool calls = std::any_of(program_.instrs.begin(), program_.instrs.end(), [&](const Instr& in) {
      const int i = static_cast<int>(&in - program_.instrs.data());
      return !info_[i].scalar && info_[i].pass == 0 && in.op >= Opcode::kExp && in.op <= Opcode::kErf;
    });
    return calls && num_passes_ > 1 ? 2 * form_->vector : 0;
  }
  bool reads_irregularly() const {
    for (int i = 0; i < count_; ++i)
      for (int pass = 0; pass < num_passes_; ++pass)
        if (irregular_load(i) && needed_in(pass)[i]) return true;
    return false;
  }

 private:
  struct Info {
    DType type = DType::kF32;
    bool scalar = false;         // the same for all elements of a vector
    bool run = false;            // integers: element i of a vector is the first one plus i
    bool aligned = false;        // integers: the (first) element is a multiple of the vector's length
    int pass = 0;                // first pass in which the value can be computed
    bool fast = false;           // only rounded to 16 bits afterwards
    bool rounded_later = false;  // the same, perhaps after products and sums
    bool plain_load = false;
    bool gather = false;  // of a row: the same indices and predicate for all of it, so that it loads like a plain one
    bool known = false;   // made of coordinates and numbers alone
    bool preloaded = false;  // a load whose address is: it is issued ahead, beside the plain ones
  };

  const Instr& instr(int i) const { return program_.instrs[i]; }
  int last_dim() const { return program_.num_dims - 1; }

  void check_program() const {
    check(program_.num_dims >= 1 && program_.num_dims <= 6, "program of ", program_.num_dims, " dimensions");
    for (int i = 0; i < count_; ++i) {
      const Instr& in = instr(i);
      for (const int input : inputs_of(in))
        check(input < i, "program instruction ", i, ": argument ", input, " is not an earlier instruction");
      check(in.op != Opcode::kReduce || row_ || column_, "program instruction ", i, ": reduce outside a row or column");
      check(in.op != Opcode::kRoot || program_.kind == ProgramKind::kEpilogue, "program instruction ", i,
            ": root outside an epilogue");
      if (in.op == Opcode::kLoad || in.op == Opcode::kStore || in.op == Opcode::kLoadParts ||
          in.op == Opcode::kParameter)
        check(in.operand >= 0 && in.operand < program_.num_operands, "program instruction ", i, ": operand ",
              in.operand, " of ", program_.num_operands);
    }
  }

  /// Plain load of an operand that is the same along the row.
  bool same_along_row(int i) const {
    return form_ != nullptr && info_[i].plain_load && instr(i).operand < 32 &&
           (form_->same_operands >> instr(i).operand & 1) != 0;
  }

  void classify() {
    info_.resize(count_);
    for (int i = 0; i < count_; ++i) {
      const Instr& in = instr(i);
      Info& info = info_[i];
      info.type = result_type(in);
      bool all_scalar = true;
      for (const int input : inputs_of(in)) {
        all_scalar &= info_[input].scalar;
        info.pass = std::max(info.pass, info_[input].pass + (instr(input).op == Opcode::kReduce ? 1 : 0));
      }
      info.plain_load = in.op == Opcode::kLoad && in.a < 0 && in.b < 0 && in.c < 0;
      info.gather = form_ != nullptr && in.op == Opcode::kLoad && !info.plain_load && all_scalar && info.pass == 0;
      info.scalar = in.op == Opcode::kConst || in.op == Opcode::kReduce || in.op == Opcode::kParameter ||
                    (in.op == Opcode::kIndex && in.aux != last_dim()) || (call_arity(in.op) > 0 && all_scalar) ||
                    same_along_row(i) || (info.plain_load && broadcast(in));
      classify_lanes(in, info);
      classify_preload(i);
    }
    num_passes_ = 1;
    for (int i = 0; i < count_; ++i)
      if ((instr(i).op == Opcode::kReduce || (is_sink(instr(i).op) && !uniform_store(i))) && row_)
        num_passes_ = std::max(num_passes_, info_[i].pass + 1);
    for (int i = 0; i < count_; ++i) info_[i].fast = only_rounded(i);
    for (int i = count_ - 1; i >= 0; --i) info_[i].rounded_later = rounded_later(i);
  }

  /// A load that has the same address for all elements of a vector.
  bool broadcast(const Instr& in) const {
    return !flagged_ && !row_ && !column_ && in.operand >= 0 && in.operand < 32 && (broadcast_ >> in.operand & 1) != 0;
  }

  void classify_preload(int i) {
    const Instr& in = instr(i);
    Info& info = info_[i];
    const std::vector<int> inputs = inputs_of(in);
    const bool inputs_known = std::all_of(inputs.begin(), inputs.end(), [&](int input) { return info_[input].known; });
    info.known = in.op == Opcode::kConst || in.op == Opcode::kIndex || in.op == Opcode::kParameter ||
                 (call_arity(in.op) > 0 && inputs_known);
    const bool indexed = in.op == Opcode::kLoad && !info.plain_load && !row_ && !column_ && !flagged_;
    info.preloaded = info.plain_load || (indexed && inputs_known && !run_arguments(in.a, in.b, in.c).empty());
  }

  /// How an integer changes along a vector, whose first coordinate is a multiple of its length: indices made of
  /// coordinates by shifts and masks mostly stay the same or count up, so that one address serves the vector.
  /// (Vectors of rows and columns may begin anywhere.)
  void classify_lanes(const Instr& in, Info& info) const {
    if (row_ || column_) return;
    const int64_t lanes = vector_length();
    if (in.op == Opcode::kIndex) info.run = info.aligned = in.aux == last_dim();
    if (in.op == Opcode::kConst && info.type == DType::kI64) info.aligned = in.imm_int % lanes == 0;
    if (call_arity(in.op) != 2) return;
    const Info &a = info_[in.a], &b = info_[in.b];
    if (a.type != DType::kI64 || b.type != DType::kI64 || (in.dtype != DType::kI64 && info.type != DType::kBool))
      return;
    const bool by_constant = instr(in.b).op == Opcode::kConst;
    const int64_t number = by_constant ? instr(in.b).imm_int : 0;
    switch (in.op) {
      case Opcode::kMul:
        info.aligned = info.scalar && (a.aligned || b.aligned);
        break;
      case Opcode::kAdd:
      case Opcode::kSub:
        info.run = (a.run && b.scalar) || (in.op == Opcode::kAdd && a.scalar && b.run);
        info.aligned = (info.run || info.scalar) && a.aligned && b.aligned;
        break;
      case Opcode::kAnd:
        if (!a.run || !a.aligned || !by_constant) break;
        info.run = info.aligned = (number & (lanes - 1)) == lanes - 1;
        info.scalar = (number & (lanes - 1)) == 0;
        break;
      case Opcode::kShr:
        info.scalar |=
            a.run && a.aligned && by_constant && number >= 0 && number < 63 && (int64_t{1} << number) >= lanes;
        break;
      case Opcode::kDivFloor:
      case Opcode::kRemainder:
        if (!a.run || !a.aligned || !by_constant || number <= 0 || number % lanes != 0) break;
        (in.op == Opcode::kDivFloor ? info.scalar : info.run) = true;
        info.aligned = in.op == Opcode::kRemainder;
        break;
      case Opcode::kLt:
      case Opcode::kGe:
        info.scalar |= a.run && a.aligned && by_constant && number % lanes == 0;
        break;
      case Opcode::kLe:
      case Opcode::kGt:
        info.scalar |= a.run && a.aligned && by_constant && (number + 1) % lanes == 0;
        break;
      default:
        break;
    }
  }

  /// Every use rounds the value to a 16-bit float.
  bool only_rounded(int value) const {
    if (is_half(instr(value).dtype)) return true;
    bool used = false;
    for (int i = value + 1; i < count_; ++i) {
      const Instr& in = instr(i);
      const std::vector<int> inputs = inputs_of(in);
      if (std::find(inputs.begin(), inputs.end(), value) == inputs.end()) continue;
      used = true;
      const bool rounds = (in.op == Opcode::kCast || (in.op == Opcode::kStore && in.a == value)) && is_half(in.dtype);
      if (!rounds) return false;
    }
    return used;
  }

  /// Every use ends in a rounding to a 16-bit float, on ways that keep relative errors as they are: products, sums
  /// with what is not a negative constant. Asks for it of later instructions only.
  bool rounded_later(int value) const {
    bool used = false;
    for (int i = value + 1; i < count_; ++i) {
      const Instr& in = instr(i);
      const std::vector<int> inputs = inputs_of(in);
      if (std::find(inputs.begin(), inputs.end(), value) == inputs.end()) continue;
      used = true;
      const bool rounds = (in.op == Opcode::kCast || (in.op == Opcode::kStore && in.a == value)) && is_half(in.dtype);
      const bool keeps = in.op == Opcode::kMul || in.op == Opcode::kDiv || in.op == Opcode::kNeg ||
                         (in.op == Opcode::kAdd && !negative_constant(in.a) && !negative_constant(in.b));
      if (!rounds && !(keeps && info_[i].type == DType::kF32 && info_[i].rounded_later)) return false;
    }
    return used;
  }
  bool negative_constant(int i) const { return instr(i).op == Opcode::kConst && instr(i).imm < 0; }
  static bool is_half(DType t) { return t == DType::kBF16 || t == DType::kF16; }

  /// erf(x) + 1 (gelu), where a value a little off is rounded to 16 bits later: x, else -1.
  int erf_plus_one(int i) const {
    const Instr& in = instr(i);
    if (in.op != Opcode::kAdd || info_[i].type != DType::kF32 || !info_[i].rounded_later) return -1;
    const auto erf_of = [&](int value, int other) {
      const bool matches = instr(value).op == Opcode::kErf && info_[value].type == DType::kF32 &&
                           instr(other).op == Opcode::kConst && instr(other).imm == 1.0;
      return matches ? int{instr(value).a} : -1;
    };
    return std::max(erf_of(in.a, in.b), erf_of(in.b, in.a));
  }

  bool uniform_store(int i) const {
    if (instr(i).op != Opcode::kStore) return false;
    if (column_) return true;
    return row_ && instr(i).uniform;
  }

  // ---- sizes of vectors ----

  /// Whether an epilogue reads accumulators of other columns.
  bool reads_pairs() const {
    return std::any_of(program_.instrs.begin(), program_.instrs.end(),
                       [](const Instr& in) { return in.op == Opcode::kRoot && in.delta_sign != 0; });
  }

  bool plain_store(int i) const {
    const Instr& in = instr(i);
    return in.op == Opcode::kStore && in.b < 0 && in.c < 0 && in.d < 0;
  }

  /// Operands that loads or stores (`op`) reach by coordinates alone, as a mask.
  uint32_t plain_operands(Opcode op) const {
    uint32_t mask = 0;
    for (int i = 0; i < count_; ++i)
      if (instr(i).op == op && (info_[i].plain_load || plain_store(i)) && instr(i).operand < 32)
        mask |= 1u << instr(i).operand;
    return mask;
  }

  bool irregular_load(int i) const {
    return instr(i).op == Opcode::kLoadParts ||
           (instr(i).op == Opcode::kLoad && !info_[i].preloaded && !info_[i].gather);
  }

  int vector_length() const {
    if (form_ != nullptr) return form_->vector;
    int narrowest = 8;
    bool doubles = false;
    for (int i = 0; i < count_; ++i) {
      const Instr& in = instr(i);
      if (in.op == Opcode::kLoadParts) narrowest = std::min(narrowest, 2);  // f32 parts of a 16-bit result
      if (in.op != Opcode::kLoad && in.op != Opcode::kStore) continue;
      doubles |= in.dtype == DType::kF64;
      narrowest = std::min(narrowest, size_bytes(in.dtype));
    }
    if (is_long()) return 2;
    // i64 beside narrower types is mostly an index that is the same along the vector
    return doubles || narrowest == 8 ? 2 : narrowest <= 2 ? 8 : 4;
  }

  /// Functions of a hundred instructions and more per element: copies of the program must be few.
  bool is_long() const {
    return std::any_of(program_.instrs.begin(), program_.instrs.end(), [](const Instr& in) {
      switch (in.op) {
        case Opcode::kSin:
        case Opcode::kCos:
        case Opcode::kTan:
        case Opcode::kLgamma:
        case Opcode::kFmod:
        case Opcode::kRemainder:
        case Opcode::kDivFloor:
          return is_float(in.dtype);
        case Opcode::kPow:
        case Opcode::kErfc:
        case Opcode::kAsinh:
        case Opcode::kAcosh:
        case Opcode::kAtanh:
        case Opcode::kSinh:
        case Opcode::kCosh:
          return true;
        default:
          return is_float(in.dtype) && in.dtype == DType::kF64 && in.op >= Opcode::kExp && in.op <= Opcode::kErf;
      }
    });
  }

  /// Vectors that a thread has in flight, each a copy of the program, in about 64 registers. A column keeps nothing
  /// else between them, and narrow loads need many: a worker's share of the bandwidth wants about 40 KB in flight.
  int unroll() const {
    int registers = 0;
    for (int i = 0; i < count_; ++i) {
      if (irregular_load(i)) return 1;
      if (info_[i].preloaded) registers += std::max(1, size_bytes(instr(i).dtype) * vector_length() / 4);
    }
    if (registers == 0 || is_long()) return 1;
    const int most = count_ > 60 ? 1 : count_ > 25 ? 2 : column_ ? 16 : row_ ? 4 : 8;
    const int vectors = std::clamp((column_ ? 80 : 64) / registers, 1, most);
    return column_ ? static_cast<int>(std::bit_floor(static_cast<unsigned>(vectors))) : vectors;  // rows come in 2^n
  }

  int vector_registers(int i) const { return std::max(1, size_bytes(instr(i).dtype) * vector_length() / 4); }

  /// Vectors of a streamed row that a thread has in flight in a pass.
  int in_flight(int pass) const {
    int registers = 0, instructions = 0;
    const std::vector<bool> needed = needed_in(pass);
    for (int i = 0; i < count_; ++i) {
      if (!needed[i]) continue;
      if (irregular_load(i)) return 1;
      if (!info_[i].scalar) instructions += vector_length();
      if (loaded_in(i, pass)) registers += vector_registers(i);
    }
    if (is_long()) return 1;
    const int most = std::clamp(800 / std::max(1, instructions), 2,
                                vector_length() < 4 ? 16 : 8);  // code: so many copies of the pass
    return registers == 0 ? 2 : std::clamp(64 / registers, 1, most);
  }

  /// Values of the first pass of which later ones are made.
  int kept_values() const {
    if (num_passes_ == 1) return 0;
    const std::vector<bool> first = needed_in(0);
    std::vector<bool> kept(count_);
    for (int pass = 1; pass < num_passes_; ++pass) {
      const std::vector<bool> needed = needed_in(pass);
      for (int i = 0; i < count_; ++i) {
        if (!needed[i] || first[i] || instr(i).op == Opcode::kReduce) continue;
        for (const int input : inputs_of(instr(i)))
          if (first[input] && !info_[input].scalar) kept[input] = true;
      }
    }
    return static_cast<int>(std::count(kept.begin(), kept.end(), true));
  }

  /// Vectors of a row that a thread keeps in registers between passes: about 64 registers of raw loads.
  int cached_chunks() const {
    int registers = 0;
    for (int i = 0; i < count_; ++i) {
      if (irregular_load(i)) return 1;
      if (info_[i].preloaded) registers += std::max(1, size_bytes(instr(i).dtype) * vector_length() / 4);
    }
    return std::clamp(registers == 0 ? 4 : 64 / registers, 1, 4);
  }

  // ---- text ----

  void line(const std::string& text) { out_ += text + "\n"; }

  /// Element i of a value; in a value that is printed once per vector, the first element.
  std::string reference(int i) const {
    if (info_[i].run) return first_element_ ? cat("r", i) : cat("(r", i, " + i)");
    return cat("r", i, info_[i].scalar ? "" : "[i]");
  }

  std::string converted(int i, DType type) const {
    if (info_[i].type == type) return reference(i);
    if (type == DType::kBool) return cat("(", reference(i), " != 0)");
    return cat("static_cast<", register_type(type), ">(", reference(i), ")");
  }

  bool once_per_vector(int i) const { return info_[i].scalar || info_[i].run; }

  /// `value` is an expression of element i (of the first element, if it is printed once); declares r<i>.
  void declare(int i, const std::string& value) {
    const char* type = register_type(info_[i].type);
    if (once_per_vector(i))
      line(cat("    const ", type, " r", i, " = ", value, ";"));
    else
      line(cat("    ", type, " r", i, "[V]; ARK_EACH r", i, "[i] = ", value, ";"));
  }

  // Epilogues of tiles reach their operands through contexts of their own (device/epilogue.cuh).
  const char* context_parameter() const { return program_.kind == ProgramKind::kEpilogue ? ", class Context" : ""; }
  const char* context_type() const { return program_.kind == ProgramKind::kEpilogue ? "Context" : "ProgramContext"; }

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
      if ((info_[i].preloaded && !same_along_row(i)) || info_[i].gather)
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

  void print_form() {
    line(cat("  static constexpr int kThreads = ", form_->threads, ", kChunks = ", form_->chunks, ";"));
    line(cat("  static constexpr bool kFull = ", form_->full ? "true" : "false", ", kEdges = ",
             form_->edges ? "true" : "false", ", kAhead = ", form_->ahead_operands != 0 ? "true" : "false", ";"));
    line(cat("  static constexpr u32 kVectorOperands = ", form_->vector_operands, "u;"));
    line("  /// Elements of a row before its first vector.");
    line("  static ARK_DEVICE int head(const ProgramContext& c, const i32 (&x)[kDims]) {");
    const auto of_head = [&](const Instr& in) { return in.operand == form_->head_operand && in.op != Opcode::kConst; };
    const auto head = std::find_if(program_.instrs.begin(), program_.instrs.end(), of_head);
    if (form_->head_operand < 0)
      line("    return 0;");
    else
      line(cat("    return elements_until_aligned<kVector, ", storage_type(head->dtype), ">(c, ", form_->head_operand,
               ", x);"));
    line("  }");
    std::string counts;
    for (int pass = 0; pass < num_passes_; ++pass) counts += cat(pass > 0 ? ", " : "", in_flight(pass));
    line(cat("  static constexpr int kInFlight[] = {", counts, "};  // vectors of a streamed row, by pass"));
  }

  /// Values of a row that are loaded once.
  void print_scalars() {
    line("  struct Scalars {");
    for (int i = 0; i < count_; ++i)
      if (same_along_row(i)) line(cat("    Vec<", storage_type(instr(i).dtype), ", 1> r", i, ";"));
    line("  };");
    line("  static ARK_DEVICE void load_scalars(const ProgramContext& c, const i32 (&x)[kDims], Scalars& s) {");
    for (int i = 0; i < count_; ++i)
      if (same_along_row(i)) line(cat("    load_operand<1>(c, ", instr(i).operand, ", x, s.r", i, ");"));
    line("  }");
  }

  void print_row_load(int i) {
    const Instr& in = instr(i);
    if (!info_[i].gather) return line(cat("    load_operand<V>(c, ", in.operand, ", x, in.r", i, ");"));
    std::vector<bool> wanted(count_);
    for (const int input : inputs_of(in)) wanted[input] = true;
    const std::vector<bool> needed = needed_by(wanted);
    line("    {");
    for (int k = 0; k < i; ++k)
      if (needed[k]) print_instruction(k, true);
    line(cat("    load_gathered<V, ",
             in.a < 0   ? 0
             : in.b < 0 ? 1
                        : 2,
             ">(c, ", in.operand, ", x, ", in.a < 0 ? "0" : converted(in.a, DType::kI64), ", ",
             in.b < 0 ? "0" : converted(in.b, DType::kI64), ", ", in.c < 0 ? "true" : converted(in.c, DType::kBool),
             ", in.r", i, ");"));
    line("    }");
  }

  /// load: what a pass needs; load_more: what of it no earlier pass does, except load_ahead: what comes before the row
  /// itself.
  void print_row_loads() {
    for (const bool more : {false, true}) {
      for (int pass = 0; pass < num_passes_; ++pass) {
        line("  template <int V>");
        line(cat("  static ARK_DEVICE void ", more ? "load_more" : "load", "(Pass<", pass,
                 ">, const ProgramContext& c, const i32 (&x)[kDims], const Uniform& u, Inputs<V>& in) {"));
        for (int i = 0; i < count_; ++i)
          if (loaded_in(i, pass) && !(more && (loaded_before(i, pass) || loaded_ahead(i)))) print_row_load(i);
        line("  }");
      }
    }
    line("  template <int V>");
    line("  static ARK_DEVICE void load_ahead(const ProgramContext& c, const i32 (&x)[kDims], Inputs<V>& in) {");
    for (int i = 0; i < count_; ++i)
      if (loaded_ahead(i)) print_row_load(i);
    line("  }");
  }

  /// Everything that the marked instructions need, themselves included.
  std::vector<bool> needed_by(std::vector<bool> wanted, bool stop_at_reduce = false) const {
    for (int i = count_ - 1; i >= 0; --i) {
      if (!wanted[i]) continue;
      if (instr(i).op == Opcode::kReduce && stop_at_reduce) continue;
      if (info_[i].preloaded && in_run_) continue;
      for (const int input : inputs_of(instr(i))) wanted[input] = true;
    }
    return wanted;
  }

  std::string arithmetic(int i) const {
    const Instr& in = instr(i);
    const int arguments[3] = {in.a, in.b, in.c};
    if (in.op == Opcode::kCast) return cat("cast<", storage_type(in.dtype), ">(", reference(in.a), ")");
    const DType a = in.a >= 0 ? info_[in.a].type : DType::kF32, b = in.b >= 0 ? info_[in.b].type : a;
    std::string text;
    if (in.op == Opcode::kPow && in.b >= 0 && instr(in.b).op == Opcode::kConst && info_[i].type == DType::kF32 &&
        (instr(in.b).imm == 2.0 || instr(in.b).imm == 3.0)) {
      text = cat("op::pow", instr(in.b).imm == 2.0 ? 2 : 3, "(", converted(in.a, DType::kF32), ")");
    } else if (const int argument = erf_plus_one(i); argument >= 0) {
      text = cat("op::erf_plus_one_fast(", converted(argument, DType::kF32), ")");
    } else {
      const bool fast =
          (info_[i].fast || (in.op == Opcode::kExp && info_[i].rounded_later)) && info_[i].type == DType::kF32;
      text = function(in.op, fast) + "(";
      for (int k = 0; k < call_arity(in.op); ++k) {
        check(arguments[k] >= 0, "program instruction ", i, " (", name(in.op), "): argument ", k, " is missing");
        text += cat(k ? ", " : "", converted(arguments[k], argument_type(in, k, a, b)));
      }
      text += ")";
    }
    const bool narrow_int =
        info_[i].type == DType::kI64 && compute_type(in.dtype) == DType::kI64 && in.dtype != DType::kI64;
    return narrow_int ? cat("cast<", storage_type(in.dtype), ">(", text, ")") : text;
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
    for (const int value : {a, b, predicate})
      if (value >= 0 && !once_per_vector(value)) return "";
    const bool run_a = a >= 0 && info_[a].run, run_b = b >= 0 && info_[b].run;
    if ((run_a && run_b) || (predicate >= 0 && !info_[predicate].scalar)) return "";
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

  void print_load(int i, bool preloaded) {
    const Instr& in = instr(i);
    if (same_along_row(i)) return declare(i, cat("widen(u.scalars.r", i, ".v[0])"));
    const char* length = info_[i].scalar ? "1" : "V";
    const char* element = info_[i].scalar ? ".v[0]" : ".v[i]";
    if ((info_[i].preloaded || info_[i].gather) && preloaded) return declare(i, cat("widen(in.r", i, element, ")"));
    line(cat("    Vec<", storage_type(in.dtype), ", ", length, "> m", i, ";"));
    if (info_[i].plain_load)
      line(cat("    load_operand<", length, ">(c, ", in.operand, ", x, m", i, ");"));
    else
      print_indexed("load", cat("m", i), i, in.a, in.b, in.c);
    declare(i, cat("widen(m", i, element, ")"));
  }

  /// Whether rounding `value` to `type` is done two elements at a time.
  bool by_pairs(int value, DType type) const {
    return is_half(type) && info_[value].type == DType::kF32 && !info_[value].scalar;
  }

  /// What a store takes: a cast to the type that it rounds to anyway is left out.
  int stored_value(const Instr& in) const {
    const Instr& value = instr(in.a);
    const bool same = value.op == Opcode::kCast && value.dtype == in.dtype && is_float(in.dtype) &&
                      info_[value.a].type == info_[in.a].type;
    return same ? value.a : in.a;
  }

  void print_store(int i) {
    const Instr& in = instr(i);
    const char* type = storage_type(in.dtype);
    const int value = stored_value(in);
    if (by_pairs(value, in.dtype))
      line(cat("    Vec<", type, ", V> s", i, "; narrow_vector(r", value, ", s", i, ");"));
    else
      line(cat("    Vec<", type, ", V> s", i, "; ARK_EACH s", i, ".v[i] = narrow<", type, ">(",
               converted(value, compute_type(in.dtype)), ");"));
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
        return declare(i, cat("x[", in.aux, "]", once_per_vector(i) ? "" : " + c.further + i"));
      case Opcode::kParameter:
        return declare(i, cat("c.operand(", in.operand, ").stride[", in.aux, "]"));
      case Opcode::kLoad:
        return print_load(i, preloaded);
      case Opcode::kLoadParts:
        line(cat("    i64 a", i, "[V], b", i, "[V]; ARK_EACH { a", i, "[i] = ", converted(in.a, DType::kI64), "; b", i,
                 "[i] = ", converted(in.b, DType::kI64), "; }"));
        line(cat("    float r", i, "[V]; load_parts<V>(c, ", in.operand, ", a", i, ", b", i, ", r", i, ");"));
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
      default:
        if (in.op == Opcode::kCast && !info_[i].scalar && by_pairs(in.a, in.dtype))
          return line(cat("    float r", i, "[V]; cast_vector<", storage_type(in.dtype), ">(r", in.a, ", r", i, ");"));
        check<UnsupportedError>(call_arity(in.op) > 0, "opcode ", name(in.op), " in a ", int(program_.kind),
                                " program");
        first_element_ = once_per_vector(i);
        declare(i, arithmetic(i));
        first_element_ = false;
        return;
    }
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

  int reduce_pass(int i) const { return column_ ? 0 : info_[i].pass; }

  std::string accumulator_type(int i) const {
    const Instr& in = instr(i);
    const DType source = info_[in.a].type;
    const bool wide = source == DType::kF64 || info_[i].type == DType::kF64;
    const bool floating = source == DType::kF32 || info_[i].type == DType::kF32;
    const char* type = wide ? "double" : floating ? "float" : "i64";
    switch (static_cast<ReduceOp>(in.aux)) {
      case ReduceOp::kSum:
        return cat("SumAccumulator<", type, ">");
      case ReduceOp::kProd:
        return cat("ProdAccumulator<", type, ">");
      case ReduceOp::kMax:
        return source == DType::kBool ? "AnyAccumulator" : cat("MaxAccumulator<", type, ">");
      case ReduceOp::kMin:
        return source == DType::kBool ? "AllAccumulator" : cat("MinAccumulator<", type, ">");
      case ReduceOp::kAny:
        return "AnyAccumulator";
      case ReduceOp::kAll:
        return "AllAccumulator";
      case ReduceOp::kArgMax:
      case ReduceOp::kArgMin: {
        const char* key = source == DType::kF64 ? "double" : source == DType::kF32 ? "float" : "i64";
        return cat("ArgAccumulator<", key, ", ", in.aux == int(ReduceOp::kArgMax) ? "true" : "false", ">");
      }
    }
    throw InternalError(cat("reduce op ", in.aux));
  }

  /// Type in which an element enters its accumulator.
  DType accumulated_type(int i) const {
    const Instr& in = instr(i);
    const auto reduce = static_cast<ReduceOp>(in.aux);
    const DType source = info_[in.a].type;
    if (reduce == ReduceOp::kAny || reduce == ReduceOp::kAll) return DType::kBool;
    if ((reduce == ReduceOp::kMax || reduce == ReduceOp::kMin) && source == DType::kBool) return DType::kBool;
    if (reduce == ReduceOp::kArgMax || reduce == ReduceOp::kArgMin)
      return source == DType::kBool ? DType::kI64 : source;
    if (source == DType::kF64 || info_[i].type == DType::kF64) return DType::kF64;
    return source == DType::kF32 || info_[i].type == DType::kF32 ? DType::kF32 : DType::kI64;
  }

  void print_accumulators() {
    line("  struct Uniform {");
    if (form_ != nullptr) line("    Scalars scalars;");
    for (int i = 0; i < count_; ++i)
      if (instr(i).op == Opcode::kReduce) line(cat("    ", register_type(info_[i].type), " r", i, ";"));
    line("  };");
    for (int pass = 0; pass < num_passes_; ++pass) {
      std::string fields, start, merge, finish;
      for (int i = 0; i < count_; ++i) {
        if (instr(i).op != Opcode::kReduce || reduce_pass(i) != pass) continue;
        fields += cat("    ", accumulator_type(i), " r", i, ";\n");
        start += cat(" r", i, ".start();");
        merge += cat(" r", i, ".merge(o.r", i, ");");
        finish += cat(" u.r", i, " = static_cast<", register_type(info_[i].type), ">(acc.r", i, ".result());");
      }
      const std::string type = cat("Accumulator", pass);
      line(cat("  struct ", type, " {"));
      out_ += fields;
      line(cat("    static constexpr bool kEmpty = ", fields.empty() ? "true" : "false", ";"));
      line(cat("    ARK_DEVICE void start() {", start, " }"));
      line(cat("    ARK_DEVICE void merge(const ", type, "& o) {", merge, " }"));
      line("  };");
      line(cat("  static ARK_DEVICE ", type, " accumulator(Pass<", pass, ">) { return {}; }"));
      line(cat("  static ARK_DEVICE void finish(const ", type, "& acc, Uniform& u) {", finish, " }"));
    }
  }

  /// What pass `pass` over the elements computes: for reductions of that pass and, in the last one, stores and yields.
  std::vector<bool> needed_in(int pass) const {
    std::vector<bool> wanted(count_);
    for (int i = 0; i < count_; ++i) {
      const Instr& in = instr(i);
      if (in.op == Opcode::kReduce && reduce_pass(i) == pass) wanted[in.a] = true;
      if (is_sink(in.op) && !uniform_store(i) && pass == num_passes_ - 1) wanted[i] = true;
    }
    return needed_by(wanted, true);
  }
  bool loaded_in(int i, int pass) const {
    return (info_[i].gather || (info_[i].plain_load && !info_[i].scalar)) && needed_in(pass)[i];
  }
  bool loaded_ahead(int i) const {
    return info_[i].plain_load && instr(i).operand < 32 && (form_->ahead_operands >> instr(i).operand & 1) != 0 &&
           loaded_in(i, 0);
  }
  bool loaded_before(int i, int pass) const {
    for (int p = 0; p < pass; ++p)
      if (loaded_in(i, p)) return true;
    return false;
  }

  /// The work of one pass over the elements.
  void print_element(int pass) {
    const std::vector<bool> needed = needed_in(pass);
    line("  template <int V, class Sink>");
    line(cat("  static ARK_DEVICE void element(Pass<", pass,
             ">, const ProgramContext& c, const i32 (&x)[kDims], i64 row_index, const Inputs<V>& in,"));
    line(cat("                                 const Uniform& u, Accumulator", pass, column_ ? " (&acc)[V]" : "& acc",
             ", const Sink& sink) {"));
    for (int i = 0; i < count_; ++i) {
      if (needed[i]) print_instruction(i, true);
      if (instr(i).op == Opcode::kReduce && reduce_pass(i) == pass)
        line(cat("    ARK_EACH acc", column_ ? "[i]" : "", ".r", i, ".add(", converted(instr(i).a, accumulated_type(i)),
                 column_ ? ", row_index);" : ", row_index + i);"));
    }
    line("  }");
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

  const Program& program_;
  const RowForm* form_;
  int count_;
  uint32_t broadcast_;  // operands whose address is the same for all elements of a vector
  bool row_ = false, column_ = false, flagged_ = false;
  bool in_run_ = false;         // what is loaded ahead needs no indices
  bool first_element_ = false;  // while an expression of a vector's first element is printed
  int num_passes_ = 1;
  std::vector<Info> info_;
  std::string out_;
};

}  // namespace

std::string program_source(const Program& program, int number, const std::string& comment,
                           uint32_t broadcast_operands) {
  return Printer(program, nullptr, broadcast_operands).text(number, comment);
}

std::string flagged_program_source(const Program& program, int number) {
  return Printer(program).text(number, "", true);
}

std::string row_program_source(const Program& program, const RowForm& form, int number, const std::string& comment) {
  return Printer(program, &form).text(number, comment);
}

int row_vector_length(const Program& program, const RowForm& form) {
  return Printer(program, &form).row_vector_length();
}

int row_kept_registers(const Program& program, const RowForm& form, bool full) {
  const Printer printer(program, &form);
  return printer.reads_irregularly() ? INT_MAX : printer.row_kept_registers(full);
}

int row_ahead_registers(const Program& program, const RowForm& form) {
  return Printer(program, &form).row_ahead_registers();
}

uint32_t row_gathers(const Program& program, const RowForm& form) { return Printer(program, &form).gathers(); }

}  // namespace ark::codegen
