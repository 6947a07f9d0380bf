"""Each block of docs/frameworks.md ranks as the vectors do: `pip install 'm2dr[frameworks]'`."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "frameworks.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
PACKAGES = ("langchain_core", "llama_index.core", "haystack")


@pytest.mark.filterwarnings("ignore")  # of these libraries, while they are imported
@pytest.mark.parametrize(("package", "block"), tuple(zip(PACKAGES, BLOCKS[1:], strict=True)))
def test_a_framework_ranks_as_the_vectors_do(
    package: str, block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(package, reason="pip install 'm2dr[frameworks]'")
    names: dict[str, Any] = {}
    for one in (BLOCKS[0], block):
        exec(compile(one, package, "exec"), names)  # that is the test
    model, texts = names["model"], names["texts"]

    queries = model.encode_queries(["read a file line by line"])
    scores = model.similarity(queries, model.encode_documents(texts))[0]
    lines = capsys.readouterr().out.splitlines()
    found = [(float(score), text) for score, text in (line.split(" ", 1) for line in lines)]
    best = np.argsort(-np.asarray(scores))[:2]
    assert [text for _, text in found] == [texts[row] for row in best]
    assert [score for score, _ in found] == pytest.approx(
        [float(scores[row]) for row in best], abs=2e-3
    )
