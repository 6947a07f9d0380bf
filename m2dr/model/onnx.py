"""A cut encoder run by ONNX Runtime; onnxruntime and torch.onnx are used here alone."""

# Shapes in this file:
#   B texts, T tokens, H width.

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from m2dr.model.graphs import INPUTS, OUTPUT
from m2dr.records.card import ModelCard

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_FILE = "model.onnx"


@dataclass(frozen=True)
class OnnxGraph:
    """One layer of an encoder. Safe to use from several threads."""

    card: ModelCard
    session: Any  # onnxruntime.InferenceSession, which has no type stubs
    device: torch.device = torch.device("cpu")

    def run(
        self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Embed: [B, T] twice to [B, H], not normalised."""
        feed = dict(zip(INPUTS, (input_ids, attention_mask), strict=True))
        vectors: NDArray[np.float32] = self.session.run(None, feed)[0]
        return vectors


def write(program: ExportedProgram, folder: Path) -> None:
    """Write a traced encoder as an ONNX model, beside it the weights that exceed 2 GB."""
    graph = torch.onnx.export(
        program, dynamo=True, input_names=INPUTS, output_names=[OUTPUT], verbose=False
    )
    if graph is None:
        raise RuntimeError("torch.onnx returned no graph")
    graph.save(folder / _FILE)


def open_graph(folder: Path, card: ModelCard, dtype: str) -> OnnxGraph:  # noqa: ARG001  # fp32 is all it has
    """Open what `write` wrote, with every optimisation of graphs and as many threads as torch.

    Threads sleep when they wait, because a query is followed by a search: ones that spin would take
    the cores from it for milliseconds.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors alone
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(folder / _FILE), options, providers=providers)
    return OnnxGraph(card, session)
