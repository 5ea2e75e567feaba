// plan::TensorMap -> the driver's 128 bytes. The address is a stand-in: the kernel patches the real one in at every
// launch.
#pragma once
#include <vector>

#include "cuda/driver.h"
#include "plan/plan.h"

namespace ark::cuda {

/// One per Plan::maps entry. `stand_in` is any device address of 16 bytes' alignment.
std::vector<TensorMap> encode_maps(const plan::Plan& plan, DevicePtr stand_in);

}  // namespace ark::cuda
