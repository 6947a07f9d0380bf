"""Graphs of document encoders whose layers multiply in int8: calibrated on documents, and checked.

NNCF chooses the scales of weights and activations, and moves outliers of activations into weights
(SmoothQuant, arXiv 2211.10438). openvino and nncf are imported by the functions that need them.
"""

# Shapes in this file: n texts, W dims of a vector.

import io
import logging
import os
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from timeit import repeat

import numpy as np

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError, counted, require
from m2dr.core.files import json_sha256
from m2dr.core.progress import say
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import IdsAndMask
from m2dr.model.graphs import (
    INT8,
    OPENVINO,
    PRECISIONS,
    BatchEncoder,
    DocumentSource,
    cached_folder,
    int8_digest,
)
from m2dr.model.hub import OPENVINO_FILE
from m2dr.model.words import unit_rows

SAMPLED_DOCUMENTS = 192  # that are read: a third calibrates, the others are checked
LEAST_DOCUMENTS = 32  # to calibrate on and check
LEAST_INT8_COSINE = 0.98  # with fp32, in the mean of the checked documents
MOST_LOSS = 0.05  # of the mean reciprocal rank of a document among those checked
SMOOTHING = 0.7  # how much of the spread of activations moves into weights; NNCF's .95 loses more
LEADING_WORDS = 10  # first words of a document, which are to find it
_BATCH = 8  # texts
_FORMAT = 2  # raise it when the same texts would calibrate otherwise


def quantize(source: DocumentSource, texts: Sequence[str], folder: Path) -> None:
    """Write the graph of an encoder with products in int8, calibrated on texts, into a new folder.

    Its vectors of other texts are compared with those of fp32, and the comparison is shown: their
    cosine, and how well the first words of a text find it, in fp32, among the texts.

    Args:
        source: of the model, on the CPU.
        texts: of documents, LEAST_DOCUMENTS at least; SAMPLED_DOCUMENTS of them, evenly spread,
            are read.
        folder: to write; it appears when it is complete and was found good.

    Raises:
        UserError: OpenVINO or NNCF is not installed or cannot run this encoder, there are too few
            texts, or the vectors are not like those of fp32.
    """
    begun = time.monotonic()
    require("nncf")
    if len(texts) < LEAST_DOCUMENTS:
        raise UserError(
            f"int8 is calibrated on {LEAST_DOCUMENTS} documents at least; there are {len(texts)}."
        )
    rows = np.linspace(0, len(texts) - 1, min(SAMPLED_DOCUMENTS, len(texts))).astype(int)
    texts = [texts[row] for row in rows]
    used, checked = texts[::3], texts[1::3] + texts[2::3]
    exact = replace(source, dtype="fp32").open(OPENVINO)
    with cached_folder(folder) as aside:
        _calibrate(source.graph_folder, _batches(exact, used), aside)
        coarse = replace(source, int8=aside).open(f"{INT8}{int8_digest(aside)}")
        first_words = [" ".join(text.split()[:LEADING_WORDS]) for text in checked]
        layers = [source.layer]
        queries = unit_rows(exact.vectors(first_words, "query", layers)[0])
        both = (each.vectors(checked, "document", layers)[0] for each in (exact, coarse))
        vectors = [*map(unit_rows, both)]
        cosine = float((vectors[0] * vectors[1]).sum(axis=1).mean())
        ranks = [_reciprocal_rank(queries @ rows.T) for rows in vectors]
        compared = (
            f"cosine {cosine:.4f} with fp32; mean reciprocal rank of {len(checked)} documents by "
            f"their first words {ranks[1]:.4f}, in fp32 {ranks[0]:.4f}"
        )
        if not (cosine >= LEAST_INT8_COSINE and ranks[0] - ranks[1] <= MOST_LOSS):
            raise UserError(f"{source.model} loses too much in int8: {compared}.")
    gain = product_rate("int8") / product_rate(source.multiplied_name)
    say(
        f"int8 multiplies {gain:.1f} times as fast as {source.multiplied_name} here; calibrated on "
        f"{counted(len(used), 'documents')} in {time.monotonic() - begun:.0f} s: {compared}"
    )


