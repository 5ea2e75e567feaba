// A loop on the host target: its memory, and launches of one iteration or of several.
#pragma once
#include <functional>
#include <random>

#include "ir/graph.h"
#include "support/test_host_util.h"

namespace ark::test {

class LoopRun {
 public:
  /// `integers`: per int64 input, in order, what all of its elements are; bools are true, floats random.
  LoopRun(const ir::Graph& graph, const plan::Plan& plan, std::vector<int64_t> integers, int threads,
          uint64_t deadline_ns = 5'000'000'000)
      : plan_(plan),
        executable_(targets::make_host(plan, {.num_threads = threads, .deadline_ns = deadline_ns})),
        state_(executable_->state_bytes() / 4),
        arena_(static_cast<size_t>(plan.arena_bytes / 8 + 64), std::nan("")) {
    for (const plan::Buffer& b : plan.buffers)
      memory_.emplace_back(b.kind == plan::BufferKind::kArena ? 0 : static_cast<size_t>(b.size_bytes) / 8 + 16);
    for (size_t i = 0; i < plan.buffers.size(); ++i) {
      const plan::Buffer& b = plan.buffers[i];
      if (b.kind == plan::BufferKind::kInput) fill(i, graph.values[graph.inputs[b.index]].dtype, integers);
      slots_.push_back(b.kind == plan::BufferKind::kArena ? reinterpret_cast<char*>(arena_.data()) + b.arena_offset
                                                          : static_cast<void*>(memory_[i].data()));
    }
  }
  void single(uint64_t seed) { executable_->launch({.slots = slots_, .run_state = state_.data(), .seed = seed}); }
  /// How many ran.
  int64_t loop(int64_t most, uint64_t seed) {
    iterations.most = most;
    executable_->launch({.slots = slots_, .run_state = state_.data(), .seed = seed, .iterations = &iterations});
    return iterations.done;
  }
  /// What the caller sees: inputs and outputs.
  const std::vector<std::vector<double>>& seen() const { return memory_; }
  /// As if tiles had arrived on the counter that never did.
  void add_arrivals(uint32_t counter, uint32_t count) {
    state_[sizeof(abi::RunState) / 4 + int64_t{counter} * abi::kCounterStride] += count;
  }
  uint32_t epoch() const { return state_[0]; }
  int64_t integer(int32_t slot) const {
    return read_value(memory_[static_cast<size_t>(slot)].data(), DType::kI64, 0).i;
  }
  void set_integer(int32_t slot, int64_t number) {
    write_value(memory_[static_cast<size_t>(slot)].data(), DType::kI64, 0, {0, number});
  }
  /// The stop flag says of the first iteration that it does not run.
  void run_none() { write_value(memory_[static_cast<size_t>(plan_.loop.go_slot)].data(), DType::kBool, 0, {0, 0}); }

  targets::Iterations iterations;

 private:
  void fill(size_t slot, DType dtype, std::vector<int64_t>& integers) {
    const int64_t n = plan_.buffers[slot].size_bytes / size_bytes(dtype);
    std::mt19937 random(static_cast<unsigned>(plan_.buffers[slot].index));
    if (is_float(dtype)) return fill_random(memory_[slot].data(), dtype, n, random, 0.3);
    int64_t number = 1;
    if (dtype == DType::kI64) {
      number = integers.at(0);
      integers.erase(integers.begin());
    }
    for (int64_t i = 0; i < n; ++i) write_value(memory_[slot].data(), dtype, i, {0, number});
  }

  const plan::Plan& plan_;
  std::unique_ptr<targets::Executable> executable_;
  std::vector<uint32_t> state_;
  std::vector<double> arena_;
  std::vector<std::vector<double>> memory_;
  std::vector<void*> slots_;
};

inline bool same_memory(const LoopRun& a, const LoopRun& b) {
  for (size_t i = 0; i < a.seen().size(); ++i)
    if (std::memcmp(a.seen()[i].data(), b.seen()[i].data(), a.seen()[i].size() * 8) != 0) return false;
  return true;
}

}  // namespace ark::test
