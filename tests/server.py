"""Fork a command of m2dr for each line of standard input, from a process that has loaded it all.

A line has the words of a command, or `-c` and a program, the folder where it runs, the files it reads
and writes, and before which change of a file it is killed. The answer is two lines: its process
number, and once it has ended, its exit code.
"""

import atexit
import itertools
import json
import os
import signal
import sys
import traceback
from pathlib import Path

from m2dr.cli import main

assert main.callback
main.callback()  # sets what OpenMP and MKL read when they are loaded

import faiss  # noqa: E402, F401  # loaded for those who are forked
import torch  # noqa: E402, F401  # the same
import transformers  # noqa: E402, F401  # the same

import m2dr.tasks.evaluating.evaluate  # noqa: E402  # the same
import m2dr.tasks.indexing.index  # noqa: E402  # the same
import m2dr.tasks.searching.search  # noqa: E402  # the same
import m2dr.tasks.training.train  # noqa: E402, F401  # the same

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")


def count_changes(last: int, told: str) -> None:
    """Kill this process before that change of a file; else write how many there were as it ends."""
    number = itertools.count(1)
    sys.dont_write_bytecode = True  # it would be a change the first time

    def watch(event: str, given: tuple[object, ...]) -> None:
        opened = event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR)
        exchanged = event == "ctypes.dlsym" and given[1] == "renameat2"  # of two folders
        if (event in CHANGES or opened or exchanged) and next(number) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    atexit.register(lambda: Path(told).write_text(str(next(number) - 1)))


def run(words: list[str], cwd: str, streams: list[str], killed_at: int | None) -> None:
    """Be the command, in a process that has only just been forked; never return."""
    code = 1
    try:
        os.chdir(cwd)
        modes = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_TRUNC] * 2)
        for number, (path, mode) in enumerate(zip(streams, modes, strict=True)):
            os.dup2(os.open(path, mode), number)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1)
        sys.argv = ["m2dr", *words]
        if killed_at is not None:
            count_changes(killed_at, f"{streams[2]}.changes")
        if words[0] == "-c":
            exec(words[1], {})  # noqa: S102  # a program of a test
        else:
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Fork until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell's `&`
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            run(**json.loads(line))
        answers.write(f"{child}\n")
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")


if __name__ == "__main__":
    serve()