def quantized(source: DocumentSource, texts: Sequence[str]) -> tuple[DocumentSource, str]:
    """Return a source with the graph that texts calibrate, in its cache, and its runtime."""
    folder = source.graph_folder
    key = [_FORMAT, *texts]
    folder = folder.with_name(f"{folder.name}-int8-{json_sha256(key)[:12]}")
    if not folder.exists():
        quantize(source, texts, folder)
    return replace(source, int8=folder), f"{INT8}{int8_digest(folder)}"


def _calibrate(graph: Path, batches: Sequence[IdsAndMask], folder: Path) -> None:
    os.environ.setdefault("NNCF_CI", "1")  # it reports no use of it then
    import nncf
    import openvino

    nncf.set_log_level(logging.ERROR)
    model = openvino.Core().read_model(graph / OPENVINO_FILE)
    products = [each for each in model.get_ops() if each.get_type_name() == "MatMul"]
    of_states = [  # as attention has them where it is not fused; weights are constants
        each.get_friendly_name()
        for each in products
        if each.input_value(1).get_node().get_type_name() != "Constant"
    ]
    strength = nncf.AdvancedSmoothQuantParameters(matmul=SMOOTHING)
    with redirect_stdout(io.StringIO()):  # its bars
        quantized = nncf.quantize(
            model,
            nncf.Dataset(batches, list),
            subset_size=len(batches),
            model_type=nncf.ModelType.TRANSFORMER,
            ignored_scope=nncf.IgnoredScope(names=of_states),
            advanced_parameters=nncf.AdvancedQuantizationParameters(smooth_quant_alphas=strength),
        )
    openvino.save_model(quantized, folder / OPENVINO_FILE, compress_to_fp16=False)


def _batches(encoder: TextEncoder[BatchEncoder], texts: Sequence[str]) -> list[IdsAndMask]:
    """Return padded batches of documents."""
    rows = encoder.tokens(texts, "document")
    order = np.argsort(rows.lengths, kind="stable")
    parts = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
    return [rows.pad(part, encoder.tokenizer.pad_id) for part in parts]


def _reciprocal_rank(scores: Float32) -> float:
    """Return the mean reciprocal rank of the texts [n] that scores [n, n] are to find."""
    return float((1 / (scores >= np.diag(scores)[:, None]).sum(axis=1)).mean())


def product_rate(dtype: str) -> float:
    """Return the products and sums per second of one thread in fp32, bf16 or int8, measured."""
    import openvino
    from openvino import opset13 as op

    rows, width, layers = 2048, 768, 8
    state = states = op.parameter([rows, width], np.float32)
    for _ in range(layers):
        # Not in int8 for floats: OpenVINO would round the states as well, or cannot multiply.
        weights = op.constant(np.full((width, width), 1 / width, np.float32))
        if dtype == "int8":
            ends = [op.constant(np.float32(end)) for end in (-2, 2, -2, 2)]
            state = op.fake_quantize(state, *ends, 256)
            whole = op.convert(op.constant(np.ones((width, width), np.int8)), np.float32)
            weights = op.multiply(whole, op.constant(np.full((width, 1), 1 / width, np.float32)))
        state = op.matmul(state, weights, transpose_a=False, transpose_b=True)
    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": PRECISIONS.get(dtype, PRECISIONS["fp32"]),
    }
    graph = openvino.Core().compile_model(openvino.Model([state], [states]), "CPU", settings)
    request, example = graph.create_infer_request(), [np.ones((rows, width), np.float32)]
    return (
        2
        * rows
        * width**2
        * layers
        / min(repeat(lambda: request.infer(example), repeat=3, number=1))
    )
