// Integers of a program that are sums of coordinates, and the same sums over a domain whose dimensions were merged.
#pragma once
#include <array>
#include <optional>
#include <vector>

#include "device/abi/abi.h"
#include "ir/program.h"

namespace ark::planner {

class IndexSums {
 public:
  explicit IndexSums(const Program& program);

  /// Whether all that is made of the two coordinates is made of `outer` * `inner_size` + `inner` as well.
  bool merges(int outer, int inner, int64_t inner_size) const;
  bool names(int dim) const;
  /// The program with these sums over new dimensions: old dimension d is part of `new_dim[d]`, whose steps are those of
  /// its innermost old one (`innermost[new]`, or -1).
  std::vector<Instr> rewritten(const std::vector<int>& new_dim, const std::vector<int>& innermost) const;

 private:
  struct Sum {
    int64_t constant = 0;
    std::array<int64_t, abi::kMaxDims> coef{};
    bool is_constant() const { return coef == decltype(coef){}; }
  };
  std::optional<Sum> sum_of(const Instr& instr) const;

  const Program& program_;
  std::vector<std::optional<Sum>> sums_;
  std::vector<bool> roots_;  // sums that something else is made of
};

}  // namespace ark::planner
