"""Every published table and figure, one after the other, on models trained once.

python scripts/reproduce/everything.py --small --data DATA --out OUT [--only NAME,NAME]
"""

import sys
import time
from collections.abc import Sequence

import ese_ablation
import ese_grid
import mipic
import retrieval_beir
import retrieval_dims
import retrieval_fixed_doc
import retrieval_losses
import retrieval_separate
import retrieval_sts
import starbucks
import v1_ablation
import v1_grid
from common import Outcome, end, names, parser, reproduce, scale_of, summary, tell

from m2dr.errors import Interrupted, UserError, nearest

EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        retrieval_separate,
        retrieval_beir,
        retrieval_losses,
        retrieval_dims,
        retrieval_fixed_doc,
        starbucks,
        retrieval_sts,
        v1_grid,
        v1_ablation,
        ese_grid,
        ese_ablation,
        mipic,
    )
}


def run(words: Sequence[str] | None = None) -> int:
    """Run what was asked; the number of scripts that could not run."""
    given = parser("Reproduce every published table and figure.").parse_args(words)
    scale, asked = scale_of(given), names(given.only)
    for name in asked:
        if name not in EXPERIMENTS:
            raise UserError(f"There is no script {name!r}. {nearest(name, EXPERIMENTS)}")
    begun, told, failed = time.monotonic(), list[str](), 0
    outcomes: list[Outcome] = []
    for name in asked or EXPERIMENTS:
        start = time.monotonic()
        try:
            found = reproduce(EXPERIMENTS[name], scale)
        except Interrupted:
            raise
        except UserError as error:
            failed += 1
            told.append(f"{name}: {error}")
            continue
        finally:
            tell("")
        outcomes += found
        left = len(EXPERIMENTS[name].claims) - len(found)
        told.append(f"{name}: {summary(found, left)}; {time.monotonic() - start:.0f} s")
    tell("\n".join(told))
    tell(f"All: {summary(outcomes)}; {time.monotonic() - begun:.0f} s")
    tell("rag.py, which needs HotpotQA, is run on its own.")
    return failed


def main(words: Sequence[str] | None = None) -> None:
    """Exit code 0 when all of it ran, whatever signs were seen."""
    try:
        sys.exit(2 if run(words) else 0)
    except Exception as error:  # told in a sentence where a person can mend it
        end(error)


if __name__ == "__main__":
    main()
