"""The suite skips tests by the names of the backends that it knows. Here it learns what `ark` does of that."""

from __future__ import annotations

from torch.testing._internal import common_utils
from torch.testing._internal.common_distributed import DistTestCases

FEATURES = ("gpu", "cuda", "ddp", "subgroup", "plugin")
# How reasons for skipping begin that name a backend, where ark does what the test wants.
DONE_BY_ARK = (
    "Only Nccl supports",
    "Only NCCL supports",
    "Only MPI supports",
    "Only Gloo and NCCL backends will have CUDA",
    "Only Gloo and Nccl backend",
    "Only Nccl & Gloo backend support",
    "NCCL Batch Send Recv Only",
    "NCCL Send Recv Only",
    "GLOO Batch Send Recv CPU",
    "Coalescing manager currently tests with NCCL only",
    "get_future is only supported on",
    "Test requires backend ark to be one of",
)


def introduce_ark() -> None:
    """Before torch.testing._internal.distributed.distributed_test is imported, whose decorators ask."""
    for feature in FEATURES:
        DistTestCases.backend_feature.setdefault(feature, set()).add("ark")
    skip, skip_if = common_utils.skip_but_pass_in_sandcastle, common_utils.skip_but_pass_in_sandcastle_if

    def our_skip(reason: str):
        return (lambda test: test) if reason.startswith(DONE_BY_ARK) else skip(reason)

    def our_skip_if(condition: bool, reason: str):
        return skip_if(condition and not reason.startswith(DONE_BY_ARK), reason)

    common_utils.skip_but_pass_in_sandcastle = our_skip
    common_utils.skip_but_pass_in_sandcastle_if = our_skip_if
