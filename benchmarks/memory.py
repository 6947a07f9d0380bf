"""Memory of this process."""

import resource
from pathlib import Path


def peak_memory() -> int:
    """Peak memory of this process in bytes.

    On Linux `ru_maxrss` starts at what the parent held when it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = (line.split() for line in status.read_text(encoding="utf-8").splitlines())
        return next(1024 * int(words[1]) for words in fields if words[:1] == ["VmHWM:"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of macOS, in bytes
