#include "targets/host/kernels/kernels.h"

#include <vector>

#include "targets/host/kernels/sets.h"

namespace ark::targets::host {
namespace {

std::vector<Kernels> detect() {
  std::vector<Kernels> sets{baseline_kernels()};
#if ARK_HOST_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    sets.push_back(avx2_kernels());
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      sets.push_back(avx512_kernels());
  }
#endif
  return sets;
}

const std::vector<Kernels>& kernel_sets() {
  static const std::vector<Kernels> sets = detect();
  return sets;
}

}  // namespace

const Kernels& best_kernels() { return kernel_sets().back(); }

std::span<const Kernels> available_kernels() { return kernel_sets(); }

}  // namespace ark::targets::host
