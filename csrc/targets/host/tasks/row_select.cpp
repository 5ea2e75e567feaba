// kRowSelect: the GPU's rounds. Sums of groups of bins, marks and lists are not needed here, and are not written.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/abi/roles.h"
#include "targets/host/tasks/task.h"

namespace ark::targets::host {
namespace {

using X = abi::RowSelectOperand;
using Sums = std::vector<uint64_t>;  // of the bins

struct State {
  uint32_t found = 0;             // bits
  double outside = 0, limit = 0;  // elements before what they leave, or the mass behind it
};

double distance_of(uint32_t steps) { return double(steps) / abi::kSelectSteps; }

uint32_t steps_of(float distance) {
  const float steps = distance * abi::kSelectSteps, most = abi::kSelectFarthest;
  return static_cast<uint32_t>(steps < most ? std::max(steps, 0.0f) : most);  // a NaN is not below
}

/// Relative to what is `low` steps away.
uint32_t mass_of(float distance, uint32_t low) {
  if (!(distance < abi::kSelectMassless)) return 0;
  const double units = std::exp(std::min(0.0, distance_of(low) - distance)) * (1 << abi::kSelectMassBits);
  return std::max(static_cast<uint32_t>(std::lround(units)), 1u);
}

class RowSelectTask : public Task {
 public:
  explicit RowSelectTask(const plan::Op& op) : op_(op) {}

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    for (int64_t tile = first; tile < first + count; ++tile) {
      const TileCoordinates at = tile_coordinates(op_.record, tile);
      run_tile(env, at.c[0], at.c[1]);
    }
    return true;
  }
  double cost_ns() const override {
    const double rounds = params().parts == 1 ? abi::kSelectRounds : 1;
    return 2000.0 * double(num_tiles(op_.record)) + 4.0 * rounds * double(params().rows) * params().size;
  }

 private:
  const abi::RowSelectParams& params() const { return op_.record.params.row_select; }
  const abi::Operand& operand(int number) const { return op_.operands[static_cast<size_t>(number)]; }
  bool has(int number) const { return operand(number).slot != abi::kNoSlot; }

  template <class T>
  T* address(const TileEnvironment& env, int number, int64_t row, int64_t second = 0) const {
    const abi::Operand& x = operand(number);
    return static_cast<T*>(env.slots[x.slot]) + x.offset + row * x.stride[0] + second * x.stride[1];
  }

  void run_tile(const TileEnvironment& env, int64_t row, int64_t part) const {
    State state;
    if (has(X::kStateBefore)) {
      const int64_t* from = address<int64_t>(env, X::kStateBefore, row, part);
      state = {static_cast<uint32_t>(from[0]), std::bit_cast<double>(from[1]), std::bit_cast<double>(from[2])};
    }
    if (has(X::kTops)) make_distances(env, row, part);
    if (params().listed != 0) return params().round == 0 ? void() : find(env, row);
    Sums bins;
    for (int round = params().round;; ++round) {
      if (round > 0) {
        if (has(X::kSumsBefore) && round == params().round) bins = sums_before(env, row);
        choose(env, row, round - 1, bins, state);
      }
      if (round == abi::kSelectRounds) break;
      bins = count(env, row, part, round, state.found);
      if (params().parts > 1 && round < abi::kSelectLast) return store(env, row, part, bins, state);
    }
    *address<int64_t>(env, X::kOut, row) = state.found;
  }

  /// What lists say; they are not needed here.
  void find(const TileEnvironment& env, int64_t row) const {
    const int64_t size = params().size, k = *address<const int64_t>(env, X::kBound, row);
    int64_t found = k <= 0 ? 0 : (int64_t{1} << abi::kSelectBits) - 1;
    if (k > 0 && k <= size) {
      std::vector<uint32_t> steps;
      for (int64_t i = 0; i < size; ++i) steps.push_back(steps_of(*address<const float>(env, X::kDistance, row, i)));
      std::ranges::nth_element(steps, steps.begin() + (k - 1));
      found = steps[static_cast<size_t>(k - 1)];
    }
    *address<int64_t>(env, X::kOut, row) = found;
    if (has(X::kCut)) *address<int64_t>(env, X::kCut, row) = cut(env, row, found);
  }

  /// By mass, among the elements that are no farther than `kept`; what is farthest has none.
  int64_t cut(const TileEnvironment& env, int64_t row, int64_t kept) const {
    std::vector<std::pair<uint32_t, double>> masses;
    double all = 0, behind = 0;
    for (int64_t i = 0; i < params().size; ++i) {
      const float distance = *address<const float>(env, X::kDistance, row, i);
      if (steps_of(distance) <= kept && steps_of(distance) < abi::kSelectFarthest)
        masses.emplace_back(steps_of(distance), std::exp(-double{distance}));
    }
    std::ranges::sort(masses, std::greater());
    for (const auto& [steps, mass] : masses) all += mass;
    const double limit = std::max(0.0, double{*address<const float>(env, X::kShare, row)}) * all;
    for (const auto& [steps, mass] : masses) {
      behind += mass;
      if (behind > limit) return steps;
    }
    return 0;
  }

