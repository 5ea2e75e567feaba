#include "targets/host/program/vector_program.h"

#include <algorithm>
#include <map>
#include <span>

#include "base/check.h"

namespace ark::targets::host {
namespace {

constexpr int kNoPass = -1;

bool is_comparison(Opcode op) { return op >= Opcode::kEq && op <= Opcode::kGe; }
bool is_logical(Opcode op) {
  return op == Opcode::kLogicalNot || op == Opcode::kLogicalAnd || op == Opcode::kLogicalOr ||
         op == Opcode::kLogicalXor;
}
bool is_classify(Opcode op) { return op == Opcode::kIsNan || op == Opcode::kIsInf; }
bool is_unary(Opcode op) { return op >= Opcode::kNeg && op <= Opcode::kLgamma; }
bool is_binary(Opcode op) { return op >= Opcode::kAdd && op <= Opcode::kLogicalXor; }
bool is_ternary(Opcode op) { return op == Opcode::kWhere || op == Opcode::kFma || op == Opcode::kRand; }
bool is_sink(Opcode op) { return op == Opcode::kStore || op == Opcode::kYield; }

RegType wider(RegType a, RegType b) {
  constexpr int kRank[kNumRegTypes] = {2, 3, 1, 0};  // f32, f64, i64, bool
  return kRank[static_cast<int>(a)] >= kRank[static_cast<int>(b)] ? a : b;
}

std::vector<int> inputs_of(const Instr& instr) {
  std::vector<int> inputs;
  for (const int input : {int(instr.a), int(instr.b), int(instr.c), int(instr.d)})
    if (input >= 0) inputs.push_back(input);
  return inputs;
}

/// Compiles one program; the phases are the public functions, in order.
class Compiler {
 public:
  Compiler(const Program& program, const Kernels& kernels, bool whole_rows)
      : program_(program), kernels_(kernels), count_(static_cast<int>(program.instrs.size())) {
    row_like_ = program.kind == ProgramKind::kRow || program.kind == ProgramKind::kPrologue;
    single_ = whole_rows || !row_like_;
    info_.resize(count_);
  }

  VectorProgram compile() {
    result_.kind = program_.kind;
    result_.num_dims = program_.num_dims;
    result_.reduce_dims = program_.reduce_dims;
    classify();
    mark_needs();
    if (single_)
      emit_single();
    else
      emit_passes();
    return std::move(result_);
  }

 private:
  struct Info {
    RegType type = RegType::kF32;
    bool uniform = false;  // one value per row (or kept column)
    bool from_reduce = false;
    bool stores_uniform = false;  // a Store that runs in the uniform space
    bool need_element = false, need_uniform = false;
    int pass = 0;         // first pass in which the element value can be computed
    int stage = kNoPass;  // pass after which the uniform value can be computed
    int element_reg = -1, uniform_reg = -1, reduction = -1;
  };

  const Instr& instr(int i) const { return program_.instrs[i]; }

  void check_instr(int i) const {
    for (const int input : inputs_of(instr(i)))
      check(input < i, "program instruction ", i, ": argument ", input, " is not an earlier instruction");
    const bool loads = instr(i).op == Opcode::kLoad || instr(i).op == Opcode::kStore ||
                       instr(i).op == Opcode::kLoadParts || instr(i).op == Opcode::kParameter;
    check(!loads || (instr(i).operand >= 0 && instr(i).operand < program_.num_operands), "program instruction ", i,
          ": operand ", instr(i).operand, " of ", program_.num_operands);
  }

  RegType result_type(const Instr& in) const {
    if (in.op == Opcode::kIndex) return RegType::kI64;
    if (is_comparison(in.op) || is_logical(in.op) || is_classify(in.op)) return RegType::kBool;
    if (in.op == Opcode::kRand || in.op == Opcode::kLoadParts) return RegType::kF32;
    if (in.op == Opcode::kReduce && (in.aux == int(ReduceOp::kArgMax) || in.aux == int(ReduceOp::kArgMin)))
      return RegType::kI64;
    return reg_type(in.dtype);
  }

