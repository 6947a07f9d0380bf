"""What else `m2dr.Encoder` takes to encode: the arguments that sentence-transformers has for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from m2dr.api.keywords import Instead
from m2dr.core.arguments import one_of, string, whole_number
from m2dr.core.errors import UserError, command, nearest
from m2dr.core.records import ModelCard, Side

Precision = Literal["float32", "float16"]
_DTYPES = {"float32": "fp32", "bfloat16": "bf16"}  # by the names of torch
_ITS_OWN = "It is the model's own; m2dr shows it as model.card."
OPEN_SAME = {
    **dict.fromkeys(("model_name_or_path", "pretrained_model_name_or_path", "model"), "name"),
    **dict.fromkeys(("truncate_dim", "dims"), "dim"),
    "layers": "layer", "cache_folder": "cache_dir", "backend": "runtime", "torch_dtype": "dtype",
    "use_auth_token": "token",
}  # fmt: skip
OPEN_INSTEAD: Instead = {
    "trust_remote_code": (
        (False, None),
        "m2dr never runs the code of a model. Take one that transformers knows by itself.",
    ),
    "local_files_only": (
        (False, None),
        "Set HF_HUB_OFFLINE=1 in the environment, and no model is looked for on the hub.",
    ),
    **dict.fromkeys(("prompts", "default_prompt_name", "similarity_fn_name"), ((None,), _ITS_OWN)),
    **dict.fromkeys(
        ("model_kwargs", "tokenizer_kwargs", "processor_kwargs", "config_kwargs"),
        ((None,), "Of these m2dr takes device=, dtype= and runtime=."),
    ),
}
_LONG = 512  # tokens of a long text; some models take texts of any length
SIDES: dict[str, Side] = {  # by names of prompts
    "query": "query",
    **dict.fromkeys(("document", "passage", "corpus"), "document"),
}
SAME = {"sentences": "texts", "inputs": "texts", "queries": "texts", "documents": "texts",
        "truncate_dims": "truncate_dim", "dim": "truncate_dim"}  # fmt: skip
INSTEAD: Instead = {
    "output_value": (
        (None, "sentence_embedding"),
        "m2dr makes one vector per text; take sentence-transformers for those of tokens.",
    ),
    "pool": (
        (None,),
        f"Encode a corpus in several processes by: {command('index', 'corpus', workers=2)}",
    ),
    "chunk_size": ((None,), "Leave it out; batches are made by tokens_per_batch."),
}


class EncodeOptions(TypedDict, total=False):
    """How texts are encoded; most are arguments of sentence-transformers.

    Attributes:
        precision: float32, which is the default, or float16.
        show_progress_bar: whether to show progress on standard error.
        tokens_per_batch: tokens of a batch, padding included; texts of similar length share a
            batch. By default as many as suit the device.
        batch_size: texts of the longest length whose tokens make a batch, in place of
            tokens_per_batch; of shorter texts there are more in a batch.
        normalize_embeddings: whether vectors are scaled to length one, also those of a model that
            compares by dot products; where it compares by cosine they have length one anyway.
        truncate_dim: dims to keep, at most those of the encoder; cut before they are normalised.
        prompt_name: query, or document (passage, corpus), which is the side.
        prompt: that of the side; another one is refused.
        convert_to_numpy: True; one array is returned in any case.
        device: that of the encoder.
    """

    precision: Precision
    show_progress_bar: bool | None
    tokens_per_batch: int | None
    batch_size: int | None
    normalize_embeddings: bool
    truncate_dim: int | None
    prompt_name: str | None
    prompt: str | None
    convert_to_numpy: bool
    device: object


@dataclass(frozen=True)
class EncodePlan:
    """How texts of one call are encoded."""

    side: Side
    dim: int
    precision: Precision
    tokens_per_batch: int | None
    shows_progress: bool
    normalise: bool


def plan_encoding(
    card: ModelCard, dim: int, device: str, side: Side | None, given: EncodeOptions
) -> EncodePlan:
    """Return how texts are encoded.

    Args:
        card: of the model.
        dim: of the encoder.
        device: of the encoder, as it was asked for.
        side: of the texts, if it was named.
        given: other arguments.

    Raises:
        UserError: they ask for what this encoder does not do.
    """
    precision = given.get("precision", "float32")
    _refuse_other_precision(precision)
    side = _side(side, given.get("prompt_name"))
    _refuse_other_prompt(card, side, given.get("prompt"))
    if not given.get("convert_to_numpy", True):
        raise UserError(
            "convert_to_numpy = False was asked for, and m2dr returns one array for all texts. "
            "Leave it out, or give convert_to_tensor=True for a tensor of torch."
        )
    other = given.get("device")
    if other is not None and str(other) != device:
        raise UserError(
            f"device = {str(other)!r} was asked for, and the encoder was opened with "
            f"device = {device!r}. Give device= to m2dr.Encoder.from_pretrained."
        )
    return EncodePlan(
        side,
        _dim(dim, given.get("truncate_dim")),
        precision,
        _tokens(card, side, given.get("tokens_per_batch"), given.get("batch_size")),
        bool(given.get("show_progress_bar")),
        bool(given.get("normalize_embeddings", False)) and card.similarity != "cosine",
    )


def words(how: Mapping[str, object]) -> dict[str, str]:
    """Return the device, dtype and runtime of an encoder as texts, empty ones for None.

    Torch has types for two of them.

    Raises:
        UserError: one of them is neither.
    """
    found = {}
    for name, value in how.items():
        if str(type(value)) in ("<class 'torch.device'>", "<class 'torch.dtype'>"):
            value = str(value).removeprefix("torch.")
        word = "" if value is None else string(name, value)
        found[name] = _DTYPES.get(word, word) if name == "dtype" else word
    return found


def _side(side: Side | None, prompt_name: object) -> Side:
    """Return whether texts are queries or documents; documents where nothing says so."""
    if prompt_name is None:
        return side or "document"
    named = SIDES.get(string("prompt_name", prompt_name).lower())
    if named is None:
        raise UserError(
            f"prompt_name = {prompt_name!r} was asked for, and a model of m2dr has prompts of "
            f"queries and of documents alone. {nearest(str(prompt_name), ('query', 'document'))}"
        )
    if side and named != side:
        raise UserError(
            f"prompt_name = {prompt_name!r} was asked for, and the texts are to be encoded as a "
            f"{side}. Call encode_{'queries' if named == 'query' else 'documents'} for that."
        )
    return named


def _refuse_other_prompt(card: ModelCard, side: Side, prompt: object) -> None:
    own = card.query_prefix if side == "query" else card.document_prefix
    if prompt is not None and string("prompt", prompt) != own:
        raise UserError(
            f"prompt = {prompt!r:.200} was asked for, and a {side} of this model has the prompt "
            f"{own!r}, which is part of the model. Leave it out, or train or fit a model with "
            f"another {side}_prefix."
        )


def _dim(dim: int, truncate_dim: int | None) -> int:
    if truncate_dim is None:
        return dim
    asked = whole_number("truncate_dim", truncate_dim, 1)
    if asked > dim:
        raise UserError(
            f"truncate_dim = {asked} was asked for; this encoder has {dim} dims. Give {dim} at "
            "most."
        )
    return asked


def _tokens(
    card: ModelCard, side: Side, tokens_per_batch: int | None, batch_size: int | None
) -> int | None:
    """Return the tokens of a batch; a number of texts is that of the longest ones."""
    if tokens_per_batch is not None:
        whole_number("tokens_per_batch", tokens_per_batch, 1)
    if batch_size is None:
        return tokens_per_batch
    if tokens_per_batch is not None:
        raise UserError("batch_size and tokens_per_batch both say how large a batch is; give one.")
    longest = card.query_length if side == "query" else card.document_length
    return whole_number("batch_size", batch_size, 1) * min(longest, _LONG)


def _refuse_other_precision(precision: object) -> None:
    """Refuse number formats that arrays of vectors do not have here."""
    if precision in ("int8", "uint8", "binary", "ubinary"):
        raise UserError(
            f"precision = {precision!r} was asked for, and vectors are float32 or float16. Indexes "
            'have smaller ones, as by m2dr.Index.build(..., engines=["int8"]) or ["binary"].'
        )
    one_of("precision", precision, get_args(Precision))
