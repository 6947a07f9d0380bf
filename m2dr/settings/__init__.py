"""One run's settings: a TOML file plus key=value, read once and checked whole."""

from m2dr.settings.fit import FitSettings, read_fit_settings
from m2dr.settings.pretrain import PretrainSettings, read_pretrain_settings
from m2dr.settings.train import TrainSettings, read_train_settings

__all__ = [
    "FitSettings",
    "PretrainSettings",
    "TrainSettings",
    "read_fit_settings",
    "read_pretrain_settings",
    "read_train_settings",
]
