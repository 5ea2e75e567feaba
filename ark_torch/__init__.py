"""`torch.compile(model, backend="ark")`: the model as one GPU-driven loop kernel."""

import importlib

import ark_autoload
from ark_torch.versions import load_extension

load_extension()

from ark_torch import distributed  # noqa: E402
from ark_torch._C import DeviceError, Unsupported  # noqa: E402
from ark_torch.explain import Explanation, compile_times, explain, report  # noqa: E402
from ark_torch.generate import generate  # noqa: E402
from ark_torch.loop import loop  # noqa: E402
from ark_torch.profile import profile  # noqa: E402
from ark_torch.train_loop import train_loop  # noqa: E402

__version__ = "0.1.0"
__all__ = [
    "DeviceError",
    "Explanation",
    "Unsupported",
    "compile_times",
    "distributed",
    "explain",
    "generate",
    "loop",
    "profile",
    "report",
    "train_loop",
]

ark_autoload.register()  # where torch has not done it: TORCH_DEVICE_BACKEND_AUTOLOAD=0


def __getattr__(name: str):
    """`ark_torch.backend` is imported when it is asked for: it brings Dynamo and AOTAutograd with it."""
    if name == "backend":
        return importlib.import_module("ark_torch.backend")
    raise AttributeError(f"module 'ark_torch' has no attribute {name!r}")
