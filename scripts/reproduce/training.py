"""A model's row becomes a trained folder; one that is finished is not trained again."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import small
from claims import MINILM, Model, scaled

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.settings import TrainSettings, read_settings
from m2dr.model.checkpoint import adopt
from m2dr.model.hub import CARD, RECORD
from m2dr.tasks.training.train import train

CONFIGS = Path(__file__).parents[2] / "configs"
DOCUMENTS, SENTENCES = (
    ("retrieval", "starbucks-srl-msmarco"),
    ("mipic",),
)  # how such files' names begin
SMALL: dict[str, Any] = {
    "epochs": 0.0,
    "accumulate": 1,
    "negatives": 0,
    "gradient_checkpointing": False,
    "learning_rate": 1e-4,
    "head_learning_rate": 1e-3,
    "warmup": 0.1,
    "pooling": "mean",  # as MiniLM was made; some dozen steps teach no other
    "similarity": "cosine",
    "temperature": 0.05,
    "query_length": 24,
    "document_length": 48,
    "dropout": 0.0,
    "evaluate_steps": 0,
    "save_steps": 100_000,
    "log_steps": 5,
    "checkpoints": [],
}
SMALL_STEPS = 16
# What the published runs read, passages with titles: groups to train on, and a folder to search.
GROUPS, TITLED = Path("msmarco") / "train.jsonl.gz", Path("msmarco") / "titled"
IDLE = ("device", "dtype")  # settings that change no result


@dataclass(frozen=True)
class Scale:
    """How large a reproduction is, and where it reads and writes."""

    small: bool
    data: Path
    out: Path
    steps: int = 0  # 0: those of the file, and SMALL_STEPS at small scale
    batch: int = 32  # at small scale; of sentences half of it
    device: str = "auto"
    changes: tuple[str, ...] = ()  # of every model, as `--set` takes them
    seeds: tuple[int, ...] = ()  # of several trainings of each model; else that of its file

    @property
    def samples(self) -> Path:
        """Where the material of the small scale lies."""
        return self.out / "data"


@dataclass(frozen=True)
class Trained:
    """A model's folder, or the backbone as it comes."""

    path: str
    seconds: float  # that its training took
    now: bool  # whether it was trained now, or found finished


def settings_of(model: Model, scale: Scale) -> TrainSettings:
    """The settings of a model, at its scale.

    Raises:
        UserError: what it trains on is not there.
    """
    path = CONFIGS / f"{model.config}.toml"
    words = [*model.changes, *(model.small if scale.small else ())]
    asked = {word.partition("=")[0].strip() for word in scale.changes}
    given = read_settings(TrainSettings, path, words)
    options: dict[str, Any] = {"device": scale.device, "steps": scale.steps or None}
    if scale.small:
        narrow = [dim for dim in given.dims if dim < MINILM[1]]
        options |= SMALL | {"dims": narrow, "batch_size": scale.batch}
        options |= {"steps": scale.steps or SMALL_STEPS}
        options |= {"corpus": "" if model.raw else _small_corpus(model, scale)}
        options |= {"backbone": small.backbone_to_improve(scale.samples)}
        if model.config.startswith(SENTENCES):  # two views of a sentence differ by dropout alone
            options |= {"dropout": 0.1, "batch_size": max(scale.batch // 2, 1)}
    elif not model.raw and "corpus" not in asked:
        options |= {"corpus": _corpus(given.corpus, model.config, scale.data)}
    if model.cut:
        cut = Cut.parse(cut_of(model, scale.small))
        options |= {"layers": [cut.layer], "dims": [cut.dim]}
    options = {name: value for name, value in options.items() if name not in asked}
    kept = [word for word in words if word.partition("=")[0].strip() not in options]
    return read_settings(TrainSettings, path, [*kept, *scale.changes], options)


def cut_of(model: Model, small_scale: bool) -> str:
    """What a separate model is trained for."""
    return (model.small_cut or scaled(model.cut)) if small_scale else model.cut


def _small_corpus(model: Model, scale: Scale) -> str:
    if model.config.startswith(DOCUMENTS):
        return small.retrieval_corpus(scale.data, scale.samples)
    if model.config.startswith(SENTENCES):
        return small.sentences_corpus(scale.data, scale.samples)
    return small.scored_corpus(scale.data)


def _corpus(names: str, config: str, data: Path) -> str:
    paths = [data / name for name in names.split(",")]
    if names == "msmarco" and has_titles(data):
        paths = [data / GROUPS]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise UserError(
            f"configs/{config}.toml trains on {', '.join(missing)}, which is not there; its head "
            "says where that comes from. Put it there, or name another folder with --data, and run "
            "again: what is done stays done. --small needs none of it."
        )
    return ",".join(map(str, paths))


def has_titles(data: Path) -> bool:
    """Whether MS MARCO lies there with titles, both to train on and to search."""
    return (data / GROUPS).exists() and (data / TITLED).is_dir()


def trained(model: Model, scale: Scale) -> Trained:
    """Train a model unless that is done; an interrupted training goes on.

    A backbone as it comes is taken from DATA/checkpoints, where it is there.

    Raises:
        UserError: the folder holds a model of other settings.
    """
    settings = settings_of(model, scale)
    folder = scale.out / "models" / model.name
    if model.raw:
        own = scale.data / "checkpoints" / settings.backbone.rpartition("/")[2]
        backbone = str(own) if own.is_dir() else settings.backbone
        if model.opens and not (folder / CARD).exists():
            adopt(backbone, folder, **model.opens, exits="model")
        return Trained(str(folder) if model.opens else backbone, 0.0, False)
    note = folder.with_name(f"{model.name}.json")
    table = {k: v for k, v in asdict(settings).items() if k not in IDLE}
    table = json.loads(json.dumps(table))
    known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    begun = (folder / RECORD).exists()
    if known and (begun or (folder / CARD).exists()):
        _same(known["settings"], table, folder)
        if not begun and "seconds" in known:
            return Trained(str(folder), known["seconds"], False)
    write(note, {"settings": table})
    start = time.monotonic()
    train(settings, folder, resume=begun, overwrite=not begun)
    seconds = time.monotonic() - start
    write(note, {"settings": table, "seconds": seconds})
    return Trained(str(folder), seconds, True)


def _same(known: dict[str, Any], asked: dict[str, Any], folder: Path) -> None:
    differ = sorted(key for key in asked.keys() | known.keys() if asked.get(key) != known.get(key))
    if differ:
        key = differ[0]
        raise UserError(
            f"{folder} was trained with {key} {known.get(key)!r}, and {asked.get(key)!r} is asked "
            "now; choose another --out, or remove that folder."
        )


def write(path: Path, table: dict[str, Any]) -> None:
    """A table as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".partial")
    aside.write_text(json.dumps(table, indent=1), encoding="utf-8")
    aside.replace(path)
