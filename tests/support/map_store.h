// The store of a rendezvous between ranks that are threads of one process.
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "base/check.h"
#include "comm/store.h"

namespace ark::test {

using comm::Clock;

class MapStore : public comm::Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, Clock::time_point deadline, int) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return values_.count(key) > 0; }))
      throw DeviceError(cat("the store has no ", key));
    return values_[key];
  }
  void remove(const std::string& key) noexcept override {
    std::lock_guard lock(mutex_);
    values_.erase(key);
  }
  size_t size() {
    std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace ark::test
