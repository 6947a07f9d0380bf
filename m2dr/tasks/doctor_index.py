"""Checks of `m2dr doctor` on stores and indexes: files, and the model and corpus they are of."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from m2dr.core.errors import UserError, command, counted
from m2dr.core.fault import Fault, fault_of
from m2dr.core.files import is_locked
from m2dr.core.records import EXITS_FILE, ModelCard
from m2dr.core.requests import INDEXES, DoctorRequest
from m2dr.data import beir, pydocs
from m2dr.data.dataset import Dataset
from m2dr.index.exit_files import exits_folder, fit_command, fitting_exits
from m2dr.index.faiss_build import refuse_stale
from m2dr.index.layout import (
    DIGITS,
    MANIFEST,
    STORE,
    BuiltIndex,
    built_indexes,
    index_remedy,
    origin_of,
    store_remedy,
)
from m2dr.index.listing import store_folders
from m2dr.index.manifest import IndexManifest, Label
from m2dr.index.problems import index_problems
from m2dr.index.store import Store, open_store
from m2dr.model.folder import check_exits, read_card
from m2dr.model.hub import EXITS, STATIC
from m2dr.tasks.doctor_machine import free_memory
from m2dr.tasks.doctor_model import fault_of_model, is_here
from m2dr.tasks.encode_texts import open_corpus
from m2dr.tasks.encoder import label_of

MOST_DELETED = 0.2  # share of deleted rows from which compacting is worth its time
SAMPLE = 200  # documents whose ids are compared without --thorough
_WITH = "with: "


@dataclass
class IndexChecks:
    """The checks of the stores and indexes of a request; cards and corpora are read once."""

    request: DoctorRequest
    faults: list[Fault] = field(default_factory=list)
    cards: dict[str, ModelCard | None] = field(default_factory=dict)  # None: it has a fault
    corpora: dict[str, Dataset | None] = field(default_factory=dict)  # None: as above
    homes: set[Path] = field(default_factory=set)

    @property
    def root(self) -> Path:
        """The folder that is looked into."""
        return self.request.index or self.request.root

    def run(self) -> str:
        """Check all stores, and return how many there are."""
        folders = self._folders()
        stores = [store for folder in folders if (store := self._opened(folder))]
        for store in self._asked(stores):
            self._check(store)
        indexes = sum(len(built_indexes(folder)) for folder in folders)
        return f"{counted(len(folders), 'stores')}, {counted(indexes, 'indexes')} in {self.root}"

    def _folders(self) -> list[Path]:
        index = self.request.index
        if index and not store_folders(index) and store_folders(index.parent) == [index.parent]:
            return [index.parent]  # the folder of an index, in that of its store
        if index and (index / MANIFEST).exists():
            self._check_alone(index)
            return []
        found = store_folders(self.root) if self.root.is_dir() else []
        if index and not found:
            made = command("index", "corpus", corpus=self.request.corpus, model=self.request.model)
            self._add("error", index, f"{index} holds no store and no index.", made)
        self._find_headless(found)
        return found

    def _check_alone(self, folder: Path) -> None:
        """Check an index that was copied without its store."""
        try:
            manifest = IndexManifest.read(folder)
        except UserError as error:
            self.faults.append(fault_of(error, folder, _without(index_remedy(folder))))
            return
        self._check_index(BuiltIndex(manifest.dim, manifest.engine, folder))
        self._check_label(manifest.label, manifest.corpus, folder.parent)

    def _find_headless(self, known: Iterable[Path]) -> None:
        """Find folders of vectors without the record of a store."""
        others = {path.parent for path in self.root.rglob("vectors-*")} - set(known)
        for folder in sorted(others):
            problem = f"{folder} has vectors and lacks {STORE}, so that it is no store."
            self._add("error", folder, problem, _without(store_remedy(folder)))

    def _opened(self, folder: Path) -> Store | None:
        """Open a store; a store that another process writes has no fault yet."""
        if is_locked(folder):
            return None
        self._check_home(folder)
        try:
            return open_store(folder)
        except UserError as error:
            again = _without(store_remedy(folder, overwrite=True))
            self.faults.append(fault_of(error, folder, again))
            return None

    def _check_home(self, folder: Path) -> None:
        """Find what an interrupted change left, once for all layers."""
        home = folder.parent
        if home in self.homes or is_locked(home):
            return
        self.homes.add(home)

    def _asked(self, stores: list[Store]) -> Iterable[Store]:
        """Return the stores of the model that is asked for, if they are not asked for by folder."""
        model = self.request.model
        card = self._card(model) if model else None
        if card is None or self.request.index:
            return stores
        own = [store for store in stores if store.manifest.label.fingerprint == card.fingerprint]
        if stores and not own:
            first = stores[0].manifest
            made = command(
                "index", "corpus", corpus=self.request.corpus or first.label.source, model=model,
                indexes=None if self.root == INDEXES else self.root,
            )  # fmt: skip
            problem = (
                f"No store in {self.root} is of {model} ({card.fingerprint[:DIGITS]}); "
                f"{stores[0].folder} is of {first.label.fingerprint[:DIGITS]} "
                f"({first.label.model or 'another model'})."
            )
            self._add("error", self.root, problem, made)
        return own

    def _check(self, store: Store) -> None:
        if self.request.thorough:
            again = _without(store_remedy(store.folder, overwrite=True))
            for problem in store.problems():
                self.faults.append(fault_of(UserError(problem), store.folder, again))
        for built in built_indexes(store.folder):
            self._check_index(built)
        self._check_exits(store)
        self._check_label(store.manifest.label, store.manifest.corpus, store.folder)
        self._check_corpus(store)

    def _check_index(self, built: BuiltIndex) -> None:
        folder = built.folder
        if is_locked(folder):
            return
        again = _without(index_remedy(folder))
        problems = list(index_problems(folder, compare=self.request.thorough))
        self.faults += [fault_of(UserError(problem), folder, again) for problem in problems]
        if problems:
            return
        manifest = IndexManifest.read(folder)
        try:
            refuse_stale(folder, manifest)
        except UserError as error:
            self.faults.append(fault_of(error, folder, again))
        free = free_memory()
        if manifest.bytes > free:
            dim = max(1, built.dim * free // (2 * manifest.bytes))
            problem = (
                f"{folder} takes {manifest.bytes / 1e6:,.1f} MB of memory to search, and "
                f"{free / 1e6:,.1f} MB are free."
            )
            smaller = origin_of(folder.parent).remedy(layer=manifest.layer, dim=dim)
            self._add("warning", folder, problem, _without(smaller))

    def _check_exits(self, store: Store) -> None:
        folder = exits_folder(store.folder)
        if not (folder / EXITS_FILE).exists():
            return
        label = store.manifest.label
        last = max((layer for layer, _ in label.cuts), default=store.layer)
        if store.layer != last:
            return
        try:
            found = fitting_exits(store.folder)
            if found and self.request.thorough:
                check_exits(found, label.fingerprint, EXITS, STATIC)
        except UserError as error:
            self.faults.append(fault_of(error, folder, fit_command(folder)))
            return
        if found is None:
            problem = f"The exits in {folder} were fitted on other documents, and are not used."
            self._add("warning", folder, problem, fit_command(folder))

    def _check_label(self, label: Label, corpus: str, folder: Path) -> None:
        """Compare the model with the label of the vectors."""
        name = self.request.model or label.model
        card = self._card(name) if self.request.model or is_here(name) else None
        if card is None:
            return
        try:
            label.accept(label_of(card, name), corpus, folder)
        except UserError as error:
            made = command("index", "corpus", corpus=corpus, model=name)
            self.faults.append(fault_of(error, folder, made))

    def _check_corpus(self, store: Store) -> None:
        """Compare the docids of the corpus with those that are stored."""
        manifest = store.manifest
        name = self.request.corpus or manifest.label.source
        dataset = self._corpus(name)
        if dataset is None:
            return
        again = _without(store_remedy(store.folder, overwrite=True))
        if dataset.name != manifest.corpus:
            if self.request.index:
                problem = f"{store.folder} holds {manifest.corpus}, not {dataset.name}."
                other = command("index", "corpus", corpus=name, model=manifest.label.model)
                self._add("error", store.folder, problem, other)
            return
        try:
            for problem in _differences(store, dataset, self.request.thorough):
                self._add("error", store.folder, problem, again)
        except UserError as error:
            self.faults.append(fault_of(error, store.folder, again))

    def _card(self, name: str) -> ModelCard | None:
        if name not in self.cards:
            try:
                self.cards[name] = read_card(name)
            except UserError as error:
                self.cards[name] = None
                self.faults.append(fault_of_model(name, error))
        return self.cards[name]

    def _corpus(self, name: str) -> Dataset | None:
        """Open a corpus; one that is not named in the request, only where it is at hand."""
        built_in = name in pydocs.NAMES
        at_hand = (
            pydocs.is_cached(name) if built_in else Path(name).exists() or beir.recognises(name)
        )
        if not name or not (self.request.corpus or at_hand):
            return None
        if name not in self.corpora:
            try:
                self.corpora[name] = open_corpus(name)
            except UserError as error:
                self.corpora[name] = None
                self.faults.append(fault_of(error, name, command("data", "check", name)))
        return self.corpora[name]

    def _add(self, level: str, about: object, problem: str, mend: str) -> None:
        is_error = level == "error"
        self.faults.append(Fault("error" if is_error else "warning", str(about), problem, mend))


def _differences(store: Store, dataset: Dataset, thorough: bool) -> Iterator[str]:
    """Yield how the documents of a corpus differ from those that a store holds."""
    if dataset.document_count != store.documents:
        yield (
            f"{store.folder} holds {counted(store.documents, 'documents', ',')}, and "
            f"{dataset.name} has {dataset.document_count:,}."
        )
        return
    count = store.documents if thorough else min(SAMPLE, store.documents)
    rows = np.unique(np.linspace(0, store.documents - 1, count).round().astype(int))
    absent = [docid for row in rows if not dataset.holds(docid := store.docids[int(row)])]
    if absent:
        yield (
            f"{dataset.name} lacks {counted(len(absent), 'docids', ',')} of {store.folder}, of "
            f"{len(rows):,} compared; the first is {absent[0]!r}."
        )
    elif thorough:
        yield from _other_texts(store, dataset)


def _other_texts(store: Store, dataset: Dataset) -> Iterator[str]:
    """Yield the first shard that was encoded from other texts than the corpus has now."""
    from m2dr.tasks.encode_store import ShardReader, digest_of

    reader = ShardReader(dataset, store.manifest.shard_rows)
    for number, shard in enumerate(store.manifest.shards):
        if digest_of(reader.read(number))[1] != shard.texts:
            yield (
                f"The documents of {dataset.name} have other texts now than those that "
                f"{store.folder / shard.name} was encoded from."
            )
            return


def _without(remedy: str) -> str:
    """Return the command of a remedy, which reads "with: COMMAND"."""
    return remedy.partition(_WITH)[2] or command("index", "corpus", overwrite=True)
