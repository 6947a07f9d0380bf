"""Words of an index of given vectors learn from a log of queries and their vectors."""

from pathlib import Path

import numpy as np
import pytest
from given import WIDTH, Given, write_answers

from m2dr.core.errors import UserError
from m2dr.index.folder import IndexFolder
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.vectors import rotation_of


@pytest.mark.parametrize("rotate", ["yes", "no"])
@pytest.mark.parametrize("has_ids", [True, False])
def test_words_learn_from_a_log_that_has_vectors(world: Given, rotate: str, has_ids: bool) -> None:
    """Vectors that are the documents' turned round show that each belongs to its query."""
    texts = [query.text for query in world.queries]
    turned, log = -world.given, Path("log.tsv" if has_ids else "log.txt")
    if has_ids:
        log.write_text("".join(f"{query.id}\t{query.text}\n" for query in world.queries))
        vectors = write_answers(Path("q2.jsonl"), world.queries, turned)
    else:
        log.write_text("".join(f"{text}\n" for text in (texts[0], *texts)))  # some ask again
        np.save(vectors := Path("q2.npy"), np.concatenate([turned[:1], turned]))
    asked = {"queries": log, "query_vectors": vectors, "query_weight": 3.0, "rotate": rotate}

    homes = world.load(rotate=rotate, name="bare"), world.load(name="log", **asked)

    near = []
    for home in homes:
        rotation = rotation_of(IndexFolder(home), WIDTH)
        there = turned if rotation is None else turned @ rotation.T
        found = WordTable.open(home / "exits").embed(texts)
        near.append((unit_rows(found) * unit_rows(there)).sum(axis=1))
    assert (near[1] > near[0]).all()
    with pytest.raises(UserError, match="has exits without"):
        world.load(name="bare", **asked)
    with pytest.raises(UserError, match="was given alone"):
        world.load(name="alone", queries=log)


def test_a_log_too_large_for_float16_is_told_so(world: Given) -> None:
    Path("log.txt").write_text("open\nread\n")
    np.save("large.npy", np.full((2, WIDTH), [[1.0], [70_000.0]], np.float32))
    asked = {"queries": Path("log.txt"), "query_vectors": Path("large.npy"), "rotate": "no"}
    with pytest.raises(UserError, match="vector of 'read' holds 70,000, .* is 65,504"):
        world.load(similarity="dot", **asked)
