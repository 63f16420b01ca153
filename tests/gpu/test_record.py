"""A quick record of this GPU is whole: nothing failed on the way, and no figure is absurd."""

from __future__ import annotations

import pytest
import torch

from inferlab import records
from inferlab.measure import record


def test_a_quick_record(device):
    if device != "cuda":
        pytest.skip("tests/measure makes one in small")
    made = records.check(record.record(None, "tests/gpu: record", quick=True))
    assert made["notes"] == {}
    assert made["machine"]["name"] == torch.cuda.get_device_name()
    backends = made["machine"]["backends"]
    assert backends["matvec"] == backends["decode_attention"] == "triton"
    for entry in made["decode"]:
        assert 0.01 < entry["fraction"] < 1.1
