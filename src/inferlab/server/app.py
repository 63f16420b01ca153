"""The routes: OpenAI's protocol, and what one wants to know of a server."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from inferlab.engine import trace
from inferlab.errors import InferlabError, unknown
from inferlab.server import page
from inferlab.server.protocol import ApiError, Asked, AskedChat, AskedText, parse
from inferlab.server.replies import ChatReply, Reply, TextReply, dumps, event
from inferlab.server.worker import Call, Worker


@dataclass(frozen=True)
class Settings:
    """What a server allows. A limit that a request passes is named in its error."""

    api_key: str | None = None
    """If set, everything but the page and `/health` needs it as a bearer token."""
    hosts: Collection[str] | None = None
    """Names by which browsers may call this server; None for any. A page from elsewhere can make a
    browser send requests to this machine, but not under these names (DNS rebinding)."""
    max_tokens: int | None = None
    """The most tokens of an answer; None for the model's context."""
    max_body: int = 1 << 20
    """Bytes of a request's body."""
    body_seconds: float = 30.0
    """How long a client may take to send it."""
    seconds: float = 600.0
    """How long a request may take in all, its wait in the queue included."""
    bandwidth: float | None = None
    """What this machine reads, in bytes/s: the account of a request compares with it."""


class Guard:
    """Refuses, before anything else is done, requests with a wrong host, origin or key."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        try:
            if scope["type"] == "http":
                self._check(Request(scope))
        except ApiError as error:
            await _refusal(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, request: Request) -> None:
        hosts, key = self._settings.hosts, self._settings.api_key
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if hosts is not None:
            if _name(host) not in hosts:
                raise ApiError(421, f"host {host!r} is not this server: use {min(hosts)}")
            if origin is not None and origin.partition("://")[2] != host:
                raise ApiError(403, f"pages of {origin!r} may not call this server")
        path = request.url.path
        if key is not None and path not in ("/", "/health") and not path.startswith("/page/"):
            sent = request.headers.get("authorization", "")
            if not hmac.compare_digest(sent.encode("latin-1"), f"Bearer {key}".encode()):
                text = "the API key is missing or wrong: send it as Authorization: Bearer ..."
                raise ApiError(401, text, code="invalid_api_key")


def create(worker: Worker, settings: Settings) -> FastAPI:
    """Return the app before a worker that runs, or will."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, settings=settings)
    llm, started = worker.engine.llm, int(time.time())
    limit = llm.model.config.max_context
    most_tokens = limit if settings.max_tokens is None else min(settings.max_tokens, limit)
    card = {"id": llm.name, "object": "model", "created": started, "owned_by": "inferlab"}

    def failed(request: Request, error: Exception) -> Response:
        match error:
            case ApiError():
                known = error
            case ClientDisconnect():
                known = ApiError(499, "the client has gone")
            case HTTPException():
                known = ApiError(error.status_code, error.detail)
            case _:
                known = ApiError(500, "the server failed", code="server_error")
        worker.metrics.rejected.labels(known.status).inc()
        return _refusal(known)

    for kind in (ApiError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, failed)

    async def answer(http: Request, kind: type[Asked], form: type[Reply]) -> Response:
        arrived = time.perf_counter()
        asked = parse(kind, await _body(http, settings))
        if asked.model not in (None, llm.name):
            message = str(unknown("model", str(asked.model), [llm.name]))
            raise ApiError(404, message, param="model", code="model_not_found")
        params = asked.params(most_tokens)
        try:
            prompts = await run_in_threadpool(asked.prompts, llm)
            call = Call(
                prompts, params, arrived=arrived, seconds=settings.seconds, traced=bool(asked.trace)
            )
            worker.submit(call)
            try:
                await call.accepted()
            except BaseException:
                worker.cancel(call)
                raise
        except InferlabError as error:
            raise ApiError(400, str(error), param=asked.subject) from None
        watch = asyncio.create_task(_cancel_when_gone(http, worker, call))
        reply = form(asked, llm, settings.bandwidth)

        async def stream() -> AsyncIterator[bytes]:
            try:
                async for chunk in reply.stream(call):
                    yield chunk
            except ApiError as error:
                yield event(error.body())
            finally:
                watch.cancel()
                worker.cancel(call)

        if asked.stream:
            return StreamingResponse(
                stream(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
            )
        try:
            async for _ in call:
                pass
            return _json(reply.whole(call))
        finally:
            watch.cancel()
            worker.cancel(call)

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        return await answer(http, AskedText, TextReply)

    @app.post("/v1/chat/completions")
    async def chat(http: Request) -> Response:
        return await answer(http, AskedChat, ChatReply)

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [card]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != llm.name:
            raise ApiError(404, str(unknown("model", name, [llm.name])), code="model_not_found")
        return _json(card)

    @app.get("/v1/trace")
    def traces(http: Request) -> Response:
        form = http.query_params.get("format", "json")
        if form not in ("json", "chrome"):
            raise ApiError(400, str(unknown("format", form, ("json", "chrome"))), param="format")
        last = list(worker.history)
        if form == "chrome":
            return _json(trace.chrome(last))
        return _json({"object": "list", "data": trace.as_dicts(last)})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(worker.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/health")
    async def health() -> Response:
        if worker.dead:
            return _json({"status": "dead", "reason": worker.dead}, 503)
        return _json({"status": "ok"})

    page.mount(app)
    return app


async def _body(http: Request, settings: Settings) -> bytes:
    """Read a body that is not too long and does not take too long."""
    too_long = ApiError(413, f"the body has more than {settings.max_body} bytes")
    if int(http.headers.get("content-length", 0)) > settings.max_body:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for piece in http.stream():
                body += piece
                if len(body) > settings.max_body:
                    raise too_long
    except TimeoutError:
        message = f"the body did not come within {settings.body_seconds:g} s"
        raise ApiError(408, message) from None
    return bytes(body)


async def _cancel_when_gone(http: Request, worker: Worker, call: Call) -> None:
    """Wait until the client hangs up, and let its call end."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    worker.cancel(call)


def _refusal(error: ApiError) -> Response:
    return _json(error.body(), error.status, error.headers)


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumps(value), status, headers, "application/json")


def _name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() else host).lower()
