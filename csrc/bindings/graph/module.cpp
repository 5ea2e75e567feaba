// The module ark_torch._C. What it offers is described in README.md beside this file.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/version.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/unsupported.h"
#include "base/user_errors.h"
#include "bindings/distributed/plan_ranks.h"
#include "bindings/graph/call.h"
#include "bindings/graph/options.h"
#include "codegen/codegen.h"
#include "cuda/driver.h"
#include "cuda/toolchain.h"
#include "plan/kinds.h"
#include "planner/exchange_report.h"
#include "runtime/compiled_graph.h"

namespace py = pybind11;

namespace ark::bindings {

// distributed/module.cpp
void register_process_group(py::module_& m, std::shared_ptr<cuda::Toolchain> toolchain);

namespace {

using Symbols = std::vector<int64_t>;
using ToolchainPtr = std::shared_ptr<cuda::Toolchain>;

runtime::TargetKind target_kind(const std::string& text) {
  if (text == "cuda") return runtime::TargetKind::kCuda;
  check<UserError>(text == "host", "target: expected cuda or host, got ", text);
  return runtime::TargetKind::kHost;
}

/// While `callback` is set, every run is traced and handed to callback(name, symbols, records).
struct TraceSink {
  py::object callback = py::none();
};

/// What Python holds: the graph, and how its arguments lie in the caller's list.
class PyGraph {
 public:
  PyGraph(const std::string& graph_json, const std::string& target, int device_index, const py::dict& options,
          ToolchainPtr toolchain, std::shared_ptr<TraceSink> sink)
      : sink_(std::move(sink)) {
    auto kind = target_kind(target);
    GraphOptions parsed = parse_options(options, kind, device_index, std::move(toolchain));
    auto begin = std::chrono::steady_clock::now();
    ir::Graph graph = ir::from_json(graph_json);
    if (!parsed.name.empty()) graph.name = parsed.name;
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    graph_ =
        std::make_shared<runtime::CompiledGraph>(std::move(graph), kind, std::move(parsed.runtime), seconds.count());
    caller_ = std::make_unique<Caller>(graph_, device_index, std::move(parsed.layout), parsed.seed);
  }

  py::list call(const py::list& items) {
    if (sink_->callback.is_none()) [[likely]]
      return caller_->run(items);
    auto [outputs, records] = caller_->run_traced(items);
    sink_->callback(graph_->graph().name, graph_->last()->symbols, records);
    return outputs;
  }
  std::pair<py::list, py::list> trace(const py::list& items) { return caller_->run_traced(items); }

  std::pair<py::list, int64_t> loop(const py::list& items, int64_t most) { return caller_->run_loop(items, most); }

  std::shared_ptr<runtime::Instance> instance(const Symbols& symbols) {
    check<UserError>(symbols.size() == graph_->graph().symbols.size(), "expected ", graph_->graph().symbols.size(),
                     " symbol values, got ", symbols.size());
    py::gil_scoped_release release;
    return graph_->specialise(symbols);
  }
  std::string plan_text(const Symbols& symbols) { return plan::to_string(instance(symbols)->plan()); }
  std::string plan_json(const Symbols& symbols) { return plan::to_json(instance(symbols)->plan()); }
  std::string source(const Symbols& symbols) { return instance(symbols)->executable->build_info().source; }

  void poll() {
    if (auto last = graph_->last()) last->executable->poll();
  }
  /// For graphs with exchanges: this rank does not run what its peers may wait for.
  void fail_ranks(const std::string& why) const {
    std::set<std::string> groups;
    for (const ir::Node& node : graph_->graph().nodes)
      if (node.op == ir::OpKind::kExchange) groups.insert(node.attrs.group);
    for (const std::string& group : groups) fail_group(group, why);
  }
  void set_deadline(double milliseconds) {
    check<UserError>(milliseconds > 0, "a deadline of ", milliseconds, " ms");
    if (auto last = graph_->last()) last->executable->set_deadline_ns(static_cast<uint64_t>(milliseconds * 1e6));
  }
  std::vector<std::string> symbols() const { return graph_->graph().symbols; }
  size_t num_inputs() const { return caller_->layout().num_items; }

  py::dict stats() const {
    py::dict result;
    runtime::Seconds seconds = graph_->seconds();
    runtime::Counts counts = graph_->counts();
    result["target"] = graph_->target() == runtime::TargetKind::kCuda ? "cuda" : "host";
    result["name"] = graph_->graph().name;
    result["executables"] = counts.executables;
    result["evictions"] = counts.evictions;
    result["compiles"] = counts.compiles;
    result["disk_hits"] = counts.disk_hits;
    result["memory_hits"] = counts.memory_hits;
    result["seconds"] = py::dict(py::arg("parse") = seconds.parse, py::arg("bind") = seconds.bind,
                                 py::arg("plan") = seconds.plan, py::arg("source") = seconds.source,
                                 py::arg("compile") = seconds.compile, py::arg("load") = seconds.load);
    if (auto last = graph_->last()) describe(*last, result);
    return result;
  }

