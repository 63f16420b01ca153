"""The measured roofline times the work that it says it times."""

import json
import statistics

import pytest
import torch

from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.measure import roofline


@pytest.fixture
def small(monkeypatch):
    """Sizes at which a test has no wait, and the fewest runs."""
    monkeypatch.setattr(roofline, "_BYTES", {"cpu": 1 << 18, "cuda": 1 << 18})
    monkeypatch.setattr(roofline, "_COLUMNS", {"cpu": 128, "cuda": 128})
    monkeypatch.setattr(roofline, "_NEAR_BYTES", 1 << 14)
    monkeypatch.setattr(roofline, "_MOST_RUNS", 2)


def test_samples_count_the_work_of_each_point(small):
    found = json.loads(json.dumps(roofline.samples("cpu"), allow_nan=False))
    assert set(found) == ({"chain", "matmul"} if backends.has_numba() else {"matmul"})
    for sweep in found.values():
        assert sweep["dtype"] == "fp32"
        sizes = {len(sweep[key]) for key in ("at", "flops", "bytes", "samples")}
        assert sizes == {len(sweep["at"])}
        assert all(len(times) == 2 and min(times) > 0 for times in sweep["samples"])
    rows = found["matmul"]["at"]
    assert rows == list(roofline.ROWS)
    for b, flops, moved in zip(
        rows, found["matmul"]["flops"], found["matmul"]["bytes"], strict=True
    ):
        n = (1 << 18) // 4 // 128
        assert flops == 2 * b * n * 128
        assert moved == 4 * (n * 128 + b * (n + 128))


@pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
def test_a_chain_of_nothing_is_the_sum_of_a_list(small):
    """Chapter 00 counts a quarter of an operation for each byte of a list that is added up."""
    chain = roofline.samples("cpu", quick=True)["chain"]
    assert chain["at"] == list(roofline.STEPS[::2])
    intensities = [intensity for intensity, _ in roofline.points(chain)]
    assert intensities == [(2 * k + 1) / 4 for k in chain["at"]]


def test_points_take_the_time_that_is_asked_for():
    sweep = {"dtype": "fp32", "at": [1], "flops": [60], "bytes": [30], "samples": [[2.0, 3.0, 6.0]]}
    assert roofline.points(sweep) == [(2.0, 30.0)]
    assert roofline.points(sweep, max) == [(2.0, 10.0)]
    assert roofline.points(sweep, statistics.median) == [(2.0, 20.0)]


def test_rings_share_a_picture_when_they_share_a_format():
    sweep = {"dtype": "fp32", "at": [1], "flops": [60], "bytes": [30], "samples": [[2.0]]}
    found = {"chain": sweep, "matmul": sweep | {"dtype": "bf16"}, "near": sweep}
    assert roofline.rings(found) == {
        "fp32": {"chains of multiply-adds": [(2.0, 30.0)], "from a cache": [(2.0, 30.0)]},
        "bf16": {"a matrix and its rows": [(2.0, 30.0)]},
    }


def test_the_array_is_as_large_as_asked(small):
    found = roofline.samples("cpu", megabytes=0.5, quick=True)
    assert found["matmul"]["bytes"][0] == pytest.approx(0.5e6, rel=0.02)
    with pytest.raises(InferlabError, match="megabytes is -1"):
        roofline.samples("cpu", megabytes=-1)


def test_what_leaves_the_roof_is_counted_too(small):
    found = roofline.beside("cpu")
    assert set(found) == {"small"} | ({"near", "lone"} if backends.has_numba() else set())
    assert found["small"]["flops"] == [2 * n**3 for n in found["small"]["at"]]
    assert found["small"]["bytes"] == [12 * n**2 for n in found["small"]["at"]]
    if "near" in found:
        assert found["near"]["bytes"] == [roofline._ROUNDS << 14] * 3


def test_random_numbers_have_the_shape_and_are_no_zeros():
    drawn = roofline._random(3, 7, device="cpu")
    assert drawn.shape == (3, 7)
    assert len(drawn.unique()) == 21
    assert roofline._random(1 << 21, device="cpu").numel() == 1 << 21


def test_a_device_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InferlabError, match="finds no GPU"):
        roofline.samples("cuda")
    with pytest.raises(InferlabError, match="must be cpu or cuda"):
        roofline.beside("tpu")
