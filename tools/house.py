"""The Sphinx extension of this book: quiet pages, chapters with numbers, a version in the footer.

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
    r'|(?<=<div) role="list"(?= class="citation-list")',  # a list without items, to a screen reader
    re.DOTALL,
)


#: A chapter in the sidebar; the page itself stands there as "#".
ENTRY = re.compile(r'(<li class="toctree-l1[^>]*><a class="[^"]*" href="([^"]*)">)')


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


def number_the_chapters(text: str, page: Path) -> str:
    """Return `text` with the number of each chapter's file before its title in the sidebar."""

    def numbered(match: re.Match[str]) -> str:
        name = page.name if match[2] == "#" else match[2].rpartition("/")[2]
        number = re.match(r"\d\d(?=-)", name)
        return f'{match[1]}<span class="number">{number[0]}</span>' if number else match[1]

    return ENTRY.sub(numbered, text)


def finish(app: Sphinx, error: Exception | None) -> None:
    """Take the theme's noise out of the pages that were written, and number the chapters."""
    if error or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        if "_static" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        if '<span class="number">' in text:
            continue  # finished in an earlier build
        page.write_text(number_the_chapters(NOISE.sub("", text), page), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("config-inited", name_the_version)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
