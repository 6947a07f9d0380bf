import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from m2dr.records.texts import Document, Group, Query
from m2dr.train.trainer import Examples, embed, last_whole_checkpoint


def named(epoch: int, place: int) -> Group:
    return Group(Query(f"{epoch}", ""), Document(f"{place}", ""))


def read(examples: Examples, positions: range) -> list[tuple[str, str]]:
    return [(examples[i].query.id, examples[i].positive.id) for i in positions]


def test_every_epoch_holds_every_group_once_in_an_order_of_its_own() -> None:
    examples = Examples(groups=10, group=named, total=30, seed=13)

    epochs = [read(examples, range(10 * epoch, 10 * epoch + 10)) for epoch in range(3)]

    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == sorted((str(number), str(place)) for place in range(10))
    orders = [tuple(place for _, place in epoch) for epoch in epochs]
    assert len(set(orders)) == 3


def test_a_position_holds_the_same_group_whatever_was_read_before() -> None:
    straight = read(Examples(10, named, 30, seed=13), range(30))
    backwards = read(Examples(10, named, 30, seed=13), range(29, -1, -1))

    assert backwards[::-1] == straight
    assert read(Examples(10, named, 30, seed=14), range(30)) != straight


def test_a_batch_in_parts_comes_out_in_its_own_order() -> None:
    def model(ids: torch.Tensor, _: torch.Tensor, layers: list[int]) -> torch.Tensor:
        return ids[None, :, :1].float().expand(len(layers), -1, -1)

    parts = [
        (torch.tensor([[2], [0]]), torch.ones(2, 1), torch.tensor([2, 0])),
        (torch.tensor([[1, 9]]), torch.ones(1, 2), torch.tensor([1])),
    ]

    vectors = embed(model, parts, [1, 2])

    assert vectors.shape == (2, 3, 1)
    assert vectors[0, :, 0].tolist() == [0, 1, 2]


def make_checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file({"weight": torch.zeros(4)}, path / "model.safetensors")
    torch.save({"step": step}, path / "optimizer.pt")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_half_written_checkpoint_is_passed_over(file: str, damage: str, tmp_path: Path) -> None:
    older, newer = make_checkpoint(tmp_path, 9), make_checkpoint(tmp_path, 10)
    assert last_whole_checkpoint(tmp_path) == newer
    content = (newer / file).read_bytes()
    (newer / file).unlink()
    if damage == "cut":
        (newer / file).write_bytes(content[: len(content) // 2])

    assert last_whole_checkpoint(tmp_path) == older


def test_without_checkpoints_there_is_none(tmp_path: Path) -> None:
    assert last_whole_checkpoint(tmp_path / "nowhere") is None
