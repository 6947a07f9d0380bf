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


def kill_when(
    reached: Callable[[], bool], *words: str | Path, cwd: Path, how: signal.Signals = signal.SIGKILL
) -> int:
    """Start a command and send it a signal as soon as `reached()`; its exit code."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)], cwd=cwd, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not reached():
        assert process.poll() is None, "it ended before it could be stopped"
        assert time.monotonic() < deadline, "it never got that far"
        time.sleep(0.005)
    process.send_signal(how)
    return process.wait(timeout=60)
