import subprocess
import sys

IMPORTS = "import m2dr.evaluate.measures, m2dr.evaluate.grid, m2dr.evaluate.figures, sys"
LOADED = "print(*sorted({'ir_measures', 'matplotlib', 'pytrec_eval', 'torch'} & set(sys.modules)))"


def test_importing_the_room_loads_no_heavy_library() -> None:
    # A fresh interpreter, because the tests beside this one have loaded them all.
    done = subprocess.run(
        [sys.executable, "-c", f"{IMPORTS}; {LOADED}"], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == ""
