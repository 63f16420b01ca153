"""Several chips and the messages between them, against sums done by hand and published results."""

from __future__ import annotations

import pytest

from inferlab.errors import InferlabError
from inferlab.theory import costs, hardware, limits, measurements, models, ranks
from inferlab.theory.ranks import Link

FREE = Link(0.0, float("inf"))
LLAMA, A100 = models.get("llama-2-7b"), hardware.get("a100-sxm-80gb")


def step(count, link=FREE, shape=LLAMA, **options):
    return ranks.decode_step_seconds(shape, A100, ranks=count, link=link, **options)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_without_messages_it_is_the_ceiling_of_chapter_9(count):
    ceiling = limits.decode_ceiling(LLAMA, A100, 500, 4, chips=count)
    assert step(count, context=500, batch=4) == pytest.approx(4 / ceiling)


def test_alone_there_is_nobody_to_wait_for():
    assert step(1, Link(1.0, 1.0)) == step(1)


def test_a_message_is_a_latency_and_its_bytes_over_the_rate():
    link = Link(10e-6, 300e9)
    assert ranks.all_reduce_seconds(3e5, 4, link) == pytest.approx(10e-6 + 1.5 * 1e-6)
    assert ranks.all_gather_seconds(3e5, 4, link) == pytest.approx(10e-6 + 0.75 * 1e-6)
    assert ranks.messages(LLAMA) == 66
    extra = step(4, link) - step(4)
    sums, gathered = 65 * 1.5 * 4096 * 2 / 300e9, 0.75 * 32000 * 2 / 300e9
    assert extra == pytest.approx(66 * 10e-6 + sums + gathered)


def test_for_one_token_latency_is_all_and_the_link_hardly_matters():
    """8 KB over 300 GB/s are two hundredths of a microsecond, where a message takes ten."""
    assert pytest.approx(27e-9, rel=0.02) == 4096 * 2 / 300e9
    fast, slow = (step(8, Link(10e-6, rate)) for rate in (300e9, 50e9))
    assert slow / fast < 1.03


def test_more_ranks_than_kv_heads_divide_the_cache_no_further():
    shape = models.get("llama-2-70b")  # 8 KV heads
    kv = costs.decode_step(shape, 100_000).parts["attention"].bytes
    lost = 16 * step(16, shape=shape, context=100_000) - 8 * step(8, shape=shape, context=100_000)
    assert lost == pytest.approx(kv / A100.bandwidth, rel=1e-3)


def test_messages_make_more_chips_slower_in_the_end():
    times = [step(count, Link(20e-6, 300e9)) for count in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert step(1) / step(8, Link(100e-6, 300e9)) < 1


def test_published_results_lie_beyond_what_bytes_and_20_microseconds_a_message_allow():
    found = {m.id: m for m in measurements.published()}
    for number in (9, 10, 11):
        row = found[number]
        assert (row.model_key, row.device_key, row.parallelism) == (LLAMA.key, A100.key, "TP")
        assert 1 / row.value > step(row.chips, Link(20e-6, 300e9))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: step(0), "ranks is 0"),
        (lambda: step(2, shape=models.get("deepseek-v3")), "a latent cache"),
        (lambda: Link(-1.0, 1.0), "latency is -1.0"),
        (lambda: Link(0.0, 0.0), "rate is 0.0"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make, named):
    with pytest.raises(InferlabError, match=named):
        make()
