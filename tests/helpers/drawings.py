"""What a figure says, and what each of the book's has to be."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from inferlab.figures import style


def title(figure: Figure) -> str:
    """Return its finding, in one line."""
    return " ".join(figure.get_suptitle().split())


def words(figure: Figure) -> str:
    """Return everything that it says, in one line."""
    return " ".join(re.sub(r"<[^>]*>", " ", style.svg(figure)).split())


def check(make: Callable[[], Figure]) -> None:
    """Assert that a figure states a finding in the palette, whole, and the same one each time."""
    figure = make()
    assert len(title(figure)) > 18, f"{title(figure)!r} is no finding"
    drawn = style.svg(figure)
    assert drawn == style.svg(make()), "equal data made other bytes"
    assert "<dc:date>" not in drawn
    assert len(drawn) < 120_000
    # Black is not in the palette: it would vanish in the dark.
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawn))
    assert used <= set(style.PALETTE.values()), f"{used} are not all in the palette"
    _check_canvas(figure)


def _check_canvas(figure: Figure) -> None:
    """Assert that nothing which is written leaves the canvas."""
    renderer, page = _renderer(figure), figure.bbox.padded(2)
    written = itertools.chain([figure._suptitle], *map(_written, figure.axes))
    for text in filter(Text.get_text, written):
        box = text.get_window_extent(renderer)
        inside = page.x0 <= box.x0 and box.x1 <= page.x1
        inside = inside and page.y0 <= box.y0 and box.y1 <= page.y1
        assert inside, f"{text.get_text()!r} is cut off"


def check_notes(figure: Figure) -> None:
    """Assert that no two notes on the same axes overlap."""
    renderer = _renderer(figure)
    for axes in figure.axes:
        for one, other in itertools.combinations(axes.texts, 2):
            over = one.get_window_extent(renderer).overlaps(other.get_window_extent(renderer))
            assert not over, f"{one.get_text()!r} on {other.get_text()!r}"


def _renderer(figure: Figure) -> object:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def _written(axes: Axes) -> Iterator[Text]:
    """Yield an axes' notes and labels, and the names of the ticks within its limits."""
    yield from (*axes.texts, axes.xaxis.label, axes.yaxis.label)
    if axes.axison:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            yield from (t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high)