  void classify() {
    const bool column = program_.kind == ProgramKind::kColumn;
    for (int i = 0; i < count_; ++i) {
      check_instr(i);
      const Instr& in = instr(i);
      Info& info = info_[i];
      info.type = result_type(in);
      info.from_reduce = in.op == Opcode::kReduce;
      bool all_uniform = true;
      int stage = kNoPass, pass = 0;
      for (const int input : inputs_of(in)) {
        info.from_reduce |= info_[input].from_reduce;
        all_uniform &= info_[input].uniform;
        stage = std::max(stage, info_[input].stage);
        pass = std::max(pass, info_[input].uniform ? info_[input].stage + 1 : info_[input].pass);
      }
      if (column)
        info.uniform = info.from_reduce;
      else if (row_like_)
        info.uniform = in.op == Opcode::kReduce || in.op == Opcode::kConst || in.op == Opcode::kParameter ||
                       (in.op == Opcode::kIndex ? in.aux < program_.num_dims - program_.reduce_dims
                                                : in.op != Opcode::kLoad && in.op != Opcode::kLoadParts && all_uniform);
      info.stores_uniform =
          in.op == Opcode::kStore && (column ? in.uniform || info.from_reduce : row_like_ && in.uniform);
      info.pass = info.uniform && in.op != Opcode::kReduce ? stage + 1 : pass;
      info.stage = in.op == Opcode::kReduce ? pass : stage;
      check(in.op != Opcode::kReduce || column || row_like_, "program instruction ", i,
            ": Reduce outside row and column programs");
    }
  }

  void mark_needs() {
    for (int i = count_ - 1; i >= 0; --i) {
      Info& info = info_[i];
      const Instr& in = instr(i);
      if (is_sink(in.op)) (info.stores_uniform ? info.need_uniform : info.need_element) = true;
      if (info.uniform && info.need_element && !is_sink(in.op)) info.need_uniform = true;
      const bool element_inputs =
          in.op == Opcode::kReduce ? info.need_uniform : info.need_element && (!info.uniform || is_sink(in.op));
      const bool uniform_inputs = in.op != Opcode::kReduce && info.need_uniform;
      for (const int input : inputs_of(in)) {
        info_[input].need_element |= element_inputs;
        info_[input].need_uniform |= uniform_inputs;
      }
    }
  }

  // ---- registers: a free list per space and width; constants are pinned ----
  /// `own`: memory that no other register has had (what is filled once must not be written by an earlier step).
  int new_register(RegType type, bool uniform, bool own = false) {
    const int bytes = reg_bytes(type);
    auto& free = free_[{uniform, bytes}];
    int32_t& file = uniform ? result_.uniform_bytes : result_.element_bytes;
    int32_t offset = file;
    if (!free.empty() && !own) {
      offset = free.back();
      free.pop_back();
    } else {
      file += bytes;
    }
    result_.registers.push_back({type, uniform, offset});
    return static_cast<int>(result_.registers.size()) - 1;
  }
  void release(int reg) {
    const Register& r = result_.registers[reg];
    free_[{r.uniform, reg_bytes(r.type)}].push_back(r.offset);
  }

  /// The register of value `i` in the space, as `type`; a conversion is appended to `steps` where it differs.
  int argument(int i, RegType type, bool uniform, std::vector<Step>& steps) {
    const int reg = uniform ? info_[i].uniform_reg : info_[i].element_reg;
    check(reg >= 0, "program instruction ", i, ": used before it is computed");
    if (result_.registers[reg].type == type) return reg;
    Step step;
    step.kind = StepKind::kUnary;
    step.uniform = uniform;
    step.a = static_cast<int16_t>(reg);
    step.unary = kernels_.convert(result_.registers[reg].type, type);
    step.out = static_cast<int16_t>(new_register(type, uniform));
    temporaries_.push_back(step.out);
    steps.push_back(step);
    return step.out;
  }

  /// Type in which the arguments of an arithmetic instruction are taken.
  RegType argument_type(const Instr& in) const {
    if (is_comparison(in.op)) return wider(info_[in.a].type, info_[in.b].type);
    if (is_classify(in.op)) return info_[in.a].type;
    if (is_logical(in.op)) return RegType::kBool;
    return reg_type(in.dtype);
  }

