"""Memory that was freed goes back to the system."""

import platform
import subprocess
import sys

import pytest

MIB = 2**20

# Every second block of the heap stays, so that glibc keeps the pages of those that were freed.
HOLES = """
import ctypes
import psutil
from m2dr.core.files import return_free_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(64 << 10) for _ in range(4096)]
for block in blocks:
    ctypes.memset(ctypes.c_void_p(block), 1, 64 << 10)
for block in blocks[::2]:
    libc.free(block)
before = psutil.Process().memory_info().rss
assert return_free_memory()
print(before - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_free_memory_goes_back_to_the_system() -> None:
    found = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 100 * MIB  # of 128 that were freed
