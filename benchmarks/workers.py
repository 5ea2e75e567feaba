"""Rows that are measured in processes of their own, so that one that crashes or hangs costs its own row alone.

A child prints each row by `emit`. `Caches` are the folders that all children of a run compile into, empty at first.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import ROOT

MARK = "ROW "
STAY = "--stay"
FOLDERS = {"ARK_CACHE_DIR": "ark", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_alive: set[subprocess.Popen] = set()


def emit(row: dict) -> None:
    print(MARK + json.dumps(row), flush=True)


def caches(folder: str, threads: int) -> dict[str, str]:
    """An environment whose kernel caches lie in the folder; nothing is looked up on the network. threads: of
    inductor's compiler, in each child."""
    places = {variable: str(Path(folder).absolute() / name) for variable, name in FOLDERS.items()}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return (
        os.environ
        | places
        | {"HF_HUB_OFFLINE": "1", "TORCHINDUCTOR_COMPILE_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(paths)}
    )


def _kill(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # its compilers too
    except ProcessLookupError:
        pass


def kill_children_at_exit() -> None:
    """Also where this process is asked to end, as by `timeout`."""
    atexit.register(lambda: [_kill(process) for process in list(_alive)])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Child:
    """A script of this folder with arguments. After `rows`, `error` says why it ended, None if well. One that `stays`
    has the word `STAY` among its arguments: it waits behind its first row until `go`, however long that takes."""

    def __init__(self, script: str, arguments: list[str], environment: dict[str, str]):
        self.command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
        self.environment, self.error, self.stays = environment, None, STAY in arguments
        self.waits, self.process, self.heard, self.lock = False, None, 0.0, threading.Lock()

    def go(self) -> None:
        """Lets it go on behind its first row. One that has ended meanwhile is told by its rows."""
        self._hear(waits=False)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def _hear(self, waits: bool) -> None:
        with self.lock:
            self.heard, self.waits = time.monotonic(), waits

    def _too_quiet(self, silence: float) -> bool:
        with self.lock:
            return not self.waits and time.monotonic() - self.heard > silence

    def rows(self, silence: float) -> Iterator[dict]:
        """Its rows as they come. Killed after so many seconds without one."""
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            _alive.add(process)
            self.process = process
            done = threading.Event()
            self._hear(waits=False)

            def watch() -> None:
                while not done.wait(0.2):
                    if self._too_quiet(silence):
                        self.error = f"no row in {silence:.0f} s"
                        _kill(process)
                        return

            watcher = threading.Thread(target=watch, daemon=True)
            watcher.start()
            try:
                for line in process.stdout:
                    if line.startswith(MARK):
                        self._hear(waits=self.stays)
                        self.stays = False
                        yield json.loads(line[len(MARK) :])
                code = process.wait()
            finally:
                done.set()
                watcher.join()
                _kill(process)  # what it has started, too
                process.wait()
                _alive.discard(process)
            if code != 0:
                errors.seek(0)
                self.error = f"{self.error or f'exit status {code}'}: {errors.read()[-1500:].strip()}"


def side_by_side(children: list[Child], jobs: int, silence: float) -> list[list[dict]]:
    """The rows of each child, `jobs` of them running at a time."""
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        return list(pool.map(lambda child: list(child.rows(silence)), children))


def one_after_another(
    names: list[str], start: Callable[[list[str]], Child], silence: float, left: Callable[[], float]
) -> Iterator[tuple[str, dict | None, str | None]]:
    """(name, row, error) of each name. A child measures the names that it is started with, in order; where it ends
    early, the name that it was at gets the error and another child goes on behind it, while time is left."""
    while names and left() > 0:
        child, done = start(names), 0
        for row in child.rows(silence):
            yield names[done], row, None
            done += 1
        if done < len(names):
            if child.error is None:  # it saw that the time is over
                return
            yield names[done], None, child.error
        names = names[done + 1 :]
