"""What stands before every route: token, limits of bodies and time, errors, log and metrics."""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from m2dr.serve.messages import HttpError
from m2dr.serve.serving import Serving

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

OPEN = frozenset({"/", "/page.css", "/page.js", "/docs.css", "/health", "/ready"})  # need no token
KNOWN = OPEN | {"/search", "/embed", "/v1/embeddings", "/models", "/metrics", "/docs",
                "/openapi.json"}  # fmt: skip
WITH_BODY = frozenset({"/search", "/embed", "/v1/embeddings"})
LOG = logging.getLogger("m2dr.serve")
_DISCARDED = 16 * 2**20  # bytes of a body that are read although the request is refused
_DISCARD_SECONDS = 2.0
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
]


@dataclass
class State:
    """What all requests of a server share."""

    token: str = ""
    hosts: frozenset[str] | None = None  # names by which it may be asked; None for any
    stopping: bool = False
    running: int = 0  # requests that are being answered


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: App, serving: Serving, state: State) -> None:
        self.app, self.serving, self.state = app, serving, state

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, whatever comes."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer, inlet = _Answer(send, self.state), _Inlet(scope, receive)
        begun = time.perf_counter()
        self.state.running += 1
        try:
            await self._within_time(scope, inlet, answer)
        except HttpError as error:
            await inlet.discard()
            await answer.refuse(error, inlet.done)
        except ConnectionError:
            answer.status = answer.status or 499  # the client is gone
        except Exception:
            LOG.exception("failed", extra={"fields": {"path": scope["path"]}})
            told = "The server failed on this request; its log says why."
            await answer.refuse(HttpError(500, told, kind="server_error"))
        finally:
            self.state.running -= 1
            self._note(scope, answer, time.perf_counter() - begun)

    async def _within_time(
        self, scope: MutableMapping[str, Any], inlet: "_Inlet", answer: "_Answer"
    ) -> None:
        if inlet.two_lengths:
            told = "Content-Length and Transfer-Encoding exclude each other: send one of them."
            raise HttpError(400, told)
        self._check_host(scope)
        self._check_token(scope)
        limit = self.serving.request.timeout
        if scope["method"] == "HEAD":  # answered as GET, and uvicorn leaves the body out
            scope = {**scope, "method": "GET"}
        body = await self._body(scope, inlet, limit)
        try:
            async with asyncio.timeout(limit):
                await self.app(scope, _once(body, inlet), answer.send)
        except TimeoutError:
            raise HttpError(504, f"The answer took more than {limit:g} s.", kind="server_error") \
                from None  # fmt: skip

    def _check_host(self, scope: MutableMapping[str, Any]) -> None:
        """Refuse a request by a name that any page of the web may point at this machine."""
        allowed = self.state.hosts
        name = _host(scope)
        if allowed is None or name in allowed or not _is_public(name):
            return
        told = (
            f"This server listens on its own machine alone and was asked as {name[:80]!r}. Ask it "
            f"as localhost; for a proxy, start it with --allow-host {name[:80]} or --token-env."
        )
        raise HttpError(403, told)

    def _check_token(self, scope: MutableMapping[str, Any]) -> None:
        token = self.state.token
        if not token or scope["path"] in OPEN:
            return
        given = _header(scope, b"authorization").split(b" ", 1)
        if given[0].lower() != b"bearer" or len(given) < 2:
            raise _unauthorised("Give the token of this server: Authorization: Bearer TOKEN.")
        if not hmac.compare_digest(given[1].strip(), token.encode()):
            raise _unauthorised("The token is not that of this server.")

    async def _body(self, scope: MutableMapping[str, Any], inlet: "_Inlet", limit: float) -> bytes:
        """Read a body of a size and in a time that are allowed."""
        if scope["method"] != "POST" or scope["path"] not in WITH_BODY:
            await inlet.discard()
            return b""
        length = _header(scope, b"content-length")
        if length.isdigit() and int(length[:20]) > self.serving.request.max_body:
            raise self._too_large()
        kind = _header(scope, b"content-type").split(b";")[0].strip().lower()
        if kind != b"application/json":
            told = "Send JSON, with the header Content-Type: application/json."
            raise HttpError(415, told)
        try:
            async with asyncio.timeout(limit):
                return await self._read(inlet)
        except TimeoutError:
            told = f"The request did not arrive within {limit:g} s."
            inlet.given_up = True
            raise HttpError(408, told) from None

    async def _read(self, receive: Receive) -> bytes:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.serving.request.max_body:
                raise self._too_large()
            if not message.get("more_body"):
                return b"".join(parts)

    def _too_large(self) -> HttpError:
        told = f"The request has more than {self.serving.request.max_body} bytes."
        return HttpError(413, told)

    def _note(self, scope: MutableMapping[str, Any], answer: "_Answer", seconds: float) -> None:
        """Write the log and count."""
        path = scope["path"] if scope["path"] in KNOWN else "other"
        self.serving.meters.request(path, answer.status, seconds)
        fields: dict[str, Any] = {
            "method": scope["method"], "path": scope["path"][:200], "status": answer.status,
            "ms": round(1000 * seconds, 2),
        }  # fmt: skip
        body = scope.get("m2dr")
        for name in ("index", "model", "layer", "dim", "dimensions", "k", "side", "compare"):
            value = getattr(body, name, None)
            if value is not None:
                fields[name] = value[:80] if isinstance(value, str) else value
        if self.serving.request.log_queries:
            for name in ("query", "queries", "filter"):
                if getattr(body, name, None) is not None:
                    fields[name] = getattr(body, name)
        LOG.info("request", extra={"fields": fields})


