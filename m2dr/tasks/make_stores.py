"""Make the stores of a corpus: check what is there, and encode what is missing."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from m2dr.core.errors import Interrupted, UserError, counted
from m2dr.core.files import lock_folder, remove_stale_lock
from m2dr.core.progress import process_count, progress, say
from m2dr.core.requests import Backend
from m2dr.data.dataset import Dataset
from m2dr.index.exit_files import drop_exits
from m2dr.index.layout import PARTIAL
from m2dr.index.store import Store, open_store
from m2dr.index.store_writer import StoreWriter, is_finished, read_partial
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.graphs import choose_runtime, require_runtime
from m2dr.tasks import distribute
from m2dr.tasks.encode_store import (
    EncodingJob,
    EncodingStats,
    ShardEncoder,
    ShardReader,
    digest_of,
)


@dataclass(frozen=True)
class Workers:
    """How many processes encode, and what runs them."""

    count: int = 1  # processes of this machine; on Ray, tasks at a time
    backend: Backend = "local"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"--workers {self.count} was asked for; there is at least one.")
        if process_count() > 1:
            raise UserError("torchrun has started several processes; start one, with --workers.")


def make_stores(
    job: EncodingJob,
    dataset: Dataset,
    workers: Workers,
    *,
    overwrite: bool,
    exits: Path | None = None,
) -> list[Store]:
    """Encode the documents that are missing, in one pass, and finish a store per layer.

    Args:
        job: what to encode.
        dataset: the documents.
        workers: the processes that encode them.
        overwrite: encode stores that are there again.
        exits: folder of the exits of one of the stores, deleted when that store is overwritten.

    Returns:
        The stores of all layers.

    Raises:
        Interrupted: Ctrl-C; the shards written so far are kept.
        UserError: another process writes there, the corpus has changed since, or what encoding
            and writing refuse.
    """
    job = _with_runtime(job, overwrite=overwrite)
    with ExitStack() as held:
        writers = _open(job, held, exits if overwrite else None, overwrite=overwrite)
        missing = _missing(job, dataset, writers)
        asked = tuple((writer.folder, writer.plan) for writer in writers if not writer.finished)
        if missing:
            _encode(replace(job, stores=asked), dataset, workers, missing)
        for writer in writers:
            if not writer.finished:
                writer.finish(job.documents)
    return [open_store(folder) for folder, _ in job.stores]


def _with_runtime(job: EncodingJob, *, overwrite: bool) -> EncodingJob:
    """Return a job whose runtime is chosen, in its plans too; auto goes on with that of a store.

    Raises:
        UserError: the runtime cannot run this encoder, or is not installed.
    """
    there = [folder for folder, _ in job.stores if not overwrite]
    begun = [folder for folder in there if (folder / PARTIAL).exists()]
    if all(map(is_finished, there)) and there:
        runtime = "torch"  # nothing is encoded
    elif begun and job.runtime == "auto":
        runtime = read_partial(begun[0]).plan.runtime
        require_runtime(runtime)
    else:
        runtime, note = choose_runtime(job.source, job.runtime, job.documents)
        if note:
            say(note)
    stores = tuple((folder, replace(plan, runtime=runtime)) for folder, plan in job.stores)
    return replace(job, runtime=runtime, stores=stores)


def _open(
    job: EncodingJob, held: ExitStack, outdated: Path | None, *, overwrite: bool
) -> list[StoreWriter]:
    """Open a writer per layer, locking folders that are not finished.

    Exits that are `outdated` are deleted before any store is.
    """
    for folder, _ in job.stores:
        if overwrite or not is_finished(folder):
            held.enter_context(lock_folder(folder))
        else:
            remove_stale_lock(folder)
    if outdated:
        drop_exits(outdated)
    return [StoreWriter(folder, plan, overwrite=overwrite) for folder, plan in job.stores]


def _missing(job: EncodingJob, dataset: Dataset, writers: Sequence[StoreWriter]) -> list[int]:
    """Return the shards that some layer lacks, and refuse those of a corpus that has changed."""
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
    """Refuse stores, with shards of one size, of other texts than the corpus has now."""
    reader = ShardReader(dataset, writers[0].plan.shard_rows)
    there = [set(writer.numbers()) for writer in writers]
    for number in sorted(set().union(*there)):
        docids, digest = digest_of(reader.read(number))
        for writer, numbers in zip(writers, there, strict=True):
            if number in numbers:
                writer.check(number, docids, digest)


def _encode(
    job: EncodingJob,
    dataset: Dataset,
    workers: Workers,
    missing: Sequence[int],
) -> None:
    """Encode the missing shards and report progress."""
    documents = sum(job.rows_of(number) for number in missing)
    _announce(job, workers, documents)
    stats = EncodingStats()
    try:
        with progress("Encoding", documents, "documents", stats.size) as stats.advance:
            if workers.backend == "ray":
                distribute.encode_on_ray(job, missing, workers.count, stats)
            elif workers.count > 1:
                distribute.encode_locally(job, missing, workers.count, stats)
            else:
                ShardEncoder(job, dataset).encode(missing, stats)
    except KeyboardInterrupt:
        done = job.documents - sum(job.rows_of(n) for n in missing if job.lacks(n))
        raise Interrupted(
            f"Encoding stopped after {done} of {counted(job.documents, 'documents')}; "
            "the same command goes on from there."
        ) from None
    say(stats.summary())


def _announce(job: EncodingJob, workers: Workers, documents: int) -> None:
    device = choose_device(job.device)
    layers = ", ".join(str(plan.layer) for _, plan in job.stores)
    who = f", {counted(workers.count, 'workers')}" if workers.count > 1 else ""
    who += " on Ray" if workers.backend == "ray" else ""
    corpus = job.stores[0][1].corpus
    dtype = choose_dtype(job.dtype, device)
    by = "" if job.runtime == "torch" else f", {job.runtime}"
    which = f"{'layer' if len(job.stores) == 1 else 'layers'} {layers}"
    say(f"Encoding {corpus} at {which} with {job.model} on {device.type}, {dtype}{by}{who}")
    if documents < job.documents:
        say(
            f"{job.documents - documents} of {counted(job.documents, 'documents')} are encoded "
            "already"
        )
