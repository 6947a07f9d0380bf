"""Which sentences of a batch of pairs must not count as negatives of which."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from m2dr.core.records import ModelCard, SentencePair
from m2dr.tasks.training.training_data import make_pair_batch

CARD = ModelCard("made up", "untrained", 2, 8, (), "same", "cls", "cosine", 0.05)


class Letters:
    """One token per letter."""

    pad_id = 0

    def __call__(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        return [[ord(letter) for letter in text][:max_length] for text in texts]


def excluded(*pairs: tuple[str, str, float]) -> NDArray[np.bool_]:
    return make_pair_batch(CARD, Letters(), [SentencePair(*pair) for pair in pairs]).excluded


letters = st.sampled_from("abcd")
batches = st.lists(
    st.tuples(letters, letters, st.sampled_from([0.0, 0.5, 0.79, 0.8, 1.0])), min_size=1, max_size=7
)


@given(pairs=batches)
def test_exclusions_are_those_of_the_definition_read_out_cell_by_cell(
    pairs: list[tuple[str, str, float]],
) -> None:
    mask = excluded(*pairs)

    alike = {frozenset((first, second)) for first, second, score in pairs if score >= 0.8}
    assert not mask.diagonal().any()
    for b, (first, _, score) in enumerate(pairs):
        for n, (_, second, _) in enumerate(pairs):
            if score >= 0.8 and n != b:  # no other row is ever asked
                assert mask[b, n] == (first == second or frozenset((first, second)) in alike)
