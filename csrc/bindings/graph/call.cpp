#include "bindings/graph/call.h"

#include <ATen/DimVector.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/user_errors.h"
#include "bindings/distributed/plan_ranks.h"
#include "device/abi/abi.h"

namespace py = pybind11;

namespace ark::bindings {
namespace {

using Addresses = c10::SmallVector<void*, 64>;
using Tensors = c10::SmallVector<at::Tensor, 32>;

constexpr uintptr_t kAlignment = 16;  // what plans assume of the address of every input

at::ScalarType scalar_type(DType dtype) {
  constexpr at::ScalarType kTypes[kNumDTypes] = {at::kBool, at::kByte, at::kChar,     at::kShort, at::kInt,
                                                 at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
  return kTypes[static_cast<int>(dtype)];
}

const at::Tensor& tensor_at(PyObject* list, int64_t position) {
  PyObject* item = PyList_GET_ITEM(list, position);
  if (!THPVariable_Check(item)) [[unlikely]]
    throw ArgumentRefused(cat("input ", position), cat("expected a tensor, got ", Py_TYPE(item)->tp_name));
  return THPVariable_Unpack(item);
}

int64_t integer_at(PyObject* list, int64_t position) {
  PyObject* item = PyList_GET_ITEM(list, position);
  if (PyLong_Check(item)) [[likely]]
    return PyLong_AsLongLong(item);
  py::object index =
      py::reinterpret_steal<py::object>(PyNumber_Index(item));  // SymInt with a known value, numpy integers
  if (!index) throw py::error_already_set();
  return PyLong_AsLongLong(index.ptr());
}

std::string sizes_text(const std::vector<ir::Size>& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += cat(i ? ", " : "", sizes[i].value);
  return text + "]";
}

[[noreturn]] void refuse(const ir::Value& expected, int64_t position, const std::string& problem) {
  throw ArgumentRefused(cat("input ", position, " (", expected.name, ")"), problem);
}

[[noreturn]] void mismatch(const ir::Value& expected, int64_t position, const at::Tensor& actual) {
  refuse(expected, position,
         cat("expected ", name(expected.dtype), " sizes ", sizes_text(expected.sizes), " strides ",
             sizes_text(expected.strides), ", got ", actual.dtype().name(), " sizes ", actual.sizes(), " strides ",
             actual.strides()));
}

/// Strides of dimensions of size 1 and of empty tensors carry no meaning.
void check_tensor(const ir::Value& expected, int64_t position, const at::Tensor& actual, at::Device device) {
  if (actual.scalar_type() != scalar_type(expected.dtype) ||
      actual.dim() != static_cast<int64_t>(expected.sizes.size()))
    mismatch(expected, position, actual);
  if (actual.device() != device) [[unlikely]]
    refuse(expected, position, cat("expected a tensor on ", device.str(), ", got one on ", actual.device().str()));
  at::IntArrayRef sizes = actual.sizes(), strides = actual.strides();
  bool same = true, same_strides = true;
  for (size_t d = 0; d < sizes.size(); ++d) {
    same &= sizes[d] == expected.sizes[d].value;
    same_strides &= sizes[d] == 1 || strides[d] == expected.strides[d].value;
  }
  if (!same || (!same_strides && actual.numel() != 0)) mismatch(expected, position, actual);
}

/// Everything that one call holds on to.
struct Run {
  at::Device device;
  void* stream = nullptr;
  PyObject* items = nullptr;
  std::shared_ptr<runtime::Instance> instance;
  Addresses inputs;  // per graph input
  Tensors fresh;
  /// Inputs whose address is not aligned go through an aligned copy: (graph input, original, copy).
  std::vector<std::tuple<size_t, at::Tensor, at::Tensor>> copies;
  at::Tensor arena;
  Addresses slots;
};

/// A tensor with the memory layout of `tensor` at an aligned address.
at::Tensor aligned_copy(const at::Tensor& tensor) {
  at::DimVector sizes(tensor.sizes());  // of what is stored: an expanded dimension is stored once
  for (size_t d = 0; d < sizes.size(); ++d)
    if (tensor.stride(static_cast<int64_t>(d)) == 0) sizes[d] = std::min<int64_t>(sizes[d], 1);
  at::Tensor copy = at::empty_strided(sizes, tensor.strides(), tensor.options());
  copy.copy_(at::as_strided(tensor, sizes, tensor.strides()));
  return copy;
}

void bind_inputs(Run& run, const runtime::CompiledGraph& graph, const CallLayout& layout) {
  const std::vector<ir::Value>& expected = run.instance->inputs;
  run.inputs.resize(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t position = layout.input_map[i];
    const at::Tensor& tensor = tensor_at(run.items, position);
    check_tensor(expected[i], position, tensor, run.device);
    void* address = graph.written_inputs()[i] ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
    if (address == nullptr && tensor.numel() != 0) [[unlikely]]
      refuse(expected[i], position, "expected a tensor with memory, got one without (a FakeTensor?)");
    if (reinterpret_cast<uintptr_t>(address) % kAlignment != 0) [[unlikely]] {
      at::Tensor copy = aligned_copy(tensor);
      address = copy.mutable_data_ptr();
      run.copies.emplace_back(i, tensor, std::move(copy));
    }
    run.inputs[i] = address;
  }
}

void allocate_outputs(Run& run) {
  for (const plan::FreshTensor& fresh : run.instance->plan().fresh)
    run.fresh.push_back(
        at::empty_strided(fresh.sizes, fresh.strides, at::TensorOptions(scalar_type(fresh.dtype)).device(run.device)));
}

void fill_slots(Run& run) {
  const plan::Plan& plan = run.instance->plan();
  if (plan.arena_bytes > 0) run.arena = at::empty({plan.arena_bytes}, at::TensorOptions(at::kByte).device(run.device));
  char* arena = plan.arena_bytes > 0 ? static_cast<char*>(run.arena.mutable_data_ptr()) : nullptr;
  run.slots.resize(plan.buffers.size());
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const plan::Buffer& buffer = plan.buffers[i];
    switch (buffer.kind) {
      case plan::BufferKind::kInput:
        run.slots[i] = run.inputs[buffer.index];
        break;
      case plan::BufferKind::kOutput:
        run.slots[i] = run.fresh[buffer.index].mutable_data_ptr();
        break;
      case plan::BufferKind::kArena:
        run.slots[i] = arena + buffer.arena_offset;
        break;
      case plan::BufferKind::kConstant:
      case plan::BufferKind::kBox:
      case plan::BufferKind::kBoxOut:
      case plan::BufferKind::kBoxes:
      case plan::BufferKind::kPart:
      case plan::BufferKind::kPartOut:
        run.slots[i] = nullptr;  // the target knows them
        break;
    }
  }
}

runtime::Allocate allocator(at::Device device) {
  return [device](size_t size_bytes) {
    auto tensor = std::make_shared<at::Tensor>(
        at::empty({static_cast<int64_t>(size_bytes)}, at::TensorOptions(at::kByte).device(device)));
    void* address = tensor->mutable_data_ptr();
    return std::shared_ptr<void>(std::move(tensor), address);
  };
}

void launch(Run& run, targets::Executable& executable, runtime::RunStates& states, void* trace, uint64_t seed,
            targets::Iterations* iterations = nullptr) {
  targets::LaunchArgs args;
  args.slots = {run.slots.data(), run.slots.size()};
  args.stream = run.stream;
  args.trace = trace;
  args.seed = seed;
  args.iterations = iterations;
  if (executable.plan().world > 1) {  // the state lies in the memory of the ranks
    py::gil_scoped_release release;
    const RankPlan plan{.plan = executable.plan(),
                        .key = run.instance->rank_key,
                        .state_bytes = executable.state_bytes(),
                        .device = run.device.is_cpu() ? -1 : run.device.index(),
                        .stream = run.stream};
    return run_with_ranks(plan, [&](const targets::RankMemory& ranks) {
      args.ranks = &ranks;
      executable.launch(args);
    });
  }
  auto go = [&](void* state) {
    args.run_state = state;
    executable.launch(args);
  };
  if (run.device.is_cpu()) {
    py::gil_scoped_release release;
    states.with_state(executable, run.stream, allocator(run.device), go);
  } else {
    states.with_state(executable, run.stream, allocator(run.device), go);
  }
}

/// Without the GIL, on the thread that has called.
void look_at_signals() {
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

/// Results of mutation go back into inputs that ran through an aligned copy.
void copy_back(const Run& run, const runtime::CompiledGraph& graph) {
  for (const auto& [input, original, copy] : run.copies)
    if (graph.written_inputs()[input]) original.copy_(copy);
}

/// Below autograd a view gets a version of its own: autograd would not notice a write through what it is a view of.
void share_version(const at::Tensor& view, const at::Tensor& source) {
  const c10::VariableVersion& version = source.unsafeGetTensorImpl()->version_counter();
  if (version.enabled() && !view.is_inference()) view.unsafeGetTensorImpl()->set_version_counter(version);
}

py::list collect(const Run& run, const CallLayout& layout) {
  const std::vector<plan::Output>& outputs = run.instance->plan().outputs;
  py::list result(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const plan::Output& output = outputs[i];
    const at::Tensor& source =
        output.fresh >= 0 ? run.fresh[output.fresh] : tensor_at(run.items, layout.input_map[output.input]);
    at::Tensor tensor =
        output.whole ? source
                     : at::as_strided(source, output.sizes, output.strides, source.storage_offset() + output.offset);
    if (!output.whole) share_version(tensor, source);
    PyObject* wrapped = THPVariable_Wrap(std::move(tensor));
    if (!wrapped) throw py::error_already_set();
    PyList_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), wrapped);
  }
  return result;
}

std::shared_ptr<runtime::Instance> resolve(runtime::CompiledGraph& graph, const CallLayout& layout, PyObject* items) {
  c10::SmallVector<int64_t, 8> symbols;
  for (const auto& [position, dimension] : layout.symbol_map) {
    if (dimension < 0) {
      symbols.push_back(integer_at(items, position));
      continue;
    }
    const at::Tensor& tensor = tensor_at(items, position);
    check<UserError>(dimension < tensor.dim(), "input ", position, ": a symbol is its dimension ", dimension,
                     ", but it has only ", tensor.dim());
    symbols.push_back(tensor.size(dimension));
  }
  std::span<const int64_t> view(symbols.data(), symbols.size());
  if (auto instance = graph.find(view)) return instance;
  py::gil_scoped_release release;
  return graph.specialise(view);
}

/// Torch's own exception type for lack of memory, so that callers can catch it as usual.
template <class Body>
auto with_torch_errors(Body body) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(), error.what_without_backtrace());
    throw py::error_already_set();
  }
}

