"""The command line as a person uses it: another process, its exit code and what it prints."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

COMMAND = [sys.executable, "-m", "m2dr"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def m2dr(
    *words: str | Path, cwd: Path, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        [*COMMAND, *map(str, words)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True,
        input=stdin, timeout=300, check=False,
    )  # fmt: skip


def stopped_when(
    reached: Callable[[], bool], *words: str | Path, cwd: Path, how: signal.Signals = signal.SIGKILL
) -> tuple[int, str]:
    """Start a command and send it a signal as soon as `reached()`; exit code, and what it told."""

    def as_on_a_terminal() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell's `&`

    with (cwd / "told.txt").open("w") as told:
        process = subprocess.Popen(
            [*COMMAND, *map(str, words)], cwd=cwd, env=ENVIRONMENT, stderr=told,
            stdout=subprocess.DEVNULL, preexec_fn=as_on_a_terminal,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while not reached():
            assert process.poll() is None, "it ended before it could be stopped"
            assert time.monotonic() < deadline, "it never got that far"
            time.sleep(0.002)
        process.send_signal(how)
        code = process.wait(timeout=60)
    return code, (cwd / "told.txt").read_text()
