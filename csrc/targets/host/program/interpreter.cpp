#include "targets/host/program/interpreter.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "targets/host/program/attention_parts.h"

namespace ark::targets::host {
namespace {

constexpr int64_t kBlockLanes = 1024;     // 4 KB a float register: ten live ones fit the first-level cache
constexpr int64_t kWholeRowLanes = 8192;  // rows up to here are kept in registers (second-level cache) and walked once
constexpr int64_t kLaneMultiple = 64;     // registers start at cache lines

int64_t round_up(int64_t n) { return (n + kLaneMultiple - 1) / kLaneMultiple * kLaneMultiple; }

/// Rows [outer, outer + rows) x columns [inner, inner + columns) of the domain.
struct Block {
  int64_t outer = 0, rows = 1, inner = 0, columns = 0;
};

class Interpreter {
 public:
  Interpreter(const Environment& env, const BoundProgram& program, int64_t max_lanes)
      : env_(env), kernels_(*env.kernels), program_(program), code_(program.code) {
    using S = Scratch;
    element_ = env.scratch->get<std::byte>(S::kElementFile, code_.element_bytes * program.element_lanes);
    uniform_ = env.scratch->get<std::byte>(S::kUniformFile, code_.uniform_bytes * program.uniform_lanes);
    const int64_t lanes = std::max(program.element_lanes, program.uniform_lanes);
    access_ = {env.scratch->get<int64_t>(S::kOffsets, lanes), env.scratch->get<uint8_t>(S::kPredicate, lanes),
               env.index_error};
    accumulators_ = env.scratch->get<int64_t>(S::kAccumulators, 2 * program.uniform_lanes * code_.reductions.size());
    const int64_t elements = std::min(max_lanes, program.element_lanes);
    for (const Step& step : code_.setup) fill_constant(step, step.uniform ? program.uniform_lanes : elements);
  }

  void begin_reductions(int64_t count) {
    for (size_t i = 0; i < code_.reductions.size(); ++i) {
      const Accumulators acc = accumulators(static_cast<int>(i));
      const Reduction& reduction = code_.reductions[i];
      if (reduction.accumulator == RegType::kF64)
        std::fill_n(static_cast<double*>(acc.value), count, first_float(reduction.op));
      else
        std::fill_n(static_cast<int64_t*>(acc.value), count, first_integer(reduction.op));
      std::fill_n(acc.index, count, int64_t{-1});
    }
  }

  void run(const std::vector<Step>& steps, const Block& block) {
    for (const Step& step : steps) run_step(step, block);
  }

  Roots roots;
  YieldTarget yield;
  bool in_range = true;

 private:
  static double first_float(ReduceOp op) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return op == ReduceOp::kProd ? 1 : op == ReduceOp::kMax ? -kInfinity : op == ReduceOp::kMin ? kInfinity : 0;
  }
  static int64_t first_integer(ReduceOp op) {
    if (op == ReduceOp::kMax) return std::numeric_limits<int64_t>::min();
    if (op == ReduceOp::kMin) return std::numeric_limits<int64_t>::max();
    return op == ReduceOp::kProd || op == ReduceOp::kAll;
  }

  Accumulators accumulators(int reduction) const {
    int64_t* base = accumulators_ + 2 * reduction * program_.uniform_lanes;
    return {base, base + program_.uniform_lanes};
  }

  std::byte* at(int reg) const {
    const Register& r = code_.registers[reg];
    return r.uniform ? uniform_ + r.offset * program_.uniform_lanes : element_ + r.offset * program_.element_lanes;
  }
  template <class T>
  T* lanes(int reg) const {
    return reg < 0 ? nullptr : reinterpret_cast<T*>(at(reg));
  }

  void fill_constant(const Step& step, int64_t n) {
    const Instr& in = step.instr;
    const auto type = code_.registers[step.out].type;
    const float f = static_cast<float>(in.imm);
    const uint8_t b = in.imm_int != 0;
    const void* value = type == RegType::kF32   ? static_cast<const void*>(&f)
                        : type == RegType::kF64 ? &in.imm
                        : type == RegType::kI64 ? static_cast<const void*>(&in.imm_int)
                                                : &b;
    kernels_.fill[static_cast<int>(type)](at(step.out), value, n);
  }

  bool column_program() const { return code_.kind == ProgramKind::kColumn; }

  int64_t count(const Step& step, const Block& block) const {
    if (!step.uniform) return block.rows * block.columns;
    return column_program() ? block.columns : block.rows;
  }

