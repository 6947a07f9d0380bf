"""Run a server: its socket, its log, its end; uvicorn is imported here alone."""

import asyncio
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import return_free_memory
from m2dr.core.requests import LOOPBACK, ServeRequest
from m2dr.serve.app import make_app
from m2dr.serve.guard import LOG, State
from m2dr.serve.messages import sentence_of
from m2dr.serve.serving import Serving

Say = Callable[[str], None]

_BACKLOG = 2048  # connections that the system keeps until they are accepted
_LINGER = 1.0  # seconds in which requests that are on their way still arrive, at the end
_HEAD = 15  # seconds in which the head of a request arrives
_LAST = 30  # seconds that requests have to be answered in, at the end
_TRIM = 20.0  # seconds between two returns of free memory to the system


def serve(request: ServeRequest, say: Say, opened: Callable[[str], None] = lambda _: None) -> None:
    """Serve indexes until the process is told to stop.

    Args:
        request: what is served, and how.
        say: told the address, and what a person should know.
        opened: told the address when requests are answered.

    Raises:
        UserError: the port is taken, the token is not set, or an index cannot be opened.
    """
    if request.timeout <= 0:
        raise UserError(f"--timeout {request.timeout:g} was given. Give seconds above 0.")
    state = State(_token(request))
    if request.host in LOOPBACK and not state.token:
        state.hosts = frozenset(name.lower() for name in request.allow_hosts)
    with _listening(request) as listener:
        _log_as_json()
        serving = Serving(request)
        address = _address(request, listener)
        for name, index in serving.indexes.items():
            held = counted(index.documents, "documents", ",")
            say(f"{name}: {held}, {index.model} at {index.full}")
        if request.host not in LOOPBACK and not state.token:
            say(
                f"Warning: whoever reaches {address} can search without a token; set one with "
                "--token-env."
            )
        say(f"Serving at {address}")
        _run(serving, state, listener, lambda: opened(address))


def _token(request: ServeRequest) -> str:
    name = request.token_env
    if not name:
        return ""
    token = os.environ.get(name, "").strip()
    if not token:
        raise UserError(
            f"--token-env {name} was given, and that variable is not set. Set it to the token that "
            "requests must bring."
        )
    return token


@contextmanager
def _listening(request: ServeRequest) -> Any:  # an iterator of a socket
    """Bind the port before anything is loaded, so that a taken one is told at once."""
    family = socket.AF_INET6 if ":" in request.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((request.host, request.port))
        except OSError as error:
            other = command("serve", port=request.port + 1 if request.port < 65535 else 0)
            raise UserError(
                f"{request.host}:{request.port} cannot be listened at: "
                f"{error.strerror or error}. Stop what uses it, or take another "
                f"port, as in: {other}"
            ) from None
        yield listener


def _address(request: ServeRequest, listener: socket.socket) -> str:
    host = f"[{request.host}]" if ":" in request.host else request.host
    return f"http://{host}:{listener.getsockname()[1]}"


def _run(
    serving: Serving, state: State, listener: socket.socket, opened: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        make_app(serving, state),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http=_Protocol,
        backlog=_BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_LAST,
    )
    stop = threading.Event()
    threads = [
        threading.Thread(target=_warm_up, args=(serving,), daemon=True),
        threading.Thread(target=_trim, args=(stop,), daemon=True),
    ]
    if serving.request.reload_seconds > 0:
        threads.append(threading.Thread(target=_watch, args=(serving, stop), daemon=True))
    server = _GracefulServer(config, state, opened)
    for thread in threads:
        thread.start()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn sends it once more at its end
            signal.signal(number, lambda *_: None)
    try:
        server.run(sockets=[listener])
    finally:
        stop.set()
        serving.batcher.stop()


class _GracefulServer(uvicorn.Server):
    """A server that answers, before it ends, whatever reached it."""

    def __init__(self, config: uvicorn.Config, state: State, opened: Callable[[], None]) -> None:
        super().__init__(config)
        self._state, self._opened = state, opened

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self.started:
            self._opened()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing new, answer what arrived, and only then close connections."""
        self._state.stopping = True
        arrived = list(_accepted(sockets or []))  # the system resets those that still wait
        for server in self.servers:
            server.close()
        for connection in arrived:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        end, quiet = time.monotonic() + _LAST, time.monotonic() + _LINGER
        while time.monotonic() < end and time.monotonic() < quiet:
            await asyncio.sleep(0.02)
            if self._state.running:
                quiet = time.monotonic() + _LINGER
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        return _Protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def _accepted(listeners: Sequence[socket.socket]) -> Iterator[socket.socket]:
    """Yield the connections that wait to be accepted."""
    for listener in listeners:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # none waits any more
                break
            connection.setblocking(False)
            yield connection


def _warm_up(serving: Serving) -> None:
    try:
        serving.warm_up()
    except (UserError, OSError) as error:  # the request that needs it is told
        LOG.warning("warm-up", extra={"fields": {"problem": sentence_of(error)}})


def _trim(stop: threading.Event) -> None:
    """Return free memory now and again, as batches are of ever other shapes."""
    while not stop.wait(_TRIM):
        return_free_memory()


def _watch(serving: Serving, stop: threading.Event) -> None:
    """Take over indexes whose files have changed and have been the same for one more look."""
    seen = {name: index.signature for name, index in serving.indexes.items()}
    told: dict[str, str] = {}
    while not stop.wait(serving.request.reload_seconds):
        for name, index in list(serving.indexes.items()):
            now = index.source.signature()
            settled, seen[name] = now == seen[name], now
            if not settled or (now == index.signature and name not in serving.problems):
                continue
            if serving.take_over(name):
                told.pop(name, None)
                serving.meters.taken_over()
                documents = serving.indexes[name].documents
                LOG.info("takeover", extra={"fields": {"index": name, "documents": documents}})
                continue
            problem = serving.problems.get(name, "")  # empty again where the files are back
            if told.get(name, "") != problem:
                told[name] = problem
                level = logging.WARNING if problem else logging.INFO
                LOG.log(level, "takeover", extra={"fields": {"index": name, "problem": problem}})


class _Protocol(H11Protocol):
    """The protocol of a connection, which is closed if the head of a request takes too long."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take bytes, and wait on until they make a head."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_HEAD, self._end)

    def _end(self) -> None:
        self._timer = None
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()


class _Json(logging.Formatter):
    """A line of JSON per event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        now = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        table: dict[str, Any] = {
            "time": now, "level": record.levelname.lower(), "event": record.getMessage()[:500],
            **getattr(record, "fields", {}),
        }  # fmt: skip
        if record.exc_info:
            table["traceback"] = self.formatException(record.exc_info)
        return json.dumps(table)


def _log_as_json() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Json())
    for name in ("m2dr.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "m2dr.serve" else logging.WARNING)
