"""The Sphinx extension of this book: what the theme loads is made quiet, and pages get a version.

Read from a folder, with no network, the stock theme asks for fonts ahead of time in a way that
browsers refuse, and draws each icon twice, once from a font and once from 1.5 MB of script.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from inferlab import __version__

#: What is taken out of every page.
NOISE = re.compile(
    r'[ \t]*<link rel="preload"[^>]*>\n?'
    r'|[ \t]*<script src="[^"]*fontawesome[^"]*\.js[^"]*"></script>\n?'
    r"|<!--.*?-->\n?"
    r'|(?<=<div) role="list"(?= class="citation-list")',  # a list without items, to a screen reader
    re.DOTALL,
)


def name_the_version(app: Sphinx, config: Any) -> None:
    """Put the package's version into the footer of every page."""
    config.version = config.release = __version__
    options = config.html_theme_options
    address = options["repository_url"]
    options["extra_footer"] = (
        f'<p class="colophon">Computed and checked with <a href="{address}">inferlab</a> '
        f'<span class="version">{__version__}</span>. Code under Apache-2.0, text under '
        '<a rel="license" href="https://creativecommons.org/licenses/by/4.0/">CC BY 4.0</a>.</p>'
    )


def quieten(app: Sphinx, error: Exception | None) -> None:
    """Take the theme's noise out of the pages that were written."""
    if error or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        if "_static" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        quiet = NOISE.sub("", text)
        if quiet != text:
            page.write_text(quiet, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("config-inited", name_the_version)
    app.connect("build-finished", quieten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
