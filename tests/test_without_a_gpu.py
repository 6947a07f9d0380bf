"""What a gpu would refuse, or be slow at, seen without one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from m2dr.model import encoder as module
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import load

IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


class Reads(TorchDispatchMode):
    """Counts how often a number of a tensor is read; on a gpu, that waits for all it was sent.

    Tensors on the device meta have shapes alone; all their numbers are taken for 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, _, args=(), kwargs=None) -> object:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.count += 1
            if args[0].device.type == "meta":
                return True if args[0].dtype is torch.bool else 1
        return func(*args, **(kwargs or {}))


# Of the others the masks differ from layer to layer, and transformers makes them from [B, T].
@pytest.mark.parametrize("model_type", [n for n, row in BACKBONES.items() if row.plain_mask])
def test_nothing_is_read_off_a_gpu_while_texts_are_encoded(
    model_type: str, backbone: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, _ = load(backbone(model_type))
    encoder.add_exit_heads([1])
    monkeypatch.setattr(module, "ASYNCHRONOUS", ("cpu",))

    with torch.inference_mode(), Reads() as reads:
        encoder(IDS, MASK, [1, 4])

    assert reads.count == 0


@pytest.mark.parametrize("model_type", BACKBONES)
def test_the_mask_that_spares_a_gpu_the_question_hides_the_same(
    model_type: str, backbone: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, _ = load(backbone(model_type))
    with torch.inference_mode():
        expected = encoder(IDS, MASK)
        monkeypatch.setattr(module, "ASYNCHRONOUS", ("cpu",))

        found = encoder(IDS, MASK)

    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
