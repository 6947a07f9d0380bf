import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from m2dr.errors import Interrupted, UserError
from m2dr.index.label import Label
from m2dr.index.manifest import StorePlan
from m2dr.index.store import open_store
from m2dr.text.datasets import open_dataset
from m2dr.verbs.indexing import pipeline, ranks
from m2dr.verbs.indexing.index import IndexRequest, index_corpus
from m2dr.verbs.indexing.pipeline import Windows, overlapped
from m2dr.verbs.indexing.tally import Tally

LABEL = Label("ab" * 32, "cosine", "cls", "", "", 32, 64, "same")


def request(corpus: Path, backbone: Path, root: Path, **changes: object) -> IndexRequest:
    fields = {"layers": (2,), "dims": (8,), "root": root, "device": "cpu", "shard_rows": 10}
    return IndexRequest(str(corpus), str(backbone), **{**fields, **changes})  # type: ignore[arg-type]  # fields of any type


def test_stages_keep_the_order_and_at_most_two_items_wait_before_one() -> None:
    made, written = [], []

    def source() -> Iterator[int]:
        for number in range(9):
            made.append(number)
            yield number

    def run(number: int) -> int:
        assert len(made) <= number + 3  # it, and AHEAD + 1 behind it
        return number * 10

    overlapped(source(), run, written.append)

    assert written == [number * 10 for number in range(9)]


@pytest.mark.parametrize("stage", ["read", "run", "write"])
@pytest.mark.parametrize("error", [UserError, KeyboardInterrupt])
def test_what_one_stage_raises_ends_all_of_them(stage: str, error: type[BaseException]) -> None:
    def fail(here: str, number: int) -> int:
        if here == stage and number == 3:
            raise error("here")
        return number

    before = threading.active_count()

    with pytest.raises(error, match="here"):
        overlapped(
            (fail("read", number) for number in range(100)),
            lambda number: fail("run", number),
            lambda number: None if fail("write", number) >= 0 else None,
        )
    assert threading.active_count() == before


def test_windows_may_be_asked_for_in_any_order(tiny_corpus: Path) -> None:
    dataset = open_dataset(str(tiny_corpus))
    ids = list(dataset.document_ids())
    windows = Windows(dataset, 15)

    found = {number: [d.id for d in windows.at(number)] for number in (1, 2, 0, 2)}

    assert found == {0: ids[:15], 1: ids[15:30], 2: ids[30:]}


def test_ctrl_c_keeps_what_is_written_and_says_how_far_it_is(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(tiny_corpus, tiny_backbone, tmp_path)
    usual = pipeline.embed_tokens
    calls: list[int] = []

    def stopping(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return usual(*arguments)  # type: ignore[arg-type]  # handed on as they came

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "embed_tokens", stopping)
        with pytest.raises(Interrupted, match="stopped after 20 of 40 documents; the same"):
            index_corpus(asked)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "embed_tokens", lambda *a: calls.append(1) or usual(*a))
        index_corpus(asked)
    assert len(calls) == 3 + 2


def test_a_shard_that_is_missing_in_the_middle_is_the_only_one_encoded_again(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_corpus(request(tiny_corpus, tiny_backbone, tmp_path / "whole"))
    monkeypatch.setattr("m2dr.index.writer.StoreWriter.finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError, match="division"):
        index_corpus(request(tiny_corpus, tiny_backbone, tmp_path / "again"))
    monkeypatch.undo()
    folder = next(tmp_path.glob("again/*/*/layer-02"))
    (folder / "vectors-00001.f16").write_bytes(b"cut off")
    told = []
    monkeypatch.setattr(Tally, "told", lambda _, done: told.append(done.number))

    index_corpus(request(tiny_corpus, tiny_backbone, tmp_path / "again"))

    assert told == [1]
    whole = next(tmp_path.glob("whole/*/*/layer-02"))
    assert open_store(folder).manifest == open_store(whole).manifest


def test_a_text_that_is_not_utf8_is_named_with_its_line(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    lines = (tiny_corpus / "corpus.jsonl").read_bytes().splitlines(keepends=True)
    lines[25] = lines[25].replace(b"text", b"te\xffxt", 1)
    spoilt = tmp_path / "spoilt"
    (spoilt / "qrels").mkdir(parents=True)
    (spoilt / "corpus.jsonl").write_bytes(b"".join(lines))

    with pytest.raises(UserError, match=r"corpus\.jsonl, line 26: is not UTF-8"):
        index_corpus(request(spoilt, tiny_backbone, tmp_path))


def test_ranks_that_are_lost_are_named_with_their_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "PATIENCE", 0.01)
    monkeypatch.setattr(ranks, "LOOK_EVERY", 0.005)

    class Nothing:
        def lacks(self, number: int) -> bool:
            return number != 2

    with pytest.raises(UserError, match=r"\(rank 1: shards 1, 4; rank 2: shards 5\)"):
        ranks.wait_for(Nothing(), [1, 2, 4, 5], [0, 1, 2, 3, 4, 5], 3)  # type: ignore[arg-type]  # a stand-in


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_is_a_mistake(
    workers: int, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="there is at least one"):
        index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, workers=workers))


def test_other_ranks_leave_finished_layers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[pipeline.Job] = []
    told: list[list[int]] = []

    class Listening:
        def __init__(self, job: pipeline.Job, *_: object) -> None:
            jobs.append(job)

        def encode(self, numbers: list[int], _: object) -> None:
            told.append(numbers)

    class Meeting:
        rank, size = 1, 2

        def get(self, _: str) -> str:
            return "[[0, 2, 3], [4]]"

    monkeypatch.setattr(ranks, "ShardEncoder", Listening)
    plans = [StorePlan("tiny", layer, 32, LABEL) for layer in (2, 4)]
    stores = tuple((tmp_path / str(plan.layer), plan) for plan in plans)

    ranks.follow(Meeting(), pipeline.Job("tiny", 40, "m", "cpu", "fp32", stores), Tally())  # type: ignore[arg-type]  # a stand-in

    assert jobs[0].stores == stores[1:]
    assert told == [[2]]
