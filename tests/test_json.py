"""With --json a command prints JSON alone, with the names that files have."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_help import ALL, LEAVES

from m2dr.cli import main

WITH_TABLES = {
    "compare", "data check", "index list", "index verify", "pick", "push", "search",
    *(path for path in LEAVES if path.startswith("evaluate ")),
}  # fmt: skip
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(tiny_fitted: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Run a command with --json in a folder with an index and results, and read what it prints."""
    place = tmp_path_factory.mktemp("json")
    words = {"MODEL": tiny_fitted, "CORPUS": tiny_corpus, "INDEXES": place / "indexes"}
    words |= {
        "OUT": place / "results",
        "RESULTS": place / "results" / "tiny" / "test" / "tiny-fitted",
    }

    def run(line: str, *more: str) -> Any:  # JSON
        asked = [str(words.get(word, word)) for word in line.split()]
        done = CliRunner().invoke(main, [*asked, "--json", *more])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    run.words = words
    made = "index corpus --corpus CORPUS --model MODEL --indexes INDEXES --dim 8 --dtype fp32"
    done = CliRunner().invoke(main, [str(words.get(word, word)) for word in made.split()])
    assert done.exit_code == 0, done.output
    run.grids = run(
        "evaluate beir --corpus CORPUS --model MODEL --indexes INDEXES --out OUT --layers 2,4 "
        "--dims 8,32 --dtype fp32 --costs"
    )
    return run


def test_commands_that_print_tables_have_it() -> None:
    having = {path for path in LEAVES if "as_json" in {one.name for one in ALL[path].params}}

    assert having >= WITH_TABLES


def test_an_evaluation_prints_what_its_files_hold(ask: Ask) -> None:
    folder = ask.words["RESULTS"]

    assert ask.grids["grids"] == [json.loads((folder / "grid.json").read_text())]
    assert ask.grids["costs"] == [json.loads((folder / "costs.json").read_text())]
    assert ask.grids["folder"] == str(folder.parent)


def test_a_comparison_and_a_choice_have_the_names_of_files(ask: Ask) -> None:
    told = ask(
        "compare RESULTS --against RESULTS@L4D32".replace("RESULTS@", f"{ask.words['RESULTS']}@")
    )
    (cell,) = {tuple(row) for row in told["comparisons"][0]["cells"]}
    written = json.loads(Path(told["files"][0]).read_text())
    assert told["comparisons"] == [written]
    assert cell[:4] == ("layer", "dim", "value", "mark")

    choice = ask("pick RESULTS --indexes INDEXES --quality 1%")
    costs = json.loads((ask.words["RESULTS"] / "costs.json").read_text())["cells"]
    assert choice["chosen"].items() >= next(
        row.items()
        for row in costs
        if (row["layer"], row["dim"]) == tuple(list(choice["chosen"].values())[:2])
    )
    assert choice["chosen"] in choice["frontier"]
    assert all(line.startswith("m2dr ") for line in choice["commands"])


def test_lists_and_answers(ask: Ask) -> None:
    stores = ask("index list --indexes INDEXES")
    known = {"corpus": "tiny", "layer": 4, "documents": 40, "finished": True}
    assert known.items() <= stores[0].items()
    assert stores[0]["model"]
    assert stores[0]["fingerprint"] in str(stores[0]["folder"])
    assert all(one["is_well"] for one in ask("index verify --indexes INDEXES --sample 2"))
    assert ask("data check CORPUS")["texts"]["count"] == 40

    answer = ask(
        "search --corpus CORPUS --model MODEL --indexes INDEXES --dtype fp32 -k 3 --report",
        "read a \x7f file",
    )
    assert answer["query"] == "read a \x7f file"
    assert [hit["rank"] for hit in answer["hits"]] == [1, 2, 3]
    assert answer["report"]["recall"] == 1

    pushed = ask("push MODEL ada/tiny --dry-run")
    assert sum(file["bytes"] for file in pushed["files"]) == pushed["bytes"] > 0


def test_sentence_pairs(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(
        "sentence1\tsentence2\tscore\n"
        + "".join(
            f"read a file\t{word} list\t{n}\n"
            for n, word in enumerate(("open", "close", "text", "class"))
        )
    )

    told = ask(
        f"evaluate sts --task {file} --model MODEL --out OUT --layers 4 --dims 8 --dtype fp32"
    )

    assert told["grids"][0]["cells"][0].keys() == {"layer", "dim", "measures"}


def test_nothing_to_answer_is_refused() -> None:
    done = CliRunner().invoke(main, ["search", "--json"])

    assert (done.exit_code, done.stdout) == (2, "")
    assert "--json prints the answer to one query" in done.stderr
