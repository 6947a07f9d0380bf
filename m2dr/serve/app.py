"""The routes of a server, whose models are its description, and how it runs."""

import asyncio
import hmac
import json
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import Field as DataclassField
from dataclasses import fields
from math import isinf
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from m2dr.core import VERSION
from m2dr.core.errors import UserError, sentence_of
from m2dr.core.option import Option, option_of
from m2dr.core.progress import say
from m2dr.core.records import Side
from m2dr.core.report import Report
from m2dr.core.requests import LOOPBACK, Ask, Blend, ServeRequest
from m2dr.serve.service import Meters, Refused, Service, Table, now

LOG = logging.getLogger("m2dr.serve")
PAGE = Path(__file__).parent / "page"
_LAST = 30  # seconds that requests have to be answered in, at the end

Text = Annotated[str, Field(max_length=32_768)]
Texts = Annotated[  # fail_fast, as an error for each item would take a second
    list[Text], Field(min_length=1, max_length=256, fail_fast=True)
]
Inputs = Annotated[list[str], Field(min_length=1, max_length=2048, fail_fast=True)]
Layer = Annotated[int, Field(ge=0, description="Layer of the texts. Default: the last.")]
Dim = Annotated[int, Field(ge=1, description="Dims. Default: the most.")]


def _search_field(each: DataclassField[Any], hint: Any) -> tuple[Any, Any]:
    """Return a field of `Ask` as pydantic reads it; null or absent is not given."""
    row, kind = option_of(each) or Option(), next(iter(get_args(hint)), hint)
    bounds: dict[str, Any] = {"ge": None if isinf(row.least) else row.least}
    bounds["le"] = 1000 if each.name == "k" else row.most
    told = row.help
    if row.bare is not None:
        kind, told = bool | float, f"{told} True is {row.bare}."
    elif kind is float:
        bounds["allow_inf_nan"] = False
    form = {str: Text, bool: bool}.get(kind, Annotated[kind, Field(**bounds)])
    return form | None, Field(None, description=told)


_HINTS = get_type_hints(Ask)
# Documents of a server are of one layer for each layer of the queries.
SEARCH_FIELDS = {each.name: _search_field(each, _HINTS[each.name]) for each in fields(Ask)
         if each.name != "document_layer"}  # fmt: skip
_SearchFields = create_model("_SearchFields", **SEARCH_FIELDS)  # type: ignore[call-overload]  # fields by name
_USED = {each.name: (float, Field(description=(option_of(each) or Option()).help))
         for each in fields(Blend)}  # fmt: skip
_Used = create_model("_Used", **_USED)  # type: ignore[call-overload]  # likewise


class SearchBody(_SearchFields):  # type: ignore[valid-type,misc]  # made above
    """A search: one query, or several."""

    model_config = ConfigDict(strict=True, extra="forbid")

    query: Text | None = None
    queries: Texts | None = None
    index: str | None = Field(None, description="Name of an index. Default: the first.")
    compare: bool | None = Field(None, description="Answer by the full model too.")


class EmbeddingsBody(BaseModel):
    """A request as OpenAI's `/v1/embeddings` takes it, with a layer and a side."""

    model_config = ConfigDict(strict=True, extra="forbid")

    input: str | Inputs = Field(
        description="A text, or several. Long ones are cut; token ids are refused."
    )
    model: str | None = Field(
        None,
        description="Name of an index or of its model, as `GET /models` has them. Default: the "
        "first.",
    )
    dimensions: Dim | Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}$")] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    layer: Layer | None = None
    side: Side | None = Field(None, description="Default: document.")
    user: Any = Field(None, description="Is not read.")


class HitAnswer(BaseModel):
    """A document of a ranking."""

    rank: int
    docid: str
    score: float
    title: str
    text: str
    fields: dict[str, Any]
    vector_score: float | None = Field(None, description="Of a hybrid; null beyond 1,000 hits.")
    bm25_score: float | None = Field(None, description="Of a hybrid.")
    explain: dict[str, float] | None = Field(
        None, description="Share of the score per query word; in parentheses: of no word."
    )


