"""Write what the scripts of one scale found as a Markdown page: a verdict for each published sign.

python scripts/reproduce/verdicts.py OUT/small > PAGE.md
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

VERDICTS = ("seen", "not seen", "too close to tell")
HEAD = "| published | compared here | published difference | found | standard error | verdict |"


def summary_row(table: dict[str, Any]) -> str:
    """Return the row of a script: how many of its signs ended how, and its minutes."""
    counts = [sum(claim["verdict"] == verdict for claim in table["claims"]) for verdict in VERDICTS]
    cells = (table["name"], *counts, f"{table['seconds'] / 60:.1f}")
    return f"| {' | '.join(map(str, cells))} |"


def claim_row(claim: dict[str, Any]) -> str:
    """Return the row of a published sign: both differences, the standard error, the verdict."""
    told = claim["claim"]
    about = ", ".join(word for word in (told["says"], told["on"], told["measure"]) if word)
    names = (told["above"]["model"], told["below"]["model"])
    above, below = (f"{name} {cut}" for name, cut in zip(names, claim["cuts"], strict=True))
    cells = (about, f"{above} − {below}", _signed(claim["wanted"]), _signed(claim["difference"]))
    error = "" if claim["error"] is None else f"{claim['error']:.4f}"
    return f"| {' | '.join((*cells, error, claim['verdict']))} |"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.4f}"


def page(folder: Path) -> str:
    """Return the page of all results in a folder, scripts in alphabetical order."""
    paths = sorted(folder.glob("*.json"))
    tables = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    lines = ["| script | seen | not seen | too close to tell | minutes |", "|---|---|---|---|---|"]
    lines += map(summary_row, tables)
    for table in tables:
        lines += ["", f"## {table['name']}: {table['title']}", ""]
        lines += [HEAD, "|---|---|---|---|---|---|", *map(claim_row, table["claims"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the results of a scale")
    sys.stdout.write(page(parser.parse_args().folder))
