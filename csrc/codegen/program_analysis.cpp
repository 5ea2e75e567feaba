#include "codegen/program_analysis.h"

#include <algorithm>

#include "base/check.h"
#include "codegen/expressions.h"

namespace ark::codegen {
namespace {
/// Loaded elements and sums of a thread's columns that leave registers for the rest: with 48, kernels of training steps
/// spilled.
constexpr int kColumnElements = 40;
}  // namespace

ProgramAnalysis::ProgramAnalysis(const Program& program, const RowForm* form, uint32_t broadcast)
    : program_(program), form_(form), count_(static_cast<int>(program.instrs.size())), broadcast_(broadcast) {
  row_ = program.kind == ProgramKind::kRow || program.kind == ProgramKind::kPrologue;
  column_ = program.kind == ProgramKind::kColumn;
  check_program();
  by_batch_ = join_batch_stores(program_);
  classify();
}

uint32_t ProgramAnalysis::gathers() const {
  uint32_t operands = 0;
  for (int i = 0; i < count_; ++i)
    if (info_[i].gather && !info_[i].scalar && instr(i).operand < 32) operands |= 1u << instr(i).operand;
  return operands;
}

int ProgramAnalysis::row_vector_length() const {
  int narrowest = 8, widest = 0;
  for (int i = 0; i < count_; ++i) {
    const Instr& in = instr(i);
    if ((in.op != Opcode::kLoad && in.op != Opcode::kStore) || uniform_store(i) || info_[i].scalar) continue;
    narrowest = std::min(narrowest, size_bytes(in.dtype));
    widest = std::max(widest, in.dtype == DType::kF64 ? 16 : size_bytes(in.dtype));
  }
  if (is_long() || widest == 16 || narrowest == 8) return 2;
  // where types differ, a warp's accesses of either are without gaps
  return narrowest <= 2 && widest <= 2 && 8 * element_code() <= kMostRowCode ? 8 : 4;
}

ColumnShape ProgramAnalysis::column_shape() const {
  ColumnShape shape{.dims = program_.num_dims,
                    .reduce_dims = program_.reduce_dims,
                    .num_operands = program_.num_operands,
                    .vector = vector_length(),
                    .plain = is_plain(program_) && program_.num_operands <= 32};
  for (int i = 0; i < count_; ++i) {
    const uint32_t bit = info_[i].plain_load ? 1u << (instr(i).operand & 31) : 0;
    shape.loads |= bit, shape.vector_loads |= info_[i].scalar ? 0 : bit;
  }
  shape.folds = program_.reduce_dims == 1 && shape.loads == shape.vector_loads && !names_places();
  return shape;
}

int ProgramAnalysis::element_code() const {
  int code = 0;
  for (int i = 0; i < count_; ++i)
    if (!info_[i].scalar) code += code_of(instr(i));
  return code;
}

bool ProgramAnalysis::long_rows() const {
  constexpr int kLong = 100, kWorkerThreads = 256;
  return form_ != nullptr && form_->threads == kWorkerThreads && element_code() >= kLong;
}

bool ProgramAnalysis::is_called_in_turn(int i) const {
  constexpr int kLongFunction = 25;
  const Instr& in = instr(i);
  return long_rows() && call_arity(in.op) == 1 && code_of(in) >= kLongFunction && !once_per_vector(i) &&
         !once_per_vector(in.a) && info_[i].type == DType::kF32 && info_[in.a].type == DType::kF32 &&
         erf_plus_one(i) < 0;
}

bool ProgramAnalysis::reads_irregularly() const {
  for (int i = 0; i < count_; ++i)
    for (int pass = 0; pass < num_passes_; ++pass)
      if (irregular_load(i) && needed_in(pass)[i]) return true;
  return false;
}

void ProgramAnalysis::check_program() const {
  check(program_.num_dims >= 1 && program_.num_dims <= 6, "program of ", program_.num_dims, " dimensions");
  for (int i = 0; i < count_; ++i) {
    const Instr& in = instr(i);
    for (const int input : inputs_of(in))
      check(input < i, "program instruction ", i, ": argument ", input, " is not an earlier instruction");
    check(in.op != Opcode::kReduce || row_ || column_, "program instruction ", i, ": reduce outside a row or column");
    check(in.op != Opcode::kRoot || program_.kind == ProgramKind::kEpilogue, "program instruction ", i,
          ": root outside an epilogue");
    if (in.op == Opcode::kLoad || in.op == Opcode::kStore || in.op == Opcode::kLoadParts || in.op == Opcode::kParameter)
      check(in.operand >= 0 && in.operand < program_.num_operands, "program instruction ", i, ": operand ", in.operand,
            " of ", program_.num_operands);
  }
}

bool ProgramAnalysis::same_along_row(int i) const {
  return form_ != nullptr && info_[i].plain_load && instr(i).operand < 32 &&
         (form_->same_operands >> instr(i).operand & 1) != 0;
}

bool ProgramAnalysis::same_gather(int i) const {
  return form_ != nullptr && info_[i].gather && instr(i).operand < 32 &&
         (form_->same_gathers >> instr(i).operand & 1) != 0;
}

void ProgramAnalysis::classify() {
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
                  row_scalar(i) || (info.plain_load && broadcast(in));
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

bool ProgramAnalysis::broadcast(const Instr& in) const {
  const bool row = program_.kind == ProgramKind::kRow;  // those have forms
  return !flagged_ && !row && !column_ && in.operand >= 0 && in.operand < 32 && (broadcast_ >> in.operand & 1) != 0;
}

bool ProgramAnalysis::has_lanes() const { return !column_ && (!row_ || (form_ != nullptr && form_->multiples)); }

void ProgramAnalysis::classify_preload(int i) {
  const Instr& in = instr(i);
  Info& info = info_[i];
  const std::vector<int> inputs = inputs_of(in);
  const bool inputs_known = std::all_of(inputs.begin(), inputs.end(), [&](int input) { return info_[input].known; });
  info.known = in.op == Opcode::kConst || in.op == Opcode::kIndex || in.op == Opcode::kParameter ||
               (call_arity(in.op) > 0 && inputs_known);
  const bool indexed = in.op == Opcode::kLoad && !info.plain_load && !info.gather && has_lanes() && !flagged_;
  info.preloaded = info.plain_load || (indexed && inputs_known && is_run(in.a, in.b, in.c));
}

void ProgramAnalysis::classify_lanes(const Instr& in, Info& info) const {
  if (!has_lanes()) return;
  const int64_t lanes = vector_length();
  if (in.op == Opcode::kIndex) info.run = info.aligned = in.aux == last_dim();
  if (in.op == Opcode::kConst && info.type == DType::kI64) info.aligned = in.imm_int % lanes == 0;
  if (call_arity(in.op) != 2) return;
  const Info &a = info_[in.a], &b = info_[in.b];
  if (a.type != DType::kI64 || b.type != DType::kI64 || (in.dtype != DType::kI64 && info.type != DType::kBool)) return;
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
      info.scalar |= a.run && a.aligned && by_constant && number >= 0 && number < 63 && (int64_t{1} << number) >= lanes;
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

/// Whether the value has uses and all of them are as asked.
template <class Good>
bool ProgramAnalysis::all_uses(int value, const Good& good) const {
  bool used = false;
  for (int i = value + 1; i < count_; ++i) {
    const std::vector<int> inputs = inputs_of(instr(i));
    if (std::find(inputs.begin(), inputs.end(), value) == inputs.end()) continue;
    used = true;
    if (!good(i)) return false;
  }
  return used;
}

bool ProgramAnalysis::rounds(int use, int value) const {
  const Instr& in = instr(use);
  return (in.op == Opcode::kCast || (in.op == Opcode::kStore && in.a == value)) && is_half(in.dtype);
}

bool ProgramAnalysis::only_rounded(int value) const {
  return is_half(instr(value).dtype) || all_uses(value, [&](int use) { return rounds(use, value); });
}

bool ProgramAnalysis::rounded_later(int value) const {
  return all_uses(value, [&](int use) {
    const Instr& in = instr(use);
    const bool sums = in.op == Opcode::kReduce && static_cast<ReduceOp>(in.aux) == ReduceOp::kSum;
    const bool keeps = in.op == Opcode::kMul || in.op == Opcode::kDiv || in.op == Opcode::kNeg ||
                       (in.op == Opcode::kAdd && !negative_constant(in.a) && !negative_constant(in.b)) ||
                       (sums && instr(value).op == Opcode::kExp) ||  // nothing cancels
                       (in.op == Opcode::kLog && instr(value).op == Opcode::kReduce);
    return rounds(use, value) || (keeps && info_[use].type == DType::kF32 && info_[use].rounded_later);
  });
}

int ProgramAnalysis::erf_plus_one(int i) const {
  const Instr& in = instr(i);
  if (in.op != Opcode::kAdd || info_[i].type != DType::kF32 || !info_[i].rounded_later) return -1;
  const auto erf_of = [&](int value, int other) {
    const bool matches = instr(value).op == Opcode::kErf && info_[value].type == DType::kF32 &&
                         instr(other).op == Opcode::kConst && instr(other).imm == 1.0;
    return matches ? int{instr(value).a} : -1;
  };
  return std::max(erf_of(in.a, in.b), erf_of(in.b, in.a));
}

bool ProgramAnalysis::uniform_store(int i) const {
  if (instr(i).op != Opcode::kStore) return false;
  if (column_) return true;
  return row_ && instr(i).uniform;
}

bool ProgramAnalysis::reads_pairs() const {
  return std::any_of(program_.instrs.begin(), program_.instrs.end(),
                     [](const Instr& in) { return in.op == Opcode::kRoot && in.delta_sign != 0; });
}

bool ProgramAnalysis::reads_two_products() const {
  return std::any_of(program_.instrs.begin(), program_.instrs.end(),
                     [](const Instr& in) { return in.op == Opcode::kRoot && in.aux != 0; });
}

bool ProgramAnalysis::plain_store(int i) const {
  const Instr& in = instr(i);
  return in.op == Opcode::kStore && in.b < 0 && in.c < 0 && in.d < 0;
}

bool ProgramAnalysis::names_places() const {
  return std::any_of(program_.instrs.begin(), program_.instrs.end(), [](const Instr& in) {
    const auto reduce = static_cast<ReduceOp>(in.aux);
    return in.op == Opcode::kIndex ||
           (in.op == Opcode::kReduce && (reduce == ReduceOp::kArgMax || reduce == ReduceOp::kArgMin));
  });
}

bool ProgramAnalysis::only_copies() const {
  return !flagged_ && count_ == 2 && info_[0].plain_load && !info_[0].scalar && instr(1).op == Opcode::kYield &&
         instr(1).a == 0;
}

uint32_t ProgramAnalysis::plain_operands(Opcode op) const {
  uint32_t mask = 0;
  for (int i = 0; i < count_; ++i)
    if (instr(i).op == op && (info_[i].plain_load || plain_store(i)) && instr(i).operand < 32)
      mask |= 1u << instr(i).operand;
  return mask;
}

bool ProgramAnalysis::irregular_load(int i) const {
  return instr(i).op == Opcode::kLoadParts || (instr(i).op == Opcode::kLoad && !info_[i].preloaded && !info_[i].gather);
}

int ProgramAnalysis::vector_length() const {
  if (form_ != nullptr) return form_->vector;
  if (is_long()) return 2;
  int length = longest_vector(program_);
  while (column_ && length > 2 && length * columns_held() > kColumnElements) length /= 2;
  return length;
}

int ProgramAnalysis::whole_vector() const {
  int narrowest = 8, widest = 0;
  for (int i = 0; i < count_; ++i) {
    const Instr& in = instr(i);
    if ((in.op != Opcode::kLoad && in.op != Opcode::kStore) || info_[i].scalar) continue;
    narrowest = std::min(narrowest, size_bytes(in.dtype));
    widest = std::max(widest, size_bytes(in.dtype));
  }
  return narrowest == 2 && widest == 4 ? std::min(4, vector_length()) : vector_length();
}

int ProgramAnalysis::columns_held() const {
  return static_cast<int>(std::ranges::count_if(
      program_.instrs, [](const Instr& in) { return in.op == Opcode::kReduce || in.op == Opcode::kLoad; }));
}

bool ProgramAnalysis::is_long() const {
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

bool ProgramAnalysis::is_run(int a, int b, int predicate) const {
  for (const int value : {a, b, predicate})
    if (value >= 0 && !once_per_vector(value)) return false;
  const bool run_a = a >= 0 && info_[a].run, run_b = b >= 0 && info_[b].run;
  return !(run_a && run_b) && (predicate < 0 || info_[predicate].scalar);
}

std::vector<bool> ProgramAnalysis::needed_by(std::vector<bool> wanted, bool stop_at_reduce) const {
  for (int i = count_ - 1; i >= 0; --i) {
    if (!wanted[i]) continue;
    if (instr(i).op == Opcode::kReduce && stop_at_reduce) continue;
    if ((info_[i].preloaded && in_run_) || same_gather(i)) continue;
    for (const int input : inputs_of(instr(i))) wanted[input] = true;
  }
  return wanted;
}

bool ProgramAnalysis::by_pairs(int value, DType type) const {
  return is_half(type) && info_[value].type == DType::kF32 && !info_[value].scalar;
}

int ProgramAnalysis::stored_value(const Instr& in) const {
  const Instr& value = instr(in.a);
  const bool same = value.op == Opcode::kCast && value.dtype == in.dtype && is_float(in.dtype) &&
                    info_[value.a].type == info_[in.a].type;
  return same ? value.a : in.a;
}

DType ProgramAnalysis::accumulated_type(int i) const {
  const Instr& in = instr(i);
  const auto reduce = static_cast<ReduceOp>(in.aux);
  const DType source = info_[in.a].type;
  if (reduce == ReduceOp::kAny || reduce == ReduceOp::kAll) return DType::kBool;
  if ((reduce == ReduceOp::kMax || reduce == ReduceOp::kMin) && source == DType::kBool) return DType::kBool;
  if (reduce == ReduceOp::kArgMax || reduce == ReduceOp::kArgMin) return source == DType::kBool ? DType::kI64 : source;
  if (source == DType::kF64 || info_[i].type == DType::kF64) return DType::kF64;
  return source == DType::kF32 || info_[i].type == DType::kF32 ? DType::kF32 : DType::kI64;
}

std::vector<bool> ProgramAnalysis::needed_in(int pass) const {
  std::vector<bool> wanted(count_);
  for (int i = 0; i < count_; ++i) {
    const Instr& in = instr(i);
    if (in.op == Opcode::kReduce && reduce_pass(i) == pass) wanted[in.a] = true;
    if (is_sink(in.op) && !uniform_store(i) && pass == num_passes_ - 1) wanted[i] = true;
  }
  return needed_by(wanted, true);
}

std::vector<LazyArm> ProgramAnalysis::lazy_arms_in(int pass) const {
  std::vector<bool> needed = needed_in(pass);
  for (int i = 0; i < count_; ++i) needed[i] = needed[i] || (instr(i).op == Opcode::kReduce && reduce_pass(i) == pass);
  return lazy_arms(program_, needed, [&](int i) {
    return !once_per_vector(i) && call_arity(instr(i).op) > 0 && instr(i).op != Opcode::kCheckIndex;
  });
}

bool ProgramAnalysis::loaded_in(int i, int pass) const {
  return (info_[i].gather || info_[i].preloaded) && !info_[i].scalar && needed_in(pass)[i];
}

bool ProgramAnalysis::loaded_ahead(int i) const {
  return info_[i].plain_load && instr(i).operand < 32 && (form_->ahead_operands >> instr(i).operand & 1) != 0 &&
         loaded_in(i, 0);
}

bool ProgramAnalysis::loaded_before(int i, int pass) const {
  for (int p = 0; p < pass; ++p)
    if (loaded_in(i, p)) return true;
  return false;
}

std::string ProgramAnalysis::accumulators() const {
  std::string out;
  const auto line = [&](const std::string& text) { out += text + "\n"; };
  line("  struct Uniform {");
  if (form_ != nullptr) line("    Scalars scalars;");
  for (int i = 0; i < count_; ++i)
    if (instr(i).op == Opcode::kReduce) line(cat("    ", register_type(info_[i].type), " r", i, ";"));
  line("  };");
  for (int pass = 0; pass < num_passes_; ++pass) {
    std::string fields, start, merge, finish;
    for (int i = 0; i < count_; ++i) {
      if (instr(i).op != Opcode::kReduce || reduce_pass(i) != pass) continue;
      fields +=
          cat("    ", accumulator_type(static_cast<ReduceOp>(instr(i).aux), info_[instr(i).a].type, info_[i].type),
              " r", i, ";\n");
      start += cat(" r", i, ".start();");
      merge += cat(" r", i, ".merge(o.r", i, ");");
      finish += cat(" u.r", i, " = static_cast<", register_type(info_[i].type), ">(acc.r", i, ".result());");
    }
    const std::string type = cat("Accumulator", pass);
    line(cat("  struct ", type, " {"));
    out += fields;
    line(cat("    static constexpr bool kEmpty = ", fields.empty() ? "true" : "false", ";"));
    line(cat("    ARK_DEVICE void start() {", start, " }"));
    line(cat("    ARK_DEVICE void merge(const ", type, "& o) {", merge, " }"));
    line("  };");
    line(cat("  static ARK_DEVICE ", type, " accumulator(Pass<", pass, ">) { return {}; }"));
    line(cat("  static ARK_DEVICE void finish(const ", type, "& acc, Uniform& u) {", finish, " }"));
  }
  return out;
}

}  // namespace ark::codegen
