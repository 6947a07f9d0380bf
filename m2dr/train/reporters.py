"""Libraries that losses and dev measures are logged to, by the callbacks of transformers."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    TensorBoardCallback,
    WandbCallback,
)

from m2dr.core.errors import UserError, install


def require_reporters(names: Iterable[str]) -> None:
    """Raise UserError if a library that logs are sent to is not installed."""
    for name in names:
        if find_spec(name) is None:
            how = install() if name == "tensorboard" else install(name)  # m2dr needs it anyway
            raise UserError(
                f"--report-to {name} was asked for, and {name} is not installed. "
                f"Install it with: {how}"
            )


class RunArguments(TrainingArguments):
    """Arguments of transformers.Trainer that trackers show together with the settings of m2dr."""

    settings: Mapping[str, object] = MappingProxyType({})

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments, then the settings."""
        return {**super().to_dict(), **self.settings}  # type: ignore[no-untyped-call]  # not annotated


class _WandbCallback(WandbCallback):
    """Ends the run of wandb that it began, so that the next training has a run of its own."""

    def setup(self, *args: Any, **kwargs: Any) -> None:  # transformers'
        """Begin a run, or go on with the one that the caller has begun."""
        self._ours = self._wandb.run is None
        super().setup(*args, **kwargs)  # type: ignore[no-untyped-call]  # not annotated

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:  # transformers'
        """End the run."""
        super().on_train_end(*args, **kwargs)
        if self._ours:
            self._wandb.finish()


def begin_reports(
    names: Sequence[str],
    logs: Path,
    arguments: TrainingArguments,
    state: TrainerState,
    module: nn.Module,
) -> list[TrainerCallback]:
    """Begin a run in each library, and return the callbacks that log to them.

    Args:
        names: of the libraries.
        logs: folder of the events of TensorBoard.
        arguments: of the training, which name the run.
        state: of the trainer, at its beginning.
        module: what is trained.

    Raises:
        UserError: a library is not installed, or refuses to begin, as wandb without a login.
    """
    require_reporters(names)
    callbacks: list[TrainerCallback] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of these libraries, and of what they import
        for name in names:
            try:
                callbacks.append(_begin(name, logs, arguments, state, module))
            except Exception as error:
                said = str(error).strip().split("\n")[0].rstrip(".")
                raise UserError(
                    f"{name} could not begin a run: {said or type(error).__name__}. Mend that, or "
                    f"take {name} out of --report-to."
                ) from error
    return callbacks


def _begin(
    name: str, logs: Path, arguments: TrainingArguments, state: TrainerState, module: nn.Module
) -> TrainerCallback:
    if name == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        return TensorBoardCallback(SummaryWriter(str(logs)))  # type: ignore[no-untyped-call]  # transformers does not annotate it
    callback: Any = _WandbCallback() if name == "wandb" else INTEGRATION_TO_CALLBACK[name]()  # type: ignore[no-untyped-call]  # transformers does not annotate it
    callback.setup(arguments, state, module)
    return callback  # type: ignore[no-any-return]  # as above
