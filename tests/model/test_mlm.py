"""The decoder of a pre-training, against transformers with its embeddings taken apart by hand."""

from pathlib import Path

import torch
from transformers import AutoModel

from m2dr.model.checkpoint import load
from m2dr.model.mlm import FirstTokenDecoder, remove_word_embeddings, word_embeddings

IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


@torch.no_grad()
def test_what_is_given_stands_behind_the_embeddings_in_the_first_place(tiny_backbone: Path) -> None:
    decoder, _ = load(tiny_backbone, layer=1)
    words = word_embeddings(decoder)
    plain = AutoModel.from_pretrained(tiny_backbone).eval()
    remove_word_embeddings(decoder)
    first = torch.randn(2, 32, generator=torch.Generator().manual_seed(13))

    found = FirstTokenDecoder(decoder)(words(IDS), MASK, first)

    states = plain.embeddings(IDS)
    states[:, 0] = first
    seen = MASK[:, None, None, :].bool()
    block = plain.encoder.layer[0](states, attention_mask=seen)
    expected = block if isinstance(block, torch.Tensor) else block[0]
    torch.testing.assert_close(found[MASK.bool()], expected[MASK.bool()], atol=1e-5, rtol=1e-5)
