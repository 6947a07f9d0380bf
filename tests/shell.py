"""The command line as a person uses it: another process, its exit code and what it prints.

Each process would load torch and transformers for seconds before it does anything. So `m2dr` and
`stopped_when` ask a server for a fork, which has loaded them and run nothing (`server.py`);
`cold=True` starts an interpreter as a shell does.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

COMMAND = [sys.executable, "-m", "m2dr"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
LIMIT = 300  # seconds of a command


def m2dr(
    *words: str | Path, cwd: Path, stdin: str | None = None, cold: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    if cold:
        return subprocess.run(
            [*COMMAND, *map(str, words)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True,
            input=stdin, timeout=LIMIT, check=False,
        )  # fmt: skip
    with TemporaryDirectory() as place:
        streams = [Path(place, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin or "")
        command = Forked(words, cwd, streams)
        code = command.wait(LIMIT)
        out, err = (stream.read_text() for stream in streams[1:])
    return subprocess.CompletedProcess(command.words, code, out, err)


def python(*words: object, cwd: Path | None = None, **variables: str) -> str:
    """What another interpreter prints that ends well."""
    ended = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env={**ENVIRONMENT, **variables},
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


HOLD = """
import sys
from pathlib import Path
from m2dr.core.files import lock_file, lock_folder
path = Path(sys.argv[1])
with (lock_file if path.suffix else lock_folder)(path):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes to `path`; it ends with the block."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        yield holder


def stopped_when(
    reached: Callable[[], bool], *words: str | Path, cwd: Path, how: signal.Signals = signal.SIGKILL
) -> tuple[int, str]:
    """Start a command and send it a signal as soon as `reached()`; exit code, and what it told."""
    told = cwd / "told.txt"
    command = Forked(words, cwd, [Path(os.devnull), Path(os.devnull), told])
    deadline = time.monotonic() + 120
    while not reached():
        assert not command.ended(0), f"it ended before it could be stopped: {told.read_text()}"
        assert time.monotonic() < deadline, "it never got that far"
        time.sleep(0.002)
    os.kill(command.pid, how)
    return command.wait(60), told.read_text()


class Forked:
    """A command that the server has forked; one at a time."""

    def __init__(self, words: Sequence[str | Path], cwd: Path, streams: Sequence[Path]) -> None:
        self.words = list(map(str, words))
        self.server = server()
        request = {"words": self.words, "cwd": str(cwd), "streams": list(map(str, streams))}
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        self.pid = int(self.server.stdout.readline())

    def ended(self, seconds: float) -> bool:
        """Whether it ends within that time."""
        return bool(select.select([self.server.stdout], [], [], seconds)[0])

    def wait(self, seconds: float) -> int:
        """Its exit code, or minus the signal that ended it."""
        late = not self.ended(seconds)
        if late:
            os.kill(self.pid, signal.SIGKILL)
        code = int(self.server.stdout.readline())
        if late:
            raise subprocess.TimeoutExpired(self.words, seconds)
        return code


@cache
def server() -> subprocess.Popen[str]:
    """The server of this process; it ends when this process does, as its input ends."""
    return subprocess.Popen(
        [sys.executable, Path(__file__).with_name("server.py")], env=ENVIRONMENT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
