"""`m2dr init`, a file of settings to begin with, and `m2dr doctor`, what is wrong and its mend."""

from dataclasses import asdict

from m2dr.cli.options import command, json_option, takes
from m2dr.cli.terminal import echo, echo_json
from m2dr.core.errors import counted
from m2dr.core.requests import DoctorRequest, InitRequest

FAULTY = 1  # exit code


@command(examples=("init", "init fit.toml --for fit"))
@takes(InitRequest)
def init(request: InitRequest) -> None:
    """Write a commented file of settings, all at their defaults.

    m2dr train, fit and pretrain read it with --config.
    """
    from m2dr.tasks.init import write_settings

    report = write_settings(request)
    echo(f"{counted(report.settings, 'settings')}: {report.file}", beside=report.file)
    echo(f"Use them with: {report.follow}", beside=report.file)


@command(
    examples=(
        "doctor",
        "doctor --model models/pydocs-fitted --corpus pydocs --thorough",
    ),
)
@takes(DoctorRequest)
@json_option
def doctor(request: DoctorRequest, as_json: bool) -> None:
    """Find what is wrong with an install, a model or an index.

    Versions, devices, threads, models, indexes and their corpora are checked against each other.
    Each fault has a line with the command that mends it, the worst first. Nothing is changed. Ends
    with exit code 1 if there is a fault.
    """
    from m2dr.tasks.doctor import examine, told

    report = examine(request)
    if as_json:
        echo_json(asdict(report))
    for line in () if as_json else told(report):
        echo(line)
    if report.faults:
        raise SystemExit(FAULTY)
