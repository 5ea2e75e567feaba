// kMatmulRows: a few rows against weights [n][k] or [k][n]; prologue, up to three segments, pairs of columns, gates.
#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "base/unsupported.h"
#include "targets/host/tasks/gemm.h"
#include "targets/host/tasks/task.h"

namespace ark::targets::host {
namespace {

constexpr int64_t kChunk =
    2048;  // weights converted at once: with as much activation they stay in the first-level cache

template <class T>
class MatmulRowsTask : public Task {
 public:
  MatmulRowsTask(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels)
      : op_(op), params_(op_.record.params.rows) {
    const abi::MatmulRowsParams& p = params_;
    check(p.lanes == 1 || p.lanes == 2, "op '", op.name, "': ", p.lanes, " lanes");
    check(p.lanes == 1 || p.gated || p.pair_distance > 0, "op '", op.name, "': pair distance ", p.pair_distance);
    check(p.num_segments >= 1 && p.num_segments <= abi::kMaxSegments, "op '", op.name, "': ", p.num_segments,
          " segments");
    const int64_t activation[3] = {1, p.m, p.k};
    prologue_ = bind_task_program(plan, op, kernels, p.prologue, p.prologue_operand, activation);
    check(prologue_.code.kind == ProgramKind::kPrologue, "op '", op.name, "': its prologue is none");
    for (int s = 0; s < p.num_segments; ++s) {
      const abi::Segment& segment = p.segment[s];
      const int64_t size[3] = {1, p.m, segment.column + segment.num_units * columns_per_unit()};
      epilogues_.push_back(bind_task_program(plan, op, kernels, segment.program, segment.first_operand, size));
      const int count = static_cast<int>(op.operands.size());
      check(segment.weight >= 0 && segment.weight < count &&
                (!p.gated || (segment.weight2 >= 0 && segment.weight2 < count)),
            "op '", op.name, "': weights ", segment.weight, " and ", segment.weight2, " of ", count, " operands");
      check_node(reg_type(static_cast<DType>(op.operands[segment.weight].dtype)) == reg_type(dtype()), op.node, "op '",
                 op.name, "': weights of another type than ", name(dtype()));
    }
    activation_depends_on_tile_ = false;
    for (int w = 0; w < op.record.num_waits; ++w) activation_depends_on_tile_ |= op.record.wait[w].coef[0] != 0;
  }

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    bool in_range = true;
    const T* activation = load_activation(env, in_range);
    for (int s = 0; s < params_.num_segments; ++s) {
      const abi::Segment& segment = params_.segment[s];
      const int64_t begin = std::max<int64_t>(first, segment.first_unit),
                    end = std::min<int64_t>(first + count, segment.first_unit + segment.num_units);
      if (begin < end)
        in_range &= run_segment(env, s, activation, begin - segment.first_unit, end - segment.first_unit);
    }
    return in_range;
  }

  double cost_ns() const override { return 0.3 * double(params_.num_units) * params_.lanes * params_.k * params_.m; }

 private:
  /// The type of a prologue's results in memory.
  static constexpr DType kStored = std::is_same_v<T, float>    ? DType::kF32
                                   : std::is_same_v<T, double> ? DType::kF64
                                                               : DType::kI64;
  DType dtype() const { return static_cast<DType>(params_.dtype); }
  bool paired() const { return params_.lanes == 2 && !params_.gated; }
  int64_t columns_per_unit() const { return paired() ? 2 : 1; }

  /// The prologue's result [m][k], rounded to the type of the product as the device's is. Every tile of the op sees the
  /// same one, so a thread computes it once per launch (unless it is told to wait for different things by different
  /// tiles).
  const T* load_activation(const TileEnvironment& env, bool& in_range) const {
    T* data = env.scratch->get<T>(Scratch::kActivation, params_.m * params_.k);
    if (!activation_depends_on_tile_ && env.scratch->activation_owner == this &&
        env.scratch->activation_launch == env.launch)
      return data;
    T* raw = env.scratch->get<T>(Scratch::kTile, params_.m * params_.k);
    const UnaryFn round = env.kernels->round_to(dtype());
    in_range &= run_rows(env, prologue_, 0, params_.m, {round ? raw : data, reg_type(dtype())});
    if (round) round(data, raw, params_.m * params_.k);
    env.scratch->activation_owner = this;
    env.scratch->activation_launch = env.launch;
    return data;
  }

  /// sums[row * row_stride] += dot of each activation row with weight row `column`.
  void dot_rows(const TileEnvironment& env, const abi::Operand& weight, int64_t column, const T* activation, T* sums,
                int64_t row_stride) const {
    const auto type = static_cast<DType>(weight.dtype);
    const MatrixKernels<T>& matrix = matrix_kernels<T>(*env.kernels);
    const auto* row = static_cast<const std::byte*>(env.slots[weight.slot]) +
                      (weight.offset + column * weight.stride[0]) * size_bytes(type);
    if constexpr (sizeof(T) == sizeof(float)) {
      const auto dot = env.kernels->dot_storage[static_cast<int>(type)];
      if (params_.m == 1 && weight.stride[1] == 1 && dot) {
        *sums += dot(activation, row, params_.k);
        return;
      }
    }
    const bool direct = weight.stride[1] == 1 && size_bytes(type) == sizeof(T);
    T* converted = env.scratch->get<T>(Scratch::kConvert, kChunk);
    for (int64_t p = 0; p < params_.k; p += kChunk) {
      const int64_t depth = std::min<int64_t>(kChunk, params_.k - p);
      const std::byte* source = row + p * weight.stride[1] * size_bytes(type);
      if (!direct) env.kernels->load[static_cast<int>(type)](converted, source, weight.stride[1], depth);
      const T* values = direct ? reinterpret_cast<const T*>(source) : converted;
      for (int64_t m = 0; m < params_.m; ++m)
        sums[m * row_stride] += matrix.dot(activation + m * params_.k + p, values, depth);
    }
  }

