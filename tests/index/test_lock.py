import subprocess
import sys
from pathlib import Path

import pytest

from m2dr.errors import UserError
from m2dr.index.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from m2dr.index.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_writer_is_told_and_one_that_was_killed_blocks_nobody(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"

        with (
            pytest.raises(UserError, match=f"Another process, {holder.pid}, is writing to"),
            locked(tmp_path),
        ):
            pass

        holder.kill()
        holder.wait()
        assert list(tmp_path.iterdir())
        with locked(tmp_path):
            pass
    assert not list(tmp_path.iterdir())


def test_a_lock_is_held_until_its_block_ends(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(UserError, match="is writing to"), locked(tmp_path):
            pass
        with pytest.raises(UserError, match="is writing to"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass
