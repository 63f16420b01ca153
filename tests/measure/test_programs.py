"""What chapter 02 shows of Triton's programs is what they do."""

from __future__ import annotations

import pytest

from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.kernels.gpu import compiled
from inferlab.measure import launch, programs, traffic
from inferlab.theory import tiles

needs_triton = pytest.mark.skipif(not backends.has_triton(), reason="Triton is not here")
counts = pytest.mark.skipif(traffic.why_not() is not None, reason="traffic cannot be counted here")


@needs_triton
@pytest.mark.parametrize(("size", "block"), [(70, 16), (16, 16), (1, 32), (65, 64)])
def test_a_program_writes_its_own_tile_and_no_more(size, block):
    assert programs.owners(size, block) == [at // block for at in range(size)]


@counts
@pytest.mark.parametrize(("side", "tile", "depth"), [(64, 16, 16), (64, 32, 16), (50, 16, 32)])
def test_the_kernel_loads_what_the_formula_says(side, tile, depth):
    cost = tiles.matmul(side, side, side, tile, tile, element=4)
    assert programs.matmul_bytes(side, tile, depth) == cost.bytes


@needs_triton
def test_a_product_becomes_tensor_core_instructions_except_on_a_t4():
    """What the chapter's table says: Triton has none for sm_75."""
    jobs = [
        next(
            (case, target)
            for case, target in compiled.cases(["matmul"], [name])
            if case.label.startswith("fp16")
        )
        for name in ("sm_75", "sm_90")
    ]
    found = {made.target: made.matrix_instructions for made in compiled.compile_all(jobs)}
    assert found["sm_75"] == 0
    assert found["sm_90"] > 0
    for name, count in found.items():
        assert compiled.TARGETS[name].has_tensor_cores == (count > 0)


def test_an_operation_on_one_number_takes_microseconds():
    found = launch.seconds()
    assert 1e-8 < found["from Python"] < 1e-3


def test_without_triton_both_say_so(monkeypatch):
    monkeypatch.setenv("INFERLAB_HIDE", "triton")
    for watch in (lambda: programs.owners(70, 16), lambda: programs.matmul_bytes(64, 16)):
        with pytest.raises(InferlabError, match="Triton is not installed"):
            watch()