  /// Calls visit(run, first lane) for the flattened runs that the block covers in the step's space.
  template <class Visit>
  void for_each_run(const Step& step, const Block& block, const Visit& visit) {
    if (step.uniform) return visit(Run{column_program() ? block.inner : block.outer, count(step, block)}, int64_t{0});
    const int64_t start = block.outer * program_.inner_total + block.inner;
    if (block.rows == 1 || block.columns == program_.inner_total)
      return visit(Run{start, block.rows * block.columns}, int64_t{0});
    for (int64_t r = 0; r < block.rows; ++r)
      visit(Run{start + r * program_.inner_total, block.columns}, r * block.columns);
  }

  void run_memory(const Step& step, const Block& block) {
    const bool store = step.kind == StepKind::kStore;
    const Domain& domain = step.uniform ? program_.uniform : program_.element;
    const View& view = domain.views[step.instr.operand];
    const int reg = store ? step.a : step.out;
    const int bytes = reg_bytes(code_.registers[reg].type);
    void* memory = env_.slots[view.slot];
    const int64_t *index_a = lanes<int64_t>(step.b), *index_b = lanes<int64_t>(step.c);
    const uint8_t* predicate = lanes<uint8_t>(step.predicate);
    for_each_run(step, block, [&](Run run, int64_t lane) {
      const Lanes l{index_a ? index_a + lane : nullptr, index_b ? index_b + lane : nullptr,
                    predicate ? predicate + lane : nullptr};
      in_range &= store ? store_run(kernels_, domain, view, memory, run, l, access_, at(reg) + lane * bytes)
                        : load_run(kernels_, domain, view, memory, run, l, access_, at(reg) + lane * bytes);
    });
  }

  /// Coordinates count in the whole domain; a uniform step sees the first element of its row or column.
  void run_index(const Step& step, const Block& block) {
    const int dim = step.instr.aux;
    const int outer_dims = code_.num_dims - code_.reduce_dims;
    const bool fixed = step.uniform && (column_program() ? dim < code_.reduce_dims : dim >= outer_dims);
    if (fixed) {
      std::fill_n(lanes<int64_t>(step.out), count(step, block), int64_t{0});
      return;
    }
    const Domain& domain = step.uniform ? program_.uniform : program_.element;
    const int local = step.uniform && column_program() ? dim - code_.reduce_dims : dim;
    for_each_run(step, block,
                 [&](Run run, int64_t lane) { coordinates(domain, local, run, lanes<int64_t>(step.out) + lane); });
  }

  void run_root(const Step& step, const Block& block) {
    const Instr& in = step.instr;
    const int bytes = reg_bytes(roots.type);
    const RegType type = code_.registers[step.out].type;
    const int out_bytes = reg_bytes(type);
    const UnaryFn convert = kernels_.convert(roots.type, type);
    const int64_t first =
        block.inner + in.delta_sign * roots.pair_distance - roots.first;  // lane 0's column in the matrix
    const int64_t begin = std::clamp<int64_t>(-first, 0, block.columns),
                  end = std::clamp(roots.count - first, begin, block.columns);
    for (int64_t r = 0; r < block.rows; ++r) {
      const auto* source = static_cast<const std::byte*>(roots.data[in.aux]) +
                           (block.outer + r - roots.first_row) * roots.row_stride * bytes;
      std::byte* out = at(step.out) + r * block.columns * out_bytes;
      std::memset(out, 0, begin * out_bytes);
      std::memset(out + end * out_bytes, 0, (block.columns - end) * out_bytes);
      if (end > begin) convert(out + begin * out_bytes, source + (first + begin) * bytes, end - begin);
    }
  }

  void run_check_index(const Step& step, const Block& block) {
    const int64_t *index = lanes<int64_t>(step.a), *extent = lanes<int64_t>(step.b), n = count(step, block);
    const uint8_t* wanted = lanes<uint8_t>(step.predicate);
    int64_t* out = lanes<int64_t>(step.out);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t place = step.instr.aux != 0 && index[i] < 0 ? index[i] + extent[i] : index[i];
      const bool valid = place >= 0 && place < extent[i];
      if (!valid && (wanted == nullptr || wanted[i] != 0)) {
        in_range = false;
        *env_.index_error = {index[i], extent[i]};
      }
      out[i] = valid ? place : extent[i];
    }
  }

  void run_load_parts(const Step& step, const Block& block) {
    load_parts(std::span(program_.operands).subspan(step.instr.operand), env_.slots, lanes<int64_t>(step.a),
               lanes<int64_t>(step.b), count(step, block), lanes<float>(step.out));
  }

