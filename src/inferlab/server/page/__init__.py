"""The page where you press Enter: a chat, and beside it the life of each request as it happens.

Hand-written HTML, CSS and JavaScript, sent as they stand. The page loads nothing from elsewhere,
and its content security policy says so. What it shares with the book's explorers (how numbers are
written, how events add up) is theirs, served under the same roof.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from fastapi import FastAPI, Response

from inferlab import explorers
from inferlab.errors import unknown

_HERE, _SHARED = Path(__file__).parent, explorers.HERE / "lib"
#: Everything that the page is made of, by the name it is asked for under /page/.
FILES = MappingProxyType(
    {
        "index.html": _HERE / "index.html",
        "page.css": _HERE / "page.css",
        "page.js": _HERE / "page.js",
        "life.js": _HERE / "life.js",
        "stream.js": _HERE / "stream.js",
        "dom.js": _SHARED / "dom.js",
        "fold.js": _SHARED / "fold.js",
        "format.js": _SHARED / "format.js",
    }
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
#: The page talks to the server it came from and to nobody else; nothing inline runs.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def response(name: str) -> Response:
    """Return one of `FILES` as an answer to a browser. Raises InferlabError for other names."""
    if name not in FILES:
        raise unknown("file", name, FILES)
    path = FILES[name]
    return Response(
        path.read_bytes(), media_type=f"{_TYPES[path.suffix]}; charset=utf-8", headers=_HEADERS
    )


def mount(app: FastAPI) -> None:
    """Give `app` the page at / and its parts at /page/NAME. They ask for no API key."""

    def add(route: str, name: str) -> None:
        app.add_api_route(route, lambda: response(name), include_in_schema=False)

    add("/", "index.html")
    for name in FILES:
        add(f"/page/{name}", name)
