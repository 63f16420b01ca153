"""Pictures of chapters 12 and 13 draw what they are given, on their canvas, in the palette."""

from __future__ import annotations

import pytest
from drawings import check, title

from inferlab.errors import InferlabError
from inferlab.figures import batching as draw
from inferlab.figures import paging
from inferlab.theory import batching, hardware, models, queueing
from inferlab.theory.queueing import Job

EIGHT, H100 = models.get("llama-3.1-8b"), hardware.get("h100-sxm")
PRICES = batching.pass_costs(EIGHT, H100)
JOBS = [Job(0.0, 200, n) for n in (12, 60, 20, 44, 16, 100)]
STATIC = batching.static(JOBS, PRICES, max_batch=4)
JOINED = queueing.serve(JOBS, PRICES, max_batch=4)
SWEEP = batching.sweep(EIGHT, H100, [1, 8, 64, 512], 2000) | {"label": "2,000 tokens"}
LENGTHS = [38, 120, 700, 64, 1500, 240]
FILM = {
    "steps": [
        {
            "blocks": [
                {"holders": ["A", "B"], "kept": False, "text": ["You", " are", " patient"]},
                {
                    "holders": [],
                    "kept": True,
                    "text": ["\n", "word", " that", " does not end at all"],
                },
                {"holders": [], "kept": False, "text": []},
            ]
        }
    ]
}
ROWS = [
    {"label": "you, whole", "ticks": [0.1, 0.2, 0.9], "blocks": []},
    {"label": "neighbour", "ticks": [1.0], "blocks": [(0.2, 0.8)]},
    {"label": "you, in chunks", "ticks": [0.1, 0.2, 0.4], "blocks": []},
]
FIGURES = {
    "schedules": lambda: draw.schedules({"static": STATIC, "continuous": JOINED}),
    "one schedule": lambda: draw.schedules({"static": STATIC}),
    "tradeoff": lambda: draw.tradeoff([SWEEP], [SWEEP | {"label": "measured", "batches": [1, 9]}]),
    "rings alone": lambda: draw.tradeoff([], [SWEEP]),
    "gain": lambda: draw.gain(
        [batching.sweep(EIGHT, H100, [1, 16, 256]) | {"label": "0 tokens"}, SWEEP]
    ),
    "streams": lambda: draw.streams(ROWS),
    "chunks": lambda: draw.chunks(batching.chunked(PRICES, 2048, [64, 256, 2048])),
    "memory": lambda: paging.memory(LENGTHS, 8192, 4096, 16),
    "block sizes": lambda: paging.block_sizes(LENGTHS, [1, 16, 256, 1024]),
    "pool": lambda: paging.pool(FILM, 0),
    "first tokens": lambda: paging.first_tokens(
        [
            {"label": "first", "seconds": 1.8, "cached": 0, "tokens": 1006},
            {"label": "second", "seconds": 0.1, "cached": 992, "tokens": 1005},
        ]
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_states_a_finding_in_the_palette_whole_and_the_same_each_time(name):
    check(FIGURES[name])


def test_titles_are_what_the_data_say():
    ends = [max(r.pieces[-1] for r in one.requests) for one in (STATIC, JOINED)]
    assert ends[1] < ends[0]
    assert f"{1e3 * ends[1]:.3g} ms continuous" in title(FIGURES["schedules"]())
    assert title(FIGURES["streams"]()) == (
        "Between two of your tokens: 700 ms, or with chunks 200 ms"
    )
    gained = SWEEP["rate"][-1] / SWEEP["rate"][0]
    assert f"{gained:.0f} times the tokens" in title(FIGURES["rings alone"]())
    assert title(FIGURES["memory"]()).startswith("Reserved rows seat 2 of 6 and fill 2 %")
    assert title(FIGURES["pool"]()) == ("After step 1, 1 of 3 blocks are held, 1 by more than one")


def test_nothing_to_draw_is_refused():
    with pytest.raises(InferlabError, match="one curve"):
        draw.tradeoff([])
    with pytest.raises(InferlabError, match="three ticks"):
        draw.streams([{"label": "you", "ticks": [1.0], "blocks": []}])