  /// Units [begin, end) of a segment, counted from its first: whole runs of columns, one group of pairs at a time.
  bool run_segment(const TileEnvironment& env, int s, const T* activation, int64_t begin, int64_t end) const {
    if (!paired()) return run_columns_of(env, s, activation, params_.segment[s].column + begin, end - begin);
    bool in_range = true;
    for (int64_t unit = begin; unit < end;) {
      const int64_t group = unit / params_.pair_distance, in_group = unit % params_.pair_distance;
      const int64_t count = std::min(end - unit, params_.pair_distance - in_group);
      in_range &=
          run_pairs(env, s, activation, params_.segment[s].column + group * 2 * params_.pair_distance, in_group, count);
      unit += count;
    }
    return in_range;
  }

  bool run_columns_of(const TileEnvironment& env, int s, const T* activation, int64_t column, int64_t count) const {
    const abi::Segment& segment = params_.segment[s];
    if (params_.columns != 0) return run_strips_of(env, s, activation, column, count);
    const int64_t m = params_.m;
    T* sums = env.scratch->get<T>(Scratch::kTile, 2 * m * count);
    std::fill_n(sums, 2 * m * count, T(0));
    for (int64_t i = 0; i < count; ++i) {
      dot_rows(env, op_.operands[segment.weight], column + i, activation, sums + i, count);
      if (params_.gated)
        dot_rows(env, op_.operands[segment.weight2], column + i, activation, sums + m * count + i, count);
    }
    const Roots roots{.data = {sums, sums + m * count},
                      .type = reg_type(dtype()),
                      .row_stride = count,
                      .first_row = 0,
                      .first = column,
                      .count = count,
                      .pair_distance = 0};
    return run_epilogue(env, epilogues_[s], {0, m, column, count}, roots);
  }

  /// sums = the activation times columns [column, + count) of weights [k][n]: rows of them are added up.
  void add_rows(const TileEnvironment& env, const abi::Operand& weight, const T* activation, int64_t column,
                int64_t count, T* sums) const {
    const auto type = static_cast<DType>(weight.dtype);
    const MatrixView left{reinterpret_cast<const std::byte*>(activation), kStored, params_.k, 1};
    const MatrixView right{static_cast<const std::byte*>(env.slots[weight.slot]) +
                               (weight.offset + column * weight.stride[0]) * size_bytes(type),
                           type, weight.stride[1], weight.stride[0]};
    gemm_few_rows<T>(*env.kernels, *env.scratch, left, right, params_.m, count, params_.k, sums);
  }

  bool run_strips_of(const TileEnvironment& env, int s, const T* activation, int64_t column, int64_t count) const {
    const abi::Segment& segment = params_.segment[s];
    const int64_t m = params_.m, row_length = gemm_row_length<T>(*env.kernels, count),
                  size = gemm_rows<T>(*env.kernels, m) * row_length;
    T* sums = env.scratch->get<T>(Scratch::kTile, 2 * size);
    add_rows(env, op_.operands[segment.weight], activation, column, count, sums);
    if (params_.gated) add_rows(env, op_.operands[segment.weight2], activation, column, count, sums + size);
    const Roots roots{.data = {sums, params_.gated ? sums + size : nullptr},
                      .type = reg_type(dtype()),
                      .row_stride = row_length,
                      .first_row = 0,
                      .first = column,
                      .count = count,
                      .pair_distance = 0};
    return run_epilogue(env, epilogues_[s], {0, m, column, count}, roots);
  }

  /// Columns [column + in_group, + count) and their partners one pair distance further.
  bool run_pairs(const TileEnvironment& env, int s, const T* activation, int64_t column, int64_t in_group,
                 int64_t count) const {
    const abi::Operand& weight = op_.operands[params_.segment[s].weight];
    const int64_t m = params_.m, distance = params_.pair_distance, width = 2 * distance;
    T* sums = env.scratch->get<T>(Scratch::kTile, m * width);
    std::fill_n(sums, m * width, T(0));
    for (int64_t lane = 0; lane < 2; ++lane)
      for (int64_t i = in_group + lane * distance; i < in_group + lane * distance + count; ++i)
        dot_rows(env, weight, column + i, activation, sums + i, width);
    const Roots roots{.data = {sums, nullptr},
                      .type = reg_type(dtype()),
                      .row_stride = width,
                      .first_row = 0,
                      .first = column,
                      .count = width,
                      .pair_distance = distance};
    bool in_range = run_epilogue(env, epilogues_[s], {0, m, column + in_group, count}, roots);
    in_range &= run_epilogue(env, epilogues_[s], {0, m, column + in_group + distance, count}, roots);
    return in_range;
  }

  plan::Op op_;
  const abi::MatmulRowsParams& params_;
  BoundProgram prologue_;
  std::vector<BoundProgram> epilogues_;
  bool activation_depends_on_tile_ = false;
};

}  // namespace

std::unique_ptr<Task> make_rows_task(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels) {
  switch (reg_type(static_cast<DType>(op.record.params.rows.dtype))) {
    case RegType::kF32:
      return std::make_unique<MatmulRowsTask<float>>(plan, op, kernels);
    case RegType::kF64:
      return std::make_unique<MatmulRowsTask<double>>(plan, op, kernels);
    case RegType::kI64:
      return std::make_unique<MatmulRowsTask<int64_t>>(plan, op, kernels);
    case RegType::kBool:
      break;
  }
  throw NodeUnsupported(op.node, cat("op '", op.name, "': a product of booleans"));
}

}  // namespace ark::targets::host
