// kRowDraw: by what stage 2 does where lists do not tell. Lists and masses are not needed here, and are not written.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/abi/roles.h"
#include "targets/host/tasks/task.h"

namespace ark::targets::host {
namespace {

using X = abi::RowDrawOperand;

uint32_t steps_of(float distance) {
  const float steps = distance * abi::kSelectSteps, most = abi::kSelectFarthest;
  return static_cast<uint32_t>(steps < most ? std::max(steps, 0.0f) : most);  // a NaN is not below
}

/// Of what is so many steps away; what is farthest has none.
uint64_t mass_of(uint32_t steps) {
  constexpr double kUnits = uint64_t{1} << 40;
  if (steps >= abi::kSelectFarthest) return 0;
  return std::max<uint64_t>(static_cast<uint64_t>(std::llround(std::exp(-double(steps) / abi::kSelectSteps) * kUnits)),
                            1);
}

class RowDrawTask : public Task {
 public:
  explicit RowDrawTask(const plan::Op& op) : op_(op) {}

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    for (int64_t tile = first; tile < first + count && params().stage == abi::kDrawLast; ++tile)
      draw(env, tile_coordinates(op_.record, tile).c[0]);
    return true;
  }
  double cost_ns() const override {
    return 2000.0 * double(num_tiles(op_.record)) + 4.0 * double(params().rows) * params().size;
  }

 private:
  const abi::RowDrawParams& params() const { return op_.record.params.row_draw; }

  template <class T>
  T* address(const TileEnvironment& env, int number, int64_t row, int64_t second = 0) const {
    const abi::Operand& x = op_.operands[static_cast<size_t>(number)];
    return static_cast<T*>(env.slots[x.slot]) + x.offset + row * x.stride[0] + second * x.stride[1];
  }
  float value(const TileEnvironment& env, int64_t row, int64_t i) const {
    return *address<const float>(env, X::kValues, row, i);
  }

  void draw(const TileEnvironment& env, int64_t row) const {
    float top = -std::numeric_limits<float>::infinity();
    int64_t token = 0;
    for (int64_t i = 0; i < params().size && !std::isnan(top); ++i)
      if (!(value(env, row, i) <= top)) top = value(env, row, i), token = i;  // or a NaN
    float best = top;
    if (std::isfinite(top)) std::tie(best, token) = draw_below(env, row, top);
    *address<float>(env, X::kBest, row) = best;
    *address<int64_t>(env, X::kToken, row) = token;
  }

  std::pair<float, int64_t> draw_below(const TileEnvironment& env, int64_t row, float top) const {
    const uint32_t last = farthest_kept(env, row, top);
    std::pair<float, int64_t> best{0, -1};
    for (int64_t i = 0; i < params().size; ++i) {
      if (steps_of(top - value(env, row, i)) > last) continue;
      const float noisy = value(env, row, i) + *address<const float>(env, X::kNoise, row, i);
      if (best.second < 0 || noisy > best.first) best = {noisy, i};
    }
    return best;
  }

  /// The share leaves what is no farther.
  uint32_t farthest_kept(const TileEnvironment& env, int64_t row, float top) const {
    std::vector<uint32_t> steps;
    uint64_t all = 0, behind = 0;
    for (int64_t i = 0; i < params().size; ++i) {
      const uint32_t own = steps_of(top - value(env, row, i));
      if (mass_of(own) == 0) continue;
      steps.push_back(own);
      all += mass_of(own);
    }
    std::ranges::sort(steps, std::greater());
    const double limit = std::fmax(double{*address<const float>(env, X::kShare, row)}, 0.0) * double(all);
    for (const uint32_t own : steps) {
      behind += mass_of(own);
      if (double(behind) > limit) return own;
    }
    return 0;
  }

  plan::Op op_;
};

}  // namespace

std::unique_ptr<Task> make_row_draw_task(const plan::Plan&, const plan::Op& op, const Kernels&) {
  check(op.operands.size() == X::kCount, "op '", op.name, "': a row draw with ", op.operands.size(), " operands");
  return std::make_unique<RowDrawTask>(op);
}

}  // namespace ark::targets::host
