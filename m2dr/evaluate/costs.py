"""What a cut costs: multiply-adds and bytes by arithmetic, times as somebody measured them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any

from m2dr.errors import UserError, command, nearest
from m2dr.io import write_text
from m2dr.jsontext import JsonError, load_json
from m2dr.records.cut import Cut

COSTS = "costs.json"
FORMAT = 1  # raise it when today's reader would misread yesterday's file

# Bits that an engine keeps of one coordinate.
BITS = {"f32": 32, "f16": 16, "bf16": 16, "int8": 8, "binary": 1}


@dataclass(frozen=True)
class Shape:
    """What the multiply-adds of an encoder follow from; all of its blocks are alike.

    Layer 0 runs no block: its work is that of its table alone, one row per token that is added up.
    """

    width: int  # coordinates of a token's state
    inner: int  # coordinates between the two halves of the feed-forward part
    query_width: int  # heads times coordinates of a head
    key_width: int  # the same of keys and values, of which a backbone may have fewer
    gated: bool  # a third matrix opens and closes what the first lets through
    # Layer -> multiply-adds of what maps its pooled state: an exit head, modules behind it.
    exits: Mapping[int, int] = field(default_factory=dict)
    # Layer -> multiply-adds per token of what its exit reads beside the states: rows of a table.
    tables: Mapping[int, int] = field(default_factory=dict)

    def block(self, tokens: int) -> int:
        """Multiply-adds of one block for a text of so many tokens.

        Every token attends to every other, as the products are computed; masks save none of them.
        Norms, biases, softmax and positions are left out: they grow with width, not its square.
        """
        projections = tokens * self.width * 2 * (self.query_width + self.key_width)
        attention = 2 * tokens * tokens * self.query_width  # scores, then the weighted sum
        feed_forward = tokens * self.width * self.inner * (3 if self.gated else 2)
        return projections + attention + feed_forward

    def encode(self, layer: int, tokens: int) -> int:
        """Multiply-adds of a text through the first blocks and their exit.

        Looking up word embeddings costs none.

        >>> shape = Shape(384, 1536, 384, 384, gated=False, tables={0: 384})
        >>> shape.encode(layer=6, tokens=12), shape.encode(layer=0, tokens=12)
        (128065536, 4608)
        """
        table = tokens * self.tables.get(layer, 0)
        return layer * self.block(tokens) + table + self.exits.get(layer, 0)


def search_multiply_adds(documents: int, dim: int) -> int:
    """Multiply-adds of a full scan: one per document and coordinate."""
    return documents * dim


def bytes_per_document(dim: int, kept: str = "f32") -> int:
    """Bytes that an index keeps of a document's vector, without its id.

    >>> bytes_per_document(128), bytes_per_document(128, "f16"), bytes_per_document(12, "binary")
    (512, 256, 2)
    """
    if kept not in BITS:
        raise UserError(f"No engine keeps coordinates as {kept!r}. {nearest(kept, BITS)}")
    return -(-dim * BITS[kept] // 8)


@dataclass(frozen=True)
class Cost:
    """What one cut costs."""

    latency_p50_ms: float  # of one query: tokenise, encode, search; half of the queries take less
    latency_p95_ms: float  # 95 of 100 take less
    documents_per_second: float  # encoded by the layer whose documents the cut searches
    bytes_per_document: int
    multiply_adds: int  # of one query, encoding and search; the mean over the queries measured
    parameters: int  # in memory to encode queries; of layer 0 its table and its weights

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isfinite(value) or value <= 0:
                raise UserError(f"{name} is {value}, and a cost is a number above 0.")


@dataclass(frozen=True)
class Costs:
    """The costs of every cut of one model on one corpus and machine."""

    model: str  # folder or id, as m2dr was given it
    fingerprint: str
    corpus: str  # as m2dr was given it
    whole: Cut  # the cut that leaves nothing out
    documents_from: str  # "last": all cuts search documents of the last layer; else "same"
    documents: int  # that a query searches
    queries: int  # that were timed
    query_tokens: float  # their mean length
    kept: str  # how the index keeps a coordinate: a key of BITS
    machine: str  # processor, cores, device and dtype
    cells: Mapping[Cut, Cost]

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Every cut that was measured, smallest layer first."""
        return tuple(sorted(self.cells))

    def document_layer(self, cut: Cut) -> int:
        """The layer whose documents the queries of a cut search."""
        return self.whole.layer if self.documents_from == "last" else cut.layer


def write_costs(costs: Costs, folder: Path) -> Path:
    """Write `costs.json`, cut by cut, whole or not at all."""
    head = {field.name: getattr(costs, field.name) for field in fields(Costs)}
    head["whole"] = [costs.whole.layer, costs.whole.dim]
    head["cells"] = [
        {"layer": cut.layer, "dim": cut.dim, **asdict(costs.cells[cut])} for cut in costs.cuts
    ]
    text = json.dumps({"format": FORMAT, **head}, indent=2, allow_nan=False) + "\n"
    write_text(folder / COSTS, text)
    return folder / COSTS


def read_costs(folder: Path) -> Costs:
    """Read what `write_costs` wrote.

    Raises:
        UserError: there is no such file, or it is not one; with the file and what is wrong.
    """
    path = folder / COSTS
    try:
        return _costs(load_json(path))
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing: the costs of these cuts were not measured. Measure them with: "
            f"{measuring(folder)}"
        ) from None
    except JsonError as error:
        raise UserError(f"{error.at(path)} Measure them again with: {measuring(folder)}") from error
    except (OSError, UserError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} does not hold costs that m2dr wrote: {error} Measure them again with: "
            f"{measuring(folder)}"
        ) from error
    except KeyError as error:
        raise UserError(
            f"{path} does not hold costs that m2dr wrote: it has no {error}. Measure them again "
            f"with: {measuring(folder)}"
        ) from error


def measuring(folder: Path) -> str:
    """Return the command that measures the costs of the results in a folder."""
    return command("pick", folder, measure_costs=True)


def _costs(data: Any) -> Costs:  # noqa: ANN401 - anything may stand in a JSON file
    """Costs from parsed JSON; ValueError, TypeError or KeyError when they are none."""
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']!r} and this m2dr reads {FORMAT}.")
    cells: dict[Cut, Cost] = {}
    for row in data["cells"]:
        cut = Cut(_whole(row["layer"]), _whole(row["dim"]))
        if cut in cells:
            raise ValueError(f"it holds the cut {cut} twice.")
        try:
            cells[cut] = Cost(**{field.name: row[field.name] for field in fields(Cost)})
        except UserError as error:
            raise ValueError(f"at {cut}, {error}") from error
    if not cells:
        raise ValueError("it holds no cut.")
    words = {field.name: data[field.name] for field in fields(Costs)}
    layer, dim = data["whole"]
    return Costs(**{**words, "whole": Cut(_whole(layer), _whole(dim)), "cells": cells})


def _whole(value: object) -> int:
    if type(value) is not int:  # JSON's true is a bool, which Python takes for 1
        raise ValueError(f"a layer or dim is {value!r} where a whole number belongs.")
    return value
