// Plans made by hand for the host target, and a scalar evaluator of programs that shares no code with it.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "targets/target.h"

namespace ark::test {

inline int failures = 0;
inline void expect(bool ok, const std::string& what) {
  if (ok) return;
  if (++failures <= 40) std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}
inline int finish(const char* name) {
  std::printf("%s: %s, %d failures\n", name, failures ? "FAILED" : "ok", failures);
  return failures ? 1 : 0;
}

// ---- values in memory, one at a time ----
inline float half_to_float(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? std::nanf("") : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024.0f + mantissa, exponent - 25) : std::ldexp(float(mantissa), -24));
}
/// Nearest half by search over all of them (ties to even): slow and obviously right.
inline uint16_t float_to_half(float f) {
  if (f != f) return 0x7e00;
  const uint16_t sign = std::signbit(f) ? 0x8000 : 0;
  const double a = std::fabs(double(f));
  uint16_t low = 0, high = 0x7c00;
  while (high - low > 1) {
    const uint16_t middle = (low + high) / 2;
    (double(half_to_float(middle)) <= a ? low : high) = middle;
  }
  const double below = half_to_float(low), above = high == 0x7c00 ? 65536.0 : half_to_float(high);
  const bool up = a - below > above - a || (a - below == above - a && (low & 1));
  return (up ? high : low) | sign;
}
inline float bfloat_to_float(uint16_t b) {
  const uint32_t bits = uint32_t(b) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint16_t float_to_bfloat(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if (f != f) return 0x7fc0;
  const uint32_t rest = bits & 0xffff, up = rest > 0x8000 || (rest == 0x8000 && ((bits >> 16) & 1));
  return uint16_t((bits >> 16) + up);
}

/// A scalar of a compute type: f for floats, i for integers and bool.
struct Value {
  double f = 0;
  int64_t i = 0;
};
inline bool float_type(DType t) { return is_float(t); }
template <class T>
T read_as(const void* p, int64_t index) {
  T x;
  std::memcpy(&x, static_cast<const char*>(p) + index * int64_t(sizeof(T)), sizeof(T));
  return x;
}
inline Value read_value(const void* p, DType t, int64_t index) {
  switch (t) {
    case DType::kBool:
      return {0, read_as<uint8_t>(p, index) != 0};
    case DType::kU8:
      return {0, read_as<uint8_t>(p, index)};
    case DType::kI8:
      return {0, read_as<int8_t>(p, index)};
    case DType::kI16:
      return {0, read_as<int16_t>(p, index)};
    case DType::kI32:
      return {0, read_as<int32_t>(p, index)};
    case DType::kI64:
      return {0, read_as<int64_t>(p, index)};
    case DType::kF16:
      return {half_to_float(read_as<uint16_t>(p, index)), 0};
    case DType::kBF16:
      return {bfloat_to_float(read_as<uint16_t>(p, index)), 0};
    case DType::kF32:
      return {read_as<float>(p, index), 0};
    case DType::kF64:
      return {read_as<double>(p, index), 0};
  }
  return {};
}
inline void write_value(void* p, DType t, int64_t index, Value v) {
  char* to = static_cast<char*>(p) + index * size_bytes(t);
  const auto put = [&](auto x) { std::memcpy(to, &x, sizeof(x)); };
  switch (t) {
    case DType::kBool:
      return put(uint8_t(v.i != 0));
    case DType::kU8:
      return put(uint8_t(v.i));
    case DType::kI8:
      return put(int8_t(v.i));
    case DType::kI16:
      return put(int16_t(v.i));
    case DType::kI32:
      return put(int32_t(v.i));
    case DType::kI64:
      return put(v.i);
    case DType::kF16:
      return put(float_to_half(float(v.f)));
    case DType::kBF16:
      return put(float_to_bfloat(float(v.f)));
    case DType::kF32:
      return put(float(v.f));
    case DType::kF64:
      return put(v.f);
  }
}

// ---- plans ----
inline std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (int d = int(sizes.size()) - 2; d >= 0; --d) strides[d] = strides[d + 1] * sizes[d + 1];
  return strides;
}
inline abi::Operand operand(uint32_t slot, DType dtype, const std::vector<int64_t>& strides, int64_t offset = 0) {
  abi::Operand o{};
  o.slot = slot;
  o.dtype = short(dtype);
  o.vector = 1;
  o.index_operand = -1;
  o.offset = offset;
  for (size_t d = 0; d < strides.size(); ++d) o.stride[d] = strides[d];
  return o;
}

/// A plan and the memory of its slots. Ops run one after the other: each waits for all tiles of the one before it.
class HostPlan {
 public:
  plan::Plan plan;
  std::vector<std::vector<char>> memory;

