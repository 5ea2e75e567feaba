// Reasons to run something through ATen that the front end tells apart by their type.
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"

namespace ark {

/// One node of the graph is refused, so that the others are planned without it (mapped to
/// ark_torch.errors.NodeUnsupported).
struct NodeUnsupported : UnsupportedError {
  std::string node;  // its name; empty: no node alone is to blame

  NodeUnsupported(std::string name, const std::string& text) : UnsupportedError(text), node(std::move(name)) {}
};

template <class... Args>
void check_node(bool condition, const std::string& node, const Args&... message) {
  if (!condition) [[unlikely]]
    throw NodeUnsupported(node, cat(message...));
}

/// An op needs more of something than it may have, so that a shorter step is planned (mapped to
/// ark_torch.errors.TooLong).
struct TooLong : NodeUnsupported {
  std::string unit;  // what is counted
  int64_t actual, limit;

  TooLong(const std::string& where, std::string counted, int64_t needed, int64_t most, std::string name = "")
      : NodeUnsupported(std::move(name), cat(where, " needs ", needed, " ", counted, ", at most ", most)),
        unit(std::move(counted)),
        actual(needed),
        limit(most) {}
};

}  // namespace ark
