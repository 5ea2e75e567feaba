// kMatmulTile, kMatmulFloat and kMatmulSimple: the same product, whatever the device would compute it with.
#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/unsupported.h"
#include "device/abi/roles.h"
#include "targets/host/tasks/gemm.h"
#include "targets/host/tasks/task.h"

namespace ark::targets::host {
namespace {

constexpr int kFewRows = 4;  // below, packing a panel costs more than the product

template <class T>
constexpr RegType kRegType = RegType::kF32;
template <>
constexpr RegType kRegType<double> = RegType::kF64;
template <>
constexpr RegType kRegType<int64_t> = RegType::kI64;

template <class T>
class MatmulTask : public Task {
 public:
  MatmulTask(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels)
      : record_(op.record), params_(op.record.params.matmul), a_(op.operands.at(0)), b_(op.operands.at(1)) {
    if (abi::has_own_rows(record_)) own_ = op.operands.at(abi::MatmulOperand::kOwn);
    if (abi::is_gated_tile(record_)) b2_ = op.operands.at(abi::MatmulOperand::kB2);
    const int64_t size[3] = {params_.batch, params_.m, params_.n};
    epilogue_ = bind_task_program(plan, op, kernels, params_.program, params_.first_operand, size);
    check(epilogue_.code.kind == ProgramKind::kEpilogue, "op '", op.name, "': its program is no epilogue");
    check(params_.tile_m > 0 && params_.tile_n > 0, "op '", op.name, "': tile ", params_.tile_m, " x ", params_.tile_n);
  }

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    bool in_range = true;
    for (int64_t tile = first; tile < first + count; ++tile) in_range &= run_tile(env, tile);
    return in_range;
  }

  double cost_ns() const override {
    return 0.05 * (b2_ ? 2 : 1) * double(params_.batch) * params_.m * params_.n * params_.k;
  }

 private:
  static MatrixView view(const TileEnvironment& env, const abi::Operand& x, int64_t batch, int64_t row,
                         int64_t column) {
    const auto dtype = static_cast<DType>(x.dtype);
    const int64_t offset = x.offset + batch * x.stride[0] + row * x.stride[1] + column * x.stride[2];
    return {static_cast<const std::byte*>(env.slots[x.slot]) + offset * size_bytes(dtype), dtype, x.stride[1],
            x.stride[2]};
  }

  bool run_tile(const TileEnvironment& env, int64_t tile) const {
    const auto [c] = tile_coordinates(record_, tile);
    const int64_t row = c[1] * params_.tile_m, column = c[2] * params_.tile_n;
    const int64_t rows = std::min<int64_t>(params_.tile_m, params_.m - row),
                  columns = std::min<int64_t>(params_.tile_n, params_.n - column);
    if (rows <= 0 || columns <= 0) return true;
    const int64_t row_length = gemm_row_length<T>(*env.kernels, columns);
    const int64_t size = gemm_rows<T>(*env.kernels, rows) * row_length;
    T* sums = env.scratch->get<T>(Scratch::kTile, b2_ ? 2 * size : size);
    const auto product = params_.m <= kFewRows ? gemm_few_rows<T> : gemm<T>;
    const abi::Operand& a = abi::has_own_rows(record_) && c[0] == env.rank ? own_ : a_;
    const auto multiply = [&](const abi::Operand& b, T* to) {
      product(*env.kernels, *env.scratch, view(env, a, c[0], row, 0), view(env, b, c[0], 0, column), rows, columns,
              params_.k, to);
    };
    multiply(b_, sums);
    if (b2_) multiply(*b2_, sums + size);
    const int64_t first_row = c[0] * params_.m + row;
    const Roots roots{.data = {sums, b2_ ? sums + size : nullptr},
                      .type = kRegType<T>,
                      .row_stride = row_length,
                      .first_row = first_row,
                      .first = column,
                      .count = columns,
                      .pair_distance = params_.pair_distance};
    return run_epilogue(env, epilogue_, {first_row, rows, column, columns}, roots);
  }

  abi::OpRecord record_;
  abi::MatmulTileParams params_;
  abi::Operand a_, b_, own_{};
  std::optional<abi::Operand> b2_;  // of gated ones
  BoundProgram epilogue_;
};

}  // namespace

std::unique_ptr<Task> make_matmul_task(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels) {
  check(op.operands.size() >= 2, "op '", op.name, "': a matmul with ", op.operands.size(), " operands");
  const auto a = static_cast<DType>(op.operands[abi::MatmulOperand::kA].dtype),
             b = static_cast<DType>(op.operands[abi::MatmulOperand::kB].dtype);
  check_node(reg_type(a) == reg_type(b), op.node, "op '", op.name, "': a product of ", name(a), " and ", name(b));
  switch (reg_type(a)) {
    case RegType::kF32:
      return std::make_unique<MatmulTask<float>>(plan, op, kernels);
    case RegType::kF64:
      return std::make_unique<MatmulTask<double>>(plan, op, kernels);
    case RegType::kI64:
      return std::make_unique<MatmulTask<int64_t>>(plan, op, kernels);
    case RegType::kBool:
      break;
  }
  throw NodeUnsupported(op.node, cat("op '", op.name, "': a product of booleans"));
}

}  // namespace ark::targets::host
