"""The command line as a person uses it: another process, its exit code and what it prints.

Each process would load torch and transformers for seconds before it does anything. So `m2dr` asks a
server for a fork, which has loaded them and run nothing (`server.py`); `cold=True` starts an
interpreter as a shell does.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

COMMAND = [sys.executable, "-m", "m2dr"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
LIMIT = 300  # seconds of a command


def m2dr(
    *words: str | Path,
    cwd: Path,
    stdin: str | None = None,
    cold: bool = False,
    killed_at: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end, or up to a change of a file by its number, or so many seconds (a float).

    Nothing is change 0: the last line of standard error is how many changes there were.
    """
    if cold:
        return subprocess.run(
            [*COMMAND, *map(str, words)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True,
            input=stdin, timeout=LIMIT, check=False,
        )  # fmt: skip
    with TemporaryDirectory() as place:
        streams = [Path(place, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin or "")
        change = killed_at if isinstance(killed_at, int) else None
        command = Forked(words, cwd, streams, change)
        if isinstance(killed_at, float) and not command.ended(killed_at):
            os.kill(command.pid, signal.SIGKILL)
        code = command.wait(LIMIT)
        out, err = (stream.read_text() for stream in streams[1:])
        if change == 0:
            err += Path(place, "stderr.changes").read_text()
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


class Forked:
    """A command that the server has forked; one at a time."""

    def __init__(
        self,
        words: Sequence[str | Path],
        cwd: Path,
        streams: Sequence[Path],
        killed_at: int | None = None,
    ) -> None:
        self.words = list(map(str, words))
        self.server = server()
        request = {"words": self.words, "cwd": str(cwd), "streams": list(map(str, streams)),
                   "killed_at": killed_at}  # fmt: skip
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
