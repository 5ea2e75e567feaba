"""The python whose programs are forked (tests/support/prepared_python.py) is like one that is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.prepared_python import prepared_python

WHAT = "import os, sys; print(sys.argv, sys.stdin.read(), os.getcwd(), os.environ.get('MINE'), __name__, sys.path[0])"


def run(*words: str, python: str = "", **more) -> subprocess.CompletedProcess:
    command = [python or prepared_python(), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


@pytest.mark.parametrize("words", [["-c", WHAT, "a", ""], ["what.py", "b c"], ["-u", "-m", "what", "-d"]], ids=str)
def test_programs_see_what_they_are_given(tmp_path, words):
    (tmp_path / "what.py").write_text(WHAT)
    given = {"input": "text", "cwd": tmp_path, "env": os.environ | {"MINE": "1"}}
    done, want = run(*words, **given), run(*words, python=sys.executable, **given)
    assert want.returncode == 0 and (done.stdout, done.stderr) == (want.stdout, want.stderr)


@pytest.mark.parametrize(
    "code", ["raise SystemExit(3)", "raise SystemExit('as asked')", "1 / 0", "import sys; sys.exit()"]
)
def test_programs_end_as_they_say(code):
    done, want = run("-c", code), run("-c", code, python=sys.executable)
    assert done.returncode == want.returncode
    assert done.stderr.splitlines()[-1:] == want.stderr.splitlines()[-1:]
    assert run("-c", "import os; os.abort()").returncode == -signal.SIGABRT


def test_a_program_is_killed_with_who_started_it(tmp_path):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    process = subprocess.Popen([prepared_python(), "-c", code], stdout=subprocess.PIPE, text=True)
    own = Path(f"/proc/{int(process.stdout.readline())}")
    assert own.exists() and own.name != str(process.pid)
    process.kill()
    assert process.wait() == -signal.SIGKILL and process.stdout.read() == ""  # nobody has it any more
    end = time.monotonic() + 20
    while own.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_programs_start_is_forked_too(tmp_path):
    (tmp_path / "spawning.py").write_text(
        "import multiprocessing, sys\n"
        "def told(queue):\n    queue.put('transformers' in sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n    queue = context.Queue()\n"
        "    process = context.Process(target=told, args=(queue,))\n    process.start()\n"
        "    print(queue.get())\n    process.join()\n    sys.exit(process.exitcode)\n"
    )
    done = run(str(tmp_path / "spawning.py"))
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr
    assert sys.executable != prepared_python()
