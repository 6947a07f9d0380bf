"""Checkpoints of an unfinished training: which of them were written to their end."""

import json
import zipfile
from pathlib import Path


def last_whole_checkpoint(folder: Path, processes: int = 1) -> Path | None:
    """The newest checkpoint that was written to its end; a half-written one is passed over.

    Of several processes each writes its own random state, and none waits for the others.
    """
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: -step_of(path))
    draws = [f"rng_state_{rank}.pth" for rank in range(processes)] if processes > 1 else []
    whole = (p for p in found if _is_whole(p) and all(zipfile.is_zipfile(p / n) for n in draws))
    return next(whole, None)


def step_of(checkpoint: Path) -> int:
    """The step after which it was written."""
    return int(checkpoint.name.split("-")[1])


def _is_whole(checkpoint: Path) -> bool:
    """The state is written last; weights and optimiser are checked by their own tables."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        if state.get("global_step") != step_of(checkpoint):
            return False
        weights = checkpoint / "model.safetensors"
        with weights.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            body = weights.stat().st_size - file.tell()
    except (OSError, ValueError):
        return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    beside = (["optimizer.pt"], ["optimizer.bin", "pytorch_model_fsdp.bin"])  # the last of FSDP
    optimiser = any(all(zipfile.is_zipfile(checkpoint / n) for n in names) for names in beside)
    return body == max(ends) and optimiser
