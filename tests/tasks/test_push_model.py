"""Models are uploaded to a stand-in of the hub: these files, byte for byte, and no others."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hub_server import TOKEN, Hub, running_hub
from shell import COMMAND, ENVIRONMENT
from world import make_model

from m2dr.cli import main
from m2dr.core.records import Cut
from m2dr.model.folder import read_card
from m2dr.tasks.push_model import model_files

Pushing = Callable[..., subprocess.CompletedProcess[str]]
OWN = {
    "1_Pooling/config.json", "README.md", "config.json", "config_sentence_transformers.json",
    "images/tiny.png", "m2dr.json", "model.safetensors", "modules.json",
    "sentence_bert_config.json", "settings.json", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip
OTHERS = (
    "checkpoints.old/optimizer.pt", "tensorboard/events.1", ".cache/x", ".m2dr.lock", "train.log",
    "optimizer.bin", "pytorch_model.bin", "images/old.png", "notes.json", "1_Pooling/x.bin",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    cuts = (Cut(2, 8), Cut(4, 8), Cut(4, 32))
    return make_model(tiny_backbone, tmp_path_factory.mktemp("made") / "tiny-model", cuts=cuts)


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    """A model with files that are its own, and files that are not."""
    folder = Path(shutil.copytree(made, tmp_path / "models" / "tiny-model"))
    for name in ("images/tiny.png", "settings.json", *OTHERS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"{name} of a test".encode())
    with (folder / "README.md").open("a") as card:
        card.write("\n![over layers and dims](images/tiny.png)\n")
    return folder


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as found:
        yield found


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {
        **ENVIRONMENT, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }  # fmt: skip


@pytest.fixture
def push(model: Path, environment: dict[str, str], tmp_path: Path) -> Pushing:
    def run(*words: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, "push", *map(str, words or (model, "me/tiny"))], cwd=tmp_path,
            env={**environment, **changes}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    return run


def own(model: Path) -> dict[str, bytes]:
    return {name: (model / name).read_bytes() for name in OWN}


def refused(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return line


def test_the_hub_receives_exactly_the_files_listed_and_each_byte_of_them(
    push: Pushing, hub: Hub, model: Path
) -> None:
    listed = push(model, "me/tiny", "--dry-run")
    assert hub.asked == []
    assert "nothing was sent" in listed.stdout

    done = push(model, "me/tiny", "--private", "--message", "First one")

    assert done.returncode == 0, done.stderr
    received = hub.files("me/tiny")
    assert received.pop(".gitattributes")
    assert received == own(model)
    rows = [line.split() for line in listed.stdout.splitlines()[:-1]]
    sizes = {name: int(size.replace(",", "")) for size, name in rows}
    assert sizes == {name: len(data) for name, data in received.items()}
    assert done.stdout.splitlines()[:-1] == listed.stdout.splitlines()[:-1]
    assert f"{hub.url}/me/tiny/commit/{hub.branches['me/tiny', 'main']}" in done.stdout
    assert hub.private == {"me/tiny"}
    assert hub.messages == ["First one"]


def test_a_public_repository_is_not_sent_what_should_be_private(
    push: Pushing, hub: Hub, model: Path
) -> None:
    hub.commit("me/tiny", "main", {"README.md": b"public"})

    done = push(model, "me/tiny", "--private")

    assert done.returncode == 2
    assert "me/tiny was to be private, and it is a public repository already" in done.stderr
    assert hub.files("me/tiny") == {"README.md": b"public"}


def test_a_model_that_was_pushed_opens_by_its_id_at_each_revision(
    push: Pushing, hub: Hub, model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    assert push().returncode == 0
    before = hub.files("me/tiny")
    make_model(model, tmp_path / "other", similarity="cosine")
    assert push(tmp_path / "other", "me/tiny", "--revision", "v2").returncode == 0
    code = """if True:
        from m2dr.model.folder import read_card
        from m2dr.model.hub import find_folder, pinned, revision_of
        for revision in ("", "v2"):
            with pinned("me/tiny", revision):
                card = read_card("me/tiny")
                print(card.similarity, card.fingerprint, revision_of(find_folder("me/tiny")))"""

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True,
        check=True,
    )  # fmt: skip

    cards = [read_card(model), read_card(tmp_path / "other")]
    commits = [hub.branches["me/tiny", branch] for branch in ("main", "v2")]
    expected = [f"{c.similarity} {c.fingerprint} {o}" for c, o in zip(cards, commits, strict=True)]
    assert done.stdout.splitlines() == expected
    assert hub.files("me/tiny") == before
    # Of the earlier model: a figure and settings that this one does not have.
    assert set(before) - set(hub.files("me/tiny", "v2")) == {"images/tiny.png", "settings.json"}


def test_an_interrupted_push_goes_on(
    push: Pushing, hub: Hub, model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "push", str(model), "me/tiny"], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def interrupt() -> int:
        if hub.uploads:
            os.kill(process.pid, signal.SIGINT)
            process.wait(60)
        return 0

    hub.before_upload = interrupt  # at the second of two large files
    told = process.communicate(timeout=120)[1]
    assert process.returncode == 1, told
    assert "go on with: m2dr push" in told
    assert set(hub.files("me/tiny")) == {".gitattributes"}
    first = list(hub.uploads)
    hub.before_upload = lambda: 0

    assert push().returncode == 0

    assert hub.uploads[: len(first)] == first
    assert len(hub.uploads) == len(set(hub.uploads))
    assert {k: v for k, v in hub.files("me/tiny").items() if k[0] != "."} == own(model)


def test_what_the_hub_refuses_is_a_sentence_and_what_it_has_is_not_sent_again(
    push: Pushing, hub: Hub, model: Path
) -> None:
    hub.before_upload = lambda: 400 if hub.uploads else 0
    assert "HTTP 400: The storage is full" in refused(push())
    hub.before_upload, hub.card_error = lambda: 0, '"license" must be one of a list'
    assert 'Invalid metadata in README.md. - "license" must be' in refused(push())
    hub.card_error = ""

    assert push().returncode == 0

    assert len(hub.uploads) == len(set(hub.uploads)) == 2
    assert {k: v for k, v in hub.files("me/tiny").items() if k[0] != "."} == own(model)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"HF_TOKEN": ""}, "a token of the hub is needed, and there is none: log in with `hf auth"),
        ({"HF_TOKEN": "hf_other"}, "The hub does not accept the token"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "The hub at http://127.0.0.1:9 cannot be reached"),
        ({"HF_HUB_OFFLINE": "1"}, "cannot be reached"),
    ],
)
def test_no_token_and_no_network_are_one_sentence(
    change: dict[str, str], sentence: str, push: Pushing
) -> None:
    assert sentence in refused(push(**change))


def test_an_owner_of_somebody_else_is_named(push: Pushing, model: Path) -> None:
    assert "The token may not write to you/tiny" in refused(push(model, "you/tiny"))


@pytest.mark.parametrize(
    "name", ["tiny", "me/", "/tiny", "me/tiny/v2", "me/a--b", "me/-a", "me/a b", "me/x.git", "é/x"]
)
def test_an_id_is_owner_and_name(name: str, made: Path) -> None:
    done = CliRunner().invoke(main, ["push", "--dry-run", str(made), name])

    assert done.exit_code == 2
    assert "is no name for a model on the hub: write OWNER/NAME" in done.stderr


def test_a_folder_without_a_model_is_named(made: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    half = Path(shutil.copytree(made, tmp_path / "half"))
    (half / "model.safetensors").write_bytes(b"")
    busy = Path(shutil.copytree(made, tmp_path / "busy"))
    (busy / "checkpoints").mkdir()
    for folder, sentence in (
        (tmp_path / "absent", "is not there: no m2dr.json is in it"),
        (tiny_backbone, "is no model that m2dr wrote"),
        (half, "fingerprint"),
        (busy, "a training that is not finished"),
    ):
        done = CliRunner().invoke(main, ["push", "--dry-run", str(folder), "me/tiny"])
        assert done.exit_code == 2
        assert sentence in done.stderr


def test_a_link_or_a_pipe_in_place_of_a_file_is_not_read(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "model"))
    (folder / "model.safetensors").rename(tmp_path / "weights")
    (folder / "model.safetensors").symlink_to(tmp_path / "weights")  # as a cache has them
    os.mkfifo(folder / ".hidden")

    names = {file.name: file.bytes for file in model_files(folder)}

    assert names["model.safetensors"] == (tmp_path / "weights").stat().st_size
    assert not any(name.startswith(".") for name in names)
