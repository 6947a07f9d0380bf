"""Encoding that is killed at random moments, many times and cheaply.

Run with a corpus, a backbone, a folder for indexes, and how often to kill. Everything heavy is
imported once; each attempt is a fork, which is sound because nothing has run a thread yet.
"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

os.environ["MKL_CBWR"] = "AUTO,STRICT"  # as the command line does

from m2dr.core.requests import IndexRequest
from m2dr.tasks.indexing.index import index_corpus


def attempt(request: IndexRequest) -> int:
    """Encode in a fork; its process number."""
    child = os.fork()
    if child == 0:
        try:
            index_corpus(request)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def main(corpus: str, model: str, root: str, times: int, longest: float) -> None:
    """Kill attempts after up to `longest` seconds; say how many were, and how the last ended.

    One that ends before its time begins afresh and is killed sooner: machines differ.
    """
    request = IndexRequest(
        corpus, model, layers=(2, 4), dims=(8,), root=Path(root), device="cpu", shard_rows=50
    )
    draw, killed = random.Random(13), 0
    for _ in range(times):
        child = attempt(request)
        time.sleep(draw.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL:
            killed += 1
        else:
            shutil.rmtree(root)
            longest /= 2
    code = os.waitstatus_to_exitcode(os.waitpid(attempt(request), 0)[1])
    sys.stdout.write(f"{killed} {code}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
