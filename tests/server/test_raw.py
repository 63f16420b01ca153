"""Clients that break HTTP, stop in the middle, or take their time: none holds the server."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from inferlab.server import run
from inferlab.server.app import Settings

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
GOOD = b'{"prompt": "hello"}'


@pytest.fixture
def quick(make_fake, monkeypatch):
    """A server of little patience."""
    monkeypatch.setattr(run, "HEADER_SECONDS", 0.4)
    monkeypatch.setattr(run, "STALL_SECONDS", 0.4)
    return make_fake(Settings(hosts={"localhost", "127.0.0.1"}, body_seconds=0.4, max_body=99_999))


def talk(port: int, *pieces: bytes, pause: float = 0.0, seconds: float = 5.0) -> bytes:
    """Send pieces, and return all that comes until the server hangs up."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as client:
        with contextlib.suppress(ConnectionError):  # it hung up while we spoke
            for piece in pieces:
                client.sendall(piece)
                time.sleep(pause)
        with contextlib.suppress(ConnectionError):
            while data := client.recv(65536):
                answer += data
    return answer


def status(answer: bytes) -> int | None:
    """The status of an answer, None if the server hung up without a word."""
    return int(answer.split(b" ", 2)[1]) if answer else None


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (b"\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 421),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nBad header\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n", 400),
        (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n", 400),
        (HEAD + b"Content-Length: -5\r\n\r\n", 400),
        (HEAD + b"Content-Length: ten\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", 413),
        (HEAD + b"Content-Length: 10\r\n\r\n{", 408),
        (HEAD + b"Content-Length: 4\r\n\r\n" + GOOD, 400),
        (HEAD + b"\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", 408),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHo", None),
        (b"", None),
    ],
)
def test_what_is_no_request_is_refused_or_hung_up_on(quick, sent, wanted):
    answer = talk(quick.port, sent)
    assert status(answer) == wanted, answer[:200]
    assert quick.ask(prompt="hello").json()["choices"][0]["text"] == "HELLO"
    assert quick.engine.blocks.used == 0


def test_headers_that_drip_are_not_waited_for(quick):
    began = time.monotonic()
    assert talk(quick.port, *[bytes([b]) for b in HEAD * 3], pause=0.02) == b""
    assert time.monotonic() - began < 2


def test_a_body_that_drips_is_not_waited_for(quick):
    answer = talk(quick.port, HEAD + b"Content-Length: 100\r\n\r\n", *[b" "] * 50, pause=0.02)
    assert status(answer) == 408
    assert b"the body did not come within 0.4 s" in answer


def test_a_body_cut_off_by_its_client(quick):
    with socket.create_connection(("127.0.0.1", quick.port)) as client:
        client.sendall(HEAD + b"Content-Length: 100\r\n\r\n" + GOOD)
    assert quick.ask(prompt="hello").status_code == 200


def test_a_connection_serves_many_requests(quick):
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    assert talk(quick.port, request * 3).count(b'"text":"HELLO"') == 3
    last = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    assert talk(quick.port, request, last, pause=0.1).count(b'"text":"HELLO"') == 2


def test_a_client_that_waits_to_be_asked_for_its_body(quick):
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(GOOD)
    answer = talk(quick.port, head, GOOD, pause=0.1)
    assert answer.startswith(b"HTTP/1.1 100")
    assert b'"text":"HELLO"' in answer
    big = HEAD + b"Expect: 100-continue\r\nContent-Length: 999999\r\n\r\n"
    assert status(talk(quick.port, big)) == 413


def test_a_client_that_never_reads_is_hung_up_on(quick):
    body = b'{"prompt": "%s", "stream": true, "trace": true, "max_tokens": 300}' % (b"a" * 200)
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.connect(("127.0.0.1", quick.port))
        for connection in [*quick.server.server_state.connections]:
            connection.transport.close()
        client.sendall(request * 400)  # their answers are megabytes
        quick.until(lambda: quick.server.server_state.connections)
        quick.until(lambda: not quick.server.server_state.connections, 30)
    quick.until(lambda: not quick.engine.blocks.used)
    assert quick.ask(prompt="hello").status_code == 200
