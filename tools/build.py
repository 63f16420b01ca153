"""Build the book from its stored outputs, and say where it is: `make book`.

Runs nothing and asks no network. Any warning is an error; what was wrong is printed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pages

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
STRICT = ["-W", "-n", "--keep-going"]
#: What shapes every page, and what Sphinx does not look at when no page has changed.
LOOK = ("book/assets", "book/_generated/static", "tools", "src/inferlab/__init__.py")


def looks_changed() -> bool:
    """Return whether the look of all pages is newer than the pages."""
    built = HTML / "searchindex.js"  # written by each build that wrote a page
    files = [file for name in LOOK for file in [ROOT / name, *(ROOT / name).rglob("*.*")]]
    newest = max(file.stat().st_mtime for file in files if file.is_file())
    return not built.exists() or newest > built.stat().st_mtime


def main() -> None:
    """Write the computed pages, then let Jupyter Book build what has changed."""
    pages.main()
    every = ["--all"] if looks_changed() else []
    cli = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", cli, "build", str(ROOT), *STRICT, *every]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        # Sphinx warns about a page when it reads it: read every page again the next time.
        shutil.rmtree(ROOT / "_build" / ".doctrees", ignore_errors=True)
        print(done.stdout + done.stderr, file=sys.stderr)
        sys.exit(done.returncode)
    print(f"The book: {HTML / 'index.html'}")


if __name__ == "__main__":
    main()
