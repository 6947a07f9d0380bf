"""Compressed targets, compared with naive decompositions in float64; they are deterministic."""

import pytest
import torch
from formulas import of_dependencies, of_embeddings, of_strongest
from torch import Tensor

from m2dr.core.variants import Compression
from m2dr.training.losses import compressed, compressed_all, compressed_randomised


def of_each_text(x: Tensor, k: int) -> Tensor:
    """ESE, eq. 3 to 5, as written: of one text at a time."""
    return torch.cat([of_dependencies(text[None], k) for text in x])


WAYS: dict[Compression, object] = {
    "dependencies": of_dependencies,
    "text-dependencies": of_each_text,
    "embeddings": of_embeddings,
    "max-k": of_strongest,
}
HOW = pytest.mark.parametrize("how", WAYS)


def draw(rows: int, width: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)


@HOW
@pytest.mark.parametrize("rows", [3, 12, 40], ids=["fewer texts than dims", "some", "many"])
def test_a_target_is_what_its_decomposition_says(how: Compression, rows: int) -> None:
    x = draw(rows, 12)

    found = compressed(x, 8, how)

    torch.testing.assert_close(found, WAYS[how](x, 8), atol=1e-8, rtol=1e-8)


@HOW
def test_the_same_texts_have_the_same_target_whatever_was_drawn_before(how: Compression) -> None:
    """The public code's decomposition is randomised: another target at each call."""
    x = draw(5, 32).float()
    torch.manual_seed(1)
    first = compressed(x, 8, how)
    torch.manual_seed(2)
    before = torch.get_rng_state()

    second = compressed(x, 8, how)

    torch.testing.assert_close(second, first, atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_lottery_depends_on_its_seed_alone_and_disturbs_no_other_draw() -> None:
    """Processes whose dropout has drawn different numbers have the same target."""
    x = draw(16, 16)
    torch.manual_seed(1)
    first, after = compressed_randomised(x, 8, 5), torch.rand(3)
    torch.manual_seed(1)
    expected = torch.rand(3)

    torch.testing.assert_close(compressed_randomised(x, 8, 5), first, atol=0, rtol=0)
    assert torch.equal(after, expected)


@HOW
def test_several_batches_at_once_have_the_targets_of_each(how: Compression) -> None:
    batches = [draw(5, 16, seed) for seed in range(5)]

    found = compressed_all(batches, 4, how)

    for batch, target in zip(batches, found, strict=True):
        torch.testing.assert_close(target, compressed(batch, 4, how), atol=1e-12, rtol=1e-10)
    assert compressed_all([], 4, how) == []


@HOW
def test_a_gpu_decomposes_otherwise_and_finds_the_same(
    how: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By eigenvectors and all batches at once; here as a processor computes it."""
    batches = [draw(rows, 48, rows) for rows in (3, 20, 60)]
    single = [batch.float() for batch in batches]
    expected, by_svd = (compressed_all(some, 8, how) for some in (batches, single))
    monkeypatch.setattr("m2dr.training.losses._on_gpu", lambda _: True)
    monkeypatch.setattr(torch.linalg, "svd", lambda *_, **__: pytest.fail("slow on a gpu"))

    found, rounded = (compressed_all(some, 8, how) for some in (batches, single))

    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    for ours, theirs, exact in zip(rounded, by_svd, expected, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).norm() <= 2 * (theirs - exact).norm() + 1e-5 * exact.norm()
