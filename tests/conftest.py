"""A real browser with the network cut: the fixtures `browser`, `visit` and `site`.

`visit(target)` opens a file, or a piece of HTML, the way a reader without a network would, and
collects everything that went wrong on the way in `.problems`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "_build" / "html"
_folders = re.search(r"^PAGES := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
assert _folders, "the Makefile says in PAGES which folders the browser tests are in"
PAGES = [Path(folder).name for folder in _folders[1].split()]
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--font-render-hinting=none",  # letters as wide as on a screen
]
INSTALL = "no Chromium found: apt-get install chromium-headless-shell, or set $CHROMIUM"

# A job in the background ignores Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Visit:
    """An open page, and what went wrong while it loaded and was used."""

    page: object  # playwright.sync_api.Page, which may not be installed
    problems: list[str] = field(default_factory=list)


def chromium() -> str | None:
    """Return the browser to use: $CHROMIUM, one on the PATH, or None for Playwright's own."""
    if named := os.environ.get("CHROMIUM"):
        return named
    shell = "chromium-headless-shell"  # without windows, which is twice as fast
    names = (shell, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """One headless Chromium for the run; skipped if there is none, unless REQUIRE_BROWSER=1."""
    required = os.environ.get("REQUIRE_BROWSER") == "1"
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        if required:
            raise
        pytest.skip("playwright is not installed")
    with sync_playwright() as playwright:
        try:
            launched = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGS)
        except Error:
            if required:
                raise
            pytest.skip(INSTALL)
        yield launched
        launched.close()


@pytest.fixture
def visit(browser, tmp_path) -> Iterator[Callable[..., Visit]]:
    """Return `visit(target, width=1280, theme="light", ...)`, where target is a Path or HTML text.

    The page has no network. `theme` is the system's colour scheme; `reduced_motion=True` asks for
    stillness; `touch=True` gives a finger in place of a mouse.
    """
    contexts = []

    def open_(
        target: Path | str,
        *,
        width: int = 1280,
        height: int = 800,
        theme: str = "light",
        reduced_motion: bool = False,
        touch: bool = False,
        javascript: bool = True,
        fragment: str = "",
    ) -> Visit:
        if isinstance(target, str):
            file = tmp_path / f"page{len(contexts)}.html"
            file.write_text(
                '<!doctype html><html lang="en"><meta charset="utf-8"><title>page</title>'
                '<meta name="viewport" content="width=device-width,initial-scale=1">'
                f"<body>{target}</body></html>",
                encoding="utf-8",
            )
            target = file
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion="reduce" if reduced_motion else "no-preference",
            has_touch=touch,
            java_script_enabled=javascript,
            offline=True,
        )
        contexts.append(context)
        page = context.new_page()
        visited = Visit(page)
        problems = visited.problems

        def on_console(message) -> None:
            if message.type in ("error", "warning"):
                problems.append(f"console {message.type}: {message.text}")

        def on_request(request) -> None:
            if not request.url.startswith(("file:", "data:", "blob:")):
                problems.append(f"asked the network for {request.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(f"script error: {error}"))
        page.on("request", on_request)
        page.on("requestfailed", lambda r: problems.append(f"failed request: {r.url[:200]}"))
        page.goto(target.as_uri() + fragment, wait_until="load")
        return visited

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book; `make book` makes it."""
    if not (SITE / "index.html").exists():
        missing = pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip
        missing("the book is not built: make book")
    return SITE


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items) -> None:
    """Mark what needs a browser or the built book; `make test` runs that when both are there."""
    for item in items:
        if not {"browser", "site"} & set(getattr(item, "fixturenames", ())):
            continue
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        if folder in PAGES or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.browser)
        else:
            item.fixturenames.insert(0, "misplaced")


@pytest.fixture
def misplaced() -> None:
    """Fail, where the browser tests of `make test` would not be looked for."""
    pytest.fail(f"this test opens a page: move it to one of {', '.join(PAGES)}")


def pytest_terminal_summary(terminalreporter) -> None:
    """Say once, not once a test, why there was no browser."""
    skipped = terminalreporter.stats.get("skipped", [])
    lacking = [report for report in skipped if INSTALL in str(report.longrepr)]
    if lacking:
        terminalreporter.write_line(f"{len(lacking)} browser tests skipped: {INSTALL}")
