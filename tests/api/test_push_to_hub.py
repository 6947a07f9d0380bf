"""Encoders go to a stand-in of the hub and come back from it, at a revision."""

import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import TOKEN, running_hub
from shell import ENVIRONMENT
from world import make_model

CODE = """if True:
    import sys, m2dr, numpy
    model = m2dr.Encoder.from_pretrained(sys.argv[1], layer=int(sys.argv[2]), dtype="fp32", device="cpu")
    print(model.push_to_hub("me/tiny", revision="v2", private=True))
    again = m2dr.Encoder.from_pretrained("me/tiny", revision="v2", dtype="fp32", device="cpu")
    texts = ["open a file", "a list"]
    numpy.testing.assert_allclose(again.encode_queries(texts), model.encode_queries(texts), atol=1e-6)
    print(again.card.layers)"""


@pytest.mark.parametrize("layers", [2, 4])
def test_a_model_goes_to_the_hub_and_comes_back(
    layers: int, tiny_backbone: Path, tmp_path: Path
) -> None:
    model = make_model(tiny_backbone, tmp_path / "model", similarity="cosine", query_prefix="open ")
    with running_hub() as hub:
        environment = {
            **ENVIRONMENT, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", CODE, model, str(layers)], env=environment, cwd=tmp_path,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        commit = hub.branches.get(("me/tiny", "v2"))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{hub.url}/me/tiny/commit/{commit}", str(layers)]
    assert hub.private == {"me/tiny"}
