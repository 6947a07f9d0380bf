"""The routes of a server; FastAPI is imported here alone."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from m2dr import __version__
from m2dr.core.errors import UserError
from m2dr.serve.docs_page import STYLE, docs_page
from m2dr.serve.guard import Guard, State
from m2dr.serve.messages import (
    EmbedBody,
    EmbeddingsBody,
    HttpError,
    SearchBody,
    read_body,
    sentence_of,
)
from m2dr.serve.meters import CONTENT_TYPE
from m2dr.serve.openapi import DESCRIPTION, STATUSES, describe, of_body, of_get
from m2dr.serve.serving import Serving

PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_JSON = "application/json"


def make_app(serving: Serving, state: State) -> Guard:
    """Return the application of a server."""
    app = FastAPI(
        title="m2dr serve", version=__version__, description=DESCRIPTION,
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    _add_errors(app)
    _add_posts(app, serving)
    _add_gets(app, serving, state)
    _add_page(app)
    limits = serving.request

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            table = get_openapi(
                title=app.title, version=app.version, description=app.description,
                routes=app.routes,
            )  # fmt: skip
            app.openapi_schema = describe(table, limits, bool(state.token))
        return app.openapi_schema

    async def docs() -> Response:
        return Response(docs_page(openapi()), media_type="text/html")

    async def docs_style() -> Response:
        return Response(STYLE, media_type="text/css")

    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False)
    app.add_api_route("/docs.css", docs_style, methods=["GET"], include_in_schema=False)
    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation does
    return Guard(app, serving, state)


def _add_errors(app: FastAPI) -> None:
    """Give every error the same form."""

    async def refused(_: Request, error: Exception) -> Response:
        if isinstance(error, UserError | OSError):
            error = HttpError(503, sentence_of(error), kind="server_error")
        if not isinstance(error, HttpError):
            told = "The server failed on this request; its log says why."
            error = HttpError(500, told, kind="server_error")
        response = as_json(error.body(), error.status)
        response.headers.update(error.headers)
        return response

    def of_status(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def answer(request: Request, error: Exception) -> Response:
            headers = getattr(error, "headers", None)  # such as Allow
            return await refused(request, HttpError(status, STATUSES[status], headers=headers))

        return answer

    for kind in (HttpError, UserError, OSError, Exception):
        app.add_exception_handler(kind, refused)
    for status in (404, 405):
        app.add_exception_handler(status, of_status(status))


def _add_posts(app: FastAPI, serving: Serving) -> None:
    """Add what is asked with a body."""
    rows: tuple[tuple[str, type[Any], Callable[[Any], Awaitable[Any]], str], ...] = (
        ("/search", SearchBody, serving.search, "Search an index at a cut."),
        ("/embed", EmbedBody, serving.embed, "Return the vectors of texts at a cut."),
        (
            "/v1/embeddings",
            EmbeddingsBody,
            serving.embeddings,
            "Return vectors as OpenAI's API does.",
        ),
    )
    for path, kind, answer, summary in rows:
        app.add_api_route(
            path, _post(kind, answer), methods=["POST"], summary=summary,
            name=path.strip("/").replace("/", "_"), **of_body(kind),
        )  # fmt: skip


def _post(
    kind: type[Any], answer: Callable[[Any], Awaitable[Any]]
) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        body = read_body(kind, await request.body())
        request.scope["m2dr"] = body  # for the log
        return as_json(await answer(body))

    return route


def _add_gets(app: FastAPI, serving: Serving, state: State) -> None:
    """Add what is asked without a body."""

    async def models() -> Response:
        return as_json(await serving.models())

    async def openai_models() -> Response:
        return as_json(serving.openai_models())

    async def health() -> Response:
        return as_json({"status": "ok"})

    async def ready() -> Response:
        if state.stopping:
            raise HttpError(503, "The server is stopping.", kind="server_error")
        return as_json({"status": "ready", "problems": serving.problems})

    async def metrics() -> Response:
        documents = {name: index.documents for name, index in serving.indexes.items()}
        text = serving.meters.text(serving.batcher.waiting, documents)
        return Response(text, media_type=CONTENT_TYPE)

    rows: tuple[tuple[str, Callable[[], Awaitable[Response]], str], ...] = (
        ("/models", models, "The indexes, with the cuts that can be searched and their costs."),
        ("/v1/models", openai_models, "The models, as clients of OpenAI ask for them."),
        ("/health", health, "Whether the server runs."),
        ("/ready", ready, "Whether requests are answered; 503 while the server stops."),
        ("/metrics", metrics, "Counts and times, for Prometheus."),
    )
    for path, route, summary in rows:
        app.add_api_route(
            path,
            route,
            methods=["GET"],
            summary=summary,
            name=path.strip("/").replace("/", "_"),
            **of_get(path),
        )


def _add_page(app: FastAPI) -> None:
    """Add the page at / and its files, if they are there."""
    for name in ("page.html", "page.css", "page.js"):
        path = "/" if name == "page.html" else f"/{name}"
        app.add_api_route(
            path, _file(PAGE / name), methods=["GET"], include_in_schema=False, name=name
        )


def _file(path: Path) -> Callable[[], Awaitable[Response]]:
    async def route() -> Response:
        if not path.exists():
            raise HttpError(404, "This server has no page. Its API is described at /docs.")
        return Response(path.read_bytes(), media_type=_TYPES[path.suffix])

    return route


def as_json(table: Any, status: int = 200) -> Response:  # what JSON can hold
    """Return a table as a response."""
    data = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(data, status_code=status, media_type=_JSON)
