"""`m2dr serve`: indexes over HTTP."""

from importlib.util import find_spec

from m2dr.cli.options import command, takes
from m2dr.cli.terminal import echo
from m2dr.core.errors import UserError, install
from m2dr.core.requests import ServeRequest

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def require_serve() -> None:
    """Raise UserError where a package of the extra `serve` is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"A server needs {', '.join(missing)}, which is not installed; install it with: "
            f"{install('serve')}"
        )


@command(
    examples=(
        "serve --index indexes/pydocs --port 8080",
        "serve --corpus pydocs --model models/fitted --token-env M2DR_TOKEN",
    )
)
@takes(ServeRequest)
def serve(request: ServeRequest) -> None:
    """Serve indexes over HTTP: search, embeddings and a page."""
    require_serve()
    from m2dr.serve.server import serve as verb

    verb(request, lambda line: echo(line, err=True))
