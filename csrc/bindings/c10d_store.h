// c10d's store behind the interface of csrc/comm.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/store.h"

namespace ark::bindings {

class C10dStore : public comm::Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::string get(const std::string& key, comm::Clock::time_point deadline) override {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - comm::Clock::now());
    store_->wait({key}, std::max(left, std::chrono::milliseconds(1)));
    std::vector<uint8_t> bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace ark::bindings
