"""The page *Outgrowing this engine*: our commands on it parse, its table is what theory says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pages
import pytest
import typer

from inferlab.cli import app
from inferlab.theory import hardware, limits, measurements, models

PAGE = (Path(__file__).parents[2] / "book" / "outgrowing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
OURS = [shlex.split(block.split("inferlab ", 1)[1]) for block in BLOCKS if "inferlab " in block]


@pytest.mark.parametrize("words", OURS, ids=lambda words: words[0])
def test_our_commands_have_the_options_that_the_page_gives_them(words):
    words = [word for word in words if word != "\n"]
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    assert command.make_context(command.name, words).params


def test_the_page_shows_all_three_of_our_commands():
    assert sorted(words[0] for words in OURS) == ["bench", "generate", "serve"]


def test_the_table_begins_at_the_ceiling_and_ends_at_what_was_published():
    rows = [
        [float(cell.replace(",", "")) for cell in re.findall(r"<td>(.*?)</td>", row)]
        for row in re.findall(r"<tr>(<td>.*?)</tr>", pages.several_chips())
    ]
    shape, chip = models.get("llama-2-7b"), hardware.get("a100-sxm-80gb")
    published = {m.id: m.value for m in measurements.published()}
    assert [row[0] for row in rows] == [1, 2, 4, 8]
    assert [row[-1] for row in rows] == [round(published[n]) for n in (1, 9, 10, 11)]
    for chips, alone, *_ in rows:
        # Even then the bytes of the messages take a little.
        assert alone == pytest.approx(
            limits.decode_ceiling(shape, chip, chips=int(chips)), rel=0.01
        )
    shares = [row[-1] / row[1] for row in rows]
    assert shares == sorted(shares, reverse=True)  # the more chips, the less of a step is reading
