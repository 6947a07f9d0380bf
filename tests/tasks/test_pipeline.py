import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import pytest

from m2dr.core.errors import Interrupted, UserError
from m2dr.core.requests import IndexRequest
from m2dr.data.loaders import open_dataset
from m2dr.index.manifest import Label
from m2dr.index.store import open_store
from m2dr.tasks import distribute, encode_store
from m2dr.tasks.distribute import Advanced, Lost, Message, Scheduler
from m2dr.tasks.encode_store import EncodingStats, ShardReader, WrittenShard, overlapped
from m2dr.tasks.index import index_corpus

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


def test_what_a_write_raises_is_not_waited_for_behind_an_item_that_never_comes() -> None:
    waiting, stopped = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 1
        waiting.set()
        assert stopped.wait(20)  # as for a shard that is given once the last one is written

    def write(_: int) -> None:
        waiting.wait(30)
        raise UserError("The disk is full.")

    with pytest.raises(UserError, match="The disk is full"):
        overlapped(source(), lambda number: number, write, stopped.set)
    assert stopped.is_set()


def test_shards_may_be_read_in_any_order(tiny_corpus: Path) -> None:
    dataset = open_dataset(str(tiny_corpus))
    ids = list(dataset.document_ids())
    reader = ShardReader(dataset, 15)

    found = {number: [d.id for d in reader.read(number)] for number in (1, 2, 0, 2)}

    assert found == {0: ids[:15], 1: ids[15:30], 2: ids[30:]}


def test_ctrl_c_keeps_what_is_written_and_says_how_far_it_is(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(tiny_corpus, tiny_backbone, tmp_path)
    usual = encode_store.embed_tokens
    calls: list[int] = []

    def stopping(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return usual(*arguments)  # type: ignore[arg-type]  # handed on as they came

    with monkeypatch.context() as patch:
        patch.setattr(encode_store, "embed_tokens", stopping)
        with pytest.raises(Interrupted, match="stopped after 20 of 40 documents; the same"):
            index_corpus(asked)
    with monkeypatch.context() as patch:
        patch.setattr(encode_store, "embed_tokens", lambda *a: calls.append(1) or usual(*a))
        index_corpus(asked)
    assert len(calls) == 3 + 2


def test_a_shard_that_is_missing_in_the_middle_is_the_only_one_encoded_again(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_corpus(request(tiny_corpus, tiny_backbone, tmp_path / "whole"))
    monkeypatch.setattr("m2dr.index.store_writer.StoreWriter.finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError, match="division"):
        index_corpus(request(tiny_corpus, tiny_backbone, tmp_path / "again"))
    monkeypatch.undo()
    folder = next(tmp_path.glob("again/*/*/layer-02"))
    (folder / "vectors-00001.f16").write_bytes(b"cut off")
    told = []
    monkeypatch.setattr(EncodingStats, "written", lambda _, shard: told.append(shard.number))

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


class Scripted:
    """Workers whose messages are prepared, and which record what they are given."""

    ahead = 2

    def __init__(self, count: int, *script: list[tuple[int, Message]]) -> None:
        self.count, self.given, self._script = count, [], iter(script)
        self.given: list[tuple[int, int]]

    def give(self, worker: int, number: int) -> None:
        self.given.append((worker, number))

    def messages(self) -> list[tuple[int, Message]]:
        try:
            return next(self._script)
        except StopIteration:
            raise TimeoutError from None


def written(number: int) -> WrittenShard:
    return WrittenShard(number, 10, 100, 0.1, 0.2, 0.3)


def test_every_worker_has_a_shard_before_one_has_two() -> None:
    pool = Scripted(2, [(1, written(1))], [(0, written(0)), (1, written(3)), (0, written(2))])

    Scheduler(pool, [0, 1, 2, 3], EncodingStats()).run()

    assert pool.given == [(0, 0), (1, 1), (0, 2), (1, 3)]


def test_shards_of_a_lost_worker_go_to_others_and_their_progress_is_taken_back() -> None:
    advanced: list[int] = []
    pool = Scripted(
        2,
        [(0, Advanced(0, 4)), (0, Lost("by signal 9")), (1, written(1))],
        [(1, written(3)), (1, written(0))],
        [(1, written(2))],
    )
    stats = EncodingStats(advanced.append)

    Scheduler(pool, [0, 1, 2, 3], stats).run()

    assert pool.given[4:] == [(1, 0), (1, 2)]
    assert [count for count in advanced if count][:2] == [4, -4]
    assert (sum(advanced), stats.documents, stats.bytes) == (40, 40, 400)


def test_the_loss_of_all_workers_and_a_refusal_end_encoding() -> None:
    lost = Scripted(1, [(0, written(0)), (0, Lost("with exit code 1"))])
    refusing = Scripted(1, [(0, UserError("The disk is full."))])

    with pytest.raises(UserError, match=r"the last one with exit code 1, with 2 shards left"):
        Scheduler(lost, [0, 1, 2], EncodingStats()).run()
    with pytest.raises(UserError, match="The disk is full"):
        Scheduler(refusing, [0], EncodingStats()).run()


def test_a_worker_that_has_ended_is_told_to_end_all_the_same() -> None:
    ours, theirs = Pipe()
    theirs.close()
    pool = distribute._LocalPool([(None, ours)])  # type: ignore[list-item]  # no process is looked at

    pool.give(0, None)


@pytest.mark.parametrize(
    ("nodes", "gpus", "workers", "threads", "tasks"),
    [
        ((8, 8, 2), 0, 2, 8, 2),  # 9 threads each are on no node
        ((8, 8), 0, 1, 4, 5),
        ((2, 1), 0, 1, 2, 5),
        ((8, 8), 0, 8, 2, 5),
        ((8, 8), 4, 2, 8, 2),
    ],
)
def test_a_ray_task_fits_on_a_node_and_workers_limit_the_tasks(
    nodes: tuple[int, ...], gpus: int, workers: int, threads: int, tasks: int
) -> None:
    class Ray:
        asked: dict[str, object] = {}

        def cluster_resources(self) -> dict[str, float]:
            return {"CPU": sum(nodes), "GPU": gpus}

        def nodes(self) -> list[dict[str, object]]:
            dead = {"Alive": False, "Resources": {"CPU": 99.0}}
            return [dead, *({"Alive": True, "Resources": {"CPU": float(n)}} for n in nodes)]

        def remote(self, _: object) -> "Ray":
            return self

        def options(self, **asked: object) -> None:
            self.asked = asked

    ray = Ray()
    pool = distribute._RayPool(ray, None, workers, 5)  # type: ignore[arg-type]  # nothing is encoded

    assert ray.asked["num_cpus"] == (1 if gpus else threads)
    assert pool._arguments[1] == threads
    assert pool.ahead == tasks


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_is_a_mistake(
    workers: int, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="there is at least one"):
        index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, workers=workers))
