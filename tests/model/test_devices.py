import pytest
import torch

from m2dr.core.errors import UserError
from m2dr.model.devices import choose_dtype, choose_training_device

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("unit", "name", "dtype"),
    [
        ("amx_bf16", "Intel(R) Xeon(R)", torch.bfloat16),
        ("avx512_bf16", "AMD EPYC", torch.bfloat16),
        ("avx512_bf16", "Intel(R) Xeon(R)", torch.float32),
        ("avx2", "AMD EPYC", torch.float32),
    ],
)
def test_auto_takes_bf16_only_where_the_processor_is_faster_in_it(
    unit: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("M2DR_DTYPE", raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {unit: True, "cpu_name": name})

    assert choose_dtype("auto", CPU) is dtype
    assert choose_dtype("fp32", CPU) is torch.float32


@pytest.mark.parametrize(("word", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
@pytest.mark.parametrize("unit", ["amx_bf16", "avx2"])
def test_the_environment_says_what_auto_means(
    word: str, dtype: torch.dtype, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {unit: True})
    monkeypatch.setenv("M2DR_DTYPE", word)

    assert choose_dtype("auto", CPU) is dtype
    assert choose_dtype("fp32", CPU) is torch.float32
    assert choose_dtype("bf16", CPU) is torch.bfloat16


def test_each_process_of_torchrun_trains_on_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")

    assert choose_training_device("auto") == torch.device("cuda", 1)

    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="Device cuda:2 was asked for"):
        choose_training_device("auto")
