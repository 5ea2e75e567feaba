#include "runtime/run_states.h"

#include <utility>

namespace ark::runtime {

void RunStates::make_ready(State& state, targets::Executable& executable, void* stream, const Allocate& allocate) {
  uint32_t generation = executable.generation();
  if (state.ready && state.generation == generation) [[likely]]
    return;
  if (!state.memory) state.memory = allocate(executable.state_bytes());
  executable.init_state(state.memory.get(), stream);
  state.generation = generation;
  state.ready = true;
}

void RunStates::with_state(targets::Executable& executable, void* stream, const Allocate& allocate,
                           const std::function<void(void*)>& launch) {
  if (per_stream_) {
    if (uint64_t capture = executable.capture_id(stream)) {
      launch(executable.captured_state(capture, stream));
      return;
    }
    executable.poll();  // a failed launch makes the states stale: notice it before choosing one
    std::lock_guard lock(mutex_);
    State& state = of_stream_[stream];
    make_ready(state, executable, stream, allocate);
    launch(state.memory.get());
    return;
  }
  State state;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      state = std::move(free_.back());
      free_.pop_back();
    }
  }
  make_ready(state, executable, stream, allocate);
  launch(state.memory.get());  // a failed run does not return its state
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(state));
}

}  // namespace ark::runtime
