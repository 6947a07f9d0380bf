"""The examples of docs/serving.md, sent to a server; and a corpus with fields."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from http_serving import Server
from openai import OpenAI
from serve_world import CPU, World
from shell import m2dr

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
CURLS = re.findall(r"^curl (?:.*\\\n)*.*$", PAGE, re.M)


@pytest.mark.skipif(shutil.which("curl") is None, reason="There is no curl.")
def test_the_commands_of_the_page_are_answered(server: Server) -> None:
    model = server.get("/models").json["indexes"][0]["model"]
    assert len(CURLS) == 5

    for line in CURLS:
        words = line.replace("http://127.0.0.1:8080", server.url).replace("minilm", model)
        answer = subprocess.run(words, shell=True, capture_output=True, text=True, check=True)
        assert "error" not in json.loads(answer.stdout), line


def test_the_python_of_the_page_runs(server: Server) -> None:
    model = server.get("/models").json["indexes"][0]["model"]
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict[str, object] = {}

    exec(block.replace("http://127.0.0.1:8080", server.url).replace("minilm", model), names)
    client = names["client"]
    assert isinstance(client, OpenAI)
    client.close()

    assert len(names["found"].data[0].embedding) == 16  # type: ignore[attr-defined]


def test_every_limit_of_the_page_has_its_option() -> None:
    told = m2dr("serve", "--help", cwd=Path("/")).stdout

    for option in re.findall(r"`(--[a-z-]+)", PAGE):
        assert option in told or option in ("--overwrite",), option


def test_a_filter_lets_documents_through(world: World, tmp_path: Path) -> None:
    rows = [
        {"_id": f"d{n}", "text": "read the file", "metadata": {"year": 2000 + n}} for n in range(9)
    ]
    corpus = tmp_path / "own.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = m2dr(
        "index", "corpus", "--corpus", str(corpus), "--model", str(world.model), *CPU, "--no-exits",
        cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with Server("--index", "indexes", *CPU, cwd=tmp_path) as server:
        assert server.get("/models").json["indexes"][0]["fields"] == ["year"]

        for dim in (32, 8):
            hits = server.hits(query="read", dim=dim, filter="year >= 2006")
            assert sorted(hits) == ["d6", "d7", "d8"]
        reply = server.post("/search", {"query": "read", "filter": "year = 2007"})
        assert reply.json["results"][0]["hits"][0]["fields"] == {"year": 2007}
        assert server.hits(query="read", filter="year > 3000") == []
        for wrong, told in (("yaer > 1", "year"), ("year >", "filter"), ("year = x", "year")):
            reply = server.post("/search", {"query": "read", "filter": wrong})
            assert (reply.status, told in reply.message) == (422, True), reply.data
