#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/check.h"
#include "bindings/distributed/process_group.h"

namespace ark::bindings {

namespace {

namespace py = pybind11;

/// Python's maker of a backend, callable on any thread.
BackendMaker maker(py::object function) {
  if (function.is_none()) return {};
  auto free = [](py::object* object) {
    py::gil_scoped_acquire gil;
    delete object;
  };
  std::shared_ptr<py::object> shared(new py::object(std::move(function)), free);
  return [shared](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
    py::gil_scoped_acquire gil;
    try {
      return (*shared)(store, rank, size, timeout).cast<c10::intrusive_ptr<c10d::Backend>>();
    } catch (py::error_already_set& error) {
      throw DeviceError(error.what());  // lives without the interpreter's lock
    }
  };
}

void register_options(py::module_& m, const py::object& backend) {
  using Options = ProcessGroupArk::Options;
  auto copy = [](const Options& o) { return c10::make_intrusive<Options>(o); };
  py::class_<Options, c10::intrusive_ptr<Options>>(m, "ProcessGroupArkOptions", backend.attr("Options"))
      .def("__copy__", copy)
      .def("__deepcopy__", [copy](const Options& o, const py::dict&) { return copy(o); });
}

}  // namespace

void register_process_group(pybind11::module_& m, std::shared_ptr<cuda::Toolchain> toolchain) {
  // Backend and Store are bound by torch itself.
  py::module_::import("torch.distributed");
  py::object backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  register_options(m, backend);
  py::class_<DelegatedCalls, std::shared_ptr<DelegatedCalls>>(m, "DelegatedCalls")
      .def(py::init<>())
      .def("counts", &DelegatedCalls::counts, "Operation -> calls that went to NCCL or Gloo.");
  auto streams = std::make_shared<StreamPool>();
  py::class_<ProcessGroupArk, c10::intrusive_ptr<ProcessGroupArk>>(m, "ProcessGroupArk", backend)
      .def(py::init([toolchain, streams](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         std::chrono::milliseconds timeout, std::string name, py::object make_nccl,
                                         py::object make_gloo, std::shared_ptr<DelegatedCalls> delegated,
                                         uint64_t first_step, bool cuda, std::string refuse_cuda, uint32_t first_epoch,
                                         uint32_t first_message, bool early_launch) {
             GroupSetup setup{.first_step = first_step,
                              .cuda = cuda,
                              .refuse_cuda = std::move(refuse_cuda),
                              .cuda_options = {first_epoch, first_message, early_launch},
                              .toolchain = toolchain,
                              .streams = streams,
                              .make_nccl = maker(std::move(make_nccl)),
                              .make_gloo = maker(std::move(make_gloo)),
                              .delegated = std::move(delegated)};
             py::gil_scoped_release others_run;
             return c10::make_intrusive<ProcessGroupArk>(store, rank, size, timeout, std::move(name), std::move(setup));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
           py::arg("make_nccl") = py::none(), py::arg("make_gloo") = py::none(),
           py::arg("delegated") = std::shared_ptr<DelegatedCalls>(), py::arg("first_step") = 0, py::arg("cuda") = false,
           py::arg("refuse_cuda") = "", py::arg("first_epoch") = 2, py::arg("first_message") = 0,
           py::arg("early_launch") = true,
           "Collective: meets the other ranks through `store` within `timeout`. `name` is unique among the groups of "
           "the store. `make_nccl` and `make_gloo` (store, rank, size, timeout) make a backend when it is needed.")
      .def_property_readonly("options", &ProcessGroupArk::getBackendOptions)
      .def(
          "perform_nocolor_split", [](ProcessGroupArk&, const py::object&) {},
          "Torch calls it on ranks that a split leaves out: nothing to do here.")
      .def(
          "launches", [](ProcessGroupArk& g) { return g.cuda_group() ? g.cuda_group()->launches() : 0; },
          py::call_guard<py::gil_scoped_release>(), "CUDA kernels of the group launched so far.")
      .def(
          "poll",
          [](ProcessGroupArk& g) {
            if (g.cuda_group()) g.cuda_group()->poll();
          },
          py::call_guard<py::gil_scoped_release>(),
          "Raises DeviceError when a CUDA collective of the group has failed; never blocks.")
      .def(
          "force_algorithm",
          [](ProcessGroupArk& g, int algorithm) {
            if (g.cuda_group()) g.cuda_group()->force_algorithm(algorithm);
          },
          py::arg("algorithm"), "For tests: 0 one-shot, 1 two-shot, 2 rings, 3 registered memory, -1 by size.")
      .def(
          "empty",
          [](ProcessGroupArk& g, std::vector<int64_t> sizes, at::ScalarType dtype, c10::Device device) {
            TORCH_CHECK(g.cuda_group(), "ark process group, empty: the group has no CUDA side");
            return g.cuda_group()->empty(sizes, dtype, device);
          },
          py::arg("sizes"), py::arg("dtype"), py::arg("device"), py::call_guard<py::gil_scoped_release>(),
          "A CUDA tensor in memory that all ranks of the group map. Collective.")
      .def(
          "register",
          [](ProcessGroupArk& g, const at::Tensor& tensor) {
            TORCH_CHECK(g.cuda_group(), "ark process group, register: the group has no CUDA side");
            return g.cuda_group()->register_tensor(tensor);
          },
          py::arg("tensor"), py::call_guard<py::gil_scoped_release>(), "Maps a CUDA tensor on all ranks. Collective.")
      .def(
          "deregister",
          [](ProcessGroupArk& g, int number) {
            if (g.cuda_group()) g.cuda_group()->deregister(number);
          },
          py::arg("number"), py::call_guard<py::gil_scoped_release>())
      .def("delegated", &ProcessGroupArk::delegated, "Operations handed to NCCL or Gloo, with counts.");
}

}  // namespace ark::bindings