 private:
  static py::list describe_exchanges(const plan::Plan& plan) {
    auto name = [&](int32_t op) { return plan.ops[static_cast<size_t>(op)].name; };
    auto names = [&](const std::vector<int32_t>& ops) {
      py::list found;
      for (int32_t op : ops) found.append(name(op));
      return found;
    };
    py::list result;
    for (const planner::ExchangeReport& e : planner::report_exchanges(plan))
      result.append(py::dict(py::arg("op") = name(e.op), py::arg("bytes") = e.bytes, py::arg("parts") = e.parts,
                             py::arg("background") = e.background, py::arg("from_ranks") = e.from,
                             py::arg("readers") = names(e.readers), py::arg("meanwhile") = names(e.meanwhile),
                             py::arg("box_bytes") = e.box_bytes, py::arg("ranks") = e.ranks,
                             py::arg("group") = e.group));
    return result;
  }
  static py::list describe_groups(const plan::Plan& plan) {
    py::list result;
    for (int32_t g = 0; g < plan::num_groups(plan); ++g)
      result.append(py::make_tuple(group_at(plan, g).name, world_of(plan, g)));
    return result;
  }
  static void describe(const runtime::Instance& instance, py::dict& result) {
    const plan::Plan& plan = instance.plan();
    std::map<std::string, int> tasks;
    int64_t num_tiles = 0;
    for (const plan::Op& op : plan.ops) {
      ++tasks[plan::name(op.record.kind)];
      num_tiles += plan::num_tiles(op.record);
    }
    const targets::BuildInfo& info = instance.executable->build_info();
    result["symbols"] = instance.symbols;
    result["num_ops"] = plan.ops.size();
    result["num_workers"] = plan.num_workers;
    result["num_tiles"] = num_tiles;
    result["num_counters"] = plan.num_counters;
    result["num_programs"] = plan.programs.size();
    result["num_buffers"] = plan.buffers.size();
    result["arena_bytes"] = plan.arena_bytes;
    result["ranks"] = plan.world;
    int64_t box_bytes = 0;
    for (int32_t g = 0; g < plan::num_groups(plan); ++g) box_bytes += 2 * box_bytes_of(plan, g);
    result["box_bytes"] = box_bytes;  // for even and for odd launches
    result["groups"] = describe_groups(plan);
    result["exchanges"] = describe_exchanges(plan);
    result["bytes"] = plan.bytes;
    result["flops"] = plan.flops;
    result["floor_ms"] = plan.floor_ms;
    result["predicted_ms"] = plan.predicted_ms;
    result["tasks"] = tasks;
    result["registers"] = info.registers;
    result["spill_bytes"] = info.spill_bytes;
  }

