// The plan as it lies in device memory: records, work lists, patches, tensor map templates and constants, uploaded
// once.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "device/abi/launch.h"
#include "plan/plan.h"

namespace ark::cuda {

/// Offsets into one allocation; each part starts at a multiple of 256 bytes.
struct PlanImage {
  std::string bytes;
  size_t records = 0, items = 0, list_begin = 0, patches = 0, poison = 0, maps = 0;
  std::vector<size_t> constants;  // per Plan::buffers entry; meaningful for kConstant
  size_t num_items = 0, num_poison = 0;
};

/// Without the tensor maps, whose bytes (plan.maps.size() * kTensorMapBytes at `maps`) need the driver: see
/// encode_maps.
PlanImage lay_out(const plan::Plan& plan, const plan::KernelNumbers& numbers = {});

/// Run state, counters, flagged words, the state of a loop and the run's own tensor maps with what they were patched
/// with: bytes in all, and where the last two begin.
size_t state_loop_offset(const plan::Plan& plan);
size_t state_maps_offset(const plan::Plan& plan);
size_t state_size_bytes(const plan::Plan& plan);

}  // namespace ark::cuda
