"""`m2dr push`: upload a model folder to the Hugging Face hub."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from m2dr.core.errors import Interrupted, UserError, command, counted
from m2dr.core.files import error_summary
from m2dr.core.progress import progress
from m2dr.core.records import EXPORTED_FILE
from m2dr.core.requests import PushModelRequest
from m2dr.model.folder import TOKENIZERS, read_card
from m2dr.model.hub import (
    CARD,
    CHECKPOINTS,
    MODULES,
    SETTINGS,
    WEIGHTS_INDEX,
    listed_modules,
)
from m2dr.model.readme import IMAGES, README
from m2dr.model.sentence_transformers import MODEL_SETTINGS
from m2dr.tasks.card import require_own
from m2dr.tasks.export import save_model
from m2dr.tasks.run_folder import SETTINGS as TRAINING

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

MAIN = "main"  # the branch of a new repository
# Files of a model in its own folder; those of its modules lie in folders that modules.json names.
FILES = (
    CARD,
    README,
    EXPORTED_FILE,
    "config.json",
    "generation_config.json",
    "*.safetensors",
    WEIGHTS_INDEX,
) + ((*TOKENIZERS, "chat_template.jinja", MODULES, MODEL_SETTINGS, *SETTINGS, TRAINING, "LICENSE*"))
_IN_MODULES = ("config.json", "*_config.json", "*.safetensors")
_FIGURE = re.compile(rf"\]\(({IMAGES}/[^/()\s]+\.(?:png|svg))\)")
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class PushedFile:
    """A file of a model on its way to the hub."""

    name: str  # path in the model's folder, and in the repository
    bytes: int


@dataclass(frozen=True)
class PushedModel:
    """What was uploaded, or would be."""

    id: str
    revision: str
    files: tuple[PushedFile, ...]
    removed: tuple[str, ...]  # files of an earlier model in the repository
    url: str  # of the commit; empty where nothing was sent
    commit: str  # its hash

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)


def push_layers(request: PushModelRequest, layers: int) -> PushedModel:
    """Upload a model as `TextEncoder.push_to_hub` does.

    A folder of m2dr that has no more layers goes as it is, and a copy of any other model.

    Raises:
        UserError: as `push_model` and `save_model` do.
    """
    own = request.model
    if (own / CARD).is_file() and read_card(str(own)).layers == layers:
        return push_model(request)
    require_id(request.id)
    named = {name: getattr(request, name) for name in ("private", "revision")}
    named["commit_message"] = request.message
    words = [repr(request.id), *(f"{name}={value!r}" for name, value in named.items() if value)]
    with TemporaryDirectory() as place:
        copy = Path(place, request.id.rpartition("/")[2])
        save_model(str(own), layers, copy)
        return push_model(replace(request, model=copy), f"push_to_hub({', '.join(words)})")


def push_model(request: PushModelRequest, again: str = "") -> PushedModel:
    """Upload the files of a model in one commit, and make its repository where there is none.

    Large files go first, and the hub keeps each that has arrived: the same request goes on after
    an interruption. Files that the hub has already are not sent again, and files of an earlier
    model that this one does not have are removed from the repository.

    Args:
        request: what is uploaded, and where.
        again: what goes on after an interruption; `m2dr push` of the same request by default.

    Raises:
        UserError: the folder holds no complete model, the id is not OWNER/NAME, there is no token,
            or the hub cannot be reached or refuses.
        Interrupted: Ctrl-C.
    """
    folder = request.model
    require_id(request.id)
    require_own(folder)
    if (folder / CHECKPOINTS).exists():
        raise UserError(f"{folder} holds a training that is not finished; finish it before a push.")
    read_card(str(folder))  # the files are those that m2dr.json was written for
    files = model_files(folder)
    revision = request.revision or MAIN
    if request.dry_run:
        return PushedModel(request.id, revision, files, (), "", "")
    with _explained(request, again):
        return _pushed(request, revision, files)


def require_id(name: str) -> None:
    """Raise UserError unless a name is an id of the hub with its owner."""
    parts = name.split("/")
    odd = any(not _NAME.fullmatch(part) for part in parts) or "--" in name or ".." in name
    if len(parts) != 2 or odd or name.endswith(".git"):
        raise UserError(
            f"{name!r} is no name for a model on the hub: write OWNER/NAME, such as "
            "ada/my-model, of letters, digits and single - _ . between them."
        )


def model_files(folder: Path) -> tuple[PushedFile, ...]:
    """Return the files of a model, without checkpoints, logs, caches and hidden files.

    Figures are those that the model card shows.

    Raises:
        UserError: something that is no regular file has the name of one.
    """
    inside = [path for path in folder.iterdir() if _is_ours(path.name) and not path.is_dir()]
    for row in listed_modules(folder):
        if row.path:
            inside += [path for kind in _IN_MODULES for path in (folder / row.path).glob(kind)]
    card = (folder / README).read_text("utf-8", "replace") if (folder / README).exists() else ""
    shown = (folder / name for name in sorted(set(_FIGURE.findall(card))))
    inside += [path for path in shown if path.exists()]
    for path in inside:
        if not path.is_file():
            raise UserError(f"{path} is no file, where a file of the model belongs.")
    names = {path.relative_to(folder).as_posix(): path.stat().st_size for path in inside}
    return tuple(PushedFile(name, size) for name, size in sorted(names.items()))


def _is_ours(name: str) -> bool:
    """Return whether a file in a model's own folder is part of the model."""
    return not name.startswith(".") and any(fnmatchcase(name, pattern) for pattern in FILES)


