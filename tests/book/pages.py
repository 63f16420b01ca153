"""What the tests of the built book share: its pages, and what a page's HTML refers to."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def names() -> list[str]:
    """Return the pages of the table of contents, in order, such as "book/intro"."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"]] + [c["file"] for part in toc["parts"] for c in part["chapters"]]


class Page(HTMLParser):
    """The ids of a page, the links it makes, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.ids |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "manifest"):
            self.loads.append(found["href"])
        elif "src" in found:
            self.loads.append(found["src"])
