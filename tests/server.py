"""Fork a command of m2dr for each line of standard input, from a process that has loaded it all.

A line has the words of a command, the folder where it runs and the files it reads and writes. The
answer is two lines: its process number, and once it has ended, its exit code.
"""

import atexit
import json
import os
import signal
import sys
import traceback

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


def run(words: list[str], cwd: str, streams: list[str]) -> None:
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
        main()
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
