// The store of a rendezvous between processes: a file for every key.
#pragma once
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/check.h"
#include "comm/store.h"

namespace ark::test {

class FolderStore : public comm::Store {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, const std::string& value) override {
    const std::filesystem::path half = path(key).concat(".half");
    std::ofstream(half) << value;
    std::filesystem::rename(half, path(key));  // whole or not at all
  }
  std::string get(const std::string& key, comm::Clock::time_point deadline, int) override {
    while (!std::filesystem::exists(path(key))) {
      check<DeviceError>(comm::Clock::now() < deadline, "the store has no ", key);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ifstream file(path(key));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void remove(const std::string& key) noexcept override {
    std::error_code ignored;
    std::filesystem::remove(path(key), ignored);
  }

 private:
  std::filesystem::path path(std::string key) const {
    for (char& c : key)
      if (c == '/') c = '_';
    return folder_ / key;
  }
  std::filesystem::path folder_;
};

}  // namespace ark::test
