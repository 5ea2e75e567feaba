// kScatterSum: rows of the source, added to the rows that their indices name.
#include <algorithm>

#include "base/check.h"
#include "base/unsupported.h"
#include "targets/host/tasks/attention.h"

namespace ark::targets::host {
namespace {

using X = abi::ScatterSumOperand;

template <class T>
class ScatterSumTask : public Task {
 public:
  explicit ScatterSumTask(const plan::Op& op) : op_(op) {}

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    for (int64_t tile = first; tile < first + count; ++tile) run_tile(env, tile_coordinates(op_.record, tile));
    return true;
  }
  double cost_ns() const override {
    return double(params().terms) * params().columns / 4 + double(params().rows) * params().columns / 16;
  }

 private:
  const abi::ScatterSumParams& params() const { return op_.record.params.scatter_sum; }

  void* address(const TileEnvironment& env, int operand, int64_t row, int64_t column) const {
    const abi::Operand& x = op_.operands[static_cast<size_t>(operand)];
    const int64_t at = x.offset + row * x.stride[0] + column * x.stride[1];
    return static_cast<std::byte*>(env.slots[x.slot]) + at * size_bytes(static_cast<DType>(x.dtype));
  }

  int64_t index(const TileEnvironment& env, int64_t t) const {
    const void* at = address(env, X::kIndex, t, 0);
    return params().index_dtype == static_cast<int>(DType::kI32) ? *static_cast<const int32_t*>(at)
                                                                 : *static_cast<const int64_t*>(at);
  }

  void run_tile(const TileEnvironment& env, const TileCoordinates& tile) const {
    const abi::ScatterSumParams& p = params();
    const auto dtype = static_cast<DType>(p.dtype);
    const int64_t wide = int64_t{p.lanes} * p.vector, row = tile.c[0] * p.tile_rows, column = tile.c[1] * wide;
    const int64_t rows = std::min<int64_t>(p.tile_rows, p.rows - row), columns = std::min(wide, p.columns - column);
    T* sums = env.scratch->get<T>(Scratch::kOutput, rows * columns);
    T* term = env.scratch->get<T>(Scratch::kGradient, columns);
    std::fill_n(sums, rows * columns, T(0));
    for (int64_t t = 0; t < p.terms; ++t) {
      const int64_t to = index(env, t) - row;
      if (to < 0 || to >= rows || to + row == p.without) continue;
      load_values<T>(env, address(env, X::kSource, t, column), dtype, op_.operands[X::kSource].stride[1], term,
                     columns);
      for (int64_t c = 0; c < columns; ++c) sums[to * columns + c] += term[c];
    }
    for (int64_t r = 0; r < rows; ++r)
      store_values<T>(env, address(env, X::kOut, row + r, column), dtype, op_.operands[X::kOut].stride[1],
                      sums + r * columns, columns);
  }

  plan::Op op_;
};

}  // namespace

std::unique_ptr<Task> make_scatter_sum_task(const plan::Plan&, const plan::Op& op, const Kernels&) {
  check(op.operands.size() == X::kCount, "op '", op.name, "': a sum by index with ", op.operands.size(), " operands");
  const auto dtype = static_cast<DType>(op.record.params.scatter_sum.dtype);
  check_node(is_float(dtype), op.node, "op '", op.name, "': a sum by index of ", name(dtype));
  if (dtype == DType::kF64) return std::make_unique<ScatterSumTask<double>>(op);
  return std::make_unique<ScatterSumTask<float>>(op);
}

}  // namespace ark::targets::host
