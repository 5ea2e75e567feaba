// A set of op numbers.
#pragma once
#include <cstdint>
#include <vector>

namespace ark::planner {

class OpSet {
 public:
  explicit OpSet(int num_ops = 0) : words_((num_ops + 63) / 64, 0) {}
  bool has(int op) const { return words_[op / 64] >> (op % 64) & 1; }
  void add(int op) { words_[op / 64] |= uint64_t{1} << (op % 64); }
  void add(const OpSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  void clear() { words_.assign(words_.size(), 0); }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace ark::planner