  void run_yield(const Step& step, const Block& block) {
    const RegType type = code_.registers[step.a].type;
    for_each_run(step, block, [&](Run run, int64_t lane) {
      kernels_.convert(type, yield.type)(static_cast<std::byte*>(yield.data) + run.start * reg_bytes(yield.type),
                                         at(step.a) + lane * reg_bytes(type), run.n);
    });
  }

  void run_finish(const Step& step, const Block& block) {
    const Accumulators acc = accumulators(step.reduction);
    const ReduceOp op = code_.reductions[step.reduction].op;
    const int64_t n = count(step, block);
    if (op == ReduceOp::kArgMax || op == ReduceOp::kArgMin) {
      for (int64_t i = 0; i < n; ++i) acc.index[i] = std::max<int64_t>(acc.index[i], 0);
      step.unary(at(step.out), acc.index, n);
    } else {
      step.unary(at(step.out), acc.value, n);
    }
  }

  void run_step(const Step& step, const Block& block) {
    switch (step.kind) {
      case StepKind::kUnary:
        return step.unary(at(step.out), at(step.a), count(step, block));
      case StepKind::kBinary:
        return step.binary(at(step.out), at(step.a), at(step.b), count(step, block));
      case StepKind::kTernary:
        return step.ternary(at(step.out), at(step.a), at(step.b), at(step.c), count(step, block));
      case StepKind::kLoad:
      case StepKind::kStore:
        return run_memory(step, block);
      case StepKind::kLoadParts:
        return run_load_parts(step, block);
      case StepKind::kCheckIndex:
        return run_check_index(step, block);
      case StepKind::kIndex:
        return run_index(step, block);
      case StepKind::kParameter:
        std::fill_n(lanes<int64_t>(step.out), count(step, block),
                    program_.operands[step.instr.operand].stride[step.instr.aux]);
        return;
      case StepKind::kRoot:
        return run_root(step, block);
      case StepKind::kYield:
        return run_yield(step, block);
      case StepKind::kFinish:
        return run_finish(step, block);
      case StepKind::kReduce:
        return step.reduce(accumulators(step.reduction), at(step.a), block.rows, block.columns,
                           column_program() ? block.outer : block.inner);
      case StepKind::kExpand: {
        const RegType type = code_.registers[step.out].type;
        const int bytes = reg_bytes(type);
        for (int64_t r = 0; r < block.rows; ++r)
          kernels_.fill[static_cast<int>(type)](at(step.out) + r * block.columns * bytes, at(step.a) + r * bytes,
                                                block.columns);
        return;
      }
      case StepKind::kConst:
        return;
    }
  }

  const Environment& env_;
  const Kernels& kernels_;
  const BoundProgram& program_;
  const VectorProgram& code_;
  std::byte *element_ = nullptr, *uniform_ = nullptr;
  AccessScratch access_;
  int64_t* accumulators_ = nullptr;
};

/// The operands with the strides of those that no Load or Store walks over the domain (index and part parameters) set
/// to 0, so that they do not stand in the way of merging dimensions.
std::vector<abi::Operand> walked_operands(const Program& program, std::span<const abi::Operand> operands) {
  std::vector<abi::Operand> walked(operands.begin(), operands.end());
  std::vector<bool> used(walked.size(), false);
  for (const Instr& in : program.instrs)
    if (in.op == Opcode::kLoad || in.op == Opcode::kStore) {
      used.at(in.operand) = true;
      check(walked[in.operand].slot != abi::kNoSlot, "program: operand ", in.operand,
            " is loaded or stored and has no slot");
    }
  for (size_t i = 0; i < walked.size(); ++i)
    if (!used[i]) std::fill(std::begin(walked[i].stride), std::end(walked[i].stride), 0);
  return walked;
}

int64_t product(std::span<const int64_t> sizes) {
  int64_t total = 1;
  for (const int64_t s : sizes) total *= s;
  return total;
}

}  // namespace