  explicit HostPlan(int workers = 132) {
    plan.name = "test";
    plan.num_workers = workers;
    plan.lists.resize(workers);
  }
  uint32_t slot(DType dtype, int64_t elements) {
    memory.emplace_back(elements * size_bytes(dtype) + 64);
    plan::Buffer buffer;
    buffer.kind = plan::BufferKind::kInput;
    buffer.index = int(plan.buffers.size());
    plan.buffers.push_back(buffer);
    return uint32_t(plan.buffers.size()) - 1;
  }
  int program(const Program& p) {
    plan.programs.push_back(p);
    return int(plan.programs.size()) - 1;
  }
  /// Tiles are dealt out to the workers in pieces of `piece`.
  plan::Op& add(plan::Op op, int piece = 1) {
    abi::OpRecord& r = op.record;
    r.op = int(plan.ops.size());
    r.num_operands = int(op.operands.size());
    const int tiles = r.grid[0] * r.grid[1] * r.grid[2];
    if (r.op > 0) {
      const abi::OpRecord& before = plan.ops.back().record;
      r.num_waits = 1;
      r.wait[0] = {.counter = uint32_t(r.op - 1),
                   .base = 0,
                   .coef = {0, 0, 0},
                   .extent = 1,
                   .div = 1,
                   .limit = 1,
                   .target = uint32_t(before.grid[0] * before.grid[1] * before.grid[2]),
                   .last_target = 0,
                   .role = 0,
                   .rank_stride = 0};
      r.wait[0].last_target = r.wait[0].target;
    }
    r.num_arrivals = 1;
    r.arrive[0] = {.counter = uint32_t(r.op), .base = 0, .coef = {0, 0, 0}, .extent = 1, .div = 1, .limit = 1};
    plan.num_counters = r.op + 1;
    if (op.name.empty()) op.name = cat("op", r.op);
    for (int t = 0, w = r.op; t < tiles; t += piece, ++w)
      plan.lists[w % plan.num_workers].push_back({0, t, std::min(piece, tiles - t), r.op});
    plan.ops.push_back(op);
    return plan.ops.back();
  }
  std::vector<void*> addresses() {
    std::vector<void*> slots;
    for (auto& m : memory) slots.push_back(m.data());
    return slots;
  }
  void run(uint64_t seed = 0, int threads = 1) {
    auto executable = targets::make_host(plan, {.num_threads = threads, .deadline_ns = 2'000'000'000});
    std::vector<uint32_t> state(executable->state_bytes() / 4);
    const std::vector<void*> slots = addresses();
    executable->launch({.slots = slots, .run_state = state.data(), .seed = seed});
  }
};

/// An op of a program kind over dense tiles.
inline plan::Op program_op(HostPlan& p, const Program& program, const std::vector<int64_t>& size,
                           std::vector<abi::Operand> operands, int64_t tile) {
  plan::Op op;
  abi::OpRecord& r = op.record;
  r.kind = program.kind == ProgramKind::kRow      ? abi::TaskKind::kRow
           : program.kind == ProgramKind::kColumn ? abi::TaskKind::kColumn
                                                  : abi::TaskKind::kPointwise;
  int64_t outer = 1, inner = 1, all = 1;
  const int split = r.kind == abi::TaskKind::kColumn ? program.reduce_dims : int(size.size()) - program.reduce_dims;
  for (size_t d = 0; d < size.size(); ++d) {
    r.size[d] = size[d];
    all *= size[d];
    (int(d) < split ? outer : inner) *= size[d];
  }
  abi::ProgramParams& params = r.params.program;
  params = {.program = p.program(program),
            .first_operand = 0,
            .num_dims = int(size.size()),
            .reduce_dims = program.reduce_dims,
            .tile = tile,
            .split = 1,
            .num_rows = 1,
            .row_size = 1};
  int64_t items = all;
  if (r.kind == abi::TaskKind::kRow) items = params.num_rows = outer, params.row_size = inner;
  if (r.kind == abi::TaskKind::kColumn) items = params.num_rows = inner, params.split = params.row_size = outer;
  r.grid[0] = r.grid[1] = 1;
  r.grid[2] = int((items + tile - 1) / tile);
  op.operands = std::move(operands);
  return op;
}

// ---- instructions ----
struct ProgramMaker {
  Program p;
  int push(Instr in) {
    p.instrs.push_back(in);
    return int(p.instrs.size()) - 1;
  }
  int constant(DType t, double f, int64_t i = 0) {
    return push({.op = Opcode::kConst, .dtype = t, .imm = f, .imm_int = i});
  }
  int index(int dim) { return push({.op = Opcode::kIndex, .dtype = DType::kI64, .aux = int16_t(dim)}); }
  int load(int operand, DType t, int a = -1, int b = -1, int predicate = -1) {
    return push({.op = Opcode::kLoad,
                 .dtype = t,
                 .a = int16_t(a),
                 .b = int16_t(b),
                 .c = int16_t(predicate),
                 .operand = int16_t(operand)});
  }
  int store(int operand, DType t, int value, bool uniform = false, int b = -1, int c = -1, int predicate = -1) {
    return push({.op = Opcode::kStore,
                 .dtype = t,
                 .a = int16_t(value),
                 .b = int16_t(b),
                 .c = int16_t(c),
                 .d = int16_t(predicate),
                 .operand = int16_t(operand),
                 .uniform = uniform});
  }
  int apply(Opcode op, DType t, int a, int b = -1, int c = -1) {
    return push({.op = op, .dtype = t, .a = int16_t(a), .b = int16_t(b), .c = int16_t(c)});
  }
  int reduce(ReduceOp op, DType t, int a) {
    return push({.op = Opcode::kReduce, .dtype = t, .a = int16_t(a), .aux = int16_t(op)});
  }
  int root(int which = 0, int delta = 0) {
    return push({.op = Opcode::kRoot, .dtype = DType::kF32, .aux = int16_t(which), .delta_sign = int8_t(delta)});
  }
};

inline bool close(double got, double wanted, double relative, double absolute) {
  if (std::isnan(got) || std::isnan(wanted)) return std::isnan(got) && std::isnan(wanted);
  if (std::isinf(got) || std::isinf(wanted)) return got == wanted;
  return std::fabs(got - wanted) <= absolute + relative * std::fabs(wanted);
}

inline void fill_random(void* p, DType t, int64_t n, std::mt19937& random, double scale = 1) {
  std::normal_distribution<double> normal(0, scale);
  for (int64_t i = 0; i < n; ++i) write_value(p, t, i, {normal(random), int64_t(random() % 41) - 20});
  if (t == DType::kBool)
    for (int64_t i = 0; i < n; ++i) write_value(p, t, i, {0, int64_t(random() & 1)});
}

}  // namespace ark::test
