"""The scripts of this folder, one after the other, on models trained once.

Which tables and figures they reproduce, and which none does, is in docs/papers.md.

python scripts/reproduce/everything.py --small --data DATA --out OUT [--only NAME,NAME]
"""

import sys
import time
from collections.abc import Sequence

import ese_ablation
import ese_beir
import ese_grid
import mipic
import mipic_classes
import mipic_pairs
import retrieval_all_separate
import retrieval_all_separate_beir
import retrieval_beir
import retrieval_dims
import retrieval_fixed_doc
import retrieval_losses
import retrieval_separate
import retrieval_sts
import starbucks
import starbucks_sts
import v1_ablation
import v1_grid
from common import Outcome, end, names, parser, reproduce, scale_of, summary, tell

from m2dr.core.errors import Interrupted, UserError, nearest

EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        retrieval_separate,
        retrieval_all_separate,
        retrieval_beir,
        retrieval_all_separate_beir,
        retrieval_losses,
        retrieval_dims,
        retrieval_fixed_doc,
        starbucks,
        starbucks_sts,
        retrieval_sts,
        v1_grid,
        v1_ablation,
        ese_grid,
        ese_ablation,
        ese_beir,
        mipic,
        mipic_classes,
        mipic_pairs,
    )
}


def run(words: Sequence[str] | None = None) -> int:
    """Run what was asked; the number of scripts that lacked something."""
    given = parser(
        "Reproduce the published tables and figures that docs/papers.md names."
    ).parse_args(words)
    scale, asked = scale_of(given), names(given.only)
    for name in asked:
        if name not in EXPERIMENTS:
            raise UserError(f"There is no script {name!r}. {nearest(name, EXPERIMENTS)}")
    begun, told, failed = time.monotonic(), list[str](), 0
    outcomes: list[Outcome] = []
    for name in asked or EXPERIMENTS:
        start = time.monotonic()
        try:
            report = reproduce(EXPERIMENTS[name], scale)
        except Interrupted:
            raise
        except UserError as error:
            failed += 1
            told.append(f"{name}: {error}")
            continue
        finally:
            tell("")
        outcomes += report.outcomes
        failed += bool(report.missing)
        said = summary(report.outcomes, report.left)
        told.append(f"{name}: {said}; {time.monotonic() - start:.0f} s")
        told += [f"  missing: {sentence}" for sentence in report.missing]
    tell("\n".join(told))
    tell(f"All: {summary(outcomes)}; {time.monotonic() - begun:.0f} s")
    tell(
        "rag.py, which needs HotpotQA, and speed.py, which needs a quiet machine, run on their own."
    )
    return failed


def main(words: Sequence[str] | None = None) -> None:
    """Exit code 0 when all of it ran, whatever signs were seen."""
    try:
        sys.exit(2 if run(words) else 0)
    except Exception as error:  # told in a sentence where a person can mend it
        end(error)


if __name__ == "__main__":
    main()
