"""`m2dr.Index`: encode documents that Python code has, or a corpus, and search them."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import get_args

from m2dr.api.documents import Item, checked_documents
from m2dr.api.keywords import understood
from m2dr.api.open_index import OpenIndex
from m2dr.api.text_encoder import TextEncoder
from m2dr.core.arguments import one_of, one_or_many, path_or_name, string, whole_numbers
from m2dr.core.errors import UserError
from m2dr.core.files import atomic_path, list_folder, sha256_of
from m2dr.core.requests import INDEXES, IndexRequest, SearchRequest
from m2dr.index.layout import layer_folders
from m2dr.index.manifest import Dtype
from m2dr.tasks.changed_corpus import document_line
from m2dr.tasks.index import check_index_request, index_corpus

CORPUS = "corpus.jsonl"  # as in a folder of BEIR, which every command opens
_LONGEST = 200  # bytes of a name; a folder may have 255, and other files are named by it


class Index(OpenIndex):
    """Documents encoded by a model, at every layer and dim that was built; thread-safe."""

    @classmethod
    @understood(
        "m2dr.Index.build",
        {
            **dict.fromkeys(("corpus", "texts", "docs"), "documents"),
            "dim": "dims", "layer": "layers", "engine": "engines", "root": "folder",
        },
    )  # fmt: skip
    def build(
        cls,
        model: TextEncoder | str | PathLike[str],
        documents: str | PathLike[str] | Iterable[Item],
        *,
        dims: int | Sequence[int] = (),
        layers: int | Sequence[int] = (),
        engines: str | Sequence[str] = (),
        name: str = "documents",
        folder: str | PathLike[str] = INDEXES,
        store: Dtype = "f16",
        exits: bool = True,
        overwrite: bool = False,
    ) -> "Index":
        """Encode documents and build their indexes, as `m2dr index corpus` does; open them.

        What was encoded and built before is used again; an interrupted build goes on.

            index = m2dr.Index.build(model, [{"id": "d1", "text": "A text."}], dims=[128])
            index.search("a query", k=10).hits

        Args:
            model: an encoder, whose layer and dim are those of a search that names none; or the
                folder or id of a model.
            documents: strings, or dicts with a text and perhaps a title, an id and other fields,
                by which a search may filter; they are kept in FOLDER/NAME/corpus.jsonl. Or the
                name of a corpus, as `m2dr index` takes it.
            dims: dims to index; that of the encoder by default.
            layers: layers to encode; by default every layer the model was trained to search.
            engines: to build: flat, which is the default, hnsw, ivf, int8 and others.
            name: of the documents, for later: `m2dr search --corpus FOLDER/NAME`. Not used for a
                corpus that has a name.
            folder: of the indexes.
            store: number format of the stored vectors: f16, f32 or int8.
            exits: whether to fit exits on the documents, so that queries of any layer can search
                those of the last one.
            overwrite: whether to encode again; other documents of that name are replaced then, with
                all indexes of them.

        Raises:
            UserError: a document has no text, two have one id, there are other documents of that
                name, or the model has no such layer or dim. What
                was not there before is then not left behind.
        """
        encoder = model if isinstance(model, TextEncoder) else None
        named, root = _named(model), Path(path_or_name("folder", folder))
        is_name = isinstance(documents, str | PathLike)
        corpus = path_or_name("documents", documents) if is_name else str(root / _plain(name))
        device, dtype = (encoder.device, encoder.dtype) if encoder else ("auto", "auto")
        asked = IndexRequest(
            corpus,
            named,
            dims=whole_numbers("dims", dims, 1) or ((encoder.dim,) if encoder else ()),
            layers=whole_numbers("layers", layers, 0),
            engines=tuple(one_or_many("engines", engines)),
            root=root,
            store=one_of("store", store, get_args(Dtype)),
            exits=exits,
            overwrite=overwrite,
            device=device,
            dtype=dtype,
            runtime="openvino" if encoder and encoder.runtime == "openvino" else "auto",
        )
        if isinstance(documents, str | PathLike):
            index_corpus(asked)
        else:
            check_index_request(asked)  # before the index that is there is replaced
            with _nothing_left(Path(corpus)):
                _keep(documents, Path(corpus), overwrite)
                index_corpus(asked)
        if encoder is None:
            return cls(SearchRequest(corpus, named, root=root))
        return cls(
            SearchRequest(
                corpus,
                named,
                query_layer=encoder.layer,
                dim=encoder.dim if encoder.dim in asked.dims else None,
                root=root,
                runtime=encoder.runtime if encoder.layer else "torch",
                device=device,
                dtype=dtype,
            )
        )


def _named(model: TextEncoder | str | PathLike[str]) -> str:
    return model.name if isinstance(model, TextEncoder) else path_or_name("model", model)


def _plain(name: str) -> str:
    """Return the name of documents, which is that of a folder too."""
    is_name = Path(string("name", name)).name == name not in ("", "..") and "\0" not in name
    if not is_name or len(name.encode(errors="replace")) > _LONGEST:
        raise UserError(
            f"name = {name[:80]!r} was asked for. Give the name of a folder, such as texts."
        )
    return name


@contextmanager
def _nothing_left(folder: Path) -> Iterator[None]:
    """Remove what a build made that failed before anything was encoded."""
    made = [path for path in (folder / CORPUS, folder, folder.parent) if not path.exists()]
    try:
        yield
    except UserError:
        for path in made if not [one for one in list_folder(folder) if one.name != CORPUS] else ():
            with suppress(OSError):  # it is not there, or another process uses it
                path.rmdir() if path.is_dir() else path.unlink()
        raise


def _keep(given: Iterable[Item], folder: Path, overwrite: bool) -> None:
    """Write documents as corpus.jsonl of a folder.

    Raises:
        UserError: it holds other documents and may not overwrite them, or an index of a corpus.
    """
    path = folder / CORPUS
    kept = path.exists()
    if not kept and list_folder(folder):
        raise UserError(
            f"{folder} holds the index of a corpus that is elsewhere. Give another name=, or "
            "another folder=."
        )
    with atomic_path(path) as unfinished:
        with unfinished.open("w", encoding="utf-8") as file:
            for document in checked_documents(given, folder.name):
                file.write(document_line(document))
        if unfinished.stat().st_size == 0:
            raise UserError("No documents were given. Give one at least.")
        changed = kept and sha256_of(path) != sha256_of(unfinished)
        if changed and not overwrite:
            raise UserError(
                f"{folder} holds other documents than those given. Give another name=, or replace "
                "them and their indexes by overwrite=True."
            )
        for index in [one for one in list_folder(folder) if changed and layer_folders(one)]:
            shutil.rmtree(index)
