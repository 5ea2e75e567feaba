// The module ark_torch._C. See README.md beside this file.
#include <torch/extension.h>

PYBIND11_MODULE(_C, m) { m.doc() = "ark: graphs compiled into one loop kernel"; }
