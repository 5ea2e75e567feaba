// Kernel -> CUDA C++ source of the task kinds and programs in it. Deterministic; sizes are not in it, so plans of equal
// structure give equal source and share a cubin.
#pragma once
#include <string>

#include "codegen/kernel.h"
#include "plan/plan.h"

namespace ark::codegen {

struct Source {
  std::string text;  // includes the headers of csrc/device
  std::string entry = "ark_loop";
  int smem_bytes = 0;
  int slot_capacity = 0;
  int groups = 1;  // of ranks, that a launch has room for
};

struct SourceOptions {
  bool trace = false;
};
Source generate(const Kernel& kernel, const SourceOptions& options);
/// The kernel of this plan alone.
Source generate(const plan::Plan& plan, const SourceOptions& options);

}  // namespace ark::codegen