  int64_t end_of(int64_t part) const { return std::min<int64_t>((part + 1) * params().part, params().size); }

  /// Of the part's values.
  void make_distances(const TileEnvironment& env, int64_t row, int64_t part) const {
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < params().tops; ++i) {
      const float other = *address<const float>(env, X::kTops, row, i);
      if (!(other <= top)) top = other;  // or a NaN
      if (std::isnan(top)) break;
    }
    for (int64_t i = part * params().part; i < end_of(part); ++i)
      *address<float>(env, X::kMade, row, i) = top - *address<const float>(env, X::kDistance, row, i);
  }

  /// The part's histogram of the round's digit, of the elements whose higher bits have been found.
  Sums count(const TileEnvironment& env, int64_t row, int64_t part, int round, uint32_t found) const {
    const int shift = abi::select_shift(round), above = abi::select_shift(round - 1);
    Sums sums(abi::kSelectBins);
    const bool last = params().round == abi::kSelectLast;
    const int64_t begin = part * params().part, end = last ? params().size : end_of(part);
    const int distances = has(X::kMade) ? X::kMade : X::kDistance;
    for (int64_t i = begin; i < end; ++i) {
      const float distance = *address<const float>(env, distances, row, i);
      const uint32_t steps = steps_of(distance);
      if ((steps ^ found) >> above != 0) continue;
      const uint32_t bin = (steps & ((1u << above) - 1)) >> shift, low = round == 0 ? bin << shift : found;
      sums[bin] += params().by_mass != 0 ? mass_of(distance, low) : 1;
    }
    return sums;
  }

  Sums sums_before(const TileEnvironment& env, int64_t row) const {
    Sums bins(abi::kSelectBins);
    for (int64_t part = 0; part < params().parts; ++part) {
      const uint32_t* sums = address<uint32_t>(env, X::kSumsBefore, row, part) + abi::kSelectGroups;
      for (size_t bin = 0; bin < bins.size(); ++bin) bins[bin] += sums[bin];
    }
    return bins;
  }

  /// The digit is the last bin that fits.
  void choose(const TileEnvironment& env, int64_t row, int round, const Sums& bins, State& state) const {
    const int shift = abi::select_shift(round), count = 1 << (abi::select_shift(round - 1) - shift);
    const bool by_mass = params().by_mass != 0;
    std::vector<double> sums(bins.begin(), bins.begin() + count);
    for (int bin = 0; by_mass && bin < count; ++bin)
      sums[static_cast<size_t>(bin)] *=
          std::exp(-distance_of(round == 0 ? static_cast<uint32_t>(bin) << shift : state.found));
    if (round == 0) state.limit = limit(env, row, sums);
    int chosen = 0;
    if (by_mass) {
      for (chosen = count - 1; chosen > 0; --chosen) {
        const double with = state.outside + sums[static_cast<size_t>(chosen)];
        if (with > state.limit) break;
        state.outside = with;
      }
    } else {
      for (; chosen < count - 1; ++chosen) {
        const double before = state.outside + sums[static_cast<size_t>(chosen)];
        if (before >= state.limit) break;
        state.outside = before;
      }
    }
    state.found |= static_cast<uint32_t>(chosen) << shift;
  }

  /// Fewer elements than that; more mass than that, all of it being `sums`.
  double limit(const TileEnvironment& env, int64_t row, const std::vector<double>& sums) const {
    if (params().by_mass == 0) return double(std::max<int64_t>(*address<const int64_t>(env, X::kBound, row), 0));
    double all = 0;
    for (size_t bin = sums.size(); bin-- > 0;) all += sums[bin];
    return std::max(0.0, double{*address<const float>(env, X::kBound, row)}) * all;
  }

  void store(const TileEnvironment& env, int64_t row, int64_t part, const Sums& sums, const State& state) const {
    std::ranges::transform(sums, address<uint32_t>(env, X::kSums, row, part) + abi::kSelectGroups,
                           [](uint64_t sum) { return static_cast<uint32_t>(sum); });
    if (!has(X::kState)) return;
    int64_t* to = address<int64_t>(env, X::kState, row, part);
    to[0] = state.found;
    to[1] = std::bit_cast<int64_t>(state.outside);
    to[2] = std::bit_cast<int64_t>(state.limit);
  }

  plan::Op op_;
};

}  // namespace

std::unique_ptr<Task> make_row_select_task(const plan::Plan&, const plan::Op& op, const Kernels&) {
  check(op.operands.size() == X::kCount, "op '", op.name, "': a row select with ", op.operands.size(), " operands");
  return std::make_unique<RowSelectTask>(op);
}

}  // namespace ark::targets::host
