"""From an app to a port: uvicorn, with the patience for clients that it does not limit itself."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from inferlab.errors import InferlabError
from inferlab.server.worker import Worker

HEADER_SECONDS = 15
"""How long a connection may stand without a complete request on it."""
STALL_SECONDS = 60
"""How long a client may leave what it was sent unread."""
GRACE_SECONDS = 5
"""How long connections may take to end when the server does."""


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which hangs up on clients that never finish to ask, or never listen.

    uvicorn starts its keep-alive timer after a response, and stops it at the next byte. Here it
    runs from the beginning, and a request stops it.
    """

    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        """Take bytes; a request that they complete stops the clock in `handle_events`."""
        self.conn.receive_data(data)
        self.handle_events()

    def pause_writing(self) -> None:
        """Wait for a client that does not read, but not for ever."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: it reads."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the clocks too."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._stalled is not None:
            self._stalled.cancel()


class Server(uvicorn.Server):
    """Says when it listens, and lets streams end when it is told to end (`should_exit`)."""

    def __init__(
        self, app: FastAPI, worker: Worker, ready: Callable[[], None] = lambda: None
    ) -> None:
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        super().__init__(
            uvicorn.Config(
                app,
                http=PatientProtocol,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_level="error",
                access_log=False,
                server_header=False,
                timeout_keep_alive=HEADER_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._worker, self._ready = worker, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what runs, with an error; then all connections."""
        await asyncio.to_thread(self._worker.stop)
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that holds an address, and does not listen yet. Raises InferlabError."""
    if not 0 <= port <= 65535:
        raise InferlabError(f"port must be from 0 (any free one) to 65535, not {port}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        held = socket.socket(family, kind)
        if sys.platform != "win32":  # there it would let two servers share a port
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(address)
    except socket.gaierror:
        raise InferlabError(f"host {host!r} is not known: try 127.0.0.1") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InferlabError(
                f"port {port} of {host} is taken: give another --port, or 0 for any free one"
            ) from None
        raise InferlabError(f"host {host}, port {port}: {error.strerror}") from None
    return held


def is_loopback(held: socket.socket) -> bool:
    """Whether only this machine can reach a socket's address."""
    return ipaddress.ip_address(held.getsockname()[0]).is_loopback


def url(held: socket.socket) -> str:
    """Return the address of a bound socket, as a browser takes it."""
    host, port = held.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a log record is no request that the end of the server cut off."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
