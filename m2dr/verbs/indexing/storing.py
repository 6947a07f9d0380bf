"""A corpus becomes finished stores: what is there is checked, what is missing is shared out."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from m2dr.errors import Interrupted, UserError, counted
from m2dr.index.store import Store, open_store
from m2dr.index.writer import StoreWriter, is_finished
from m2dr.io import locked
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.meeting import Meeting
from m2dr.text.collection import Dataset
from m2dr.verbs.indexing import ranks
from m2dr.verbs.indexing.pipeline import Job, ShardEncoder, Windows, digest_of
from m2dr.verbs.indexing.request import Place
from m2dr.verbs.indexing.tally import Tally
from m2dr.verbs.progress import is_first, processes_asked, progress, say


@dataclass(frozen=True)
class Crew:
    """Who encodes."""

    workers: int = 1  # processes of this machine; on Ray, tasks at a time
    on: Place = "here"

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"--workers {self.workers} was asked for; there is at least one.")
        if processes_asked() > 1 and (self.workers > 1 or self.on != "here"):
            raise UserError(
                "torchrun has started several processes already; leave out --workers and --on."
            )


def make_stores(job: Job, dataset: Dataset, crew: Crew, *, overwrite: bool) -> list[Store]:
    """A finished store per layer of the job, from one pass over the documents that are missing.

    Raises:
        Interrupted: Ctrl-C; the shards written so far are kept.
        UserError: another process writes there, the corpus has changed since, or what encoding
            and writing refuse.
    """
    meeting = Meeting() if processes_asked() > 1 else None
    if meeting and not is_first():
        ranks.follow(meeting, job, Tally())
        return []
    try:
        with ExitStack() as held:
            writers = _open(job, held, overwrite=overwrite)
            missing = _missing(job, dataset, writers)
            asked = tuple((writer.folder, writer.plan) for writer in writers if not writer.finished)
            if missing:
                _encode(replace(job, stores=asked), dataset, crew, meeting, missing)
            for writer in writers:
                if not writer.finished:
                    writer.finish(job.documents)
    finally:
        if meeting:
            ranks.refuse(meeting)  # who has not been told of shards yet need not wait
    return [open_store(folder) for folder, _ in job.stores]


def _open(job: Job, held: ExitStack, *, overwrite: bool) -> list[StoreWriter]:
    """Writers of all layers, each holding its folder where something is left to write."""
    writers = []
    for folder, plan in job.stores:
        if overwrite or not is_finished(folder):
            held.enter_context(locked(folder, "give another --indexes"))
        writers.append(StoreWriter(folder, plan, overwrite=overwrite))
    return writers


def _missing(job: Job, dataset: Dataset, writers: Sequence[StoreWriter]) -> list[int]:
    """Shards that some layer lacks; those that are there must be of this corpus."""
    for writer in writers:
        writer.expect(job.documents)
    for rows in {writer.plan.shard_rows for writer in writers}:
        _refuse_changed(dataset, [w for w in writers if w.plan.shard_rows == rows])
    lacking: set[int] = set()
    for writer in writers:
        if not writer.finished:
            lacking |= set(range(writer.expect(job.documents))) - set(writer.numbers())
    return sorted(lacking)


def _refuse_changed(dataset: Dataset, writers: Sequence[StoreWriter]) -> None:
    """Refuse stores with shards of the same size whose corpus reads otherwise now."""
    windows = Windows(dataset, writers[0].plan.shard_rows)
    there = [set(writer.numbers()) for writer in writers]
    for number in sorted(set().union(*there)):
        docids, digest = digest_of(windows.at(number))
        for writer, numbers in zip(writers, there, strict=True):
            if number in numbers:
                writer.check(number, docids, digest)


def _encode(
    job: Job, dataset: Dataset, crew: Crew, meeting: Meeting | None, missing: Sequence[int]
) -> None:
    documents = sum(job.rows_of(number) for number in missing)
    _announce(job, crew, documents)
    tally = Tally()
    try:
        with progress("Encoding", documents, "documents", tally.written) as tally.advance:
            _share_out(job, dataset, crew, meeting, missing, tally)
    except KeyboardInterrupt:
        done = job.documents - sum(job.rows_of(n) for n in missing if job.lacks(n))
        raise Interrupted(
            f"Encoding stopped after {done} of {counted(job.documents, 'documents')}; "
            "the same command goes on from there."
        ) from None
    say(tally.summary())


def _share_out(
    job: Job,
    dataset: Dataset,
    crew: Crew,
    meeting: Meeting | None,
    missing: Sequence[int],
    tally: Tally,
) -> None:
    if meeting:
        ranks.lead(meeting, job, missing, tally)
    elif crew.on == "ray":
        from m2dr.verbs.indexing.onray import encode_on_ray

        encode_on_ray(job, missing, crew.workers, tally)
    elif crew.workers > 1:
        from m2dr.verbs.indexing.workers import encode_with_workers

        encode_with_workers(job, missing, crew.workers, tally)
    else:
        ShardEncoder(job, dataset).encode(missing, tally)


def _announce(job: Job, crew: Crew, documents: int) -> None:
    device = choose_device(job.device)
    names = ", ".join(str(plan.layer) for _, plan in job.stores)
    who = f", {counted(crew.workers, 'workers')}" if crew.workers > 1 else ""
    who += " on Ray" if crew.on == "ray" else ""
    corpus = job.stores[0][1].corpus
    dtype = choose_dtype(job.dtype, device)
    say(f"Encoding {corpus} at layers {names} with {job.model} on {device.type}, {dtype}{who}")
    if documents < job.documents:
        say(
            f"{job.documents - documents} of {counted(job.documents, 'documents')} are encoded "
            "already"
        )
