"""`m2dr quickstart --open` ends on the page of its index."""

import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from m2dr.cli import main
from m2dr.core.records import Cut
from m2dr.core.requests import ServeRequest
from m2dr.tasks import quickstart

Opened = Callable[[str], None]


def test_without_the_extra_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("m2dr.cli.serve.find_spec", lambda _: None)

    said = CliRunner().invoke(main, ["quickstart", "--open", "--out", str(tmp_path)])

    assert said.exit_code == 2
    assert "pip install 'm2dr[serve]'" in said.output
    assert not list(tmp_path.iterdir())


def test_what_quickstart_made_is_served_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = pytest.importorskip("m2dr.serve.browser")
    served: list[object] = []
    results = SimpleNamespace(folder=tmp_path / "results")
    monkeypatch.setattr(quickstart, "quickstart", lambda *_: results)
    monkeypatch.setattr(browser, "serve_and_open", lambda *given: served.extend(given[:3]))

    said = CliRunner().invoke(main, ["quickstart", "--open", "--out", str(tmp_path)])

    model = tmp_path / "models" / "pydocs-stdlib-fitted"
    grid = results.folder / model.name / "grid.json"
    assert (said.exit_code, said.exception) == (0, None)
    assert served == [
        ServeRequest(
            corpus="pydocs:stdlib", model=str(model), root=tmp_path / "indexes", grid=grid
        ),
        "read a file line by line",
        Cut(2, 128),
    ]
    assert f"$ m2dr serve --corpus pydocs:stdlib --model {model}" in said.output.replace("\n", " ")


@pytest.mark.parametrize("out", [[], ["--out", "my folder"]])
def test_the_command_that_trains_too_goes_on_where_the_results_are(
    out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for step in ("_fit", "_index", "_search"):
        monkeypatch.setattr(quickstart, step, lambda *_: Path("model"))
    results = SimpleNamespace(folder=tmp_path, figures=["figure.png"])
    monkeypatch.setattr(quickstart, "_evaluate", lambda *_: results)

    said = CliRunner().invoke(main, ["quickstart", *out])

    again = shlex.join(["m2dr", "quickstart", "--train", *out])
    assert f"others here: {again}\n" in said.output


@pytest.mark.parametrize("windows", [True, False])
def test_a_taken_port_is_left_and_the_address_always_told(
    monkeypatch: pytest.MonkeyPatch, windows: bool
) -> None:
    browser = pytest.importorskip("m2dr.serve.browser")
    asked: list[ServeRequest] = []
    shown: list[str] = []
    said: list[str] = []

    def serve(request: ServeRequest, _: Opened, opened: Opened) -> None:
        asked.append(request)
        opened("http://127.0.0.1:9")

    monkeypatch.setattr(browser, "serve", serve)
    monkeypatch.setattr(browser, "shows_windows", lambda: windows)
    monkeypatch.setattr(browser.webbrowser, "open", shown.append)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        request = ServeRequest(corpus="pydocs", model="m", port=port)
        browser.serve_and_open(request, "a & b", Cut(0, 8), said.append)

    address = "http://127.0.0.1:9/#q=a+%26+b&layer=0&dim=8"
    assert [request.port for request in asked] == [0]
    assert f"Compare cuts at {address}" in said
    assert shown == [address] * windows
