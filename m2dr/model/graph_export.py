"""Write a cut as a graph file that runs without torch, checked against torch."""

# Shapes in this file:
#   B texts, T tokens, K dims of the cut.

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from m2dr.core.errors import UserError, command, install
from m2dr.core.files import error_summary, write_record
from m2dr.core.records import EXPORTED_FILE, ExportRecord
from m2dr.model.checkpoint import save_tokenizer
from m2dr.model.cut_readme import write_graph_readme
from m2dr.model.encoder import Encoder, Floats, IdsAndMask
from m2dr.model.folder import folder_aside, locked_for_export
from m2dr.model.graphs import export_layer, quiet
from m2dr.model.int8_weights import round_weights
from m2dr.model.runtimes import RUNTIMES, Graph, RuntimeKind
from m2dr.model.sentence_transformers import write_model_settings
from m2dr.model.standalone import CutModel
from m2dr.model.tokenizer import ModelTokenizer

LEAST_COSINE = 0.9999  # of a graph in fp32 to torch
_SHAPES = ((1,), (2, 37), (1, 3, 8, 21, 60), (250,))  # words of the texts of each probe
_SEED = 13


@dataclass(frozen=True)
class WrittenGraph:
    """A graph whose files are written, and lie aside until the block ends."""

    graph: Graph
    aside: Path
    made: CutModel
    lowest: float  # cosine to torch in fp32, over texts of many lengths

    def finish(self, record: ExportRecord) -> None:
        """Write what the folder says of itself."""
        write_model_settings(self.aside, self.made.card)
        write_record(self.aside / EXPORTED_FILE, record)
        write_graph_readme(self.made.card, self.made.tokenizer, record, self.aside)


def require_graph(name: str, asked: str) -> RuntimeKind:
    """Return the runtime of a graph format.

    Args:
        name: onnx or openvino.
        asked: what was asked, for the error.

    Raises:
        UserError: its packages are not installed.
    """
    kind = RUNTIMES[name]
    if not kind.installed:
        missing = ", ".join(kind.missing)
        raise UserError(
            f"{asked} was asked for and {missing} is not installed; install it with: "
            f"{install(kind.name)}"
        )
    return kind


@contextmanager
def graph_aside(
    made: CutModel, kind: RuntimeKind, folder: Path, exact: Encoder | None = None
) -> Iterator[WrittenGraph]:
    """Write a cut as a graph; its files come into the folder when the block ends without an error.

    Args:
        made: the cut; its encoder is changed.
        kind: of the graph.
        folder: to write; empty or missing.
        exact: another copy of its encoder; where it is given, the weights of the graph are int8.

    Raises:
        UserError: the architecture cannot be written as such a graph, the graph gives other vectors
            than torch, or `folder` holds something or is being written to.
    """
    probes = list(_probes(made.tokenizer, made.card.document_length))
    expected = [_unit(_embed(exact or made.encoder, probe)) for probe in probes]
    with locked_for_export(folder):
        with folder_aside(folder) as aside:
            if exact is not None:
                round_weights(made.encoder)
            _write(made, kind, aside)
            graph = kind.open(aside, made.card, "fp32")
            found = [_unit(graph.run(*probe)) for probe in probes]
            lowest = min(
                float((mine * theirs).sum(1).min())
                for mine, theirs in zip(found, expected, strict=True)
            )
            if exact is None and not lowest >= LEAST_COSINE:
                again = command("export", cut=made.cut, out=folder)
                raise UserError(
                    f"The {kind.name} graph of {made.cut} was to give the vectors of torch, and a "
                    f"cosine of the two is {lowest:.5f}; at least {LEAST_COSINE} is needed. Export "
                    f"the cut for sentence-transformers: {again}"
                )
            yield WrittenGraph(graph, aside, made, lowest)
        for path in sorted(aside.iterdir()):
            path.replace(folder / path.name)
        aside.rmdir()


def _write(made: CutModel, kind: RuntimeKind, folder: Path) -> None:
    """Write the graph and the tokenizer."""
    save_tokenizer(made.tokenizer, folder)
    try:
        with quiet(), torch.no_grad():
            unit = made.card.similarity == "cosine"
            kind.write(export_layer(made.encoder, made.cut.layer, unit), folder)
    except OSError:
        raise
    except Exception as error:  # exporters raise many classes of errors
        model_type = made.encoder.transformer.config.model_type
        raise UserError(
            f"{made.cut} of this {model_type} encoder cannot be written as a graph for {kind.name} "
            f"({error_summary(error)}). Export it for sentence-transformers: "
            f"{command('export', cut=made.cut, out=folder.parent)}"
        ) from error


def _embed(encoder: Encoder, probe: IdsAndMask) -> Floats:
    found: Floats = encoder.embed(*probe, [encoder.layers])[0]
    return found


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    return found


def _probes(tokenizer: ModelTokenizer, length: int) -> Iterator[IdsAndMask]:
    """Yield batches of texts of random tokens: one and many, short and as long as texts may be."""
    random = np.random.default_rng(_SEED)
    known = np.array(tokenizer.ordinary_ids())
    (row,) = tokenizer.alone(known[:1].tolist())
    start = row.index(int(known[0]))
    left, right = row[:start], row[start + 1 :]
    most = max(length - len(left) - len(right), 1)
    for counts in _SHAPES:
        rows = [
            [*left, *random.choice(known, min(count, most)).tolist(), *right] for count in counts
        ]
        longest = max(map(len, rows))
        ids = np.full((len(rows), longest), tokenizer.pad_id, np.int64)
        mask = np.zeros_like(ids)
        for number, one in enumerate(rows):
            ids[number, : len(one)], mask[number, : len(one)] = one, 1
        yield ids, mask
