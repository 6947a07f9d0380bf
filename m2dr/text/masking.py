"""Words to be guessed: which tokens of a text are hidden, and behind what."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

KEPT, SWAPPED = 0.1, 0.1  # of the chosen tokens: shown as they are, replaced by any other (BERT)


def mask_tokens(
    row: Sequence[int],
    share: float,
    mask_id: int,
    words: int,
    special: Collection[int],
    generator: Generator,
) -> tuple[list[int], NDArray[np.intp]]:
    """Hide a share of a text's tokens, as BERT does (Devlin et al. 2019, section 3.1).

    Args:
        row: T token ids.
        share: of the tokens that are not special; one is hidden at least, where there is one.
        mask_id: stands for most hidden tokens.
        words: size of the vocabulary.
        special: ids that are never hidden.
        generator: of every draw.

    Returns:
        The T ids to show, and the places [n] to guess, increasing.
    """
    tokens = np.asarray(row, dtype=np.int64)
    able = np.flatnonzero(~np.isin(tokens, list(special)))
    count = min(len(able), max(1, round(share * len(able))))
    places = np.sort(generator.permutation(able)[:count])
    draws = generator.random(count)
    swaps = generator.integers(0, words, size=count)
    shown = tokens.copy()
    hidden = np.where(draws < KEPT, tokens[places], mask_id)
    shown[places] = np.where(draws >= 1 - SWAPPED, swaps, hidden)
    return [int(token) for token in shown], places
