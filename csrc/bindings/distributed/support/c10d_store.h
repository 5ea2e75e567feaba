// c10d's store behind the interface of csrc/comm.
#pragma once
#include <algorithm>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/check.h"
#include "comm/store.h"

namespace ark::bindings {

class C10dStore : public comm::Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  /// From now on waits for a rank end when `check` of it throws: who has failed, died or left will not set what others
  /// wait for.
  void watch(std::function<void(int)> check) { check_ = std::move(check); }
  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::string get(const std::string& key, comm::Clock::time_point deadline, int from) override {
    if (check_) look_until(key, deadline, from);
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - comm::Clock::now());
    try {
      store_->wait({key}, std::max(left, std::chrono::milliseconds(1)));
      std::vector<uint8_t> bytes = store_->get(key);
      return {bytes.begin(), bytes.end()};
    } catch (const c10::Error& error) {
      throw DeviceError(error.what_without_backtrace());
    }
  }
  void remove(const std::string& key) noexcept override {
    try {
      store_->deleteKey(key);
    } catch (const std::exception&) {  // some stores cannot; the store may be gone already
    }
  }

 private:
  void look_until(const std::string& key, comm::Clock::time_point deadline, int from) {
    constexpr std::chrono::milliseconds kLongest(20);
    for (std::chrono::milliseconds pause(1); !store_->check({key}); pause = std::min(2 * pause, kLongest)) {
      check_(from);
      check<DeviceError>(comm::Clock::now() < deadline, "nobody has set ", key, " within the time-out");
      std::this_thread::sleep_for(pause);
    }
  }
  c10::intrusive_ptr<c10d::Store> store_;
  std::function<void(int)> check_;
};

}  // namespace ark::bindings
