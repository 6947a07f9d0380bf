"""Data sets of the ir_datasets catalogue, which downloads them at their first use."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from m2dr.core.errors import UserError, suggestion
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.dataset import Dataset, JudgedQueries, Negatives, Split, first_negatives

Untyped = Any  # ir_datasets has no types

IRDS_PREFIX = "irds:"
_SPLITS = ("train", "dev", "validation", "valid", "test", "eval")


def recognises(name: str) -> bool:
    """Return whether the name begins with irds:."""
    return name.startswith(IRDS_PREFIX)


def open_irds(name: str) -> Dataset:
    """Open `irds:ID`; nothing is downloaded until texts or judgements are read.

    An id without judgements has the splits below it. The data set is named after the corpus, which
    several ids may share, and a split after the rest of its id, so that no two share both. Aliases
    of a split are its id, and the word among its parts that names one ("dev" for dev-small).
    """
    catalogue = _catalogue()
    wanted = name.removeprefix(IRDS_PREFIX)
    if wanted not in catalogue.registry:
        hint = suggestion(wanted, catalogue.registry) or "See https://ir-datasets.com."
        raise UserError(f"ir_datasets has no data set {wanted!r}. {hint}")
    source = catalogue.load(wanted)
    if not source.has_docs():
        raise UserError(f"ir_datasets has no documents under {wanted!r}. Give an id below it.")
    parent = catalogue.docs_parent_id(wanted)
    splits: dict[str, Split] = {}
    aliases: dict[str, str] = {}
    for judged in _judged_ids(catalogue, wanted):
        split = _split_name(catalogue, parent, judged)
        data = catalogue.load(judged)
        splits[split] = Split(
            partial(_judged_queries, data, judged), partial(_negatives, data, judged)
        )
        word = next((part for part in reversed(judged.split("/")) if part in _SPLITS), "test")
        aliases |= {judged: split, word: split}
    return Dataset(parent.replace("/", "-"), IrdsCorpus(source, wanted), splits, aliases)


def _catalogue() -> Untyped:
    import ir_datasets

    # It logs every step to stderr, and its progress bars would fill a log file.
    ir_datasets.log.easy().logger().setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        os.environ.setdefault("IR_DATASETS_DL_DISABLE_PBAR", "true")
    return ir_datasets


def _judged_ids(catalogue: Untyped, wanted: str) -> Iterator[str]:
    """Yield the ids of the judged splits: the id itself, else those one level below."""
    if catalogue.load(wanted).has_qrels():
        yield wanted
        return
    known = set(catalogue.registry)
    for split in _SPLITS:
        below = f"{wanted}/{split}"
        if below in known and catalogue.load(below).has_qrels():
            yield below


def _split_name(catalogue: Untyped, parent: str, judged: str) -> str:
    """Return the part of an id below its corpus, "test" for the corpus itself.

    A corpus whose own judgements are those of all its splits has "all", where "test" is one of
    them.
    """
    below = judged.removeprefix(parent).strip("/").replace("/", "-")
    return below or ("all" if f"{parent}/test" in catalogue.registry else "test")


@contextmanager
def _downloading(wanted: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # requests and urllib; RuntimeError: no mirror left
        raise UserError(f"{IRDS_PREFIX}{wanted} could not be downloaded: {error}") from error


class IrdsCorpus:
    """The documents that ir_datasets keeps on disk."""

    def __init__(self, source: Untyped, wanted: str) -> None:
        self._source = source
        self._wanted = wanted

    def __len__(self) -> int:
        with _downloading(self._wanted):
            count = self._source.docs_count()
        return int(count) if count is not None else sum(1 for _ in self)

    def __iter__(self) -> Iterator[Document]:
        with _downloading(self._wanted):
            yield from map(_document, self._source.docs_iter())

    def __contains__(self, docid: str) -> bool:
        try:
            self.find(docid)
        except KeyError:
            return False
        return True

    def at(self, row: int) -> Document:
        """See Corpus."""
        with _downloading(self._wanted):
            return _document(self._source.docs_iter()[row])

    def find(self, docid: str) -> Document:
        """See Corpus."""
        with _downloading(self._wanted):
            return _document(self._store.get(docid))

    @cached_property
    def _store(self) -> Untyped:
        return self._source.docs_store()


def _document(found: Untyped) -> Document:
    """Return title and text where both are fields, else the text that ir_datasets indexes."""
    if hasattr(found, "text"):
        return Document(found.doc_id, found.text or "", getattr(found, "title", None) or "")
    return Document(found.doc_id, found.default_text())


def _judged_queries(source: Untyped, wanted: str) -> JudgedQueries:
    """Return queries and judgements as published.

    Judged documents need not exist: some test sets judge documents that were withdrawn later,
    which count as never found.
    """
    with _downloading(wanted):
        judgements = [
            Judgement(row.query_id, row.doc_id, int(row.relevance)) for row in source.qrels_iter()
        ]
        judged = {judgement.query_id for judgement in judgements}
        queries = [
            Query(row.query_id, row.text if hasattr(row, "text") else row.default_text())
            for row in source.queries_iter()
            if row.query_id in judged
        ]
    return queries, judgements


def _negatives(source: Untyped, wanted: str) -> Negatives:
    if not source.has_docpairs():
        return {}
    with _downloading(wanted):
        return first_negatives((pair.query_id, pair.doc_id_b) for pair in source.docpairs_iter())
