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
STRICT = ["-W", "-n", "--keep-going"]


def main() -> None:
    """Write the computed pages, then let Jupyter Book build them all."""
    pages.main()
    cli = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", cli, "build", str(ROOT), *STRICT, *sys.argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        # Sphinx warns about a page when it reads it: read every page again the next time.
        shutil.rmtree(ROOT / "_build" / ".doctrees", ignore_errors=True)
        print(done.stdout + done.stderr, file=sys.stderr)
        sys.exit(done.returncode)
    print(f"The book: {ROOT / '_build' / 'html' / 'index.html'}")


if __name__ == "__main__":
    main()
