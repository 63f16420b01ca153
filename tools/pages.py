"""Write what the pages show but no notebook computes; `make book` runs this before Sphinx.

Everything lands in `book/_generated`: `static/palette.css` for every page, and one HTML fragment
for each computed page, which includes it with `{raw} html :file:`.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from inferlab import records
from inferlab.explorers import scenes
from inferlab.explorers.calculator import calculator
from inferlab.figures import style
from inferlab.machine import Machine
from inferlab.theory import models

OUT = Path(__file__).parents[1] / "book" / "_generated"


def palette() -> str:
    """Return the book's colours as custom properties, for the theme that the page shows.

    Before the theme's script has run, and on paper, the system decides, then light.
    """

    def block(tones: Mapping[str, str]) -> str:
        return "{" + " ".join(f"--{role}: {tone};" for role, tone in tones.items()) + "}\n"

    undecided = "html:not([data-theme=light]):not([data-theme=dark])"
    return (
        f"html {block(style.LIGHT)}"
        f"@media screen {{ html[data-theme=dark] {block(style.DARK)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ {undecided} {block(style.DARK)} }}\n"
    )


def request() -> str:
    """Return the recorded request that the first page plays, and the line that says whose it is.

    The slowest machine's is the one to watch: a CPU's, if there is a record of one.
    """
    found = sorted(records.all(), key=lambda record: record["machine"]["bandwidth"])
    if not found:
        return "<p>No request has been recorded yet: <code>inferlab record</code> makes one.</p>\n"
    record = found[0]
    machine, model = Machine(**record["machine"]), record["model"]
    scene = scenes.request(
        record["request"], models.get(model["key"]), machine.hardware(), model["dtype"]
    )
    where = f"Recorded on {machine.name}, {record['made']['date'][:10]}. Weights: {model['dtype']}."
    look = "font: 500 0.8125rem/1.5 var(--sans); color: var(--soft)"
    return f'{scene.html}\n<p style="{look}">{escape(where)}</p>\n'


def main() -> None:
    """Write each file, and leave it untouched when nothing changed."""
    made = {
        "static/palette.css": palette(),
        "calculator.html": calculator(link=True).html,
        "request.html": request(),
    }
    for name, text in made.items():
        file = OUT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
