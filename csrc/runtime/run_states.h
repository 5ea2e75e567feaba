// The run states of one executable: who may use which memory at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "targets/target.h"

namespace ark::runtime {

/// Memory in the target's address space on the current device and stream, freed (in stream order) with the pointer.
/// Given by the bindings: it is torch's allocator.
using Allocate = std::function<std::shared_ptr<void>(size_t size_bytes)>;

/// cuda: one state per stream, since launches of a stream follow each other; one per capture and stream while
/// capturing. host: a state is lent for one run and returned, so that threads run side by side. Thread-safe.
class RunStates {
 public:
  explicit RunStates(bool per_stream) : per_stream_(per_stream) {}

  /// Runs `launch(state)` with an initialised state. On cuda, what `launch` enqueues is ordered after the
  /// initialisation.
  void with_state(targets::Executable& executable, void* stream, const Allocate& allocate,
                  const std::function<void(void*)>& launch);

 private:
  struct State {
    std::shared_ptr<void> memory;
    uint32_t generation = 0;
    bool ready = false;
  };
  static void make_ready(State& state, targets::Executable& executable, void* stream, const Allocate& allocate);

  bool per_stream_;
  std::mutex mutex_;
  std::map<void*, State> of_stream_;
  std::vector<State> free_;
};

}  // namespace ark::runtime
