"""Animations and explorers: one JavaScript module each, embedded as self-contained HTML.

`show("calculator", data, alt="…")` joins the module, what it imports from `lib/`, the palette and
the data into one output that needs no network, no kernel and no package. A module exports
`render({ model, el })`: `model.get("field")` reads `data`, `el` is an empty element to fill. The
element stands in a shadow tree, so that neither styles nor ids clash with the page or with other
explorers on it. The same name and data give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from inferlab.errors import unknown
from inferlab.figures import style

HERE = Path(__file__).parent
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([^"]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)


class Explorer:
    """An explorer as a cell's output: HTML for a browser, its description for everything else."""

    def __init__(self, html: str, alt: str) -> None:
        self.html, self.alt = html, alt

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.alt


def names() -> tuple[str, ...]:
    """Return the names that `show` knows."""
    return tuple(sorted(path.stem for path in HERE.glob("*.js")))


def script(name: str) -> str:
    """Return module `name` (such as "calculator" or "lib/dom") and its imports as one expression.

    Its value is an object of the module's exports. Each module keeps a scope of its own, and
    nothing is fetched when it runs.
    """
    modules: dict[str, str] = {}

    def visit(path: Path) -> str:
        stem = path.relative_to(HERE).with_suffix("").as_posix()
        key = "_" + re.sub(r"\W", "_", stem)
        if key not in modules:
            text = path.read_text(encoding="utf-8")

            def bind(match: re.Match[str]) -> str:
                names, target = match.groups()
                source = visit((path.parent / f"{target}.js").resolve())
                return f"const {{{names.replace(' as ', ': ')}}} = {source};\n"

            text = _IMPORT.sub(bind, text)
            exports = ", ".join(_EXPORT.findall(text))
            body = _EXPORT.sub("", text)
            modules[key] = f"const {key} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n"
        return key

    last = visit((HERE / f"{name}.js").resolve())
    return f"(() => {{\n{''.join(modules.values())}return {last};\n}})()"


def show(name: str, data: Mapping[str, Any], *, alt: str, still: str | None = None) -> Explorer:
    """Return explorer `name` over `data` as a cell's output.

    `data` is anything that JSON can say. `alt` describes the explorer in a sentence or two. `still`
    is an SVG for paper, for browsers without JavaScript and for notebook viewers; without one they
    see `alt`. Raises `InferlabError` for a name that is not in `names()`.
    """
    return Explorer(html(name, data, alt=alt, still=still), alt)


def html(name: str, data: Mapping[str, Any], *, alt: str, still: str | None = None) -> str:
    """Return what `show` shows as an HTML fragment, for pages that are generated."""
    if name not in names():
        raise unknown("explorer", name, names())
    payload = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    payload = payload.replace("<", "\\u003c")  # nothing in it may close the script
    key = f"{name}-{hashlib.sha256(payload.encode()).hexdigest()[:10]}"
    fallback = still or f"<p>{escape(alt)}</p>"
    css = (HERE / "lib" / "base.css").read_text(encoding="utf-8")
    mount = (HERE / "lib" / "mount.js").read_text(encoding="utf-8")
    code = f"const explorer = {script(name)};\nconst css = {json.dumps(css)};\n{mount}"
    code = code.replace("</", "<\\/")
    return (
        f'<div class="inferlab-explorer" role="group" aria-label="{escape(alt)}" '
        f'data-explorer="{key}" style="margin:1.5rem 0">'
        f"{style.variables('.inferlab-explorer')}{fallback}"
        f'<script type="application/json">{payload}</script></div>'
        f'<script type="module">\nconst key = "{key}";\n{code}</script>'
    )
