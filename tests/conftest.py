"""Shared fixtures. `executor` runs the graphs of a test on the extension, where it is built, and on the reference
evaluator."""

from __future__ import annotations

import gc
import os
from collections import Counter

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # collecting tests never starts CUDA: some fork afterwards
if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: threads that wait for work take a sixth of them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if gpus := int(
        os.environ.get("TESTS_GPUS", "0")
    ):  # of so many GPUs each worker has one or TESTS_GPUS_EACH, in turn
        each = int(os.environ.get("TESTS_GPUS_EACH", "1"))
        first = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) * each
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str((first + i) % gpus) for i in range(each))

import pytest
import torch

import ark_torch.segment
from ark_torch.records import REGISTRY
from tests.support import dynamo_costs
from tests.support.both_executors import BothGraph
from tests.support.reference_eval import ReferenceGraph

os.environ.setdefault("ARK_VERIFY", "full")  # every plan, not only the first of each structure
dynamo_costs.leave_out()


# What make test-fast leaves out: builds, subprocesses that start torch, sweeps. Paths below tests.
SLOW = (
    "benchmarks/test_benchmarks.py",
    "benchmarks/test_tables.py",
    "benchmarks/test_tensor_parallel.py",
    "benchmarks/test_turns.py",
    "cuda_compile/",
    "distributed/",
    "frontend/test_accelerate.py",
    "frontend/test_attention_transforms.py",
    "frontend/test_canonical_domain.py",
    "frontend/test_concatenation.py",
    "frontend/test_dropout.py",
    "frontend/test_empty_sizes.py",
    "frontend/test_generate",
    "frontend/test_interrupted_compile.py",
    "frontend/test_long_",
    "frontend/test_loop_function.py",
    "frontend/test_loop_random.py",
    "frontend/test_loops.py",
    "frontend/test_lowering_memory.py",
    "frontend/test_models.py",
    "frontend/test_multihead.py",
    "frontend/test_opdb.py",
    "frontend/test_random_graphs.py",
    "frontend/test_random_programs.py",
    "frontend/test_refused_dtypes.py",
    "frontend/test_registration.py",
    "frontend/test_row_select.py",
    "frontend/test_sampling.py",
    "frontend/test_size_functions.py",
    "frontend/test_sizes.py",
    "frontend/test_train_",
    "test_build.py",
    "test_cpp.py",
    "test_examples.py",
    "test_package.py",
    "test_setup.py",
    "test_thread_sanitizer.py",
)
FAST = (  # of those nevertheless
    "distributed/test_ddp.py",
    "distributed/test_process_group.py::test_collectives[2]",
    "distributed/test_process_group.py::test_exchanges[2]",
)


# What a worker is busy with for long. Workers take the tests in order: begun last it would leave the other cores idle.
FIRST = (
    "test_thread_sanitizer.py",
    "distributed/test_plan_",
    "benchmarks/test_tables.py",
    "cuda_compile/",
    "test_cpp.py",
    "test_build.py",
    "test_setup.py",
    "test_package.py",
    "test_examples.py",
    "frontend/test_generate",
    "gpu/test_sizes.py::test_training_shapes",
    "gpu/test_bad_input.py::test_every_producer_that_never_signals",
    "gpu/test_models.py::test_bert_",
    "gpu/test_models.py::test_dropout_of_next_to_nothing",
    "gpu/test_models.py::test_two_forwards_then_two_backwards",
    "gpu/test_sampling.py::test_generate_draws",
    "gpu/test_models.py",
    "gpu/test_sampling.py",
    "gpu/test_sizes.py",
    "gpu/test_train_loop.py",
    "gpu/test_loops.py",
    "multigpu/test_plan_",
)


def path_of(item) -> str:
    return item.nodeid.partition("tests/")[2]


def pytest_collection_modifyitems(items):
    rank = lambda item: next((i for i, start in enumerate(FIRST) if path_of(item).startswith(start)), len(FIRST))
    items.sort(key=rank)
    for item in items:
        path = path_of(item)
        if path.startswith(SLOW) and not path.startswith(FAST):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish(session):
    """What is imported stays: the collector of cycles no longer walks it again and again, 0.2 s each time: 10 instead
    of 19 of 140 CPU seconds of test_dynamic.py and test_models.py. Not beside GPUs, whose memory cycles may hold."""
    if torch.cuda.is_available():
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(50000, 20, 20)
    dynamo_costs.leave_out_collection()


def has_extension() -> bool:
    try:
        from ark_torch import _C
    except ImportError:
        return False
    return hasattr(_C, "CompiledGraph")


EXECUTORS = [
    "reference",
    pytest.param("host", marks=pytest.mark.skipif(not has_extension(), reason="the extension is not built")),
]


def use_reference(monkeypatch) -> list[ReferenceGraph]:
    """Puts the reference evaluator behind the backend; returns the list that the graphs made from now on are appended
    to."""
    made: list[ReferenceGraph] = []

    def make(*args):
        made.append(ReferenceGraph(*args))
        return made[-1]

    monkeypatch.setattr(ark_torch.segment, "make_executable", make)
    return made


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    REGISTRY.clear()
    dynamo_costs.seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def executor(monkeypatch) -> None:
    """Each graph runs on the extension and on the reference evaluator, which must agree; without an extension on the
    latter alone. Most of such a test is Dynamo and AOTAutograd, which run once."""
    if has_extension():
        make = ark_torch.segment.make_executable
        monkeypatch.setattr(ark_torch.segment, "make_executable", lambda *args: BothGraph(make, *args))
    else:
        use_reference(monkeypatch)


@pytest.fixture(params=EXECUTORS)
def each_executor(request, monkeypatch) -> str:
    """A run for each, of tests that expect of one what the other does not do."""
    if request.param == "reference":
        use_reference(monkeypatch)
    return request.param


def pytest_terminal_summary(terminalreporter):
    """A line for each reason why tests of several GPUs could not run, just above the last line."""
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if "multigpu" in r.nodeid.split("/")]
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.items():
        terminalreporter.write_line(
            f"tests/multigpu: {count} tests skipped ({reason}), {torch.cuda.device_count()} GPUs found"
        )