class RankingAnswer(BaseModel):
    """The ranking of a query, and that of the full model where both are compared."""

    query: str
    hits: list[HitAnswer]
    full: list[HitAnswer] | None = None
    overlap: float | None = None


class Times(BaseModel):
    """Milliseconds of the steps of a search."""

    tokenise_ms: float
    encode_ms: float
    search_ms: float


class SearchAnswer(_Used):  # type: ignore[valid-type,misc]  # made above
    """What was searched, and what was found."""

    index: str
    cut: str
    layer: int
    dim: int
    results: list[RankingAnswer]
    times: Times
    full_times: Times | None = None
    problem: str | None = None
    warning: str | None = Field(None, description="Why a cut may be worse than the model allows.")


class Embedding(BaseModel):
    """A vector, as numbers or as base64 of little-endian float32."""

    object: str
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """Vectors as OpenAI's API returns them."""

    object: str
    data: list[Embedding]
    model: str
    usage: Usage
    warning: str | None = None


class CostAnswer(BaseModel):
    """What a cut costs."""

    cut: str
    layer: int
    dim: int
    multiply_adds: int
    bytes_per_document: int


class Cell(BaseModel):
    """The measure of a cut."""

    layer: int
    dim: int
    value: float


class GridAnswer(BaseModel):
    """A measure of every cut."""

    measure: str
    split: str
    queries: int
    cells: list[Cell]


class IndexAnswer(_Used):  # type: ignore[valid-type,misc]  # made above
    """An index, with the cuts that can be searched and their costs."""

    name: str
    corpus: str
    model: str
    documents: int
    layers: list[int]
    dims: list[int]
    full: str
    similarity: str
    fields: list[str]
    examples: list[str]
    costs: list[CostAnswer]
    grid: GridAnswer | None


class ModelsAnswer(BaseModel):
    """The indexes of a server."""

    indexes: list[IndexAnswer]


class Problem(BaseModel):
    """What is wrong with a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """An error, in the form of OpenAI's."""

    error: Problem


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 404, 405, 413, 422, 429, 503, 504)
}


def make_app(service: Service, request: ServeRequest, token: str = "") -> FastAPI:
    """Return the application of a server."""
    bearer = HTTPBearer(auto_error=False)

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        if not given or not hmac.compare_digest(given.credentials.encode(), token.encode()):
            told = "Give the token of this server: Authorization: Bearer TOKEN."
            raise HTTPException(401, told, {"www-authenticate": "Bearer"})

    app = FastAPI(
        title="m2dr serve", version=VERSION, responses=_ERRORS, docs_url=None, redoc_url=None,
        redirect_slashes=False,
        description="Search an index at any layer and dim, and embed texts.",
    )  # fmt: skip
    guarded: Any = {"dependencies": [Depends(check)] if token else []}
    answered: Any = guarded | {"response_model_exclude_unset": True}

    @app.post("/search", response_model=SearchAnswer, **answered)
    async def search(body: SearchBody) -> Table:
        """Search an index at a cut."""
        if (body.query is None) == (body.queries is None):
            raise Refused(422, "Give `query`, a text, or `queries`, a list of texts.", "query")
        queries = body.queries or [body.query or ""]
        given = {name: getattr(body, name) for name in SEARCH_FIELDS}
        asked = {name: value for name, value in given.items() if value is not None}
        return await service.search(queries, asked, body.index, bool(body.compare))

    @app.post("/v1/embeddings", response_model=EmbeddingsAnswer, **answered)
    async def embeddings(body: EmbeddingsBody) -> Table:
        """Return vectors as OpenAI's API does."""
        return await service.embeddings(
            [body.input] if isinstance(body.input, str) else body.input, body.model,
            body.side or "document", body.layer, int(body.dimensions) if body.dimensions else None,
            body.encoding_format == "base64",
        )  # fmt: skip

    @app.get("/models", response_model=ModelsAnswer, **answered)
    async def models() -> Table:
        """Return the indexes, with the cuts that can be searched and their costs."""
        return await service.models()

    @app.get("/v1/models", **guarded)
    async def openai_models() -> Table:
        """Return the models, as clients of OpenAI ask for them."""
        return service.openai_models()

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Return whether the server runs."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response, **guarded)
    async def metrics() -> Response:
        """Return counts and times, for Prometheus."""
        text = service.meters.text(service.batcher.waiting)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    for path, file in (("/", "index.html"), ("/page.css", "page.css"), ("/page.js", "page.js")):
        app.add_api_route(path, _page(PAGE / file), include_in_schema=False)
    for kind in (
        Refused,
        RequestValidationError,
        HTTPException,
        UserError,
        OSError,
        ModuleNotFoundError,
        Exception,
    ):
        app.add_exception_handler(kind, _refused)
    hosts = ["*"]
    if request.host in LOOPBACK and not token:
        # Else a page of the web could point its own name at this machine and read what is here.
        hosts = ["localhost", "*.localhost", "127.0.0.1", "[::1]", "::1", *request.allow_hosts]
    app.add_middleware(_Limits, request=request, meters=service.meters, hosts=hosts)
    return app


