// The ranks of a plan with exchanges as threads of this process: memory, launches, inputs that change with every
// launch.
#pragma once
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "ir/graph.h"
#include "targets/target.h"

namespace ark::test {

using Floats = std::vector<float>;
using Tensors = std::vector<Floats>;  // of one rank

/// Segments of all ranks; boxes hold NaN until somebody writes them.
class RankSegments {
 public:
  RankSegments(const plan::Plan& plan, uint64_t deadline_ns) {
    const size_t counters = static_cast<size_t>(plan.num_counters) * abi::kCounterStride * sizeof(abi::u32);
    const size_t state_bytes = sizeof(abi::RunState) + counters;
    const size_t bytes = targets::rank_segment_bytes(plan, state_bytes);
    for (int r = 0; r < plan.world; ++r) {
      memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(256, bytes)), &std::free);
      std::memset(memory_.back().get(), 0xff, bytes);
      std::memset(targets::rank_state(plan, memory_.back().get()), 0, state_bytes);
    }
    for (int r = 0; r < plan.world; ++r) {
      targets::RankMemory view{.rank = r, .deadline_ns = deadline_ns};
      for (const auto& segment : memory_) view.segments.push_back(segment.get());
      views_.push_back(view);
    }
  }
  const targets::RankMemory& of(int rank) const { return views_[static_cast<size_t>(rank)]; }

 private:
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory_;
  std::vector<targets::RankMemory> views_;
};

/// One rank's launches of a plan whose inputs and outputs are f32.
class RankLauncher {
 public:
  RankLauncher(const plan::Plan& plan, targets::Executable& executable, const targets::RankMemory& memory)
      : plan_(plan), executable_(executable), memory_(memory), arena_(static_cast<size_t>(plan.arena_bytes) / 8 + 64) {}

  Tensors launch(Tensors& inputs, uint64_t seed) {
    std::fill(arena_.begin(), arena_.end(), std::nan(""));
    std::vector<void*> slots;
    Tensors outputs(plan_.fresh.size());
    for (const plan::Buffer& b : plan_.buffers) {
      void* address = nullptr;
      if (b.kind == plan::BufferKind::kInput) address = inputs[static_cast<size_t>(b.index)].data();
      if (b.kind == plan::BufferKind::kArena) address = reinterpret_cast<std::byte*>(arena_.data()) + b.arena_offset;
      if (b.kind == plan::BufferKind::kOutput) {
        outputs[static_cast<size_t>(b.index)].resize(static_cast<size_t>(b.size_bytes) / sizeof(float));
        address = outputs[static_cast<size_t>(b.index)].data();
      }
      slots.push_back(address);
    }
    executable_.launch({.slots = slots, .seed = seed, .ranks = &memory_});
    return outputs;
  }

 private:
  const plan::Plan& plan_;
  targets::Executable& executable_;
  const targets::RankMemory& memory_;
  std::vector<double> arena_;
};

/// Inputs of a rank in a launch: small integers, whose products and sums are exact; they differ between ranks but for
/// the inputs named in `same`.
inline Tensors make_inputs(const ir::Graph& graph, int rank, int launch, const std::vector<int>& same) {
  Tensors inputs;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const bool shared = std::find(same.begin(), same.end(), static_cast<int>(i)) != same.end();
    std::mt19937 random(static_cast<unsigned>(launch * 1000 + static_cast<int>(i) * 10 + (shared ? 9 : rank)));
    size_t n = 1;
    for (const ir::Size& s : graph.values[static_cast<size_t>(graph.inputs[i])].sizes)
      n *= static_cast<size_t>(s.value);
    Floats x(n);
    for (float& value : x) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
    inputs.push_back(std::move(x));
  }
  return inputs;
}

struct RankRun {
  int launches = 12, num_threads = 1;
  uint64_t seed = 1;
  bool stragglers = false;  // some ranks begin a launch late
  bool shared = false;      // one executable for all ranks
  std::vector<int> same;    // inputs that are equal on all ranks
};

/// Per launch and rank, the plan's outputs. Throws what a rank threw.
inline std::vector<std::vector<Tensors>> run_ranks(const ir::Graph& graph, const plan::Plan& plan, const RankRun& run) {
  const RankSegments segments(plan, 20'000'000'000);
  std::vector<std::unique_ptr<targets::Executable>> executables;
  for (int r = 0; r < (run.shared ? 1 : plan.world); ++r)
    executables.push_back(targets::make_host(plan, {.num_threads = run.num_threads}));
  std::vector<std::vector<Tensors>> results(static_cast<size_t>(run.launches),
                                            std::vector<Tensors>(static_cast<size_t>(plan.world)));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(plan.world));
  auto body = [&](int rank) {
    std::mt19937 random(static_cast<unsigned>(run.seed * 100) + static_cast<unsigned>(rank));
    RankLauncher launcher(plan, *executables[run.shared ? 0 : static_cast<size_t>(rank)], segments.of(rank));
    try {
      for (int launch = 0; launch < run.launches; ++launch) {
        Tensors inputs = make_inputs(graph, rank, launch, run.same);
        if (run.stragglers && random() % 3 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
        results[static_cast<size_t>(launch)][static_cast<size_t>(rank)] = launcher.launch(inputs, random());
      }
    } catch (...) {
      errors[static_cast<size_t>(rank)] = std::current_exception();
    }
  };
  std::vector<std::jthread> threads;
  for (int r = 0; r < plan.world; ++r) threads.emplace_back(body, r);
  threads.clear();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return results;
}

}  // namespace ark::test