  std::shared_ptr<runtime::CompiledGraph> graph_;
  std::unique_ptr<Caller> caller_;
  std::shared_ptr<TraceSink> sink_;
};

/// Folders of Python packages that may hold NVRTC: those of torch and of the nvidia namespace package.
std::vector<std::string> nvrtc_folders() {
  std::vector<std::string> folders;
  py::object spec = py::module_::import("importlib.util").attr("find_spec")("nvidia");
  if (!spec.is_none() && !spec.attr("submodule_search_locations").is_none())
    for (py::handle place : spec.attr("submodule_search_locations"))
      for (const char* part : {"/cu13/lib", "/cuda_nvrtc/lib"}) folders.push_back(py::cast<std::string>(place) + part);
  auto torch = py::cast<std::string>(py::module_::import("torch").attr("__file__"));
  folders.push_back(cat(files::folder_of(torch), "/lib"));
  return folders;
}

std::string plan_graph(const std::string& graph_json, const Symbols& symbols, const py::dict& options) {
  GraphOptions parsed = parse_options(options, runtime::TargetKind::kHost, -1, nullptr);
  ir::Graph graph = ir::from_json(graph_json);
  if (!parsed.name.empty()) graph.name = parsed.name;
  py::gil_scoped_release release;
  ir::verify(graph);
  return plan::to_json(planner::make_plan(ir::bind(graph, symbols), parsed.runtime.planner));
}

/// The source of the kernel that each of these sizes runs in, one size after the other; needs no GPU.
std::vector<std::string> kernel_sources(const std::string& graph_json, const std::vector<Symbols>& sizes,
                                        const py::dict& options) {
  GraphOptions parsed = parse_options(options, runtime::TargetKind::kHost, -1, nullptr);
  ir::Graph graph = ir::from_json(graph_json);
  py::gil_scoped_release release;
  ir::verify(graph);
  runtime::SharedKernel shared(graph, parsed.runtime.planner);
  std::vector<std::string> sources;
  for (const Symbols& symbols : sizes) {
    const plan::Plan plan = shared.plan(ir::bind(graph, symbols), false);
    sources.push_back(codegen::generate(*shared.use(plan, symbols).kernel, {}).text);
  }
  return sources;
}

/// Plan -> cubin, without a GPU.
py::dict compile_only(const std::string& plan_json, bool trace, const std::string& arch, cuda::Toolchain& toolchain) {
  codegen::Source source;
  cuda::CompileOutcome outcome;
  {
    py::gil_scoped_release release;
    source = codegen::generate(plan::from_json(plan_json), {.trace = trace});
    outcome = toolchain.compiler.compile(source.text, arch);
  }
  static constexpr const char* kOrigins[] = {"compiled", "disk", "memory"};
  py::dict result;
  result["registers"] = outcome.cubin->registers;
  result["spill_bytes"] = outcome.cubin->spill_bytes;
  result["stack_bytes"] = outcome.cubin->stack_bytes;
  result["smem_bytes"] = source.smem_bytes;
  result["slot_capacity"] = source.slot_capacity;
  result["seconds"] = outcome.seconds;
  result["cubin_bytes"] = outcome.cubin->bytes.size();
  result["origin"] = kOrigins[static_cast<int>(outcome.origin)];
  result["warnings"] = cuda::performance_warnings(*outcome.cubin);
  result["log"] = outcome.cubin->log;
  result["source"] = source.text;
  result["cubin"] = py::bytes(outcome.cubin->bytes);
  return result;
}

py::dict info(cuda::Toolchain& toolchain) {
  py::dict result;
  const cuda::Nvrtc& nvrtc = toolchain.compiler.nvrtc();
  result["nvrtc"] = nvrtc.problem().empty() ? cat(nvrtc.major(), '.', nvrtc.minor()) : "";
  result["nvrtc_path"] = nvrtc.path();
  result["nvrtc_problem"] = nvrtc.problem();
  result["driver_problem"] = cuda::driver_problem();
  int version = 0;
  if (cuda::driver_problem().empty()) {
    cuda::driver().driver_get_version(&version);
    try {
      result["gpu"] = cuda::open_gpu(0).name;
    } catch (const std::exception& error) {
      result["gpu_problem"] = error.what();
    }
  }
  result["driver"] = version ? cat(version / 1000, '.', version % 1000 / 10) : "";
  result["cache_folder"] = toolchain.compiler.cache_folder();
  auto [files, bytes] = toolchain.compiler.disk_usage();
  result["cache_files"] = files;
  result["cache_bytes"] = bytes;
  return result;
}

/// Every variable with a fixed set of values, so that a wrong one is refused before it is needed.
void check_environment() {
  log::enabled(log::Level::kError);
  runtime::verification_from_environment();
}

std::vector<std::string> task_kinds() {
  std::vector<std::string> names;
  for (const plan::Kind& kind : plan::kKinds) names.push_back(plan::name(kind.kind));
  return names;
}

py::object error_type(const char* name) { return py::module_::import("ark_torch.errors").attr(name); }

void raise_index_out_of_range(const IndexOutOfRange& error) {
  const py::object type = error_type("IndexOutOfRange");
  PyErr_SetObject(type.ptr(), type(error.what(), error.index, error.size, error.op).ptr());
}

void raise_argument_refused(const ArgumentRefused& error) {
  const py::object type = error_type("ArgumentRefused");
  PyErr_SetObject(type.ptr(), type(error.what(), error.argument).ptr());
}

void raise_node_unsupported(const NodeUnsupported& error) {
  const py::object type = error_type("NodeUnsupported");
  PyErr_SetObject(type.ptr(), type(error.what(), error.node).ptr());
}

void raise_too_long(const TooLong& error) {
  const py::object type = error_type("TooLong");
  PyErr_SetObject(type.ptr(), type(error.what(), error.unit, error.actual, error.limit, error.node).ptr());
}

void register_errors(py::module_& m) {
  py::register_exception<UnsupportedError>(m, "Unsupported", PyExc_RuntimeError);
  py::register_exception<DeviceError>(m, "DeviceError", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const IndexOutOfRange& error) {
      raise_index_out_of_range(error);
    } catch (const TooLong& error) {
      raise_too_long(error);
    } catch (const NodeUnsupported& error) {
      raise_node_unsupported(error);
    } catch (const ArgumentRefused& error) {
      raise_argument_refused(error);
    } catch (const RanksApart& error) {
      PyErr_SetString(error_type("RanksApart").ptr(), error.what());
    } catch (const RanksDisagree& error) {
      PyErr_SetString(error_type("RanksDisagree").ptr(), error.what());
    } catch (const UserError& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }  // InternalError is a runtime_error: pybind11 makes it a RuntimeError
  });
}

}  // namespace
}  // namespace ark::bindings

