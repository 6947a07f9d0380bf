from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure


@pytest.fixture(scope="module", autouse=True)
def _no_figures() -> Iterator[None]:
    """Leave out the figures of a grid, which take most of the time of a small one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("m2dr.tasks.evaluating.evaluate.draw_quality_over_dims", lambda *_: Figure())
        yield
