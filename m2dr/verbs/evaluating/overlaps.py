"""Texts of a corpus by whole vectors and by prefixes, to see what a prefix keeps."""

from dataclasses import dataclass

from m2dr.errors import UserError
from m2dr.evaluate.overlap import Overlap, overlap
from m2dr.records.cut import Cut
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.models import names_of
from m2dr.verbs.progress import progress


@dataclass(frozen=True)
class OverlapRequest:
    """Which models' prefixes are compared with their whole vectors, on which texts."""

    models: tuple[str, ...] = ()  # empty: nothing is compared
    corpus: str = "pydocs"  # its documents, evenly spread
    dims: tuple[int, ...] = ()  # empty: the third of the width that is a power of two, as 128
    layer: int | None = None  # None: the last
    texts: int = 400
    way: str = "pca"  # how the plane is found: pca or tsne
    device: str = "auto"
    dtype: str = "auto"


def overlaps(request: OverlapRequest) -> list[Overlap]:
    """One for each model and dim, in that order.

    Raises:
        UserError: a model, corpus, layer or dim is not there.
    """
    if not request.models:
        return []
    # Most figures need no encoder, and need not wait for torch to load.
    from m2dr.model import checkpoint
    from m2dr.model.devices import choose_device, choose_dtype
    from m2dr.verbs.encoding import embed_texts

    if request.texts < 3:
        raise UserError(f"{request.texts} texts were asked for; an overlap needs 3 or more.")
    dataset = open_corpus(request.corpus)
    rows = sorted(
        {i * dataset.document_count // request.texts for i in range(request.texts)}
    )  # fewer where the corpus has fewer
    texts = [dataset.document_at(row).content for row in rows]
    device = choose_device(request.device)
    found = []
    names = names_of(request.models)
    with progress("Encoding", len(texts) * len(names), "documents") as advance:
        for model, name in zip(request.models, names, strict=True):
            card = checkpoint.read_card(model)
            layer = card.layers if request.layer is None else request.layer
            card.check(Cut(layer, max(request.dims, default=1)), model)
            encoder, tokenizer = checkpoint.load(
                model, layer, device, choose_dtype(request.dtype, device)
            )
            vectors = embed_texts(encoder, tokenizer, texts, "document", [layer], advance)[0]
            for dim in request.dims or (_usual(vectors.shape[1]),):
                found.append(overlap(name, layer, vectors, dim, request.way))
    return found


def _usual(width: int) -> int:
    """The largest power of two within a third of the width.

    >>> _usual(384), _usual(768), _usual(32)
    (128, 256, 8)
    """
    return int(2 ** ((max(width, 6) // 3).bit_length() - 1))
