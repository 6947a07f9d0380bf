"""A cut encoder as one graph, for runtimes other than torch: written once, kept in a cache."""

# Shapes in this file:
#   B texts, T tokens, H width.

import hashlib
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from m2dr.errors import UserError
from m2dr.io import sha256
from m2dr.model.backbones import most_tokens
from m2dr.model.encoder import Encoder
from m2dr.model.fitted import FoldedExit
from m2dr.model.places import EXITS
from m2dr.records.card import ModelCard

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "vectors"
_FORMAT = 1  # raise it when the same model would be written otherwise
_EXAMPLE = (3, 7)  # texts and tokens; a size of 1 would be taken for a constant
_NOISY = "torch.onnx._internal.exporter._registration"  # warns of torchvision's absence


class _Exit(nn.Module):
    """What a graph holds: the blocks up to one layer, and its exit."""

    def __init__(self, encoder: Encoder, layer: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.layer = layer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors: Tensor = self.encoder(input_ids, attention_mask, [self.layer])
        return vectors[0]


def trace(encoder: Encoder, layer: int) -> ExportedProgram:
    """The first `layer` blocks with their exit: ids and mask [B, T] to vectors [B, H].

    B and T stay open; vectors are float32 and not normalised.
    """
    texts, tokens = Dim("texts"), Dim("tokens", max=most_tokens(encoder.transformer.config))
    example = torch.zeros(_EXAMPLE, dtype=torch.int64), torch.ones(_EXAMPLE, dtype=torch.int64)
    shapes = {name: {0: texts, 1: tokens} for name in INPUTS}
    encoder.requires_grad_(False)
    fitted = encoder.fitted
    if fitted is not None and layer in fitted.layers and fitted.inputs != "layer":
        encoder.fitted = FoldedExit(fitted, layer, encoder.words)
    return torch.export.export(
        _Exit(encoder, layer).eval(), example, dynamic_shapes=shapes, strict=False
    )


def graph_folder(
    cache: Path,
    card: ModelCard,
    layer: int,
    runtime: str,
    packages: Sequence[str],
    exits: Path | None = None,
) -> Path:
    """Where the graph of a layer is kept: another model, exit or version has another place."""
    versions = [version(package) for package in ("torch", "transformers", *packages)]
    told = [_FORMAT, card.fingerprint, card.pooling, card.attention, card.exit_head, versions]
    told += [sha256(exits / EXITS)] if exits else []
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return cache / "graphs" / f"{card.fingerprint[:12]}-layer-{layer:02d}-{runtime}-{digest[:12]}"


def write_graph(
    encoder: Encoder,
    layer: int,
    folder: Path,
    runtime: str,
    write: Callable[[ExportedProgram, Path], None],
) -> None:
    """Let a runtime write its graph of a layer; the folder is there when all of it is.

    Args:
        encoder: in fp32 on the CPU.
        layer: whose vectors come out.
        folder: of the graph alone; what lies there is replaced.
        runtime: how the error calls it.
        write: makes the files of a traced encoder in an empty folder.

    Raises:
        UserError: the architecture cannot be written as this runtime's graph.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        with _quiet(), torch.no_grad():
            write(trace(encoder, layer), aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.replace(folder)
    except OSError:
        # Another process that opened the same model was quicker; its graph is the same one.
        if not folder.exists():
            raise
    except Exception as error:  # each exporter raises a class of its own for each way to fail
        kind = encoder.transformer.config.model_type
        raise UserError(
            f"Layer {layer} of this {kind} encoder cannot be written as a graph for {runtime} "
            f"({_first_line(error)}). Use --runtime torch."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of what they deprecate in each other; none of it is the user's to mend."""
    logger = logging.getLogger(_NOISY)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
