"""Only complete checkpoints are resumed from."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from m2dr.training.trainer import last_complete_checkpoint


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
    assert last_complete_checkpoint(tmp_path) == newer
    content = (newer / file).read_bytes()
    (newer / file).unlink()
    if damage == "cut":
        (newer / file).write_bytes(content[: len(content) // 2])

    assert last_complete_checkpoint(tmp_path) == older


def test_of_several_processes_each_must_have_written_its_random_state(tmp_path: Path) -> None:
    older, newer = make_checkpoint(tmp_path, 9), make_checkpoint(tmp_path, 10)
    for rank in range(2):
        torch.save({"cpu": rank}, older / f"rng_state_{rank}.pth")
    torch.save({"cpu": 0}, newer / "rng_state_0.pth")

    assert last_complete_checkpoint(tmp_path, processes=2) == older

    torch.save({"cpu": 1}, newer / "rng_state_1.pth")
    assert last_complete_checkpoint(tmp_path, processes=2) == newer
    assert last_complete_checkpoint(tmp_path, processes=3) is None
