"""Checks of `m2dr doctor` on what is installed: versions, extras, and one FAISS alone."""

import configparser
import platform
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import m2dr
from m2dr.core.errors import install
from m2dr.core.fault import Fault

DRIVER = Path("/proc/driver/nvidia/version")  # where there is an NVIDIA GPU
FAISS = ("faiss-cpu", "faiss-gpu")
SHOWN = ("torch", "transformers", "numpy", *FAISS)  # versions that are told
OF_DEVELOPERS = ("dev", "test")  # extras that no command needs
NAME = "m2dr"


@dataclass(frozen=True)
class Needed:
    """A package that m2dr needs, or that one of its extras does."""

    name: str
    range: str  # of its versions, as pip writes it
    extra: str  # empty where m2dr itself needs it

    @property
    def remedy(self) -> str:
        """The command that installs it in its range."""
        return shlex.join(["pip", "install", f"{self.name}{self.range}"])


def install_faults() -> Iterator[Fault]:
    """Yield the faults of the packages that are installed."""
    from packaging.specifiers import SpecifierSet

    python = platform.python_version()
    if python not in SpecifierSet(python_range()):
        problem = f"Python {python} runs m2dr, which needs {python_range()}."
        yield Fault("error", "python", problem, "python3.12 -m venv .venv")
    yield from _faiss_faults()
    wrong: dict[str, Fault] = {}
    for one in needed():
        found = installed(one.name)
        if found is None:
            if not one.extra:
                problem = f"{one.name} is not installed, and m2dr needs it."
                wrong[one.name] = Fault("error", one.name, problem, one.remedy)
        elif not SpecifierSet(one.range).contains(found, prereleases=True):
            what = f"the extra {one.extra}" if one.extra else NAME
            problem = f"{one.name} {found} is installed, and {what} needs {one.range}."
            wrong.setdefault(one.name, Fault("error", one.name, problem, one.remedy))
    yield from wrong.values()


def _faiss_faults() -> Iterator[Fault]:
    """Yield the fault of two builds of FAISS, which write the same files, or of none."""
    there = [name for name in FAISS if installed(name)]
    own = "gpu" if DRIVER.exists() else "cpu"
    if len(there) == 2:
        again = f"pip uninstall -y {' '.join(FAISS)} && {install(own)}"
        problem = "faiss-cpu and faiss-gpu are installed, and both write the module faiss."
        yield Fault("error", "faiss", problem, again)
    elif not there:
        problem = "FAISS is not installed, and no index can be built or searched."
        yield Fault("error", "faiss", problem, install(own))


def install_facts() -> Mapping[str, str]:
    """Return versions, and the extras that are installed and those that are not."""
    named = {name: found for name in SHOWN if (found := installed(name))}
    told = ", ".join(f"{name} {found}" for name, found in named.items())
    extras: dict[str, bool] = {}
    for one in needed():
        if one.extra and one.extra not in OF_DEVELOPERS:
            extras[one.extra] = extras.get(one.extra, True) and installed(one.name) is not None
    return {
        "versions": f"m2dr {m2dr.__version__}, Python {platform.python_version()}, {told}",
        "extras": ", ".join(name for name, there in extras.items() if there) or "none",
        "absent extras": ", ".join(name for name, there in extras.items() if not there) or "none",
    }


def installed(name: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def python_range() -> str:
    """Return the versions of Python that m2dr runs on."""
    return _declared()[0]


def needed() -> list[Needed]:
    """Return the packages that m2dr and its extras need on this machine."""
    return list(_declared()[1])


@cache
def _declared() -> tuple[str, tuple[Needed, ...]]:
    """Read what m2dr needs from setup.cfg beside it, or else from its installed metadata."""
    from packaging.requirements import Requirement

    path = Path(m2dr.__file__).parents[1] / "setup.cfg"
    lines: list[tuple[str, str]] = []
    parser = configparser.ConfigParser(interpolation=None)
    if parser.read(path, encoding="utf-8") and parser.get("metadata", "name", fallback="") == NAME:
        python = parser["options"]["python_requires"]
        lines += [("", line) for line in parser["options"]["install_requires"].splitlines()]
        for extra, text in parser["options.extras_require"].items():
            lines += [(extra, line) for line in text.splitlines()]
    else:
        told = metadata(NAME)
        python = told["Requires-Python"]
        for line in told.get_all("Requires-Dist") or []:
            marker = Requirement(line).marker
            extras = told.get_all("Provides-Extra") or []
            of = [one for one in extras if marker and f'extra == "{one}"' in str(marker)]
            lines.append((of[0] if of else "", line))
    found = []
    for extra, line in lines:
        if line.strip():
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                found.append(Needed(one.name, str(one.specifier), extra))
    return python, tuple(found)