def _page(file: Path) -> Callable[[], FileResponse]:
    return lambda: FileResponse(file)


async def _refused(_: Request, error: Exception) -> Response:
    """Return any error in the form of OpenAI's."""
    status, message, param, headers = 500, "The server failed; its log says why.", None, None
    if isinstance(error, Refused):
        status, message, param = error.status, error.message, error.param
    elif isinstance(error, RequestValidationError):
        # Of a text or a list of texts, the deepest error is that of the kind which was given.
        first = max(error.errors(), key=lambda e: (len(e["loc"]), e["type"] != "string_type"))
        named = [part for part in first["loc"][1:] if part == first["loc"][1] or part != str(part)]
        param = ".".join(str(part)[:40] for part in named) or None
        status = 400 if first["type"] == "json_invalid" else 422
        message = _sentence(first["type"], param or "", first["msg"])
    elif isinstance(error, HTTPException):
        status, message, headers = error.status_code, str(error.detail), error.headers
    elif isinstance(error, ModuleNotFoundError):
        status, message = 422, sentence_of(error)
    elif isinstance(error, UserError | OSError):
        status, message = 503, str(error)
    return _error(status, message, param, headers)


def _sentence(kind: str, param: str, message: str) -> str:
    """Return what is wrong with a body, from the kind of pydantic's error and its message.

    >>> _sentence("int_type", "k", "Input should be a valid integer")
    'k should be a valid integer.'
    """
    if kind == "json_invalid":
        return "The body is not JSON."
    if not param:
        return "Send a JSON object as application/json."
    if kind == "string_type" and param.startswith("input."):
        return f"{param} should be a text; token ids are not taken."
    told = {"missing": f"{param} is missing.", "extra_forbidden": f"There is no field {param}."}
    return told.get(kind) or f"{message.replace('Input', param).replace('List', param)}."


def _error(
    status: int, message: str, param: str | None = None, headers: Any = None
) -> JSONResponse:
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    message = message.encode("utf-8", "replace").decode()
    told = ErrorAnswer(error=Problem(message=message, type=kind, param=param, code=None))
    headers = {"retry-after": "1"} if status == 429 else headers
    return JSONResponse(told.model_dump(), status, headers)


