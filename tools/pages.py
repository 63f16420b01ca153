"""Write what the pages show but no notebook computes; `make book` runs this before Sphinx.

Everything lands in `book/_generated`: `static/palette.css` for every page, and one HTML fragment
for each computed page, which includes it with `{raw} html :file:`.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from inferlab import records
from inferlab.explorers import reference, scenes
from inferlab.explorers.calculator import calculator
from inferlab.figures import style
from inferlab.machine import Machine
from inferlab.theory import errata, hardware, measurements, models, ranks

BOOK = Path(__file__).parents[1] / "book"
OUT, TWINS = BOOK / "_generated", BOOK / "chapters"
VERDICTS = {"wrong": "is wrong", "caveat": "holds under conditions"}


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
    told = [record for record in records.all() if "request" in record]
    found = sorted(told, key=lambda record: record["machine"]["bandwidth"])
    if not found:
        return "<p>No request has been recorded yet: <code>inferlab record</code> makes one.</p>\n"
    record = found[0]
    machine, told = Machine(**record["machine"]), record["request"]
    shape = models.get(record["model"]["key"])
    scene = scenes.request(told, shape, machine.hardware(), told["dtype"], stored=told["stored"])
    where = f"Recorded on {machine.name}, {record['made']['date'][:10]}. Weights: {told['dtype']}."
    look = "font: 500 0.8125rem/1.5 var(--sans); color: var(--soft)"
    return f'{scene.html}\n<p style="{look}">{escape(where)}</p>\n'


def corrections() -> str:
    """Return the corrections of `theory.errata`, chapter by chapter."""
    parts: list[str] = []
    chapter = ""
    for entry in sorted(errata.all(), key=lambda entry: (entry.chapter, entry.number)):
        if entry.chapter != chapter:
            parts += ["</dl>"] if chapter else []
            chapter = entry.chapter
            parts += [f"<h2>{_chapter_link(chapter)}</h2>", '<dl class="errata">']
        parts += [
            f'<dt id="erratum-{entry.number}">{escape(entry.said)}'
            f' <span class="verdict {entry.verdict}">{VERDICTS[entry.verdict]}</span></dt>',
            f"<dd>{escape(entry.text)}</dd>",
        ]
    return "\n".join([*parts, "</dl>\n"])


def several_chips() -> str:
    """Return what messages leave of several chips' speed, beside what has been published.

    An NVLink of the A100 sends 300 GB/s each way (NVIDIA's datasheet counts both: 600).
    """
    shape, chip = models.get("llama-2-7b"), hardware.get("a100-sxm-80gb")
    same = [
        m
        for m in measurements.published()
        if (m.model_key, m.device_key, m.weights) == (shape.key, chip.key, "bf16")
        and m.source.startswith("pytorch-labs/gpt-fast")
    ]
    microseconds = (0, 10, 20, 40)
    head = "".join(f"<th>{wait} µs</th>" for wait in microseconds)
    rows = []
    for row in sorted(same, key=lambda m: m.chips):
        cells = [f"<td>{row.chips}</td>"]
        for wait in microseconds:
            link = ranks.Link(wait * 1e-6, 300e9)
            seconds = ranks.decode_step_seconds(shape, chip, ranks=row.chips, link=link)
            cells.append(f"<td>{1 / seconds:,.0f}</td>")
        rows.append(f"<tr>{''.join(cells)}<td>{row.value:,.0f}</td></tr>")
    return (
        '<div class="pst-scrollable-table-container"><table class="table">\n'
        f"<caption>Tokens per second for one user: {escape(shape.name)} in bf16 on "
        f"{escape(chip.name)}, {ranks.messages(shape)} messages a step, if each takes so long."
        f" Published: {escape(same[0].source)}.</caption>\n"
        f"<thead><tr><th>chips</th>{head}<th>published</th></tr></thead>\n"
        f"<tbody>{''.join(rows)}</tbody></table></div>\n"
    )


def _chapter_link(stem: str) -> str:
    """Return a link to a chapter by its title, or its name where there is no such chapter."""
    twin = TWINS / f"{stem}.md"
    if not twin.exists():
        return escape(stem[3:].replace("-", " ").capitalize())
    title = next(
        line[2:] for line in twin.read_text(encoding="utf-8").splitlines() if line.startswith("# ")
    )
    return f'<a href="../notebooks/{stem}.html">{escape(title)}</a>'


def main() -> None:
    """Write each file, and leave it untouched when nothing changed."""
    made = {
        "static/palette.css": palette(),
        "calculator.html": calculator(link=True).html,
        "request.html": request(),
        "errata.html": corrections(),
        "chips.html": reference.chips().html,
        "models.html": reference.model_shapes().html,
        "ranks.html": several_chips(),
        "scoreboard.html": reference.scoreboard().html,
    }
    for name, text in made.items():
        file = OUT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
