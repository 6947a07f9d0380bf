"""`m2dr figures` and `m2dr report` on folders as `m2dr evaluate`, `pick` and `compare` leave them."""

import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread
from shell import m2dr

from m2dr.cli import main
from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.requests import FiguresRequest, OverlapRequest, ReportRequest
from m2dr.evaluate.comparison import read_comparison, write_comparison
from m2dr.evaluate.costs import Cost, Costs, write_costs
from m2dr.evaluate.grid import Grid, format_score, write_grid
from m2dr.evaluate.results import (
    Provenance,
    QueryScores,
    joined_grid,
    read_results,
    write_provenance,
    write_scores,
)
from m2dr.tasks.compare import compare
from m2dr.tasks.figures import draw_figures
from m2dr.tasks.report import write_report

LAYERS, DIMS, QUERIES = (2, 4), (8, 16, 32), 12
EVIL = "<script>alert('1')</script>&\"$x^2$"
VOID = {"meta", "br", "hr", "img", "input", "link"}


def left(
    folder: Path,
    model: str,
    seed: int = 0,
    queries: int = QUERIES,
    priced: bool = True,
    notes: tuple[str, ...] = (),
    checks: tuple[str, ...] = (),
) -> Grid:
    """What an evaluation and a measurement of costs leave of one model."""
    rows = np.random.default_rng(seed).random((6, queries))
    cuts = tuple(Cut(layer, dim) for layer in LAYERS for dim in DIMS)
    ids = tuple(f"q{i}" for i in range(queries))
    cells = {cut: {"nDCG@10": float(row.mean())} for cut, row in zip(cuts, rows, strict=True)}
    grid = Grid(model, "corpus", "test", queries, cells, notes, checks=checks)
    write_grid(grid, folder / "grid.json")
    write_scores([QueryScores("nDCG@10", cuts, ids, rows)], folder)
    if priced:
        costs = {c: Cost(1.5 * c.layer, 2.0 * c.layer, 90.0, 4 * c.dim, 10**6, 9) for c in cuts}
        place = (
            "models/none",
            "abc123",
            "corpus",
            cuts[-1],
            "same",
            99,
            9,
            7.5,
            "f32",
            "a machine",
        )
        write_costs(Costs(model, *place[1:], costs), folder)
    return grid


