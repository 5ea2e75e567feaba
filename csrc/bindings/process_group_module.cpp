#include <pybind11/chrono.h>
#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bindings/process_group.h"

namespace ark::bindings {

void register_process_group(pybind11::module_& m) {
  namespace py = pybind11;
  // Backend and Store are bound by torch itself.
  py::module_::import("torch.distributed");
  py::object backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<ProcessGroupArk, c10::intrusive_ptr<ProcessGroupArk>>(m, "ProcessGroupArk", backend)
      .def(py::init([](c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
                       std::string name, c10::intrusive_ptr<c10d::Backend> cuda_backend, uint64_t first_step) {
             return c10::make_intrusive<ProcessGroupArk>(std::move(store), rank, size, timeout, std::move(name),
                                                         std::move(cuda_backend), first_step);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
           py::arg("cuda_backend") = c10::intrusive_ptr<c10d::Backend>(), py::arg("first_step") = 0,
           py::call_guard<py::gil_scoped_release>(),
           "Collective: meets the other ranks through `store` within `timeout`. `name` is unique among the groups of "
           "the store.")
      .def("delegated", &ProcessGroupArk::delegated, "Operations handed to the CUDA backend, with counts.");
}

}  // namespace ark::bindings
