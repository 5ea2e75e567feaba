#include "bindings/graph/options.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "base/check.h"

namespace py = pybind11;

namespace ark::bindings {
namespace {

using Setter = std::function<void(GraphOptions&, const py::handle&)>;

int64_t bounded(const py::handle& value, const char* key, int64_t low, int64_t high) {
  int64_t number = py::cast<int64_t>(value);
  check<UserError>(number >= low && number <= high, "option ", key, ": expected ", low, " to ", high, ", got ", number);
  return number;
}

planner::Schedule schedule(const std::string& text) {
  if (text == "greedy") return planner::Schedule::kGreedy;
  check<UserError>(text == "sequential", "option schedule: expected greedy or sequential, got ", text);
  return planner::Schedule::kSequential;
}

/// Numbers by name; those that are not there stay as they are. The bounds keep products and quotients of a few of them
/// finite.
void set_costs(planner::Machine& machine, const py::dict& numbers) {
  std::map<std::string, double*> known;
  planner::for_each_number(machine, [&](const std::string& name, double& number) { known.emplace(name, &number); });
  for (const auto& [key, value] : numbers) {
    const auto name = py::cast<std::string>(key);
    const auto found = known.find(name);
    check<UserError>(found != known.end(), "option costs: nothing is called ", name);
    const auto number = py::cast<double>(value);
    check<UserError>(number >= planner::kLeastCost && number <= planner::kMostCost, "option costs: expected ", name,
                     " from ", planner::kLeastCost, " to ", planner::kMostCost, ", got ", number);
    *found->second = number;
  }
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> table = {
      {"input_map",
       [](GraphOptions& o, const py::handle& v) {
         for (py::handle item : v) o.layout.input_map.push_back(py::cast<int64_t>(item));
       }},
      {"symbol_map",
       [](GraphOptions& o, const py::handle& v) {
         for (py::handle item : v) {
           auto pair = py::cast<py::sequence>(item);
           check<UserError>(pair.size() == 2, "option symbol_map: expected pairs of position and dimension");
           o.layout.symbol_map.emplace_back(py::cast<int64_t>(pair[0]), py::cast<int64_t>(pair[1]));
         }
       }},
      {"workers",
       [](GraphOptions& o, const py::handle& v) {
         o.runtime.planner.machine.num_workers = static_cast<int>(bounded(v, "workers", 1, 1024));
       }},
      {"costs",
       [](GraphOptions& o, const py::handle& v) { set_costs(o.runtime.planner.machine, py::cast<py::dict>(v)); }},
      {"tensor_cores",
       [](GraphOptions& o, const py::handle& v) { o.runtime.planner.tensor_cores = py::cast<bool>(v); }},
      {"few_rows", [](GraphOptions& o, const py::handle& v) { o.runtime.planner.few_rows = py::cast<bool>(v); }},
      {"share_tiles", [](GraphOptions& o, const py::handle& v) { o.runtime.planner.share_tiles = py::cast<bool>(v); }},
      {"schedule",
       [](GraphOptions& o, const py::handle& v) { o.runtime.planner.schedule = schedule(py::cast<std::string>(v)); }},
      {"reuse_memory",
       [](GraphOptions& o, const py::handle& v) { o.runtime.planner.reuse_memory = py::cast<bool>(v); }},
      {"threads",
       [](GraphOptions& o, const py::handle& v) {
         o.runtime.host.num_threads = static_cast<int>(bounded(v, "threads", 0, 1024));
       }},
      {"seed",
       [](GraphOptions& o, const py::handle& v) {
         o.seed = static_cast<uint64_t>(bounded(v, "seed", 0, std::numeric_limits<int64_t>::max()));
       }},
      {"deadline_ms",
       [](GraphOptions& o, const py::handle& v) {
         auto ns = static_cast<uint64_t>(bounded(v, "deadline_ms", 1, 86'400'000)) * 1'000'000;
         o.runtime.cuda.deadline_ns = o.runtime.host.deadline_ns = ns;
       }},
      {"trace", [](GraphOptions& o, const py::handle& v) { o.runtime.cuda.trace = py::cast<bool>(v); }},
      {"max_executables",
       [](GraphOptions& o, const py::handle& v) {
         o.runtime.max_executables = static_cast<size_t>(bounded(v, "max_executables", 1, 1'000'000));
       }},
      {"plan", [](GraphOptions& o, const py::handle& v) { o.runtime.saved_plan = py::cast<std::string>(v); }},
      {"dump", [](GraphOptions& o, const py::handle& v) { o.runtime.dump_folder = py::cast<std::string>(v); }},
      {"name", [](GraphOptions& o, const py::handle& v) { o.name = py::cast<std::string>(v); }},
  };
  return table;
}

}  // namespace

py::tuple cost_bounds() { return py::make_tuple(planner::kLeastCost, planner::kMostCost); }

py::dict default_costs() {
  py::dict numbers;
  planner::Machine machine;
  planner::for_each_number(machine, [&](const std::string& name, double number) { numbers[name.c_str()] = number; });
  return numbers;
}

GraphOptions parse_options(const py::dict& options, runtime::TargetKind target, int device_index,
                           std::shared_ptr<cuda::Toolchain> toolchain) {
  GraphOptions result;
  result.runtime.cuda.device = device_index;
  result.runtime.cuda.toolchain = std::move(toolchain);
  if (target == runtime::TargetKind::kCuda && device_index >= 0)
    result.runtime.planner.machine.num_workers = targets::cuda_multiprocessors(device_index);
  for (const auto& [key, value] : options) {
    auto found = setters().find(py::cast<std::string>(key));
    if (found == setters().end()) {
      std::string known;
      for (const auto& [name, setter] : setters()) known += cat(known.empty() ? "" : ", ", name);
      throw UserError(cat("unknown option ", py::cast<std::string>(key), "; known are ", known));
    }
    try {
      found->second(result, value);
    } catch (const py::cast_error&) {
      throw UserError(
          cat("option ", found->first, ": unexpected type ", py::str(py::type::of(value)).cast<std::string>()));
    }
  }
  return result;
}

}  // namespace ark::bindings
