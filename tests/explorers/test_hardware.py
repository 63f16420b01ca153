"""The animations of waves and tiles say what theory says, for every setting."""

from __future__ import annotations

import pytest

from inferlab.errors import InferlabError
from inferlab.explorers import hardware as machines
from inferlab.explorers import html
from inferlab.theory import hardware, inside, tiles

XEON, H100, EPYC = (hardware.get(name) for name in ("xeon-8480", "h100-sxm", "epyc-9654"))
WAVES, TILES = machines.waves_data(XEON, H100), machines.tile_loads_data()
SHADOW = "document.querySelector('[data-explorer]').shadowRoot"
TEXT = f"() => {SHADOW}.querySelector('.live').textContent"


def test_waves_are_tiles_over_cores_at_the_chips_own_rates():
    for way, format_ in zip(WAVES["ways"], ("fp32", "bf16"), strict=True):
        for shown, chip in zip(way["chips"], (XEON, H100), strict=True):
            assert shown["cores"] * shown["lanes"] == inside.lanes(chip)
            for job in shown["jobs"]:
                full = 2 * job["side"] ** 3 / chip.flops[format_]
                assert job["tiles"] == (job["side"] // 128) ** 2
                assert job["waves"] == inside.waves(job["tiles"], chip.sm_count)
                assert job["seconds"] * job["busy"] == pytest.approx(full)
                assert job["seconds"] == pytest.approx(job["waves"] * job["wave_s"])


def test_claims_9_and_10_a_large_gpu_is_nine_cpus_at_either_kind_of_unit():
    for way in WAVES["ways"]:
        cpu, gpu = (next(j for j in chip["jobs"] if j["side"] == 4096) for chip in way["chips"])
        assert 8 < cpu["seconds"] / gpu["seconds"] < 10


def test_a_small_product_leaves_most_of_a_gpu_idle():
    gpu = WAVES["ways"][0]["chips"][1]
    assert [round(job["busy"], 2) for job in gpu["jobs"][:3]] == [0.12, 0.48, 0.55]


def test_tiles_load_what_theory_counts():
    assert TILES["untiled_bytes"] == 4 * 512**3
    assert TILES["fewest_bytes"] == 2 * 2 * 512**2
    for tile in TILES["tiles"]:
        cost = tiles.matmul(512, 512, 512, tile["side"], tile["side"])
        assert tile["bytes"] == cost.bytes - 2 * 512**2
        assert tile["intensity"] == pytest.approx(tile["side"] / 2)
        assert tile["programs"] * tile["steps"] * tile["piece_bytes"] == tile["bytes"]


def test_a_start_that_is_not_offered_and_a_chip_without_units_are_named():
    with pytest.raises(InferlabError, match="start, 100"):
        machines.waves_data(XEON, H100, start=100)
    with pytest.raises(InferlabError, match="start, 100"):
        machines.tile_loads_data(start=100)
    with pytest.raises(InferlabError, match="EPYC 9654"):
        machines.waves_data(EPYC, H100)


@pytest.mark.browser
def test_waves_shows_the_numbers_of_every_product(visit):
    page = visit(html("waves", WAVES, alt="waves"), reduced_motion=True).page
    page.wait_for_timeout(150)
    slider = page.locator(".slider input")
    for way in WAVES["ways"]:
        page.get_by_text(way["label"], exact=True).click()
        slider.focus()
        page.keyboard.press("Home")
        for number, _ in enumerate(WAVES["sides"]):
            page.wait_for_timeout(30)
            text = page.evaluate(TEXT)
            cpu, gpu = (chip["jobs"][number] for chip in way["chips"])
            plural = "" if gpu["waves"] == 1 else "s"
            assert f"takes {gpu['waves']} wave{plural}" in text
            assert f"{gpu['tiles']:,} tiles of 128 × 128" in text
            assert f"work for {100 * gpu['busy']:.2g}\u00a0%" in text
            assert f"{cpu['seconds'] / gpu['seconds']:.2g} times as long" in text
            page.keyboard.press("ArrowRight")


@pytest.mark.browser
def test_half_way_as_many_cores_work_as_the_wave_has_tiles(visit):
    page = visit(html("waves", WAVES, alt="waves"), reduced_motion=True).page
    page.wait_for_timeout(150)
    cpu, gpu = (chip["jobs"][-1] for chip in WAVES["ways"][0]["chips"])
    # The last wave of the GPU, and the last of the CPU.
    moments = [
        (gpu["seconds"] - gpu["wave_s"] / 2, f"{1024 - 7 * 132} of 132 SMs at work"),
        (cpu["seconds"] - cpu["wave_s"] / 2, f"{1024 - 18 * 56} of 56 cores at work"),
    ]
    for now, words in moments:
        page.evaluate(
            f"""(t) => {{ const input = {SHADOW}.querySelector(".player input");
                input.value = t; input.dispatchEvent(new Event("input")); }}""",
            1000 * now / cpu["seconds"],
        )
        assert words in page.evaluate(TEXT)


@pytest.mark.browser
def test_tiles_shows_the_loads_of_every_side(visit):
    page = visit(html("tiles", TILES, alt="tiles"), reduced_motion=True).page
    page.wait_for_timeout(150)
    for tile in TILES["tiles"]:
        page.get_by_text(str(tile["side"]), exact=True).first.click()
        page.wait_for_timeout(50)
        text = page.evaluate(TEXT)
        assert f"all {tile['programs']} programs" in text
        assert f"That is {tile['bytes'] / 1e6:.3g}\u00a0MB" in text
        assert f"{tile['intensity']:.3g} operations for each byte" in text
        assert f"{tile['sums_bytes'] / 1024:g}\u00a0KiB" in text


@pytest.mark.browser
def test_tiles_counts_bytes_as_pieces_arrive(visit):
    page = visit(html("tiles", TILES, alt="tiles"), reduced_motion=True).page
    page.wait_for_timeout(150)
    tile = next(each for each in TILES["tiles"] if each["side"] == TILES["start"])
    for share in (0.25, 0.5):
        page.evaluate(
            f"""(t) => {{ const input = {SHADOW}.querySelector(".player input");
                input.value = t; input.dispatchEvent(new Event("input")); }}""",
            1000 * share,
        )
        said = page.locator("svg text", has_text="loaded").first.text_content()
        assert said == f"loaded {share * tile['bytes'] / 1e6:.3g}\u00a0MB"
