"""Serve an index and open its page in the browser of this machine."""

import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlencode

from m2dr.core.records import Cut
from m2dr.core.requests import ServeRequest
from m2dr.serve.server import serve

Say = Callable[[str], None]


def serve_and_open(request: ServeRequest, query: str, cut: Cut, say: Say) -> None:
    """Serve until the process is told to stop, and open the page with a query at a cut.

    Where the port is taken, another one is. Where the machine shows no windows, the address is
    only told.

    Args:
        request: what is served.
        query: what the page searches first.
        cut: where it searches.
        say: told the address, and what a person should know.

    Raises:
        UserError: an index cannot be opened.
    """

    def opened(address: str) -> None:
        page = page_address(address, query, cut)
        say(f"Compare cuts at {page}")
        say("Ctrl-C ends the server.")
        if shows_windows():
            # A browser may take seconds to start, and the server answers meanwhile.
            threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()

    if _is_taken(request.host, request.port):
        request = replace(request, port=0)
    serve(request, say, opened)


def page_address(address: str, query: str, cut: Cut) -> str:
    """Return the address of the page that shows a query at a cut.

    >>> page_address("http://127.0.0.1:8080", "read a file", Cut(2, 128))
    'http://127.0.0.1:8080/#q=read+a+file&layer=2&dim=128'
    """
    return f"{address}/#{urlencode({'q': query, 'layer': cut.layer, 'dim': cut.dim})}"


def shows_windows() -> bool:
    """Return whether a browser with a window can be expected, not one in the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _is_taken(host: str, port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError:
            return True
    return False
