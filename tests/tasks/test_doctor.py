"""Faults that are planted are found, each with the command that mends it."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import parsed
from world import make_backbone, make_corpus, make_model, stopped_after

from m2dr.cli import main
from m2dr.core.fault import Fault
from m2dr.core.requests import DoctorRequest
from m2dr.index import changes, gpu
from m2dr.index.faiss_library import load_faiss
from m2dr.model import devices
from m2dr.tasks import doctor_index, doctor_install, doctor_machine
from m2dr.tasks.doctor import examine

HOME = "indexes/tiny"
Plant = Callable[[Path, pytest.MonkeyPatch], object]


def run(line: str) -> None:
    done = CliRunner().invoke(main, shlex.split(line)[1:])
    assert done.exit_code == 0, done.output


def store(place: Path) -> Path:
    return next((place / HOME).glob("*/layer-04"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def built(tiny_fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a fitted model, a corpus and an index of it."""
    place = tmp_path_factory.mktemp("doctor")
    shutil.copytree(tiny_fitted, place / "models" / "one")
    make_corpus(place / "data" / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        run("m2dr index corpus --corpus data/tiny --model models/one --dim 8 --shard-rows 10")
    return place


@pytest.fixture
def place(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to plant a fault in; the machine is well."""
    shutil.copytree(built, tmp_path / "here")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "M2DR_DTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor_machine, "cores", doctor_machine._affine)
    for module in (doctor_machine, doctor_install):
        monkeypatch.setattr(module, "DRIVER", tmp_path / "none")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def found(thorough: bool = False, **request: object) -> tuple[Fault, ...]:
    return examine(DoctorRequest(thorough=thorough, **request)).faults  # type: ignore[arg-type]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("thorough", [False, True])
def test_what_is_well_has_no_fault(thorough: bool) -> None:
    assert found(thorough) == ()
    assert found(thorough, model="models/one", corpus="data/tiny") == ()

    done = CliRunner().invoke(main, ["doctor"])
    assert (done.exit_code, "No fault was found." in done.output) == (0, True)


def of_versions(_: Path, patch: pytest.MonkeyPatch) -> None:
    known = doctor_install.version
    patch.setattr(
        doctor_install, "version", lambda name: "4.9" if name == "transformers" else known(name)
    )


def of_two(_: Path, patch: pytest.MonkeyPatch) -> None:
    known = doctor_install.version
    patch.setattr(
        doctor_install, "version", lambda name: "1.15" if name.startswith("faiss") else known(name)
    )


def bf16(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("M2DR_DTYPE", "bf16")
    patch.setattr(devices, "multiplies_bf16", lambda _: False)


def gpu_without_torch(place: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(doctor_machine, "DRIVER", place)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = devices.Machine((), "", 2, "native", "bf16")
    patch.setattr(doctor_machine, "describe_machine", lambda _: machine)


def gpu_without_faiss(_: Path, patch: pytest.MonkeyPatch) -> None:
    machine = devices.Machine(("NVIDIA X",), "12.6", 2, "native", "bf16")
    patch.setattr(doctor_machine, "describe_machine", lambda _: machine)
    patch.setattr(load_faiss(), "StandardGpuResources", object, raising=False)
    patch.setattr(gpu, "refusal", lambda: "no kernel image is available")


def unfinished_training(place: Path, _: pytest.MonkeyPatch) -> None:
    (place / "models" / "two" / "checkpoints").mkdir(parents=True)
    (place / "models" / "two" / "training.json").write_text('{"variant": "full-dim"}')


def indexes_is_a_file(place: Path, _: pytest.MonkeyPatch) -> None:
    shutil.rmtree(place / "indexes")
    (place / "indexes").write_text("in the way")


# Of each fault: how it is planted, what is told, and the mend; LAYER stands for the store's folder.
MACHINE: dict[str, tuple[Plant, str, str]] = {
    "a version": (
        of_versions, r"transformers 4\.9 is installed, and m2dr needs <6,>=5\.23",
        "pip install 'transformers<6,>=5.23'",
    ),
    "two builds of FAISS": (
        of_two, "faiss-cpu and faiss-gpu are installed",
        "pip uninstall -y faiss-cpu faiss-gpu && pip install 'm2dr[cpu]'",
    ),
    "threads above cores": (
        lambda _, patch: patch.setenv("OMP_NUM_THREADS", "999"), "OMP_NUM_THREADS=999 starts more threads",
        f"export OMP_NUM_THREADS={doctor_machine._affine()}",
    ),
    "waiting threads": (
        lambda _, patch: patch.setenv("OMP_WAIT_POLICY", "ACTIVE"), "OMP_WAIT_POLICY=ACTIVE lets",
        "export OMP_WAIT_POLICY=PASSIVE",
    ),
    "bf16 that is emulated": (bf16, "no unit for bf16", "unset M2DR_DTYPE"),
    "no dtype": (
        lambda _, patch: patch.setenv("M2DR_DTYPE", "fp8"), "M2DR_DTYPE=fp8 is no dtype",
        "unset M2DR_DTYPE",
    ),
    "a driver, and a torch for processors": (
        gpu_without_torch, "driver for an NVIDIA GPU, and torch finds no GPU: it is built for proc",
        "pip install --force-reinstall --no-deps torch",
    ),
    "FAISS that cannot use the GPU": (
        gpu_without_faiss, "FAISS cannot use the GPU: no kernel image is available",
        "pip uninstall -y faiss-gpu && pip install 'm2dr[cpu]'",
    ),
    "a file in place of a folder": (
        indexes_is_a_file, "indexes is no folder", "mv indexes indexes.old",
    ),
    "a training that was interrupted": (
        unfinished_training, "models/two holds a training that is not finished",
        "m2dr train --resume --out models/two",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINE)
def test_a_fault_of_the_machine_is_found(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, told, mend = MACHINE[name]
    plant(place, monkeypatch)

    done = CliRunner().invoke(main, ["doctor", "--json"])

    assert done.exit_code == 1, done.output
    (fault,) = json.loads(done.stdout)["faults"]
    assert re.search(told, fault["problem"])
    assert fault["mend"] == mend
    if mend.startswith("m2dr "):
        parsed(mend)


def half_written(place: Path, _: pytest.MonkeyPatch) -> None:
    shutil.rmtree(place / HOME)
    with stopped_after(2):
        words = "index corpus --corpus data/tiny --model models/one --shard-rows 10 --layer 4"
        assert CliRunner().invoke(main, words.split()).exit_code == 1


def prompt(place: Path, _: pytest.MonkeyPatch) -> None:
    edit(place / "models/one/m2dr.json", '"query_prefix": ""', '"query_prefix": "q: "')


def other_docid(place: Path, _: pytest.MonkeyPatch) -> None:
    edit(place / "data/tiny/corpus.jsonl", '"_id": "d7"', '"_id": "x7"')


def other_text(place: Path, _: pytest.MonkeyPatch) -> None:
    edit(place / "data/tiny/corpus.jsonl", '"_id": "d7", "title": "', '"_id": "d7", "title": "new ')


def deleted(_: Path, __: pytest.MonkeyPatch) -> None:
    docids = " ".join(f"d{number}" for number in range(10))
    run(f"m2dr index delete {docids} --corpus data/tiny --model models/one")


def stopped_change(_: Path, __: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "_put_in_place", lambda _: 1 / 0)
        words = "index delete d1 --corpus data/tiny --model models/one"
        assert CliRunner().invoke(main, words.split()).exit_code


def stopped_add(place: Path, _: pytest.MonkeyPatch) -> None:
    from m2dr.tasks import change_index

    (place / "new.jsonl").write_text('{"_id": "n1", "text": "read a file"}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_index, "commit", lambda *_: 1 / 0)
        words = "index add new.jsonl --corpus data/tiny --model models/one"
        assert CliRunner().invoke(main, words.split()).exit_code


def other_tokenizer(place: Path, _: pytest.MonkeyPatch) -> None:
    path = place / "models" / "one" / "tokenizer.json"
    table = json.loads(path.read_text())
    table["model"]["vocab"]["read"], table["model"]["vocab"]["file"] = (
        table["model"]["vocab"]["file"], table["model"]["vocab"]["read"],
    )  # fmt: skip
    path.write_text(json.dumps(table))


def other_exits(place: Path, _: pytest.MonkeyPatch) -> None:
    path = store(place).parent / "exits" / "exits.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "texts": "0" * 64}))


INDEX: dict[str, tuple[Plant, str, str, bool]] = {
    "a half-written store": (
        half_written, "LAYER is half-written: 2 shards with 20 documents of tiny",
        "m2dr index corpus .*--layer 4 --resume --shard-rows 10", False,
    ),
    "a missing shard": (
        lambda place, _: (store(place) / "vectors-00001.f16").unlink(),
        "vectors-00001.f16 is missing", "m2dr index corpus .*--layer 4 --dim 8 --overwrite", False,
    ),
    "a flipped bit": (
        lambda place, _: flip(store(place) / "vectors-00002.f16"),
        "vectors-00002.f16 is not the file that was written",
        "m2dr index corpus .*--layer 4 --dim 8 --overwrite", True,
    ),
    "no record of the store": (
        lambda place, _: (store(place) / "store.json").unlink(),
        "LAYER has vectors and lacks store.json", "m2dr index corpus .*--layer 4 --dim 8", False,
    ),
    "an index that was cut short": (
        lambda place, _: (store(place) / "dim-8/index").write_bytes(b"x"),
        "LAYER/dim-8/index is missing or not the file", "m2dr index corpus .*--layer 4 --dim 8",
        False,
    ),
    "an index of older vectors": (
        lambda place, _: edit(store(place) / "dim-8/manifest.json", '"store": "', '"store": "0'),
        "LAYER/dim-8 was cut from vectors that have been encoded anew",
        "m2dr index corpus .*--layer 4 --dim 8", False,
    ),
    "a prompt": (
        prompt, "encoded differently by the same model: query_prefix '' against 'q: '",
        "m2dr index corpus .*--layer 4 --dim 8 --overwrite", False,
    ),
    "a docid": (
        other_docid, "tiny lacks 1 docid of LAYER, of 40 compared; the first is 'd7'",
        "m2dr index corpus .*--overwrite", False,
    ),
    "a text": (
        other_text, "tiny have other texts now than those that LAYER/vectors-00000.f16",
        "m2dr index corpus .*--overwrite", True,
    ),
    "deleted rows": (
        deleted, "10 of the 40 vectors in LAYER are of deleted documents",
        "m2dr index compact .*", False,
    ),
    "a change that was interrupted": (
        stopped_change, "has a change that was made and is not in place",
        "m2dr index corpus .*--layer 4 --dim 8", False,
    ),
    "documents that were being added": (
        stopped_add, "has documents that an interrupted command was adding",
        "m2dr index add indexes/tiny/.*/added .*", False,
    ),
    "exits of other documents": (
        other_exits, "exits were fitted on other documents", "m2dr index fit .*--overwrite", False,
    ),
    "a tokenizer": (
        other_tokenizer, "models/one/tokenizer.json is not the tokenizer that models/one was",
        "cp .*/tokenizer.json models/one/tokenizer.json", True,
    ),
}  # fmt: skip


# Their mend is that of a flipped bit, to encode again, which is run for it alone.
ALIKE = ("no record of the store", "a missing shard", "a prompt", "a docid", "a text")


@pytest.mark.parametrize("name", INDEX)
def test_a_fault_of_an_index_is_found_and_its_mend_mends_it(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, told, mend, thorough = INDEX[name]
    plant(place, monkeypatch)

    faults = found(thorough)

    layer = store(place).relative_to(place).as_posix()
    assert re.search(told.replace("LAYER", layer), faults[0].problem)
    assert len(faults) == 1
    assert re.fullmatch(mend, faults[0].mend)
    if name in ALIKE:
        assert parsed(faults[0].mend)
        return
    if faults[0].mend.startswith("m2dr "):
        run(faults[0].mend)
    else:
        subprocess.run(shlex.split(faults[0].mend), check=True)
    assert found(thorough) == ()


def test_weights_that_were_changed_are_found_in_the_model_that_is_named(place: Path) -> None:
    flip(place / "models" / "one" / "model.safetensors")

    faults = found(model="models/one")

    assert "its weights, tokenizer or config.json" in faults[0].problem
    found_options = parsed(faults[0].mend).params
    assert (found_options["out"], found_options["overwrite"]) == (Path("models/one"), True)
    assert faults[0].mend.startswith("m2dr fit ")


def test_an_index_of_another_model_is_found(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    backbone = make_backbone(tmp_path_factory.mktemp("other") / "backbone", seed=14)
    make_model(backbone, place / "other")

    (fault,) = found(model="other", index=store(place))
    assert "were encoded by model" in fault.problem
    assert parsed(fault.mend).params["model"] == "other"

    (fault,) = found(model="other")
    assert fault.problem.startswith("No store in indexes is of other")
    run(fault.mend)
    assert found(model="other") == ()


def test_an_index_without_its_store_is_checked_too(place: Path) -> None:
    shutil.copytree(store(place) / "dim-8", place / "copied")
    assert found(index=Path("copied")) == found(index=store(place) / "dim-8") == ()

    (place / "copied" / "docid").write_text("d1\n")

    (fault,) = found(index=Path("copied"))
    assert "copied/docid has 1 docid for 40 documents" in fault.problem
    (fault,) = found(index=Path("data"))
    assert fault.problem == "data holds no store and no index."
    assert parsed(fault.mend)


def test_too_little_room_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(place)._replace(free=6000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    request = {"model": "models/one", "corpus": "data/tiny", "root": Path("elsewhere")}

    (fault,) = found(**request)
    assert re.search("take 0.0 MB in elsewhere/tiny/.*, and 0.0 MB are free", fault.problem)
    assert parsed(fault.mend).params["root"] != Path("elsewhere")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=7000))
    (fault,) = found(**request)
    assert parsed(fault.mend).params["store"] == "int8"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=12_500))
    assert found(**request) == ()

    monkeypatch.setattr(doctor_index, "free_memory", lambda: 100)
    (fault,) = found()
    assert "dim-8 takes 0.0 MB of memory to search" in fault.problem
    assert parsed(fault.mend).params["dims"] == (1,)


def test_the_command_prints_the_worst_first_and_ends_with_1(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    (store(place) / "vectors-00001.f16").unlink()

    done = CliRunner().invoke(main, ["doctor"])
    told = CliRunner().invoke(main, ["doctor", "--json"])

    assert (done.exit_code, told.exit_code) == (1, 1)
    lines = [line.split()[0] for line in done.output.splitlines() if " Mend it with: " in line]
    report = json.loads(told.stdout)
    assert lines == [fault["level"].upper() for fault in report["faults"]] == ["ERROR", "WARNING"]
    assert set(report) == {"facts", "faults"}
