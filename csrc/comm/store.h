// The key-value store that the ranks of a group meet through (c10d's store behind the bindings, a map in tests).
#pragma once
#include <chrono>
#include <string>

namespace ark::comm {

using Clock = std::chrono::steady_clock;

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key, which rank `from` sets; throws when it has not come by `deadline`.
  virtual std::string get(const std::string& key, Clock::time_point deadline, int from) = 0;
  /// Forgets a key that nobody will ask for again. Never throws.
  virtual void remove(const std::string& key) noexcept = 0;
};

/// Who takes part, and what the group is called in the store. The name is unique among the groups of one store.
struct GroupInfo {
  int rank = 0;
  int world = 1;
  std::string name;
};

}  // namespace ark::comm
