"""Files of results: provenance, scores of single queries, and all that a folder holds."""

import hashlib
import io
import json
import platform
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, nearest
from m2dr.core.files import atomic_path, read_regular
from m2dr.core.jsontext import parse_json, write_json
from m2dr.core.records import Cut
from m2dr.evaluate.grid import (
    load_results,
    require_format,
)

# Shapes in this file:
#   M measures, K cuts, Q queries.

Floats = NDArray[np.float64]

GRID = "grid.json"
PROVENANCE = "made.json"
SCORES = "per_query.npz"
SCORES_FORMAT = 1  # raise it when this reader would misread an older file
PARTS = "parts"
PART_FORMAT = 2  # raise it when a measure or a check is computed otherwise
_DIGITS = 16  # of the digest in a file name
_AGAINST = "*-against-*.json"
_PACKAGES = ("m2dr", "torch", "transformers", "faiss-cpu", "faiss-gpu", "numpy", "ir-measures")


@dataclass(frozen=True)
class Provenance:
    """How the results of a folder were made: all that it takes to make them again."""

    command: str  # quoted for a shell; empty when results were made from Python
    model: str  # folder or id
    corpus: str  # as given to --corpus
    split: str
    fingerprint: str  # sha256 of the model's weights, tokenizer and config.json
    versions: dict[str, str] = field(default_factory=dict)  # package -> version


def write_provenance(provenance: Provenance, folder: Path) -> None:
    """Write made.json beside a grid."""
    write_json(folder / PROVENANCE, asdict(provenance))


def read_provenance(folder: Path) -> Provenance | None:
    """Read what `write_provenance` wrote; None where there is no such file.

    Raises:
        UserError: the file is not what `write_provenance` writes.
    """
    path = folder / PROVENANCE
    if not path.exists():
        return None
    remedy = "Measure the results again with --overwrite."
    return load_results(path, "a file of provenance", lambda data: Provenance(**data), remedy)


def remake(folder: Path, measures: Sequence[str] = ()) -> str:
    """Say how to make the results of a folder again: "with: " and the command, where it is known.

    Args:
        folder: of one model's results.
        measures: measures to add to the command.
    """
    try:
        provenance = read_provenance(folder)
    except UserError:
        provenance = None
    if provenance is None or not provenance.command:
        asked = "".join(f" --measure {name}" for name in measures)
        return f"by evaluating that model again{' with' if asked else ''}{asked}"
    words = shlex.split(provenance.command)
    for name in measures:
        given = zip(words, words[1:], strict=False)
        if ("--measure", name) not in given and f"--measure={name}" not in words:
            words += ["--measure", name]
    return f"with: {shlex.join(words)}"


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect results."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, eq=False)
class QueryScores:
    """One measure of every query at every cut; the mean of a row is a cell of the grid."""

    measure: str
    cuts: tuple[Cut, ...]  # K
    query_ids: tuple[str, ...]  # Q: every judged query, in the order of the judgements
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
        """Return the values of one cut, [Q].

        Raises:
            UserError: the cut was not measured.
        """
        if cut not in self.cuts:
            raise UserError(
                f"There are no {self.measure} scores of {cut}. "
                f"{nearest(str(cut), map(str, self.cuts))}"
            )
        row: Floats = self.values[self.cuts.index(cut)]
        return row


def write_scores(scores: Sequence[QueryScores], folder: Path) -> Path:
    """Write all measures of one grid as `per_query.npz`, atomically, and return its path.

    The file holds arrays that numpy reads without pickle: `format`, `measures`, `cuts` and
    `query_ids` as JSON in UTF-8 (numpy would truncate ids that end in zero bytes), and `values`
    [M, K, Q] float64.

    Args:
        scores: at least one, all of the same cuts and queries.
        folder: created if need be.
    """
    return save_scores(scores, folder / SCORES)


def read_scores(folder: Path) -> dict[str, QueryScores]:
    """Return measure -> its scores, from the folder of a grid or the file itself.

    Raises:
        UserError: there is no such file, or it is not one that m2dr wrote; with what is wrong.
    """
    return load_scores(folder if folder.suffix == ".npz" else folder / SCORES)[0]


def save_scores(
    scores: Sequence[QueryScores], path: Path, facts: Mapping[str, object] | None = None
) -> Path:
    """Write scores as `write_scores` does, under any name, and JSON `facts` with them."""
    with atomic_path(path) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(
            file,
            format=_packed(SCORES_FORMAT),
            measures=_packed([one.measure for one in scores]),
            cuts=_packed([[cut.layer, cut.dim] for cut in scores[0].cuts]),
            query_ids=_packed(scores[0].query_ids),
            facts=_packed(facts or {}),
            values=np.stack([one.values for one in scores]),
        )
    return path


