"""Data sets of the catalogue of ir_datasets, downloaded by it when first used."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from m2dr.errors import UserError, nearest
from m2dr.records.texts import Document, Judgement, Query
from m2dr.text.collection import Asked, Dataset, Negatives, Split
from m2dr.text.gathering import NegativesKept

Untyped = Any  # ir_datasets has no types

PREFIX = "irds:"
_SPLITS = ("train", "dev", "validation", "valid", "test", "eval")


def recognises(name: str) -> bool:
    """Whether the name is irds: and an id."""
    return name.startswith(PREFIX)


def open_irds(name: str) -> Dataset:
    """Open `irds:ID`; nothing is downloaded before texts or judgements are wanted.

    The split is the last part of the id that names one ("train" for msmarco-passage/train/judged),
    else "test"; the whole id is accepted in its place. An id without judgements has the splits
    below it. The data set is named after the corpus, which several ids may share.
    """
    catalogue = _catalogue()
    wanted = name.removeprefix(PREFIX)
    found = _load(catalogue, wanted)
    if not found.has_docs():
        raise UserError(f"ir_datasets has no documents under {wanted!r}. Give an id below it.")
    splits = {
        split: _split(catalogue.load(child), child) for split, child in _judged(catalogue, wanted)
    }
    aliases = {wanted: _split_in(wanted)} if found.has_qrels() else {}
    name = catalogue.docs_parent_id(wanted).replace("/", "-")
    return Dataset(name, IrdsCorpus(found, wanted), splits, aliases)


def _catalogue() -> Untyped:
    import ir_datasets

    # It logs every step to stderr. Its progress bars vanish from a terminal, but not from a file.
    ir_datasets.log.easy().logger().setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        os.environ.setdefault("IR_DATASETS_DL_DISABLE_PBAR", "true")
        ir_datasets.log.Logger.pbar = _without_bar  # the only way to switch these off
    return ir_datasets


def _without_bar(_logger: Untyped, items: Untyped, *_: object, **__: object) -> Untyped:
    return items


def _load(catalogue: Untyped, wanted: str) -> Untyped:
    try:
        return catalogue.load(wanted)
    except KeyError:
        known = sorted(catalogue.registry)
        near = nearest(wanted, known)
        hint = near if near.startswith("Did") else f"It has {len(known)}: https://ir-datasets.com."
        raise UserError(f"ir_datasets has no data set {wanted!r}. {hint}") from None


def _judged(catalogue: Untyped, wanted: str) -> Iterator[tuple[str, str]]:
    """Splits with the ids that judge them: the id itself, else those one step below."""
    if catalogue.load(wanted).has_qrels():
        yield _split_in(wanted), wanted
        return
    known = set(catalogue.registry)
    for split in _SPLITS:
        below = f"{wanted}/{split}"
        if below in known and catalogue.load(below).has_qrels():
            yield split, below


def _split_in(wanted: str) -> str:
    parts = [part for part in reversed(wanted.split("/")) if part in _SPLITS]
    return parts[0] if parts else "test"


@contextmanager
def _downloading(wanted: str) -> Iterator[None]:
    """Turn what goes wrong on the way from the network to the disk into a sentence."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # of requests and urllib too; no mirror is Runtime
        request = getattr(error, "request", None)
        page = f"https://ir-datasets.com/{wanted.split('/')[0]}.html"
        source = getattr(request, "url", None) or page
        raise UserError(
            f"{PREFIX}{wanted} could not be downloaded from {source} "
            f"({type(error).__name__}). Connect to the network, or give a local folder in the "
            "layout of BEIR instead."
        ) from error


class IrdsCorpus:
    """Documents as ir_datasets keeps them on disk."""

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
    """Title and text where they are apart, else all that ir_datasets would index."""
    if hasattr(found, "text"):
        return Document(found.doc_id, found.text or "", getattr(found, "title", None) or "")
    return Document(found.doc_id, found.default_text())


def _query(found: Untyped) -> Query:
    return Query(found.query_id, found.text if hasattr(found, "text") else found.default_text())


def _split(source: Untyped, wanted: str) -> Split:
    return Split(partial(_asked, source, wanted), partial(_negatives, source, wanted))


def _asked(source: Untyped, wanted: str) -> Asked:
    """Queries and judgements as published.

    That each judged document exists is not checked: some catalogued test sets judge documents
    which were withdrawn since, and the field scores them as never found.
    """
    with _downloading(wanted):
        judgements = [
            Judgement(row.query_id, row.doc_id, int(row.relevance)) for row in source.qrels_iter()
        ]
        judged = {judgement.query_id for judgement in judgements}
        queries = [_query(row) for row in source.queries_iter() if row.query_id in judged]
    return queries, judgements


def _negatives(source: Untyped, wanted: str) -> Negatives:
    if not source.has_docpairs():
        return {}
    kept = NegativesKept()
    with _downloading(wanted):
        for pair in source.docpairs_iter():
            kept.add(pair.query_id, pair.doc_id_b)
    return kept.mapping()