BoundProgram bind_program(const Program& program, const Kernels& kernels, std::span<const int64_t> size,
                          std::span<const abi::Operand> operands, std::span<const abi::Operand> record_operands) {
  const bool column = program.kind == ProgramKind::kColumn;
  const bool row = program.kind == ProgramKind::kRow || program.kind == ProgramKind::kPrologue;
  check(program.num_dims == static_cast<int>(size.size()) && program.num_dims <= abi::kMaxDims, "program of rank ",
        program.num_dims, " bound to a domain of rank ", size.size());
  check(program.num_operands == static_cast<int>(operands.size()), "program of ", program.num_operands,
        " operands bound to ", operands.size());
  const bool epilogue = program.kind == ProgramKind::kEpilogue;
  const int split = column     ? program.reduce_dims
                    : row      ? program.num_dims - program.reduce_dims
                    : epilogue ? program.num_dims - 1
                               : 0;
  const std::vector<abi::Operand> walked = walked_operands(program, operands);
  BoundProgram bound;
  bound.operands.assign(operands.begin(), operands.end());
  bound.outer_total = product(size.first(split));
  bound.inner_total = product(size.subspan(split));
  const bool whole_rows = row && bound.inner_total <= kWholeRowLanes;
  bound.code = compile_program(program, kernels, whole_rows);
  bound.element = make_domain(size, walked, record_operands, 0);
  if (row) bound.uniform = make_domain(size.first(split), walked, record_operands, 0);
  if (column) bound.uniform = make_domain(size.subspan(split), walked, record_operands, split);
  bound.element_lanes = round_up(std::max<int64_t>(whole_rows ? bound.inner_total : 0, kBlockLanes));
  const int64_t rows_at_once = whole_rows ? bound.element_lanes / std::max<int64_t>(1, bound.inner_total) : 1;
  bound.uniform_lanes = row ? round_up(rows_at_once) : column ? kBlockLanes : 0;
  return bound;
}

bool run_elements(const Environment& env, const BoundProgram& program, int64_t begin, int64_t end) {
  Interpreter interpreter(env, program, end - begin);
  for (int64_t i = begin; i < end; i += program.element_lanes)
    interpreter.run(program.code.passes[0].element, {0, 1, i, std::min(program.element_lanes, end - i)});
  return interpreter.in_range;
}

bool run_rows(const Environment& env, const BoundProgram& program, int64_t begin, int64_t end,
              const YieldTarget& yield) {
  const VectorProgram& code = program.code;
  const int64_t row = program.inner_total;
  const bool whole_rows = row <= kWholeRowLanes;
  const int64_t rows_at_once =
      whole_rows ? std::clamp<int64_t>(program.element_lanes / std::max<int64_t>(row, 1), 1, program.uniform_lanes) : 1;
  Interpreter interpreter(env, program, whole_rows ? rows_at_once * row : program.element_lanes);
  interpreter.yield = yield;
  for (int64_t r = begin; r < end; r += rows_at_once) {
    const Block rows{r, std::min(rows_at_once, end - r), 0, row};
    interpreter.begin_reductions(rows.rows);
    interpreter.run(code.before.uniform, rows);
    for (const Pass& pass : code.passes) {
      if (whole_rows) {
        interpreter.run(pass.element, rows);
      } else {
        for (int64_t c = 0; c < row; c += program.element_lanes)
          interpreter.run(pass.element, {r, 1, c, std::min(program.element_lanes, row - c)});
      }
      interpreter.run(pass.uniform, rows);
    }
  }
  return interpreter.in_range;
}

bool run_columns(const Environment& env, const BoundProgram& program, int64_t begin, int64_t end) {
  const Pass& pass = program.code.passes[0];
  Interpreter interpreter(env, program, program.element_lanes);
  for (int64_t c = begin; c < end; c += program.element_lanes) {
    const int64_t columns = std::min(program.element_lanes, end - c);
    const int64_t rows_at_once = std::max<int64_t>(1, program.element_lanes / columns);
    interpreter.begin_reductions(columns);
    for (int64_t r = 0; r < program.outer_total; r += rows_at_once)
      interpreter.run(pass.element, {r, std::min(rows_at_once, program.outer_total - r), c, columns});
    interpreter.run(pass.uniform, {0, 1, c, columns});
  }
  return interpreter.in_range;
}

bool run_epilogue(const Environment& env, const BoundProgram& program, const Region& region, const Roots& roots) {
  Interpreter interpreter(env, program, region.rows * region.columns);
  interpreter.roots = roots;
  const std::vector<Step>& steps = program.code.passes[0].element;
  for (int64_t c = 0; c < region.columns; c += program.element_lanes) {
    const int64_t columns = std::min(program.element_lanes, region.columns - c);
    const int64_t rows_at_once = std::max<int64_t>(1, program.element_lanes / columns);
    for (int64_t r = 0; r < region.rows; r += rows_at_once)
      interpreter.run(steps, {region.row + r, std::min(rows_at_once, region.rows - r), region.column + c, columns});
  }
  return interpreter.in_range;
}

}  // namespace ark::targets::host
