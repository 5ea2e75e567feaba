// Launches of a plan on the host target with inputs made up for it.
#pragma once
#include <functional>
#include <random>

#include "ir/graph.h"
#include "support/test_host_util.h"

namespace ark::test {

/// Inputs of a graph with fixed contents, outputs and arena for one plan of it.
class PlanRun {
 public:
  /// `integer(i, rank 0)`: element i of every int64 input; other inputs are random, of this scale.
  PlanRun(const ir::Graph& graph, const plan::Plan& plan, std::function<int64_t(int64_t, bool)> integer,
          double scale = 0.3)
      : graph_(graph), plan_(plan), integer_(std::move(integer)), scale_(scale), arena_(plan.arena_bytes / 8 + 64) {
    for (const plan::Buffer& b : plan.buffers)
      memory_.emplace_back(b.kind == plan::BufferKind::kArena ? 0 : size_t(b.size_bytes) / 8 + 16);
    fill();
    initial_ = memory_;
  }
  /// Contents of everything the caller can see after a launch (inputs may be written).
  std::vector<std::vector<double>> launch(targets::Executable& executable, std::vector<uint32_t>& state,
                                          uint64_t seed) {
    std::fill(arena_.begin(), arena_.end(), std::nan(""));  // what is read before it is written shows
    for (size_t i = 0; i < memory_.size(); ++i) std::copy(initial_[i].begin(), initial_[i].end(), memory_[i].begin());
    std::vector<void*> slots;
    for (size_t i = 0; i < plan_.buffers.size(); ++i) {
      const plan::Buffer& b = plan_.buffers[i];
      slots.push_back(b.kind == plan::BufferKind::kArena ? reinterpret_cast<char*>(arena_.data()) + b.arena_offset
                                                         : static_cast<void*>(memory_[i].data()));
    }
    executable.launch({.slots = slots, .run_state = state.data(), .seed = seed});
    std::vector<std::vector<double>> seen(graph_.inputs.size() + plan_.fresh.size());
    for (size_t i = 0; i < plan_.buffers.size(); ++i) {
      const plan::Buffer& b = plan_.buffers[i];
      if (b.kind == plan::BufferKind::kInput) seen[b.index] = memory_[i];
      if (b.kind == plan::BufferKind::kOutput) seen[graph_.inputs.size() + b.index] = memory_[i];
    }
    return seen;
  }

 private:
  void fill() {
    for (size_t i = 0; i < plan_.buffers.size(); ++i) {
      const plan::Buffer& b = plan_.buffers[i];
      if (b.kind != plan::BufferKind::kInput) continue;
      const ir::Value& value = graph_.values[graph_.inputs[b.index]];
      const DType dtype = value.dtype;
      std::mt19937 random(unsigned(b.index));
      const int64_t n = b.size_bytes / size_bytes(dtype);
      if (dtype == DType::kI64)
        for (int64_t j = 0; j < n; ++j) write_value(memory_[i].data(), dtype, j, {0, integer_(j, value.sizes.empty())});
      else
        fill_random(memory_[i].data(), dtype, n, random, scale_);
    }
  }
  const ir::Graph& graph_;
  const plan::Plan& plan_;
  std::function<int64_t(int64_t, bool)> integer_;
  double scale_;
  std::vector<std::vector<double>> memory_, initial_;
  std::vector<double> arena_;
};

inline bool same_bits(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].size() != b[i].size() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * 8) != 0) return false;
  return true;
}

}  // namespace ark::test