def load_scores(path: Path) -> tuple[dict[str, QueryScores], dict[str, Any]]:
    """Return what `save_scores` wrote: measure -> its scores, and the facts.

    Raises:
        UserError: as `read_scores`.
    """
    try:
        data = io.BytesIO(read_regular(path))
        if not is_zipfile(data):  # numpy would take it for a pickle
            raise ValueError("it is not a zip file.")
        with np.load(data, allow_pickle=False) as held:
            return _read_scores(held), dict(_unpacked(held["facts"]))
    except FileNotFoundError:
        raise UserError(
            f"There are no scores of single queries in {path}; make them {remake(path.parent)}"
        ) from None
    except Exception as error:  # numpy raises many kinds for a damaged header
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).removesuffix(".")
        raise UserError(
            f"{path} is not a file of scores that m2dr wrote: {reason}. Make it again "
            f"{remake(path.parent)}"
        ) from error


@dataclass(frozen=True, eq=False)
class LayerScores:
    """The scores of one query layer against documents of one layer."""

    scores: Mapping[str, QueryScores]  # by measure
    tied: Mapping[Cut, int]  # number of queries whose documents all have the same score
    empty: Mapping[Cut, int]  # number of queries that found nothing
    facts: Mapping[str, int]  # of the split: arguments of m2dr.evaluate.checks.query_checks

    @classmethod
    def of(
        cls,
        query_ids: Sequence[str],
        values: Mapping[Cut, Mapping[str, Floats]],
        tied: Mapping[Cut, int],
        empty: Mapping[Cut, int],
        facts: Mapping[str, int],
    ) -> "LayerScores":
        """Join the cuts, whose values are cut -> measure -> [Q]."""
        cuts = tuple(sorted(values))
        measures = values[cuts[0]]
        scores = {
            name: QueryScores(
                name, cuts, tuple(query_ids), np.stack([values[cut][name] for cut in cuts])
            )
            for name in measures
        }
        return cls(scores, tied, empty, facts)

    @property
    def dims(self) -> tuple[int, ...]:
        """Dims that were measured, increasing."""
        return tuple(cut.dim for cut in next(iter(self.scores.values())).cuts)

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures."""
        return tuple(self.scores)

    def only(self, dims: Collection[int], measures: Sequence[str]) -> "LayerScores":
        """Return the scores at some of the dims, by some of the measures."""
        cuts = [cut for cut in next(iter(self.scores.values())).cuts if cut.dim in dims]
        scores = {
            name: QueryScores(
                name,
                tuple(cuts),
                self.scores[name].query_ids,
                np.stack([self.scores[name].at(cut) for cut in cuts]),
            )
            for name in measures
        }
        tied, empty = ({cut: of[cut] for cut in cuts} for of in (self.tied, self.empty))
        return LayerScores(scores, tied, empty, self.facts)


@dataclass(frozen=True)
class LayerScoresFile:
    """The file of the scores of one layer, whose name holds a digest of all they depend on."""

    folder: Path  # of the grid
    layer: int  # of the queries
    document_layer: int
    question: Mapping[str, object]  # all that a score depends on, fit for JSON

    @property
    def path(self) -> Path:
        """The path, which differs for every other question."""
        text = json.dumps({**self.question, "format": PART_FORMAT}, sort_keys=True)
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
        return self.folder / PARTS / f"{self._stem}-{digest}.npz"

    @property
    def _stem(self) -> str:
        return f"queries-{self.layer:02d}-documents-{self.document_layer:02d}"

    def read(self) -> LayerScores | None:
        """Return the scores, or None where they must be measured."""
        try:
            scores, facts = load_scores(self.path)
            cuts = next(iter(scores.values())).cuts
            tied, empty = (dict(zip(cuts, facts[key], strict=True)) for key in ("tied", "empty"))
            return LayerScores(scores, tied, empty, facts["split"])
        except (UserError, KeyError, ValueError, TypeError, StopIteration):
            return None

    def forget(self) -> None:
        """Remove the files of this layer for all questions, before the runs change."""
        for path in (self.folder / PARTS).glob(f"{self._stem}-*.npz"):
            path.unlink(missing_ok=True)

    def write(self, layer: LayerScores) -> None:
        """Write the scores, atomically."""
        scores = list(layer.scores.values())
        facts = {
            "tied": [layer.tied[cut] for cut in scores[0].cuts],
            "empty": [layer.empty[cut] for cut in scores[0].cuts],
            "split": dict(layer.facts),
        }
        save_scores(scores, self.path, facts)


def join_layers(layers: Sequence[LayerScores]) -> dict[str, QueryScores]:
    """Return measure -> scores at the cuts of all layers, which have the same queries."""
    found = {}
    for name, first in layers[0].scores.items():
        held = [one.scores[name] for one in layers]
        cuts = [cut for one in held for cut in one.cuts]
        order = sorted(range(len(cuts)), key=cuts.__getitem__)
        values = np.concatenate([one.values for one in held])[order]
        found[name] = QueryScores(name, tuple(cuts[i] for i in order), first.query_ids, values)
    return found


def _read_scores(held: Mapping[str, NDArray[Any]]) -> dict[str, QueryScores]:
    require_format({"format": _unpacked(held["format"])}, SCORES_FORMAT)
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
    # An id may hold half a surrogate pair, which JSON escapes and UTF-8 could not encode.
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def _unpacked(array: NDArray[Any]) -> Any:  # anything may stand in JSON
    return parse_json(array.tobytes())
