import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.evaluation.sentence_tasks import separation, separations

# Few distinct values, so that ties are common; both classes always present.
pairs = st.lists(
    st.tuples(st.sampled_from([-1.0, -0.25, 0.0, 0.5, 0.5000001, 2.0]), st.booleans()),
    min_size=2,
    max_size=12,
).filter(lambda found: len({alike for _, alike in found}) == 2)


def naive(found: list[tuple[float, bool]]) -> dict[str, float]:
    """Every threshold by hand: at each value, and above all of them."""
    total = sum(alike for _, alike in found)
    accuracy = f1 = precision_sum = recall_before = 0.0
    for threshold in [np.inf, *sorted({value for value, _ in found}, reverse=True)]:
        taken = [alike for value, alike in found if value >= threshold]
        hits = sum(taken)
        right = hits + sum(not alike for value, alike in found if value < threshold)
        accuracy = max(accuracy, right / len(found))
        if hits:
            precision, recall = hits / len(taken), hits / total
            f1 = max(f1, 2 * precision * recall / (precision + recall))
            precision_sum += precision * (recall - recall_before)
            recall_before = recall
    return {"AP": precision_sum, "Accuracy": accuracy, "F1": f1}


@given(found=pairs)
def test_every_threshold_is_tried_and_none_parts_a_tie(found: list[tuple[float, bool]]) -> None:
    similarity, alike = (np.array(column) for column in zip(*found, strict=True))

    assert separation(similarity, alike) == pytest.approx(naive(found))


def test_each_prefix_is_compared_by_cosine_and_by_dot() -> None:
    generator = np.random.default_rng(13)
    vectors = generator.normal(size=(9, 8)).astype(np.float32)
    first, second = generator.integers(0, 9, size=(2, 20))
    alike = generator.random(20) < 0.4

    found = separations(vectors, first, second, alike, [2, 8])

    assert set(found) == {2, 8}
    for dim, values in found.items():
        assert len(values) == 6
        cut = vectors[:, :dim].astype(np.float64)
        dots = np.array([cut[a] @ cut[b] for a, b in zip(first, second, strict=True)])
        norms = [
            np.linalg.norm(cut[a]) * np.linalg.norm(cut[b])
            for a, b in zip(first, second, strict=True)
        ]
        expected = {f"dot-{name}": value for name, value in separation(dots, alike).items()}
        expected |= {
            f"cosine-{name}": value for name, value in separation(dots / norms, alike).items()
        }
        assert values == pytest.approx(expected)
