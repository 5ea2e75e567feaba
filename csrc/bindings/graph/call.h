// One run: torch tensors in, torch tensors out. The only unit that sees tensors.
#pragma once
#include <Python.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <utility>
#include <vector>

#include "runtime/compiled_graph.h"

namespace ark::bindings {

/// Where the tensors and symbols are in the list that the caller hands over. Empty maps: tensors first, then symbols,
/// in order.
struct CallLayout {
  std::vector<int64_t> input_map;                       // graph input -> position
  std::vector<std::pair<int64_t, int64_t>> symbol_map;  // symbol -> (position, dimension or -1: the item is the number)
  size_t num_items = 0;                                 // least length of the list
};

class Caller {
 public:
  /// `layout` is completed and checked against the graph.
  Caller(std::shared_ptr<runtime::CompiledGraph> graph, int device_index, CallLayout layout, uint64_t seed);

  /// Returns a new list. The tensors' contents are written asynchronously on the current stream (cuda).
  pybind11::list run(const pybind11::list& items);
  /// As run(), with the tracing variant; waits for its end. One dict per record.
  std::pair<pybind11::list, pybind11::list> run_traced(const pybind11::list& items);
  /// Up to `most` iterations in one launch (host): the outputs of the last one, zeros if none ran, and how many ran.
  /// Signals are looked at between iterations: an exception of their handlers leaves a whole number of iterations.
  std::pair<pybind11::list, int64_t> run_loop(const pybind11::list& items, int64_t most);
  const CallLayout& layout() const { return layout_; }

 private:
  std::shared_ptr<runtime::CompiledGraph> graph_;
  int device_index_;
  CallLayout layout_;
  uint64_t seed_;
  pybind11::object current_stream_;  // torch._C._cuda_getCurrentRawStream
};

}  // namespace ark::bindings
