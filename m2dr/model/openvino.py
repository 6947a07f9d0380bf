"""A cut encoder run by OpenVINO, which is used here alone."""

# Shapes in this file:
#   B texts, T tokens, H width.

import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from m2dr.records.card import ModelCard

PACKAGES = ("openvino",)
_FILE = "model.xml"
_PRECISIONS = {"fp32": "f32", "bf16": "bf16"}


class OpenvinoGraph:
    """One layer of an encoder. Safe to use from several threads: each has a request of its own."""

    def __init__(self, card: ModelCard, compiled: Any) -> None:  # noqa: ANN401  # openvino has no stubs
        self.card = card
        self.device = torch.device("cpu")
        self._compiled = compiled
        self._own = threading.local()

    def run(
        self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Embed: [B, T] twice to [B, H], not normalised."""
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        # Copied: the next query of this thread is written over the same memory.
        found = self._own.request.infer([input_ids, attention_mask])[0]
        return np.array(found, np.float32)


def write(program: ExportedProgram, folder: Path) -> None:
    """Write a traced encoder as OpenVINO's own files, weights in float32."""
    import openvino

    graph = openvino.convert_model(program)
    openvino.save_model(graph, folder / _FILE, compress_to_fp16=False)


def open_graph(folder: Path, card: ModelCard, dtype: str) -> OpenvinoGraph:
    """Open what `write` wrote, with as many threads as torch.

    Left to itself OpenVINO multiplies in bf16 or f16 where the processor can, off by 1e-3.
    """
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # a pinned thread waits for its core while others are idle
    }
    return OpenvinoGraph(card, openvino.Core().compile_model(folder / _FILE, "CPU", settings))
