// kRowSelect: the GPU's rounds. Sums of groups of bins are not needed here, and stay 0.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "device/abi/roles.h"
#include "targets/host/tasks/task.h"

namespace ark::targets::host {
namespace {

using X = abi::RowSelectOperand;
using Bins = std::vector<uint64_t>;

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
    const bool whole = params().parts == 1;
    if (!whole && params().round == 0) return store_sums(env, row, part);
    if (!whole && params().round == 1) return store_list(env, row, part);
    const std::vector<float> elements = whole ? part_of(env, row, part) : listed(env, row);
    for (int round = whole ? 0 : 1; round < abi::kSelectRounds; ++round)
      choose(env, row, round, count(elements, round, state.found), state);
    *address<int64_t>(env, X::kOut, row) = state.found;
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

  std::vector<float> part_of(const TileEnvironment& env, int64_t row, int64_t part) const {
    const int distances = has(X::kMade) ? X::kMade : X::kDistance;
    std::vector<float> elements;
    for (int64_t i = part * params().part; i < end_of(part); ++i)
      elements.push_back(*address<const float>(env, distances, row, i));
    return elements;
  }

  /// The histogram of the round's digit, of the elements whose higher bits have been found.
  Bins count(const std::vector<float>& elements, int round, uint32_t found) const {
    const int shift = abi::select_shift(round), above = abi::select_shift(round - 1);
    Bins bins(abi::kSelectBins);
    for (const float distance : elements) {
      const uint32_t steps = steps_of(distance);
      if ((steps ^ found) >> above != 0) continue;
      const uint32_t bin = (steps & ((1u << above) - 1)) >> shift, low = round == 0 ? bin << shift : found;
      bins[bin] += params().by_mass != 0 ? mass_of(distance, low) : 1;
    }
    return bins;
  }

  Bins sums_before(const TileEnvironment& env, int64_t row) const {
    Bins bins(abi::kSelectBins);
    for (int64_t part = 0; part < params().parts; ++part) {
      const uint32_t* sums = address<uint32_t>(env, X::kSumsBefore, row, part) + abi::kSelectGroups;
      for (size_t bin = 0; bin < bins.size(); ++bin) bins[bin] += sums[bin];
    }
    return bins;
  }
  std::vector<float> listed(const TileEnvironment& env, int64_t row) const {
    std::vector<float> elements;
    for (int64_t part = 0; part < params().parts; ++part) {
      const uint32_t* list = address<uint32_t>(env, X::kSumsBefore, row, part);
      const uint32_t number =
          std::min(list[0], static_cast<uint32_t>(params().part));  // behind a failed wait: anything
      for (uint32_t i = 0; i < number; ++i) elements.push_back(std::bit_cast<float>(list[abi::kSelectHead + i]));
    }
    return elements;
  }

  /// The digit is the last bin that fits.
  void choose(const TileEnvironment& env, int64_t row, int round, const Bins& bins, State& state) const {
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

  void store_sums(const TileEnvironment& env, int64_t row, int64_t part) const {
    uint32_t* to = address<uint32_t>(env, X::kSums, row, part);
    std::fill_n(to, abi::kSelectGroups, 0);
    for (const uint64_t sum : count(part_of(env, row, part), 0, 0))
      to++ [abi::kSelectGroups] = static_cast<uint32_t>(sum);
  }

  /// What the first digit leaves of the part.
  void store_list(const TileEnvironment& env, int64_t row, int64_t part) const {
    State state;
    choose(env, row, 0, sums_before(env, row), state);
    uint32_t *list = address<uint32_t>(env, X::kSums, row, part), number = 0;
    for (const float distance : part_of(env, row, part))
      if ((steps_of(distance) ^ state.found) >> abi::select_shift(0) == 0)
        list[abi::kSelectHead + number++] = std::bit_cast<uint32_t>(distance);
    list[0] = number;
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