def _pushed(request: PushModelRequest, revision: str, files: Sequence[PushedFile]) -> PushedModel:
    """Send the files, large ones first, and commit them."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi(token=_token(request))
    api.create_repo(request.id, private=request.private or None, exist_ok=True)
    if request.private and not api.model_info(request.id).private:
        raise UserError(
            f"{request.id} was to be private, and it is a public repository already. Nothing was "
            "sent; make it private on the hub first, or push to another id."
        )
    if revision != MAIN:
        api.create_branch(request.id, branch=revision, exist_ok=True)
    there = api.list_repo_files(request.id, revision=revision)
    removed = _left_over(there, {file.name for file in files})
    adding = [CommitOperationAdd(file.name, request.model / file.name) for file in files]
    _send(api, request, revision, files, adding)
    done = api.create_commit(
        request.id,
        [*adding, *(CommitOperationDelete(name) for name in removed)],
        commit_message=request.message or f"Upload {request.model.resolve().name} with m2dr",
        revision=revision,
    )
    return PushedModel(request.id, revision, tuple(files), removed, done.commit_url, done.oid)


def _send(
    api: "HfApi",
    request: PushModelRequest,
    revision: str,
    files: Sequence[PushedFile],
    adding: "Sequence[CommitOperationAdd]",
) -> None:
    """Upload each large file; the small ones go with the commit."""
    with progress("Pushing", sum(file.bytes for file in files), "bytes") as advance:
        for file, one in zip(files, adding, strict=True):
            api.preupload_lfs_files(request.id, [one], revision=revision)
            advance(file.bytes)


def _left_over(there: Sequence[str], files: set[str]) -> tuple[str, ...]:
    """Return the files of a model in a repository that are not among those to come."""

    def is_of_a_model(name: str) -> bool:
        folder, _, last = name.rpartition("/")
        if folder == IMAGES:
            return last.endswith((".png", ".svg"))
        in_module = re.fullmatch(r"\d+_[A-Za-z]+", folder) and any(
            fnmatchcase(last, kind) for kind in _IN_MODULES
        )
        return bool(in_module) or (not folder and _is_ours(last) and not last.startswith("LICENSE"))

    return tuple(name for name in sorted(there) if name not in files and is_of_a_model(name))


def _token(request: PushModelRequest) -> str:
    from huggingface_hub import get_token

    token = request.token or get_token()
    if not token:
        raise UserError(
            f"To push {request.id} a token of the hub is needed, and there is none: log in with "
            "`hf auth login`, set HF_TOKEN, or give --token."
        )
    return token


@contextmanager
def _explained(request: PushModelRequest, again: str) -> Iterator[None]:
    """Turn what the hub's client raises into a sentence, and keep its own bars from the screen."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
    from huggingface_hub.utils.tqdm import enable_progress_bars as enable

    given = {name: getattr(request, name) for name in ("revision", "private", "message")}
    pushing = again or command("push", request.model, request.id, **given)
    kept = f"What has arrived is kept; go on with: {pushing}"
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except UserError:
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"Pushing {request.id} stopped. {kept}") from None
    except Exception as error:  # the hub's client raises many classes of errors
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        if isinstance(cause, HfHubHTTPError):
            raise UserError(f"{_refusal(cause, request)} {kept}") from error
        is_network = isinstance(cause, OSError) or type(cause).__module__.startswith("httpx")
        lost = "cannot be reached, or the connection was lost" if is_network else "takes no model"
        raise UserError(
            f"The hub at {constants.ENDPOINT} {lost} ({type(cause).__name__}: "
            f"{error_summary(cause)}). {kept}"
        ) from error
    finally:
        if shown:
            enable()


def _refusal(error: "HfHubHTTPError", request: PushModelRequest) -> str:
    """Return why the hub refused, as a sentence."""
    status = error.response.status_code
    if status == 401:
        return f"The hub does not accept the token with which {request.id} was to be pushed."
    if status in (403, 404):
        owner = request.id.split("/")[0]
        return (
            f"The token may not write to {request.id}, or there is no {owner} on the hub (HTTP "
            f"{status}): correct the id, or take a token that may write there."
        )
    said = error.server_message or error_summary(error)
    return f"The hub refused to take {request.id} (HTTP {status}: {said[:300].rstrip('. ')})."


def told(report: PushedModel) -> Iterator[str]:
    """Yield the lines that say what was sent, or would be."""
    for file in report.files:
        yield f"{file.bytes:>15,}  {file.name}"
    yield from (f"{'removed':>15}  {name}" for name in report.removed)
    what = f"{counted(len(report.files), 'files')}, {report.bytes / 1e6:,.1f} MB"
    if report.url:
        yield f"{what}: {report.url}"
    else:
        yield f"{what} would go to {report.id}, branch {report.revision}; nothing was sent."
