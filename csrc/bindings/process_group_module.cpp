#include <pybind11/chrono.h>
#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bindings/process_group.h"

namespace ark::bindings {

void register_process_group(pybind11::module_& m, std::shared_ptr<cuda::Toolchain> toolchain) {
  namespace py = pybind11;
  // Backend and Store are bound by torch itself.
  py::module_::import("torch.distributed");
  py::object backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<ProcessGroupArk, c10::intrusive_ptr<ProcessGroupArk>>(m, "ProcessGroupArk", backend)
      .def(py::init([toolchain](c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                std::chrono::milliseconds timeout, std::string name,
                                c10::intrusive_ptr<c10d::Backend> cuda_backend, uint64_t first_step, bool cuda,
                                uint32_t first_epoch, uint32_t first_message, bool early_launch) {
             std::unique_ptr<CudaGroup> group;
             if (cuda)
               group =
                   std::make_unique<CudaGroup>(store, rank, size, name, timeout, toolchain,
                                               comm::CudaCollectivesOptions{first_epoch, first_message, early_launch});
             return c10::make_intrusive<ProcessGroupArk>(std::move(store), rank, size, timeout, std::move(name),
                                                         std::move(cuda_backend), first_step, std::move(group));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
           py::arg("cuda_backend") = c10::intrusive_ptr<c10d::Backend>(), py::arg("first_step") = 0,
           py::arg("cuda") = false, py::arg("first_epoch") = 2, py::arg("first_message") = 0,
           py::arg("early_launch") = true, py::call_guard<py::gil_scoped_release>(),
           "Collective: meets the other ranks through `store` within `timeout`. `name` is unique among the groups of "
           "the store.")
      .def(
          "launches", [](ProcessGroupArk& g) { return g.cuda_group() ? g.cuda_group()->launches() : 0; },
          "CUDA kernels of the group launched so far.")
      .def(
          "poll",
          [](ProcessGroupArk& g) {
            if (g.cuda_group()) g.cuda_group()->poll();
          },
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
          "deregister", [](ProcessGroupArk& g, int number) { g.cuda_group()->deregister(number); }, py::arg("number"),
          py::call_guard<py::gil_scoped_release>())
      .def("delegated", &ProcessGroupArk::delegated, "Operations handed to the CUDA backend, with counts.");
}

}  // namespace ark::bindings