PYBIND11_MODULE(_C, m) {
  using namespace ark::bindings;
  py::module_::import("ark_torch.versions").attr("check_built")(TORCH_VERSION);
  m.doc() = "ark: graphs compiled into one loop kernel; see csrc/bindings/README.md";
  register_errors(m);
  // The compiler, its cubins and the loaded modules live as long as the module's functions.
  auto toolchain = std::make_shared<ark::cuda::Toolchain>(
      ark::cuda::Compiler::Options{.nvrtc_folders = nvrtc_folders(), .cache_folder = ""});

  auto sink = std::make_shared<TraceSink>();

  py::class_<PyGraph>(m, "CompiledGraph", "A symbolic graph and its executables, one per set of symbol values.")
      .def(py::init([toolchain, sink](const std::string& graph_json, const std::string& target, int device_index,
                                      const py::dict& options) {
             return std::make_unique<PyGraph>(graph_json, target, device_index, options, toolchain, sink);
           }),
           py::arg("graph_json"), py::arg("target"), py::arg("device_index") = 0, py::arg("options") = py::dict())
      .def("__call__", &PyGraph::call, py::arg("inputs"), "Runs once: list of tensors and ints -> list of tensors.")
      .def("loop", &PyGraph::loop, py::arg("inputs"), py::arg("most"),
           "Runs up to `most` iterations in one launch: (outputs of the last one, iterations that ran; cuda: -1).")
      .def("trace", &PyGraph::trace, py::arg("inputs"), "Runs the tracing variant: (outputs, list of records).")
      .def(
          "prepare", [](PyGraph& graph, const Symbols& symbols) { graph.instance(symbols); },
          py::arg("symbols") = Symbols{}, "Plans and compiles without running.")
      .def("plan_text", &PyGraph::plan_text, py::arg("symbols") = Symbols{})
      .def("plan_json", &PyGraph::plan_json, py::arg("symbols") = Symbols{})
      .def("source", &PyGraph::source, py::arg("symbols") = Symbols{})
      .def("stats", &PyGraph::stats)
      .def("poll", &PyGraph::poll, "Raises DeviceError if an earlier run failed; never blocks.")
      .def("fail_ranks", &PyGraph::fail_ranks, py::arg("why"), py::call_guard<py::gil_scoped_release>(),
           "A call with exchanges has failed before it ran: the ranks that wait for this one raise.")
      .def("set_deadline", &PyGraph::set_deadline, py::arg("milliseconds"), "Of the executable used last (cuda).")
      .def_property_readonly("symbols", &PyGraph::symbols)
      .def_property_readonly("num_inputs", &PyGraph::num_inputs);
  m.def("plan_graph", &plan_graph, py::arg("graph_json"), py::arg("symbols") = Symbols{},
        py::arg("options") = py::dict(), "Binds and plans: the plan as JSON.");
  m.def("kernel_sources", &kernel_sources, py::arg("graph_json"), py::arg("sizes"), py::arg("options") = py::dict(),
        "Values of the symbols, one list a call -> sources of the kernels that the calls run in.");
  m.def(
      "compile_only",
      [toolchain](const std::string& plan_json, bool trace, const std::string& arch) {
        return compile_only(plan_json, trace, arch, *toolchain);
      },
      py::arg("plan_json"), py::arg("trace") = false, py::arg("arch") = "sm_90a",
      "Compiles a plan's kernel; needs no GPU.");
  m.def("task_kinds", &task_kinds, "The names of the task kinds, in the order of their table (csrc/plan/kinds.h).");
  m.def("default_costs", &default_costs, "What the planner takes work to cost: name -> number.");
  m.attr("COST_BOUNDS") = cost_bounds();
  m.def("check_environment", &check_environment,
        "Raises ValueError on a value that ARK_LOG or ARK_VERIFY cannot have.");
  m.def("info", [toolchain] { return info(*toolchain); }, "Driver, NVRTC, GPU, cache.");
  m.def(
      "set_trace_sink",
      [sink](py::object callback) {
        ark::check(callback.is_none() || sink->callback.is_none(), "a trace sink is set already: profiles do not nest");
        sink->callback = std::move(callback);
      },
      py::arg("callback"), "callback(name, symbols, records) after every run, which is then traced; None: off.");
  register_process_group(m, toolchain);
  m.def("clear_cache", [toolchain] { return toolchain->compiler.clear_disk(); }, "Removes the cubins from disk.");
}