py::list records_of(const at::Tensor& trace, const plan::Plan& plan) {
  at::Tensor host = trace.cpu();
  std::vector<abi::TraceRecord> records(static_cast<size_t>(host.numel()) / sizeof(abi::TraceRecord));
  std::memcpy(records.data(), host.const_data_ptr(), records.size() * sizeof(abi::TraceRecord));
  py::list result;
  for (const abi::TraceRecord& record : records) {
    if (record.end == 0 || record.op < 0 || static_cast<size_t>(record.op) >= plan.ops.size()) continue;  // end marker
    const plan::Op& op = plan.ops[record.op];
    py::dict row;
    row["op"] = record.op;
    row["name"] = op.name;
    row["module"] = op.module;
    row["kind"] = plan::name(op.record.kind);
    row["first"] = record.first;
    row["count"] = record.count;
    row["worker"] = record.worker;
    row["begin"] = record.begin;
    row["wait_end"] = record.wait_end;
    row["load_end"] = record.load_end;
    row["end"] = record.end;
    row["stamp"] = std::vector<uint32_t>(std::begin(record.stamp), std::end(record.stamp));
    result.append(std::move(row));
  }
  return result;
}

}  // namespace

Caller::Caller(std::shared_ptr<runtime::CompiledGraph> graph, int device_index, CallLayout layout, uint64_t seed)
    : graph_(std::move(graph)), device_index_(device_index), layout_(std::move(layout)), seed_(seed) {
  const int64_t num_inputs = static_cast<int64_t>(graph_->graph().inputs.size());
  const int64_t num_symbols = static_cast<int64_t>(graph_->graph().symbols.size());
  if (layout_.input_map.empty())
    for (int64_t i = 0; i < num_inputs; ++i) layout_.input_map.push_back(i);
  if (layout_.symbol_map.empty())
    for (int64_t i = 0; i < num_symbols; ++i) layout_.symbol_map.emplace_back(num_inputs + i, -1);
  check<UserError>(layout_.input_map.size() == static_cast<size_t>(num_inputs), "input_map: expected ", num_inputs,
                   " positions, got ", layout_.input_map.size());
  check<UserError>(layout_.symbol_map.size() == static_cast<size_t>(num_symbols), "symbol_map: expected ", num_symbols,
                   " pairs, got ", layout_.symbol_map.size());
  auto grow = [&](int64_t position) {
    check<UserError>(position >= 0, "position ", position, " in input_map or symbol_map is negative");
    layout_.num_items = std::max(layout_.num_items, static_cast<size_t>(position) + 1);
  };
  for (int64_t position : layout_.input_map) grow(position);
  for (const auto& [position, dimension] : layout_.symbol_map) grow(position);
  if (graph_->target() == runtime::TargetKind::kCuda)
    current_stream_ = py::module_::import("torch._C").attr("_cuda_getCurrentRawStream");
}