  void emit_arithmetic(int i, Step& step, std::vector<Step>& steps) {
    const Instr& in = instr(i);
    const RegType type = argument_type(in);
    const auto missing = [&](bool found) {
      check<UnsupportedError>(found, "host target: opcode ", int(in.op), " has no form for ", name(in.dtype));
    };
    if (in.op == Opcode::kCast) {
      step.kind = StepKind::kUnary;
      step.a = static_cast<int16_t>(argument(in.a, reg_type(in.dtype), step.uniform, steps));
      step.unary = kernels_.round_to(in.dtype);
      if (!step.unary) step.unary = kernels_.convert(reg_type(in.dtype), reg_type(in.dtype));
    } else if (is_unary(in.op)) {
      step.kind = StepKind::kUnary;
      step.a = static_cast<int16_t>(argument(in.a, type, step.uniform, steps));
      missing((step.unary = kernels_.unary(in.op, type)));
    } else if (is_binary(in.op)) {
      step.kind = StepKind::kBinary;
      step.a = static_cast<int16_t>(argument(in.a, type, step.uniform, steps));
      step.b = static_cast<int16_t>(argument(in.b, type, step.uniform, steps));
      missing((step.binary = kernels_.binary(in.op, type)));
    } else {
      step.kind = StepKind::kTernary;
      const RegType first = in.op == Opcode::kWhere ? RegType::kBool : in.op == Opcode::kRand ? RegType::kI64 : type;
      const RegType rest = in.op == Opcode::kRand ? RegType::kI64 : type;
      step.a = static_cast<int16_t>(argument(in.a, first, step.uniform, steps));
      step.b = static_cast<int16_t>(argument(in.b, rest, step.uniform, steps));
      step.c = static_cast<int16_t>(argument(in.c, rest, step.uniform, steps));
      missing((step.ternary = kernels_.ternary(in.op, type)));
    }
  }

  /// Integer results narrower than i64 wrap to their type.
  void wrap_narrow(const Instr& in, std::vector<Step>& steps) {
    const bool arithmetic = is_unary(in.op) || is_binary(in.op) || in.op == Opcode::kFma;
    if (!arithmetic || is_comparison(in.op) || reg_type(in.dtype) != RegType::kI64 || in.dtype == DType::kI64) return;
    Step wrap = steps.back();
    wrap.kind = StepKind::kUnary;
    wrap.unary = kernels_.round_to(in.dtype);
    wrap.a = wrap.out;
    wrap.out = static_cast<int16_t>(new_register(RegType::kI64, wrap.uniform));
    temporaries_.push_back(wrap.a);
    steps.push_back(wrap);
  }

  void emit_memory(int i, Step& step, std::vector<Step>& steps) {
    const Instr& in = instr(i);
    const bool store = in.op == Opcode::kStore;
    const auto as_index = [&](int value) {
      return static_cast<int16_t>(value < 0 ? -1 : argument(value, RegType::kI64, step.uniform, steps));
    };
    step.kind = store ? StepKind::kStore : StepKind::kLoad;
    if (store) step.a = static_cast<int16_t>(argument(in.a, reg_type(in.dtype), step.uniform, steps));
    step.b = as_index(store ? in.b : in.a);
    step.c = as_index(store ? in.c : in.b);
    const int predicate = store ? in.d : in.c;
    if (predicate >= 0) step.predicate = static_cast<int16_t>(argument(predicate, RegType::kBool, step.uniform, steps));
  }

  void emit_reduce(int i, Step step, std::vector<Step>& element, std::vector<Step>& uniform) {
    const Instr& in = instr(i);
    const auto op = static_cast<ReduceOp>(in.aux);
    const bool arg = op == ReduceOp::kArgMax || op == ReduceOp::kArgMin;
    const bool boolean = op == ReduceOp::kAny || op == ReduceOp::kAll;
    const RegType source = info_[in.a].type;
    const RegType type = arg ? source : boolean ? RegType::kBool : wider(source, info_[i].type);
    const RegType accumulator = type == RegType::kF32 || type == RegType::kF64 ? RegType::kF64 : RegType::kI64;
    info_[i].reduction = static_cast<int>(result_.reductions.size());
    result_.reductions.push_back({op, accumulator, type});
    step.kind = StepKind::kReduce;
    step.uniform = false;
    step.reduction = static_cast<int16_t>(info_[i].reduction);
    step.a = static_cast<int16_t>(argument(in.a, type, false, element));
    step.reduce =
        program_.kind == ProgramKind::kColumn ? kernels_.reduce_columns(op, type) : kernels_.reduce_rows(op, type);
    element.push_back(step);
    Step finish;
    finish.kind = StepKind::kFinish;
    finish.uniform = true;
    finish.reduction = step.reduction;
    finish.instr = in;
    finish.unary = kernels_.convert(arg ? RegType::kI64 : accumulator, info_[i].type);
    finish.out = static_cast<int16_t>(new_register(info_[i].type, true));
    info_[i].uniform_reg = finish.out;
    uniform.push_back(finish);
  }

