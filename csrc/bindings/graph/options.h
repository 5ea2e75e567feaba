// The options dict of Python -> runtime::Options and CallLayout. Unknown keys are refused by name.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bindings/graph/call.h"
#include "runtime/compiled_graph.h"

namespace ark::bindings {

struct GraphOptions {
  runtime::Options runtime;
  CallLayout layout;
  uint64_t seed = 0;
  std::string name;
};

/// `device_index` < 0: no GPU is asked how many workers it takes (host target, planning only).
GraphOptions parse_options(const pybind11::dict& options, runtime::TargetKind target, int device_index,
                           std::shared_ptr<cuda::Toolchain> toolchain);

/// The planner's numbers by name (planner/options.h), as they are without the option `costs`.
pybind11::dict default_costs();
pybind11::tuple cost_bounds();

}  // namespace ark::bindings
