"""A `python` whose programs are forked from a process that has imported torch, Dynamo, ark and transformers: in a fresh
start these alone take 3 to 8 s of a core.

`prepared_python()` is the path of an executable that takes FILE, -c CODE or -m MODULE with arguments as python does.
The program has the environment, the folder and all open files of who starts it, and is killed with it. What the program
starts by sys.executable, or by multiprocessing's spawning, is forked as well. Not for tests of the start itself, and
not with variables that are read at an import (ARK_CACHE_DIR; of torch all but CXX): sys.executable is for these.

    python -m tests.support.prepared_python FOLDER     # the server: FOLDER/socket
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import marshal
import multiprocessing
import os
import random
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120
LAUNCHER = """#!/bin/sh
"exec" "{python}" "-IS" "$0" "$@"
import marshal, os, signal, socket, sys
files = [n for n in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{{n}}")]
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
what = marshal.dumps((files, sys.orig_argv[3:], dict(os.environ), os.getcwd(), sys.argv[0]))
socket.send_fds(server, [len(what).to_bytes(8, "big")], files)
server.sendall(what)
code = int(server.recv(16) or b"1")
if code < 0:
    if code not in (-signal.SIGKILL, -signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@functools.cache
def prepared_python(number: int = 0) -> str:
    """The server starts at the first call, and ends with this process. Those of two numbers hash differently."""
    folder = Path(tempfile.mkdtemp(prefix="prepared"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    launcher = folder / "python"
    launcher.write_text(LAUNCHER.format(python=sys.executable, path=str(folder / "socket")))
    launcher.chmod(0o755)
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", __name__, str(folder)]
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE)
    atexit.register(lambda: (server.stdin.close(), server.wait()))  # it ends where nobody has the pipe any more
    end = time.monotonic() + START_SECONDS
    while not (folder / "socket").exists():
        assert server.poll() is None and time.monotonic() < end, f"no server: exit status {server.poll()}"
        time.sleep(0.02)
    return str(launcher)


class Server:
    def __init__(self, folder: Path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "binding"))
        self.listener.listen(64)
        (folder / "binding").rename(folder / "socket")
        self.running: dict[int, socket.socket] = {}
        self.ended, writer = socket.socketpair()
        for end in (self.ended, writer):
            end.setblocking(False)
        self.writer = writer
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
        ):  # meant for who started it: the pipe's end says so
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self.looks = selectors.DefaultSelector()
        for file in (self.listener, self.ended, sys.stdin):
            self.looks.register(file, selectors.EVENT_READ)

    def serve(self) -> tuple | None:
        """In a fork: what it is to do. None when who started the server has ended."""
        while True:
            for key, _ in self.looks.select():
                if key.fileobj is sys.stdin:
                    for pid in self.running:
                        _kill(pid)
                    return None
                if key.fileobj is self.listener:
                    if asked := self._start(self.listener.accept()[0]):
                        return asked
                elif key.fileobj is self.ended:
                    self.ended.recv(4096)
                    self._reap()
                elif key.data in self.running:  # the launcher has ended
                    self.looks.unregister(key.fileobj)
                    _kill(key.data)

    def _start(self, asker: socket.socket) -> tuple | None:
        size, files, _, _ = socket.recv_fds(asker, 8, 253)
        if len(size) < 8:
            return None  # killed meanwhile
        text = asker.makefile("rb").read(int.from_bytes(size, "big"))
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.looks.close()
            for file in (self.listener, self.ended, self.writer, asker, *self.running.values()):
                file.close()
            os.setpgid(0, 0)
            _die_with_parent()
            return (files, *marshal.loads(text))
        for file in files:
            os.close(file)
        self.running[pid] = asker
        self.looks.register(asker, selectors.EVENT_READ, pid)
        return None

    def _reap(self) -> None:
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            asker = self.running.pop(pid)
            with contextlib.suppress(KeyError):
                self.looks.unregister(asker)
            with contextlib.suppress(OSError):
                asker.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            asker.close()


def _die_with_parent() -> None:
    """A program of a server that was killed is killed as well (Linux alone)."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _take(files: list[int], numbers: list[int]) -> None:
    """The files get the numbers that they have where the launcher is."""
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 1000) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(high, numbers):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")


def _become(words: list[str], environment: dict[str, str], folder: str, launcher: str) -> list[str]:
    """The words without python's own options."""
    import torch

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None  # looked up anew
    sys.executable = launcher
    multiprocessing.set_executable(launcher)
    own = [p for p in sys.path if p and p != str(ROOT)]
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *own]
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed()  # the server's is the same in all its forks
    random.seed()
    if compiler := environment.get("CXX"):  # which inductor reads when it is imported
        torch._inductor.config.cpp.cxx = (None, compiler)
    while words[0].startswith("-") and words[0] not in ("-c", "-m"):
        words = words[1:]
    return words


def _run(words: list[str]) -> None:
    main = sys.modules["__main__"] = types.ModuleType("__main__")  # this one stays
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    if words[0] == "-c":
        sys.argv, name, code = ["-c", *words[2:]], "<string>", words[1]
        sys.path.insert(0, "")
    else:
        sys.argv, name, code = words, words[0], Path(words[0]).read_bytes()
        main.__file__ = name
        sys.path.insert(0, str(Path(name).resolve().parent))
    exec(compile(code, name, "exec", dont_inherit=True), main.__dict__)


def _run_to_the_end(words: list[str]) -> None:
    """The process ends as python does, except that modules stay: to take them apart copies what was shared, 0.6 s. What
    the program itself has is freed."""
    code = 0
    try:
        _run(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):
            file.flush()
    ctypes.PyDLL(None).exit(code)  # with the destructors of libraries


def main() -> None:
    import tests.support.torch_alone  # noqa: I001
    import tests.support.preloaded  # noqa: F401

    with contextlib.suppress(ImportError):
        import transformers.models.auto.modeling_auto  # noqa: F401
    from tests.support import dynamo_costs

    dynamo_costs.leave_out()
    dynamo_costs.leave_out_collection()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50000, 20, 20)
    if asked := Server(Path(sys.argv[1])).serve():
        files, numbers, *rest = asked
        _take(files, numbers)
        _run_to_the_end(_become(*rest))


if __name__ == "__main__":
    main()
