"""`m2dr init`: a file of settings to begin with."""

from m2dr.cli.options import command, takes
from m2dr.cli.terminal import echo
from m2dr.errors import counted
from m2dr.settings.setup_requests import InitRequest


@command(examples=("init", "init fit.toml --for fit"))
@takes(InitRequest)
def init(request: InitRequest) -> None:
    """Write a commented file of settings, all at their defaults.

    m2dr train, fit and pretrain read it with --config.
    """
    from m2dr.commands.init import write_settings

    report = write_settings(request)
    echo(f"{counted(report.settings, 'settings')}: {report.file}", beside=report.file)
    echo(f"Use them with: {report.follow}", beside=report.file)