  /// Appends what computes instruction i in one space; its register is noted in info_.
  void emit(int i, bool uniform, std::vector<Step>& steps) {
    const Instr& in = instr(i);
    Step step;
    step.uniform = uniform;
    step.instr = in;
    int& home = uniform ? info_[i].uniform_reg : info_[i].element_reg;
    switch (in.op) {
      case Opcode::kConst:
        step.kind = StepKind::kConst;
        break;
      case Opcode::kIndex:
        check(in.aux >= 0 && in.aux < program_.num_dims, "program instruction ", i, ": dimension ", in.aux);
        step.kind = StepKind::kIndex;
        break;
      case Opcode::kParameter:
        step.kind = StepKind::kParameter;
        break;
      case Opcode::kRoot:
        check<UnsupportedError>(!uniform, "host target: Root in the uniform part of a program");
        step.kind = StepKind::kRoot;
        break;
      case Opcode::kLoad:
      case Opcode::kStore:
        emit_memory(i, step, steps);
        break;
      case Opcode::kLoadParts:
        step.kind = StepKind::kLoadParts;
        step.a = static_cast<int16_t>(argument(in.a, RegType::kI64, uniform, steps));
        step.b = static_cast<int16_t>(argument(in.b, RegType::kI64, uniform, steps));
        break;
      case Opcode::kCheckIndex:
        step.kind = StepKind::kCheckIndex;
        step.a = static_cast<int16_t>(argument(in.a, RegType::kI64, uniform, steps));
        step.b = static_cast<int16_t>(argument(in.b, RegType::kI64, uniform, steps));
        if (in.c >= 0) step.predicate = static_cast<int16_t>(argument(in.c, RegType::kBool, uniform, steps));
        break;
      case Opcode::kYield:
        step.kind = StepKind::kYield;
        step.a = static_cast<int16_t>(info_[in.a].element_reg);
        break;
      default:
        check<UnsupportedError>(in.op == Opcode::kCast || is_unary(in.op) || is_binary(in.op) || is_ternary(in.op),
                                "host target: opcode ", int(in.op), " is unknown");
        emit_arithmetic(i, step, steps);
    }
    if (!is_sink(in.op)) step.out = static_cast<int16_t>(new_register(info_[i].type, uniform, in.op == Opcode::kConst));
    if (in.op == Opcode::kConst) {
      home = step.out;
      return result_.setup.push_back(step);
    }
    steps.push_back(step);
    if (!is_sink(in.op)) {
      wrap_narrow(in, steps);
      home = steps.back().out;
    }
  }

  void emit_expand(int i, std::vector<Step>& steps) {
    Step step;
    step.kind = StepKind::kExpand;
    step.a = static_cast<int16_t>(info_[i].uniform_reg);
    step.out = static_cast<int16_t>(new_register(info_[i].type, false));
    info_[i].element_reg = step.out;
    steps.push_back(step);
  }

  bool runs_in(int i, bool uniform) const { return uniform ? info_[i].need_uniform : info_[i].need_element; }

  /// Frees the element registers whose last reader is instruction i, and i's own temporaries.
  void release_after(int i, std::span<const int> last_use) {
    for (const int reg : temporaries_) release(reg);
    temporaries_.clear();
    std::vector<int> done = inputs_of(instr(i));
    done.push_back(i);
    std::sort(done.begin(), done.end());
    done.erase(std::unique(done.begin(), done.end()), done.end());
    for (const int value : done) {
      const bool constant = instr(value).op == Opcode::kConst;
      if (last_use[value] != i || constant || info_[value].element_reg < 0) continue;
      release(info_[value].element_reg);
      info_[value].element_reg = -1;
    }
  }

  /// Last instruction, among those marked, that reads each element value.
  std::vector<int> last_uses(const std::vector<bool>& marked) const {
    std::vector<int> last(count_);
    for (int i = 0; i < count_; ++i) {
      last[i] = i;
      if (marked[i])
        for (const int input : inputs_of(instr(i))) last[input] = i;
    }
    return last;
  }

