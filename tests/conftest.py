"""Fixtures that every room's tests share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from world import make_backbone, make_corpus, make_fitted, make_model

# As the command line does: what is computed here has to the last bit what its processes compute.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that asks the hub is a test that lies
# How long an example takes is the machine's business, and says nothing of what it shows.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
# What decides whether a change lands tries the same examples whenever it runs.
settings.register_profile("same", settings.get_profile("any machine"), derandomize=True)


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny backbone of a given architecture."""
    made: dict[str, Path] = {}

    def get(model_type: str) -> Path:
        if model_type not in made:
            made[model_type] = make_backbone(tmp_path_factory.mktemp(model_type), model_type)
        return made[model_type]

    return get


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_backbone(tmp_path_factory.mktemp("backbone") / "tiny-bert")


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """A model of the tiny backbone, compared by cosine."""
    return make_model(
        tiny_backbone, tmp_path_factory.mktemp("model") / "model", similarity="cosine"
    )


@pytest.fixture(scope="session")
def tiny_fitted(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The tiny model with fitted exits: layers 0 to 4, documents of the last."""
    return make_fitted(tiny_model, tmp_path_factory.mktemp("fitted") / "tiny-fitted")


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    """What `--dtype auto` means: fp32 and bf16, once each, on any processor.

    A test, or a fixture of its module, that asks for it runs in both.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("M2DR_DTYPE", request.param)
        yield request.param


@pytest.fixture
def exits_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit exits on any number of documents in this process, as on many."""
    for module in ("maps.files", "tasks.evaluating.plans"):
        monkeypatch.setattr(f"m2dr.{module}.FEWEST_DOCUMENTS", 1)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def data() -> Path:
    """Real collections, where this machine has them."""
    folder = Path(os.environ.get("M2DR_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"There is no real data in {folder}; set M2DR_DATA to have this tested.")
    return folder
