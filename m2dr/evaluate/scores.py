"""What every query of a grid is worth, kept beside the grid for tests of significance."""

# Shapes in this file:
#   M measures, K cuts, Q queries.

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, nearest
from m2dr.evaluate.made import remake
from m2dr.io import aside, read_regular
from m2dr.jsontext import parse_json
from m2dr.records.cut import Cut

Floats = NDArray[np.float64]

SCORES = "per_query.npz"
FORMAT = 1  # raise it when today's reader would misread yesterday's file


@dataclass(frozen=True, eq=False)
class QueryScores:
    """One measure of every query at every cut; a mean over a row is the cell of the grid."""

    measure: str
    cuts: tuple[Cut, ...]  # K of them
    query_ids: tuple[str, ...]  # Q of them: every judged query, in the order of the judgements
    values: Floats  # [K, Q]

    def __post_init__(self) -> None:
        wanted = (len(self.cuts), len(self.query_ids))
        if self.values.shape != wanted:
            raise UserError(
                f"Scores of {self.measure} have the shape {self.values.shape} where {wanted[0]} "
                f"cuts of {wanted[1]} queries belong."
            )
        odd = np.argwhere(~np.isfinite(self.values))
        if len(odd):
            cut, query = self.cuts[odd[0][0]], self.query_ids[odd[0][1]]
            raise UserError(
                f"The {self.measure} of query {query} at {cut} is not a number; measure that cut "
                f"again."
            )

    def at(self, cut: Cut) -> Floats:
        """The values of one cut, [Q].

        Raises:
            UserError: the cut was not measured.
        """
        if cut not in self.cuts:
            raise UserError(
                f"There are no {self.measure} scores of {cut}; "
                f"{nearest(str(cut), map(str, self.cuts))}"
            )
        row: Floats = self.values[self.cuts.index(cut)]
        return row


def write_scores(scores: Sequence[QueryScores], folder: Path) -> Path:
    """Write all measures of one grid as `per_query.npz`, whole or not at all.

    The file holds arrays that numpy reads without pickle: `format`, `measures`, `cuts` and
    `query_ids` as JSON in UTF-8 (an id may be any text, of which a column of fixed width would
    lose the end), and `values` [M, K, Q] float64.

    Args:
        scores: at least one, all of the same cuts and queries.
        folder: made if need be.
    """
    return save_scores(scores, folder / SCORES)


def read_scores(folder: Path) -> dict[str, QueryScores]:
    """Measure -> its scores, from the folder of a grid (or the file itself).

    Raises:
        UserError: there is no such file, or it is not one that m2dr wrote; with what is wrong.
    """
    return load_scores(folder if folder.suffix == ".npz" else folder / SCORES)[0]


def save_scores(
    scores: Sequence[QueryScores], path: Path, facts: Mapping[str, object] | None = None
) -> Path:
    """The same under any name, with `facts` for JSON beside them."""
    with aside(path) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(
            file,
            format=_packed(FORMAT),
            measures=_packed([one.measure for one in scores]),
            cuts=_packed([[cut.layer, cut.dim] for cut in scores[0].cuts]),
            query_ids=_packed(scores[0].query_ids),
            facts=_packed(facts or {}),
            values=np.stack([one.values for one in scores]),
        )
    return path


def load_scores(path: Path) -> tuple[dict[str, QueryScores], dict[str, Any]]:
    """What `save_scores` wrote: measure -> its scores, and the facts.

    Raises:
        UserError: as `read_scores`.
    """
    try:
        with np.load(io.BytesIO(read_regular(path)), allow_pickle=False) as held:
            return _read(held), dict(_unpacked(held["facts"]))
    except FileNotFoundError:
        raise UserError(
            f"There are no scores of single queries in {path}; make them {remake(path.parent)}"
        ) from None
    except KeyError as error:
        raise UserError(f"{path} is not a file of scores that m2dr wrote: no {error}.") from error
    except Exception as error:  # of a header that lies numpy raises a dozen kinds
        raise UserError(f"{path} is not a file of scores that m2dr wrote: {error}") from error


def _read(held: Mapping[str, NDArray[Any]]) -> dict[str, QueryScores]:
    found = _unpacked(held["format"])
    if found != FORMAT:
        raise ValueError(f"its format is {found!r} and this m2dr reads {FORMAT}.")
    cuts = tuple(Cut(int(layer), int(dim)) for layer, dim in _unpacked(held["cuts"]))
    query_ids = tuple(map(str, _unpacked(held["query_ids"])))
    names, values = _unpacked(held["measures"]), held["values"]
    if values.dtype != np.float64:
        raise ValueError(f"its values are {values.dtype} where float64 belongs.")
    return {
        name: QueryScores(name, cuts, query_ids, rows)
        for name, rows in zip(names, values, strict=True)
    }


def _packed(value: object) -> NDArray[np.uint8]:
    # Half a surrogate pair may stand in an id; JSON's escapes carry it through UTF-8.
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def _unpacked(array: NDArray[Any]) -> Any:  # noqa: ANN401 - anything may stand in JSON
    return parse_json(array.tobytes())
