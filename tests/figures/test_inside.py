"""Pictures of a chip's inside say its numbers; the ladder says what a rung lacks."""

from __future__ import annotations

import pytest
from drawings import title, words

from inferlab.errors import InferlabError
from inferlab.explorers import hardware as machines
from inferlab.figures import inside, ladder
from inferlab.measure.ladder import Rung
from inferlab.theory import hardware

XEON, EPYC, H100 = (hardware.get(name) for name in ("xeon-8480", "epyc-9654", "h100-sxm"))


def test_steps_name_cores_and_sms_and_end_at_the_chips_rate():
    figure = inside.steps([XEON, EPYC, H100])
    assert title(figure) == (
        "One lane does 4.0 to 4.8 GFLOP/s on each chip; the rest is their number"
    )
    said = words(figure)
    assert said.count("one core") == 2
    assert said.count("one SM") == 1
    assert said.count("matrix units") == 2
    assert "66.9 TFLOP/s" in said
    assert "989 TFLOP/s" in said


def test_memories_say_size_rate_and_wait():
    said = words(inside.memories(H100))
    for word in ("132 × 256 KiB", "132 × 228 KiB", "50 MB", "85.5 GB", "3.35 TB/s", "waits 350 ns"):
        assert word in said


def test_programs_draw_who_wrote_what():
    owners = [at // 16 for at in range(70)]
    figure = inside.programs(owners, 16, 70)
    assert title(figure) == "5 programs add 70 numbers, 16 each; the last one masks 10"
    boxes = figure.axes[0].patches
    assert len(boxes) == 80
    assert sum(box.get_facecolor()[3] > 0 for box in boxes) == 70
    assert "64 to 69" in words(figure)
    owners[3] = -1  # that nobody wrote
    boxes = inside.programs(owners, 16, 70).axes[0].patches
    assert sum(box.get_facecolor()[3] > 0 for box in boxes) == 69


def test_stills_say_what_their_animations_end_with():
    waves = inside.waves(machines.waves_data(XEON, H100))
    assert title(waves) == ("1,024 tiles: 19 waves on 56 cores, 8 on 132 SMs, 9 times faster")
    bars = waves.axes[0].patches
    assert len(bars) == 2 * (19 + 8)
    assert bars[18].get_height() / bars[0].get_height() == pytest.approx((1024 - 18 * 56) / 56)
    tiles = inside.tiles(machines.tile_loads_data())
    assert title(tiles) == "Tiles of 128 × 128 load 128 times less than no tiles"
    assert "537 MB" in words(tiles)


def test_the_ladder_says_gains_shares_and_what_is_missing():
    rungs = [Rung("Python loop", 2e7), Rung("threads", None, "numba"), Rung("BLAS", 8e10)]
    figure = ladder.plot({"matrix product": rungs}, {"matrix product": (1e11, "the best product")})
    assert title(figure) == "From a Python loop to a library: 4,000 times for a matrix product"
    said = words(figure)
    assert "80 GFLOP/s, 80 %" in said
    assert "needs numba" in said


def test_pictures_of_nothing_are_refused():
    with pytest.raises(InferlabError, match="chips is empty"):
        inside.steps([])
    with pytest.raises(InferlabError, match="ladders is empty"):
        ladder.plot({}, {})
    with pytest.raises(InferlabError, match="owners has 1"):
        inside.programs([0], 16, 70)