namespace {

Run begin_run(runtime::CompiledGraph& graph, const CallLayout& layout, int device_index,
              const py::object& current_stream, PyObject* items) {
  check<UserError>(static_cast<size_t>(PyList_GET_SIZE(items)) >= layout.num_items, "expected a list of at least ",
                   layout.num_items, " inputs, got ", PyList_GET_SIZE(items));
  bool cuda = graph.target() == runtime::TargetKind::kCuda;
  Run run{.device = cuda ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device_index)) : at::Device(at::kCPU)};
  run.items = items;
  if (cuda) run.stream = reinterpret_cast<void*>(PyLong_AsUnsignedLongLong(current_stream(device_index).ptr()));
  run.instance = resolve(graph, layout, items);
  return run;
}

void bind_tensors(Run& run, const runtime::CompiledGraph& graph, const CallLayout& layout) {
  bind_inputs(run, graph, layout);
  allocate_outputs(run);
  fill_slots(run);
}

/// What `body` makes of a run whose tensors are bound.
template <class Body>
auto with_run(runtime::CompiledGraph& graph, const CallLayout& layout, int device_index,
              const py::object& current_stream, const py::list& items, Body body) {
  return with_torch_errors([&] {
    Run run = begin_run(graph, layout, device_index, current_stream, items.ptr());
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::DeviceGuard guard(run.device);
    bind_tensors(run, graph, layout);
    return body(run);
  });
}

}  // namespace

