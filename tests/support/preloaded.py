"""What a rank imports when it first compiles, a second of a core: a server imports it once and forks the ranks. Nothing
here starts CUDA or a thread. Where there is a GPU nothing is compiled either: Dynamo asks it for the state of its
generators."""

import contextlib
import importlib
import pkgutil

import torch._dynamo.testing
import torch._functorch.aot_autograd
import torch._inductor.compile_fx
from torch._dynamo.backends.registry import list_backends, lookup_backend

import ark_torch.distributed
import tests.support.distributed_worker  # noqa: F401

# What torch imports in functions of its own; some versions have it elsewhere, or not at all.
WITHIN_FUNCTIONS = (
    "torch._dynamo.dce_extra_outputs",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.compiler_bisector",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
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


def fill_tables() -> None:
    """Those that Dynamo and AOTAutograd make at their first compilation, of inference and of training. No backward,
    which would start autograd's threads."""
    x = torch.ones(2, 3)
    for argument in (x, x.clone().requires_grad_()):
        torch.compile(lambda x: torch.relu(x) + 1, backend="aot_eager")(argument)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


if not torch.cuda.is_available():
    fill_tables()
