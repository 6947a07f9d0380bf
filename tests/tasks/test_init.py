"""A file that m2dr init writes is read back as the defaults, whatever is set in it."""

import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from click.testing import CliRunner
from commands import parsed
from hypothesis import given
from hypothesis import strategies as st

from m2dr.cli import main
from m2dr.core.reading import read_settings
from m2dr.core.toml_files import settings_text
from m2dr.core.trainings import (
    FitSettings,
    PretrainSettings,
    TrainSettings,
    read_fit_settings,
    read_pretrain_settings,
    read_train_settings,
)
from m2dr.core.variants import CHOICES, VARIANTS

READERS: dict[str, Any] = {
    "train": (read_train_settings, TrainSettings),
    "fit": (read_fit_settings, FitSettings),
    "pretrain": (read_pretrain_settings, PretrainSettings),
}


def init(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["init", *map(str, words)])
    return done.exit_code, done.output


@pytest.mark.parametrize("command", READERS)
def test_every_key_is_there_and_a_default(command: str, tmp_path: Path) -> None:
    read, kind = READERS[command]
    file = tmp_path / "my settings.toml"

    code, told = init(file, "--for", command)

    assert code == 0
    text = file.read_text()
    assert read(file) == kind()
    assert set(re.findall(r"^(?:# )?(\w+) = ", text, re.M)) == {each.name for each in fields(kind)}
    assert max(map(len, text.splitlines())) <= 100
    (follow,) = re.findall(r"Use them with: (.*)", told)
    assert parsed(follow).params["config"] == file


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_lines_in_comment_are_those_of_the_variant(variant: str, tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    assert init(file, "--variant", variant)[0] == 0
    plain = read_train_settings(file)
    chosen = "|".join(name for name in CHOICES if getattr(plain.row, name) is not None)

    file.write_text(re.sub(rf"^# ({chosen}) = ", r"\1 = ", file.read_text(), flags=re.M))

    assert read_train_settings(file).recipe() == plain.recipe()
    assert set(read_train_settings(file).overrides) == set(chosen.split("|"))


@given(
    prefix=st.text(st.characters(exclude_categories=["Cs"])),
    rate=st.floats(1e-300, 1e300),
    dims=st.lists(st.integers(1, 2**40)),
)
def test_any_values_are_read_back(prefix: str, rate: float, dims: list[int]) -> None:
    settings = replace(
        TrainSettings(), query_prefix=prefix, learning_rate=rate, dims=tuple(dims), faithful=True
    )

    with NamedTemporaryFile("w", encoding="utf-8", newline="") as file:
        file.write(settings_text(settings, "Any."))
        file.flush()
        found = read_settings(TrainSettings, lambda _: [], Path(file.name))

    assert asdict(found) == asdict(settings)


def test_the_name_of_a_command_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    code, told = init("fit")

    assert (code, list(tmp_path.iterdir())) == (2, [])
    (meant,) = re.findall(r"of that command with: (.*)", told)
    assert init(*parsed_words(meant))[0] == 0
    assert read_fit_settings(tmp_path / "fit.toml") == FitSettings()


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "fit.toml"
    file.write_text("mine")

    code, told = init(file, "--for", "fit")
    assert (code, file.read_text()) == (2, "mine")
    (again,) = re.findall(r"Replace it with: (.*)", told)
    assert init(*parsed_words(again))[0] == 0
    assert read_fit_settings(file) == FitSettings()

    code, told = init(tmp_path / "x.toml", "--for", "fit", "--variant", "mrl")
    assert (code, "a fit has none" in told) == (2, True)
    assert "Did you mean full-dim?" in init(tmp_path / "x.toml", "--variant", "fulldim")[1]
    assert not (tmp_path / "x.toml").exists()


def parsed_words(line: str) -> list[str]:
    import shlex

    assert parsed(line)
    return shlex.split(line)[2:]
