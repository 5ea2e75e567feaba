"""`torch.compile(model, backend="ark")`: the model as one GPU-driven loop kernel."""

from ark_torch import distributed
from ark_torch._C import DeviceError, Unsupported
from ark_torch.explain import Explanation, compile_times, explain, report
from ark_torch.profile import profile

__version__ = "0.1.0"
__all__ = ["DeviceError", "Explanation", "Unsupported", "compile_times", "distributed", "explain", "profile", "report"]

distributed.register_backend()