class _Inlet:
    """The body of a request, of which it is known whether it has been read to its end.

    A connection that is closed before that is reset, and then a client may never see the answer.
    """

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self._receive = receive
        names = [name for name, _ in scope["headers"]]
        lengths = {b"content-length", b"transfer-encoding"} & set(names)
        self.done = not lengths
        # A proxy may have gone by the other one and take the rest for a request (RFC 9112, 6.1).
        self.two_lengths = len(lengths) > 1
        # With Expect, the client waits before it sends the body.
        self.given_up = b"expect" in names or self.two_lengths

    async def __call__(self) -> Message:
        """Return the next part."""
        message = await self._receive()
        self.done = self.done or not message.get("more_body")
        return message

    async def discard(self) -> None:
        """Read what is left, if that is neither long nor slow."""
        left = _DISCARDED
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self.done and not self.given_up and left > 0:
                    left -= len((await self()).get("body", b""))
        except TimeoutError:
            return


class _Answer:
    """Sends an answer, and remembers its status."""

    def __init__(self, send: Send, state: State) -> None:
        self._send, self._state = send, state
        self.status = 0

    async def send(self, message: Message) -> None:
        """Send a part of an answer, with the headers that all have."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            closing = [(b"connection", b"close")] if self._state.stopping else []
            message["headers"] = [*message.get("headers", []), *_HEADERS, *closing]
        await self._send(message)

    async def refuse(self, error: HttpError, whole: bool = True) -> None:
        """Send an error, unless an answer has begun.

        Args:
            error: what is told.
            whole: whether the request was read to its end; else the connection is closed.
        """
        if self.status:
            return
        headers = [] if whole else [(b"connection", b"close")]
        data = json.dumps(error.body()).encode()
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
            *((name.encode(), value.encode()) for name, value in error.headers.items()),
        ]
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": data})


def _once(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read, and then what comes after it."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_part() -> Message:
        return parts.pop() if parts else await receive()

    return next_part


def _header(scope: MutableMapping[str, Any], name: bytes) -> bytes:
    found: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return found


def _host(scope: MutableMapping[str, Any]) -> str:
    """Return the name or address in the header Host, without its port."""
    given = _header(scope, b"host").decode("latin-1").strip().lower()
    name = given if given.endswith("]") else given.rpartition(":")[0] or given
    return name.rstrip(".")


def _is_public(name: str) -> bool:
    """Whether a name can be one of the public DNS: no address, of several parts, not localhost."""
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return "." in name and not name.endswith(".localhost")
    return False


def _unauthorised(message: str) -> HttpError:
    return HttpError(
        401, message, kind="authentication_error", headers={"www-authenticate": "Bearer"}
    )
