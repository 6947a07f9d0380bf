"""Exits fitted on the documents of an index, so that shallow queries search its last layer."""

# Shapes in this file: n documents of a fit, S shallow layers.

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, counted
from m2dr.index.exit_files import (
    RECORD,
    IndexExits,
    StateFile,
    exits_folder,
    fitting_exits,
    forget_states,
    sampled_rows,
    write_exits_record,
)
from m2dr.index.layout import EXITS, store_folder
from m2dr.index.store import Store, open_store
from m2dr.io import locked, make_folder
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder
from m2dr.model.heads import write_exits
from m2dr.text.collection import Dataset
from m2dr.text.ragged import Ragged
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.encoding import embed_tokens_and_states, tokenize
from m2dr.verbs.fitting.solving import ONE_OF, fit_states
from m2dr.verbs.fitting.texts import snippets
from m2dr.verbs.indexing.pipeline import Job, Windows, digest_of
from m2dr.verbs.models import newest_model
from m2dr.verbs.progress import progress, say

# Random signs per token: the more the better, and the longer the regressions take. A fit of few
# documents, which are encoded soon, has fewer.
FEW, FEW_SIGNS, SIGNS = 3000, 1024, 3072
ONE_SNIPPET_OF = 4  # of so many documents of the fit a few words are read as a query
SNIPPETS = 4096  # at most


def fit_exits(job: Job, dataset: Dataset, store: Store) -> None:
    """Fit the exits of an index from the states that encoding has left, and forget those.

    Where exits of these documents are there already, or nothing was encoded just now, nothing is
    done. A shard whose states are missing, because it was encoded by an earlier command, is run
    again for its sampled documents.

    Args:
        job: that made the store; `exits` is its folder of exits.
        dataset: the documents.
        store: of the last layer.
    """
    folder = exits_folder(store.folder)
    if fitting_exits(store.folder):
        forget_states(folder)
        return
    if not any(folder.glob("states-*")):  # a store of before: m2dr index fit adds exits to it
        return
    _fit(job, dataset, store, folder)


@dataclass(frozen=True)
class FitIndexRequest:
    """What `m2dr index fit` was asked."""

    corpus: str = "pydocs"
    model: str = ""  # empty: the newest trained one
    root: Path = Path("indexes")
    device: str = "auto"
    dtype: str = "auto"
    overwrite: bool = False


def fit_index(request: FitIndexRequest) -> tuple[Path, IndexExits]:
    """Fit exits on the documents of an index that is there; return their folder and record.

    Raises:
        UserError: there is no such index of the last layer, or it has exits already.
    """
    model = request.model or newest_model()
    card, dataset = checkpoint.read_card(model), open_corpus(request.corpus)
    folder = store_folder(request.root, dataset.name, card.fingerprint, card.layers)
    store = open_store(folder)
    job = Job(
        request.corpus,
        store.documents,
        model,
        request.device,
        request.dtype,
        ((folder, store.manifest.plan),),
        exits_folder(folder),
    )
    if fitting_exits(folder) and not request.overwrite:
        raise UserError(f"{folder.parent / EXITS} has exits of these documents; --overwrite them.")
    return folder.parent / EXITS, _fit(job, dataset, store, folder.parent / EXITS)


def _fit(job: Job, dataset: Dataset, store: Store, folder: Path) -> IndexExits:
    begun = time.monotonic()
    make_folder(folder)
    with locked(folder, "give another --indexes"):
        (folder / RECORD).unlink(missing_ok=True)
        device = choose_device(job.device)
        encoder, tokenizer = checkpoint.load(
            job.model, None, device, choose_dtype(job.dtype, device)
        )
        rows, states = _states(job, dataset, store, folder, encoder, tokenizer)
        fit = fit_states(
            encoder,
            tokenizer,
            rows,
            states,
            (store.manifest.corpus,),
            FEW_SIGNS if len(rows) < FEW else SIGNS,
            _snippets(dataset, store.documents, encoder, tokenizer),
        )
        if encoder.fitted is None:
            raise AssertionError("exits were given just now")
        write_exits(encoder.fitted, folder)
        record = IndexExits(
            store.manifest.corpus, encoder.card.fingerprint, store.manifest.texts, fit
        )
        write_exits_record(folder, record)
        forget_states(folder)
    found = ", ".join("-" if cosine is None else f"{cosine:.3f}" for cosine in fit.cosines)
    say(
        f"Exits fitted on {counted(fit.texts, 'documents')} in {time.monotonic() - begun:,.0f} s: "
        f"cosines of layers 0 to {len(fit.cosines) - 1} with the full model {found}"
    )
    return record


def _states(
    job: Job,
    dataset: Dataset,
    store: Store,
    folder: Path,
    encoder: Encoder,
    tokenizer: Tokenizer,
) -> tuple[Ragged, NDArray[np.float32]]:
    """Token rows and states of the documents of the fit, in the order of the corpus."""
    windows, files = Windows(dataset, job.shard_rows), []
    total = len(sampled_rows(store.documents))
    with progress("Reading states", total, "documents") as advance:
        for number, shard in enumerate(store.manifest.shards):
            chosen = job.sampled(number)
            if not chosen.size:
                continue
            found = StateFile.read(folder, number, shard.texts)
            if found is None:
                documents = windows.at(number)
                if digest_of(documents)[1] != shard.texts:
                    raise UserError(
                        f"The documents of {job.corpus} are not those that {store.folder} holds; "
                        "encode them again with --overwrite."
                    )
                contents = [documents[place].content for place in chosen]
                rows = Ragged.of(tokenize(encoder.card, tokenizer, contents, "document"))
                places = np.arange(len(rows))
                layers = (encoder.blocks,)
                _, kept = embed_tokens_and_states(encoder, rows, tokenizer.pad_id, layers, places)
                found = StateFile(shard.texts, rows.tokens, rows.lengths, kept)
                found.write(folder, number)
            files.append(found)
            advance(len(chosen))
    rows = Ragged(
        np.concatenate([found.tokens for found in files]),
        np.concatenate([found.lengths for found in files]),
    )
    return rows, np.concatenate([found.states for found in files])


def _snippets(
    dataset: Dataset, documents: int, encoder: Encoder, tokenizer: Tokenizer
) -> tuple[Ragged, NDArray[np.float32]] | None:
    """Run a few words of some of the documents, as they would be asked for, through all layers."""
    chosen = sampled_rows(documents)[::ONE_SNIPPET_OF][:SNIPPETS].tolist()
    contents = [dataset.document_at(place).content for place in chosen]
    texts, _ = snippets(contents, 1, np.random.default_rng(documents))
    if len(texts) < ONE_OF:  # too few for some to be held out
        return None
    rows = Ragged.of(tokenize(encoder.card, tokenizer, texts, "query"))
    layers, everything = (encoder.blocks,), np.arange(len(rows))
    with progress("Reading snippets", len(rows), "texts") as advance:
        _, states = embed_tokens_and_states(
            encoder, rows, tokenizer.pad_id, layers, everything, advance
        )
    return rows, states
