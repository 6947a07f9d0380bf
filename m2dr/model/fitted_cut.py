"""What modules.json of a cut with a fitted exit names, so that sentence-transformers opens it."""

# Shapes in this file: B texts, T tokens, K dims of the cut.

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule
from sentence_transformers.util import load_dir_path
from torch import Tensor
from torch.nn.functional import normalize

from m2dr.core.errors import UserError
from m2dr.model import checkpoint
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import DualEncoder


class FittedCut(InputModule):
    """The only module of such a cut: encoder, exit, words and normalisation.

    Attributes:
        encoder: whose last layer has the exit.
        max_seq_length: tokens of a text, at most.
    """

    def __init__(self, loaded: TextEncoder[DualEncoder]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # sentence-transformers does not annotate it
        encoder, words = loaded.runtime, loaded.runtime.words
        if words is None or not encoder.last_layer_has_exit:
            raise UserError("The model has no fitted exit at its last layer.")
        self.encoder, self._loaded, self._words = encoder, loaded, words
        self.tokenizer = loaded.tokenizer.inner
        self.max_seq_length = encoder.card.document_length

    def preprocess(
        self, inputs: Any, prompt: str | None = None, task: str | None = None, **_: Any
    ) -> dict[str, Tensor]:
        """Return ids and mask [B, T], and what words add to the vectors, [B, K].

        Args:
            inputs: B texts.
            prompt: goes before each; its words do not count.
            task: query or document, whose lengths may differ.

        Raises:
            UserError: an input is not a text.
        """
        if (odd := next((x for x in inputs if not isinstance(x, str)), None)) is not None:
            raise UserError(f"This model embeds texts; {type(odd).__name__} was given.")
        card = self.encoder.card
        length = card.query_length if task == "query" else card.document_length
        tokenizer = self._loaded.tokenizer
        rows = tokenizer(
            [(prompt or "") + text for text in inputs], min(length, self.max_seq_length)
        )
        ids, mask = tokenizer.pad(rows)
        words = np.zeros((1, len(inputs), card.width), np.float32)
        self._words.add(words, [self.encoder.layers], inputs)
        arrays = {"input_ids": ids, "attention_mask": mask, "words": words[0]}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding`, [B, K]; of length one where cosines compare the vectors."""
        ids, mask = features["input_ids"], features["attention_mask"]
        vectors = self.encoder(ids, mask, [self.encoder.layers])[0] + features["words"]
        cosine = self.encoder.card.similarity == "cosine"
        return features | {"sentence_embedding": normalize(vectors, dim=-1) if cosine else vectors}

    def get_embedding_dimension(self) -> int:
        """Return K."""
        return self.encoder.card.width

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write the folder of the cut."""
        checkpoint.save(*self._loaded, self._loaded.card, Path(output_path))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> "FittedCut":  # type: ignore[override]  # of any names
        """Open the folder of a cut, or the local copy of one of the hub.

        Raises:
            UserError: it is no such folder, or a file in it is damaged.
        """
        names = ("token", "cache_folder", "revision", "local_files_only")
        where = {name: options[name] for name in names if name in options}
        folder = load_dir_path(model_name_or_path, subfolder=subfolder, **where)
        return cls(checkpoint.load(folder or model_name_or_path))