class Page(HTMLParser):
    """What a page is made of; an element that is not closed is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.captions: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes) -> None:
        held = dict(attributes)
        self.seen[tag] += 1
        self.ids += [held["id"]] if "id" in held else []
        self.links += [held[key] for key in ("href", "src", "xlink:href") if key in held]
        if tag == "table":
            self.tables.append([])
            self.captions.append("")
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.words.append(data)
        if "caption" in self.open:
            self.captions[-1] += data
        elif {"td", "th"} & set(self.open) and "small" not in self.open:
            self.tables[-1][-1][-1] += data


Parts = tuple[Path, str, Page]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three models on one corpus, one of them with a comparison and one with a wild name."""
    return three_models(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Their results, and the page of them as text and in parts."""
    results = three_models(tmp_path_factory.mktemp("page"))
    return results, *written(results)


def three_models(folder: Path) -> Path:
    place = folder / "results" / "corpus" / "test"
    left(place / "plain", "plain")
    left(place / "full-dim", "full-dim", 1, notes=("a note",), checks=("a failed check",))
    left(place / "evil", EVIL, 2, priced=False)
    comparison = compare(place / "full-dim", str(place / "plain"))
    write_comparison(comparison, place / "full-dim" / "nDCG@10-against-plain")
    return folder / "results"


def written(results: Path) -> tuple[str, Page]:
    request = ReportRequest(FiguresRequest((results,)), results.parent / "report.html")
    text = write_report(request).path.read_text()
    return text, Page(text)


def test_the_page_is_whole_and_asks_for_nothing(made: Parts) -> None:
    _, text, page = made

    assert "http" not in text
    assert "@import" not in text
    assert page.seen["script"] == page.seen["link"] == page.seen["img"] == 0
    assert all(link.startswith("#") for link in page.links)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    assert [key for key, count in Counter(page.ids).items() if count > 1] == []


def test_every_table_has_a_caption_and_every_figure_words_for_those_who_hear_it(
    made: Parts,
) -> None:
    _, text, page = made

    assert len(page.captions) == page.seen["table"] > 5
    assert all(caption.strip() for caption in page.captions)
    assert page.seen["h1"] == 1
    assert page.seen["figure"] == page.seen["figcaption"] > 3
    labels = re.findall(r'<svg[^>]* role="img" aria-labelledby="([^"]+)"', text)
    assert len(labels) == page.seen["svg"] == page.seen["figure"]
    assert set(labels) <= set(page.ids)
    assert text.count('scope="col"') == sum(len(table[0]) for table in page.tables)


def test_the_heat_tables_hold_the_grids(made: Parts) -> None:
    results, _, page = made

    for result in read_results([results]):
        grid = result.grid
        (table,) = [
            table
            for caption, table in zip(page.captions, page.tables, strict=True)
            if caption.startswith(f"{grid.model}: nDCG@10; best")
        ]
        assert table[0] == ["layer", *map(str, DIMS)]
        for layer, row in zip(LAYERS, table[1:], strict=True):
            values = [format_score(grid.cells[Cut(layer, dim)]["nDCG@10"]) for dim in DIMS]
            assert row == [str(layer), *values]


def test_a_name_with_markup_is_text_everywhere(made: Parts) -> None:
    _, text, page = made

    assert "<script" not in text
    assert any(EVIL in word for word in page.words)


def test_comparisons_of_results_that_were_measured_again_are_left_out(results: Path) -> None:
    request = ReportRequest(FiguresRequest((results,)), results.parent / "report.html")
    assert "full-dim against " in write_report(request).path.read_text()
    for path in results.glob("**/*-against-*.json"):
        path.write_text(path.read_text().replace('"value": 0.', '"value": 1.'))

    report = write_report(request)

    assert "full-dim against " not in report.path.read_text()
    assert any("was measured again after it was compared with" in note for note in report.notes)


def test_comparisons_costs_checks_notes_settings_and_versions_are_there(results: Path) -> None:
    models = results.parent / "models" / "plain"
    models.mkdir(parents=True)
    (models / "m2dr.json").write_text(json.dumps({"variant": "plain", "fingerprint": "f00"}))
    made = Provenance("m2dr evaluate --corpus <c>", "", "c", "test", "f00", {"torch": "9.9"})
    write_provenance(made, results / "corpus/test/plain")
    out = results.parent / "report.html"

    report = write_report(
        ReportRequest(FiguresRequest((results,)), out, "A <title>", results.parent / "models")
    )

    page = Page(out.read_text())
    words = " ".join(page.words)
    for expected in (
        "A <title>", "full-dim: a failed check", "full-dim: a note", "against the same cut of plain",
        "Holm's correction", "the frontier of nDCG@10", "a machine", "f00",
        "m2dr evaluate --corpus <c>", "9.9",
    ):  # fmt: skip
        assert expected in words
    assert any("evil" in note or EVIL in note for note in report.notes)  # neither costs nor card


def test_a_page_without_costs_says_so_and_leaves_their_panels_out(tmp_path: Path) -> None:
    left(tmp_path / "results" / "one", "one", priced=False)

    text, page = written(tmp_path / "results")

    assert "costs, which were not measured: one" in text
    assert not any("cost" in caption for caption in page.captions)
    assert "against latency" not in text


def test_a_grid_of_one_cell_is_a_page(tmp_path: Path) -> None:
    grid = Grid("one", "c", "s", 3, {Cut(6, 384): {"nDCG@10": 0.0}})
    write_grid(grid, tmp_path / "results" / "grid.json")

    _, page = written(tmp_path / "results")

    assert ["6", ".0000"] in page.tables[0]


def test_a_comparison_reads_back_as_it_was_written(results: Path) -> None:
    place = results / "corpus" / "test"
    asked = compare(place / "full-dim", str(place / "plain"))

    assert read_comparison(place / "full-dim" / "nDCG@10-against-plain.json") == asked


def test_figures_are_written_in_every_format_asked_for(results: Path, tmp_path: Path) -> None:
    request = FiguresRequest((results,), tmp_path / "out", formats=("png", "svg"))

    report = draw_figures(request)

    names = {path.name for path in report.files}
    stems = ("layers", "gap-to-whole", "against-latency", "against-bytes", "models", "heat-plain")
    assert {f"nDCG@10-{stem}.{kind}" for stem in stems for kind in ("png", "svg")} <= names
    assert all(path.stat().st_size > 1000 for path in report.files)
    assert all(imread(path).std() > 0.01 for path in report.files if path.suffix == ".png")


def test_the_gap_to_separate_takes_one_model_per_cut(results: Path, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    for seed, cut in enumerate((Cut(2, 8), Cut(4, 32))):
        left(apart / str(cut), str(cut), seed + 7)

    report = draw_figures(FiguresRequest((results,), tmp_path / "out", separate=apart))

    joined = joined_grid(apart)
    assert joined.cuts == (Cut(2, 8), Cut(4, 32))
    assert joined.cells[Cut(4, 32)] == read_results([apart / "L4D32"])[0].grid.cells[Cut(4, 32)]
    assert any(path.name == "nDCG@10-gap-to-separate.png" for path in report.files)


def test_overlaps_are_drawn_of_real_vectors(
    tiny_backbone: Path, tiny_corpus: Path, results: Path, tmp_path: Path
) -> None:
    asked = OverlapRequest((str(tiny_backbone),), str(tiny_corpus), (8,))

    report = draw_figures(FiguresRequest((results,), tmp_path / "out", overlap=asked))

    assert report.files[-1].name == "overlap.png"


@pytest.mark.parametrize("command", ["figures", "report"])
def test_what_cannot_be_drawn_is_a_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    left(tmp_path / "mixed" / "one", "one")
    left(tmp_path / "mixed" / "two", "two", queries=5)
    left(tmp_path / "old" / "one", "one")
    path = tmp_path / "old" / "one" / "grid.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    left(tmp_path / "good", "one")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "grid.json").write_text("{\n]")
    left(tmp_path / "twice" / "a", "one")
    left(tmp_path / "twice" / "b", "one")
    (tmp_path / "none").mkdir()
    refusals = {
        ("none",): "holds no results",
        ("nowhere",): "is not there",
        ("mixed",): "cannot be compared",
        ("old",): "its format is 99",
        ("broken",): "line 2: is not JSON",
        ("twice",): "Two grids are called one",
        ("good", "--measure", "nDCG@11"): "Did you mean nDCG@10?",
        ("good", "--published", "msmarcoo"): "Did you mean msmarco?",
        ("good", "--separate", "none"): "holds no results",
        ("good", "--overlap", "no-such-model", "--corpus", "pydocs:stdlib"): "no-such-model",
    }

    for words, sentence in refusals.items():
        done = CliRunner().invoke(main, [command, *words])

        assert done.exit_code == 2, (words, done.output)
        assert "Traceback" not in done.stderr
        assert sentence in done.stderr, (words, done.stderr)
    assert not (tmp_path / "report.html").exists()


def test_both_commands_work_as_a_person_runs_them(results: Path) -> None:
    drawn = m2dr("figures", "--format", "svg", "--theme", "dark", cwd=results.parent)
    page = m2dr("report", "results/corpus/test/plain", "--title", "Mine", cwd=results.parent)

    assert drawn.returncode == 0, drawn.stderr
    assert (results.parent / "figures" / "corpus-test" / "nDCG@10-layers.svg").is_file()
    assert "Note: corpus test: no results named 'separate' are given" in drawn.stderr
    assert page.returncode == 0, page.stderr
    assert "report.html" in page.stdout
    assert "Mine" in (results.parent / "report.html").read_text()


def test_a_report_is_not_written_over_a_folder(results: Path) -> None:
    with pytest.raises(UserError, match="is a folder; name a file"):
        write_report(ReportRequest(FiguresRequest((results,)), results))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page_in_light_and_dark(
    made: Parts, scheme: str, tmp_path: Path
) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("There is no Chromium on PATH; install one to have the page looked at.")
    picture = tmp_path / f"{scheme}.png"

    subprocess.run(
        [
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
            f"--user-data-dir={tmp_path / 'profile'}", "--window-size=390,1500",
            f"--screenshot={picture}", (made[0].parent / "report.html").as_uri(),
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip

    seen = imread(picture)[..., :3]
    corner = seen[:8, :8].mean()
    assert corner > 0.95 if scheme == "light" else corner < 0.15
    assert seen.std() > 0.02  # something stands on the paper
