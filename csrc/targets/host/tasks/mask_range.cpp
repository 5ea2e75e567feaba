// kMaskRange: the first visible key and one past the last one, over all queries of a block.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/unsupported.h"
#include "device/abi/roles.h"
#include "targets/host/tasks/task.h"

namespace ark::targets::host {
namespace {

using X = abi::MaskRangeOperand;

class MaskRangeTask : public Task {
 public:
  explicit MaskRangeTask(const plan::Op& op) : op_(op) {}

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    for (int64_t tile = first; tile < first + count; ++tile) run_tile(env, tile_coordinates(op_.record, tile));
    return true;
  }
  double cost_ns() const override {
    const abi::MaskRangeParams& p = op_.record.params.mask_range;
    return double(p.batch) * p.heads * p.queries * p.keys;
  }

 private:
  void run_tile(const TileEnvironment& env, const TileCoordinates& tile) const {
    const abi::MaskRangeParams& p = op_.record.params.mask_range;
    const abi::Operand &mask = op_.operands[X::kMask], &out = op_.operands[X::kRange];
    const auto dtype = static_cast<DType>(mask.dtype);
    void* row = env.scratch->get(Scratch::kMask, p.keys * sizeof(double));
    int64_t begin = p.keys, end = 0;
    for (int64_t s = tile.c[2] * p.block; s < std::min<int64_t>(p.queries, (tile.c[2] + 1) * p.block); ++s) {
      const int64_t offset = mask.offset + tile.c[0] * mask.stride[0] + tile.c[1] * mask.stride[1] + s * mask.stride[2];
      env.kernels->load[static_cast<int>(dtype)](
          row, static_cast<const std::byte*>(env.slots[mask.slot]) + offset * size_bytes(dtype), mask.stride[3],
          p.keys);
      for (int64_t t = 0; t < begin; ++t)
        if (visible(dtype, row, t)) begin = t;
      for (int64_t t = p.keys; t > end; --t)
        if (visible(dtype, row, t - 1)) end = t;
    }
    const int32_t range[2] = {static_cast<int32_t>(std::min(begin, end)), static_cast<int32_t>(end)};
    const int64_t offset =
        out.offset + tile.c[0] * out.stride[0] + tile.c[1] * out.stride[1] + tile.c[2] * out.stride[2];
    auto* to = static_cast<int32_t*>(env.slots[out.slot]) + offset;
    to[0] = range[0];
    to[out.stride[3]] = range[1];
    to[2 * out.stride[3]] = to[3 * out.stride[3]] = 0;  // attention on the host reads every mask
  }

  static bool visible(DType dtype, const void* row, int64_t t) {
    if (dtype == DType::kBool) return static_cast<const uint8_t*>(row)[t] != 0;
    if (dtype == DType::kF64) return static_cast<const double*>(row)[t] != -std::numeric_limits<double>::infinity();
    return static_cast<const float*>(row)[t] != -std::numeric_limits<float>::infinity();
  }

  plan::Op op_;
};

}  // namespace

std::unique_ptr<Task> make_mask_range_task(const plan::Plan&, const plan::Op& op, const Kernels&) {
  check(op.operands.size() == 2, "op '", op.name, "': a mask range with ", op.operands.size(), " operands");
  const auto dtype = static_cast<DType>(op.operands[X::kMask].dtype);
  check_node(dtype == DType::kBool || is_float(dtype), op.node, "op '", op.name, "': a mask of ", name(dtype));
  return std::make_unique<MaskRangeTask>(op);
}

}  // namespace ark::targets::host
