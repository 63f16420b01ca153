"""The pictures of chapter 14 draw what they are given, inside their canvas, in the palette."""

from __future__ import annotations

import pytest
from drawings import check, check_notes, title

from inferlab.errors import InferlabError
from inferlab.figures import goodput

CURVE = {
    "rates": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0],
    "answered": [1.0, 2.0, 3.0, 3.6, 3.8, 3.8],
    "good": [1.0, 1.9, 2.2, 1.1, 0.1, 0.0],
}
RINGS = {"rates": [1.5, 5.0], "answered": [1.4, 3.5], "good": [1.4, 0.4]}
ROWS = [
    {"concurrency": c, "measured": m, "predicted": m * 1.002, "ttft": t}
    for c, m, t in ((1, 51.7, 0.41), (50, 814.0, 0.83), (100, 917.0, 8.0), (250, 920.0, 88.6))
]
PRICES = [
    {"rate": 1.0, "all": 9.0, "good": 9.0},
    {"rate": 2.0, "all": 4.5, "good": 4.7},
    {"rate": 3.0, "all": 3.1, "good": 9.5},
    {"rate": 4.0, "all": 2.6, "good": None},
]
START = {"queue": 0.5, "prefill": 0.2, "tpot": 0.03, "tokens": 40}
FIGURES = {
    "cliff": lambda: goodput.cliff(CURVE),
    "cliff with rings": lambda: goodput.cliff(CURVE, RINGS, "this server, now"),
    "rings alone": lambda: goodput.cliff(None, CURVE),
    "waits": lambda: goodput.waits([0.1, 0.2, 0.4, 0.9], 0.5),
    "waits without a promise": lambda: goodput.waits([0.1, 0.2, 0.4, 0.9]),
    "crowd": lambda: goodput.crowd(ROWS),
    "prices": lambda: goodput.prices(PRICES),
    "timeline": lambda: goodput.timeline({"start": START}),
    "a single token": lambda: goodput.timeline({"start": START | {"tokens": 1, "queue": 0.0}}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_states_a_finding_in_the_palette_whole_and_the_same_each_time(name):
    check(FIGURES[name])


@pytest.mark.parametrize("name", FIGURES)
def test_no_two_words_overlap(name):
    check_notes(FIGURES[name]())


def test_the_cliff_says_where_it_is():
    assert title(goodput.cliff(CURVE)) == (
        "Offered 3 requests a second, 2.2 are answered in time; offered 8, none"
    )
    calm = {name: values[:3] for name, values in CURVE.items()}
    assert "come in time" in title(goodput.cliff(calm))
    hopeless = CURVE | {"good": [0.0] * 6}
    assert "none of them in time" in title(goodput.cliff(hopeless))
    with pytest.raises(InferlabError, match="two rates"):
        goodput.cliff({name: values[:1] for name, values in CURVE.items()})
    with pytest.raises(InferlabError, match="two rates"):
        goodput.cliff(None)


def test_the_other_titles_count_too():
    assert title(goodput.waits([0.1, 0.2, 0.4, 0.9], 0.5)).startswith("75 % of 4 first tokens")
    assert title(goodput.waits([0.1, 0.2, 0.4])) == (
        "Half of 3 requests saw their first token within 200 ms"
    )
    assert (
        title(goodput.crowd(ROWS))
        == "From 100 to 250 users: 1.00 times the tokens, 11 times the wait"
    )
    assert "cost the least at 2 requests a second: $4.70" in title(goodput.prices(PRICES))
    assert title(goodput.timeline({"start": START})) == (
        "700 ms of pause, then a token every 30 ms: 40 tokens take 1.87 s"
    )


def test_nothing_to_draw_is_an_error():
    with pytest.raises(InferlabError, match="ttft"):
        goodput.waits([])
    with pytest.raises(InferlabError, match="rows"):
        goodput.crowd(ROWS[:1])
    with pytest.raises(InferlabError, match="rows"):
        goodput.prices(PRICES[3:])