py::list Caller::run(const py::list& items) {
  return with_run(*graph_, layout_, device_index_, current_stream_, items, [&](Run& run) {
    launch(run, *run.instance->executable, *run.instance->states, nullptr, seed_);
    copy_back(run, *graph_);
    return collect(run, layout_);
  });
}

std::pair<py::list, int64_t> Caller::run_loop(const py::list& items, int64_t most) {
  return with_run(*graph_, layout_, device_index_, current_stream_, items, [&](Run& run) {
    targets::Iterations iterations{.most = most, .look_up = look_at_signals};
    for (at::Tensor& fresh : run.fresh) fresh.zero_();  // nothing may run
    try {
      launch(run, *run.instance->executable, *run.instance->states, nullptr, seed_, &iterations);
    } catch (...) {
      copy_back(run, *graph_);  // of the iterations that ran
      throw;
    }
    copy_back(run, *graph_);
    return std::pair(collect(run, layout_), iterations.done);
  });
}

std::pair<py::list, py::list> Caller::run_traced(const py::list& items) {
  return with_torch_errors([&] {
    Run run = begin_run(*graph_, layout_, device_index_, current_stream_, items.ptr());
    targets::Executable* executable = nullptr;
    {
      py::gil_scoped_release release;
      executable = &graph_->traced(*run.instance);
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::DeviceGuard guard(run.device);
    bind_tensors(run, *graph_, layout_);
    auto bytes = static_cast<int64_t>(executable->trace_capacity() * sizeof(abi::TraceRecord));
    at::Tensor trace = at::empty({bytes}, at::TensorOptions(at::kByte).device(run.device));
    trace.zero_();
    launch(run, *executable, *run.instance->traced_states, trace.mutable_data_ptr(), seed_);
    copy_back(run, *graph_);
    py::list outputs = collect(run, layout_);
    return std::pair(std::move(outputs), records_of(trace, run.instance->plan()));
  });
}

}  // namespace ark::bindings