class _Connection(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # h11's, or httptools'
    """A connection that is closed when the headers of a request have not come in time."""

    seconds = 30.0
    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._await_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_headers()

    def _await_headers(self) -> None:
        if self._closing:
            self._closing.cancel()
        self._closing = self.loop.call_later(self.seconds, self._close, self.cycle)

    def _close(self, before: Any) -> None:
        if self.cycle is before and (before is None or before.response_complete):
            self.transport.close()


async def _host_is_known(*_: object) -> None:
    """Do nothing, where the check of the Host would call a server."""


async def _refuse_host(_: Message) -> None:
    raise Refused(400, "The Host asked for is no name of this server; --allow-host NAME adds one.")


class _Limits:
    """Limits the bytes and the seconds of a request, counts it and writes it to the log.

    A request for the headers alone (HEAD) is that for all, of which the connection sends these; a
    slash at the end of a path is none.
    """

    def __init__(
        self, app: ASGIApp, request: ServeRequest, meters: Meters, hosts: Sequence[str]
    ) -> None:
        self.app, self.most, self.seconds, self.meters = (
            app, request.max_body, request.timeout, meters
        )  # fmt: skip
        self.check_host = TrustedHostMiddleware(_host_is_known, hosts, www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, size, method = time.perf_counter(), 500, 0, scope["method"]
        path = scope["path"].rstrip("/") or "/"
        scope = {**scope, "method": "GET" if method == "HEAD" else method, "path": path}

        async def read() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.most:
                raise HTTPException(413, f"A request may have {self.most} bytes.")
            return message

        async def write(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            async with asyncio.timeout(self.seconds):
                await self.check_host(scope, receive, _refuse_host)
                await self.app(scope, read, write)
        except TimeoutError:
            told = f"The answer took more than {self.seconds:g} s."
            await _error(504, told)(scope, receive, write)
        except Refused as error:
            await _error(error.status, error.message)(scope, receive, write)
        finally:
            spent = time.perf_counter() - begun
            route = scope.get("route")
            path = getattr(route, "path", "") or "/"  # not that of any request, which are endless
            self.meters.requests.labels(path, str(status)).inc()
            self.meters.seconds.labels(path).observe(spent)
            event = {
                "time": now(), "event": "request", "method": method, "path": scope["path"][:200],
                "status": status, "ms": round(1000 * spent, 2),
            }  # fmt: skip
            LOG.info(json.dumps(event))


def serve(request: ServeRequest) -> Report:
    """Serve indexes until the process is told to stop; then answer what has arrived.

    Raises:
        UserError: the port is taken, the token is not set, or an index cannot be opened.
    """
    token = os.environ.get(request.token_env, "").strip() if request.token_env else ""
    if request.token_env and not token:
        raise UserError(f"--token-env {request.token_env}: that variable is not set.")
    family = socket.AF_INET6 if ":" in request.host else socket.AF_INET
    with socket.socket(family) as listener:  # before anything is loaded
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((request.host, request.port))
        except OSError as error:
            where = f"{request.host}:{request.port}"
            raise UserError(f"The server cannot listen at {where}: {error.strerror}.") from None
        warnings.simplefilter("ignore", UserWarning)  # of cuts opened beforehand
        service = Service(request)
        for name, index in service.indexes.items():
            say(f"{name}: {index.documents:,} documents, {index.model} at {index.full}")
        host = f"[{request.host}]" if ":" in request.host else request.host
        address = f"http://{host}:{listener.getsockname()[1]}"
        if request.host not in LOOPBACK and not token:
            say(f"Warning: whoever reaches {address} can search without a token (--token-env).")
        LOG.setLevel(logging.INFO)
        LOG.addHandler(logging.StreamHandler())
        LOG.propagate = False
        _Connection.seconds = request.timeout
        uvicorn.config.LOGGING_CONFIG["formatters"]["default"]["fmt"] = "%(asctime)s %(message)s"
        config = uvicorn.Config(
            make_app(service, request, token), log_level="warning", access_log=False,
            server_header=False, lifespan="off", ws="none", backlog=2048, timeout_keep_alive=30,
            timeout_graceful_shutdown=_LAST, http=_Connection,
        )  # fmt: skip
        server, ended = uvicorn.Server(config), threading.Event()
        warming = threading.Thread(target=service.warm_up, args=(ended.is_set,), daemon=True)
        warming.start()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn sends it again at its end
                signal.signal(number, lambda *_: None)
            if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # not under nohup
                signal.signal(signal.SIGHUP, server.handle_exit)
        say(f"Serving at {address}")
        try:
            server.run(sockets=[listener])
        finally:
            ended.set()
            service.batcher.stop()
            warming.join()  # a process that ends while torch runs in a thread is aborted
    return Report()
