"""Photograph the chat page for the book: `book/assets/press-enter.png`.

Starts the real server with the book's model, asks two questions in headless Chromium, and takes
the picture. Needs what the tests need: `make setup`, and a Chromium ($CHROMIUM, or on the PATH).

    .venv/bin/python tools/press_enter.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FILE = Path(__file__).resolve().parents[1] / "book" / "assets" / "press-enter.png"
QUESTIONS = ("Why is the sky blue? Answer in two sentences.", "And why is it red at sunset?")


def ask(page: Page, question: str) -> None:
    """Type a question, press Enter, and wait for the last token."""
    page.locator("#input").fill(question)
    page.keyboard.press("Enter")
    while page.evaluate("!document.querySelector('#stop').hidden"):
        page.wait_for_timeout(100)


def main() -> None:
    """Start the server, ask, take the picture."""
    command = [sys.executable, "-m", "inferlab", "serve", "--port", "0", "--json"]
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell")
    chromium = chromium or shutil.which("chromium")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = json.loads(server.stdout.readline())["url"]
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox"]
                )
                page = browser.new_page(viewport={"width": 1120, "height": 800})
                page.goto(address)
                page.locator("summary").click()
                page.locator("#temperature").fill("0")
                page.locator("#max-tokens").fill("72")
                page.locator("summary").click()
                for question in QUESTIONS:
                    ask(page, question)
                page.locator(".tile").nth(4).hover()
                page.screenshot(path=FILE)
                browser.close()
        finally:
            server.terminate()
    print(FILE)


if __name__ == "__main__":
    main()