  void emit_element_value(int i, std::vector<Step>& steps) {
    if (instr(i).op == Opcode::kConst) {
      if (info_[i].element_reg < 0) emit(i, false, steps);
    } else if (info_[i].uniform && !is_sink(instr(i).op)) {
      emit_expand(i, steps);
    } else {
      emit(i, false, steps);
    }
  }

  /// One pass, every instruction in program order. Column programs: element steps first, uniform ones after the last
  /// block.
  void emit_single() {
    const bool column = program_.kind == ProgramKind::kColumn;
    Pass pass;
    std::vector<bool> all(count_, true);
    const std::vector<int> last = last_uses(all);
    std::vector<Step>& uniform = column ? pass.uniform : pass.element;
    for (int i = 0; i < count_; ++i) {
      if (instr(i).op == Opcode::kReduce) {
        Step step;
        step.instr = instr(i);
        if (info_[i].need_uniform) emit_reduce(i, step, pass.element, uniform);
      } else if (runs_in(i, true)) {
        emit(i, true, uniform);
      }
      const bool sink_elsewhere = is_sink(instr(i).op) && info_[i].stores_uniform;
      if (runs_in(i, false) && !sink_elsewhere) emit_element_value(i, pass.element);
      release_after(i, last);
    }
    result_.passes.push_back(std::move(pass));
  }

  int num_passes() const {
    int passes = 0;
    for (int i = 0; i < count_; ++i) {
      const bool walks = (is_sink(instr(i).op) && !info_[i].stores_uniform) ||
                         (instr(i).op == Opcode::kReduce && info_[i].need_uniform);
      if (walks) passes = std::max(passes, (instr(i).op == Opcode::kReduce ? info_[i].stage : info_[i].pass) + 1);
    }
    return passes;
  }

  /// The element values that pass p has to compute: what its sinks and Reduces depend on.
  std::vector<bool> slice_of_pass(int p) const {
    std::vector<bool> marked(count_, false);
    for (int i = count_ - 1; i >= 0; --i) {
      const bool reduce = instr(i).op == Opcode::kReduce;
      if (reduce && info_[i].need_uniform && info_[i].stage == p) marked[i] = true;
      if (is_sink(instr(i).op) && !info_[i].stores_uniform && info_[i].pass == p) marked[i] = true;
      const bool here = marked[i] && (!info_[i].uniform || is_sink(instr(i).op) || (reduce && info_[i].stage == p));
      if (here)
        for (const int input : inputs_of(instr(i))) marked[input] = true;
    }
    return marked;
  }

  void emit_uniform_stage(int stage, std::vector<Step>& steps) {
    for (int i = 0; i < count_; ++i) {
      const bool mine = info_[i].need_uniform && info_[i].stage == stage && instr(i).op != Opcode::kReduce;
      if (mine) emit(i, true, steps);
      for (const int reg : temporaries_) release(reg);
      temporaries_.clear();
    }
  }

  void emit_passes() {
    emit_uniform_stage(kNoPass, result_.before.uniform);
    const int passes = std::max(1, num_passes());
    for (int p = 0; p < passes; ++p) {
      Pass pass;
      const std::vector<bool> marked = slice_of_pass(p);
      const std::vector<int> last = last_uses(marked);
      for (int i = 0; i < count_; ++i) {
        if (!marked[i]) continue;
        const bool reduces_here = instr(i).op == Opcode::kReduce && info_[i].stage == p;
        Step step;
        step.instr = instr(i);
        if (reduces_here)
          emit_reduce(i, step, pass.element, pass.uniform);
        else
          emit_element_value(i, pass.element);
        release_after(i, last);
      }
      emit_uniform_stage(p, pass.uniform);
      result_.passes.push_back(std::move(pass));
    }
  }

  const Program& program_;
  const Kernels& kernels_;
  const int count_;
  bool row_like_ = false, single_ = true;
  std::vector<Info> info_;
  std::map<std::pair<bool, int>, std::vector<int32_t>> free_;
  std::vector<int> temporaries_;
  VectorProgram result_;
};

}  // namespace

VectorProgram compile_program(const Program& program, const Kernels& kernels, bool whole_rows) {
  return Compiler(program, kernels, whole_rows).compile();
}

}  // namespace ark::targets::host
