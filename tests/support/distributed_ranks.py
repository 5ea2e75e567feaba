"""One rank that runs many tests of PyTorch's distributed suite, one after the other, a new process group for each.

    python -m tests.support.distributed_ranks RANK FOLDER TEST...

Writes FOLDER/RANK.jsonl: a line {"test", "outcome": "passed" | "skipped" | "failed", "text", "seconds"} for each test.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

SECONDS_PER_COLLECTIVE = 20


def temporary_folders(folder: Path, index: int) -> None:
    """What the suite's own parent process makes for each test; every rank may be first."""
    os.environ["TEMP_DIR"] = str(folder / str(index))
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / str(index) / name).mkdir(parents=True, exist_ok=True)


def wait_for_the_others(store: Path, rank: int, world: int) -> None:
    """A rank that skips a test must not leave while another still connects: Gloo's helper group would fail there."""
    (store.parent / f"ended.{rank}").touch()
    end = time.monotonic() + SECONDS_PER_COLLECTIVE
    while time.monotonic() < end and not all((store.parent / f"ended.{r}").exists() for r in range(world)):
        time.sleep(0.002)


def run(case, rank: int, store: Path) -> tuple[str, str]:
    """Outcome of one test on this rank."""
    import torch.distributed as dist
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.distributed.distributed_test import Barrier

    reasons = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    Barrier.barrier_id = 0
    case.rank, case.file_name = rank, str(store)
    timeout = timedelta(seconds=SECONDS_PER_COLLECTIVE)
    world = int(os.environ["WORLD_SIZE"])
    try:
        dist.init_process_group("ark", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout)
        common_utils.set_rng_seed()
        getattr(case, case._testMethodName)()
        case._barrier()
        return "passed", ""
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as exit_:
        return ("passed", "") if exit_.code in (0, None) else ("skipped", reasons.get(exit_.code, str(exit_.code)))
    except Exception:
        return "failed", traceback.format_exc()
    finally:
        wait_for_the_others(store, rank, world)
        if dist.is_initialized():
            dist.destroy_process_group()


def main() -> None:
    rank, folder, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    os.environ["TEMP_DIR"] = str(folder)
    import torch

    from tests.support.distributed_suite import TestArk

    torch.set_num_threads(1)
    with open(folder / f"{rank}.jsonl", "w", buffering=1) as lines:
        for index, name in enumerate(names):
            temporary_folders(folder, index)
            begin = time.monotonic()
            outcome, text = run(TestArk(name), rank, folder / str(index) / "store")
            line = {"test": name, "outcome": outcome, "text": text, "seconds": time.monotonic() - begin}
            lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
