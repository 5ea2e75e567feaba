"""What a rank imports when it first compiles, a second of a core: a server imports it once and forks the ranks. Nothing
here starts CUDA or a thread, so nothing is compiled either: Dynamo asks GPUs for the state of their generators."""

import contextlib
import importlib
import pkgutil

import torch._dynamo.testing
import torch._functorch.aot_autograd
import torch._inductor.compile_fx  # noqa: F401
from torch._dynamo.backends.registry import list_backends, lookup_backend

import ark_torch.distributed
import tests.support.distributed_worker  # noqa: F401

# What torch imports in functions of its own; some versions have it elsewhere, or not at all.
WITHIN_FUNCTIONS = (
    "torch._dynamo.dce_extra_outputs",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.compiler_bisector",
    "torch.export._trace",
    "torch.export._unlift",
    "torch.fx.experimental.validator",
)

list_backends()
lookup_backend("ark")
for module in pkgutil.iter_modules(ark_torch.__path__, "ark_torch."):
    if not module.name.endswith(("__main__", "accelerate")):
        importlib.import_module(module.name)
for name in WITHIN_FUNCTIONS:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
