"""What the compiler makes of each kernel for GPUs that are not here, and that faults are seen."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.kernels.gpu import compiled
from inferlab.kernels.gpu.compiled import TARGETS, Compile

FIRST = ("sm_75", "sm_90")  # the least and the most that the default run compiles for
OPS = sorted(compiled.ops()) if backends.has_triton() else []

#: Kernels that do what a kernel should not.
PLANTED = """
from inferlab.kernels.gpu.dsl import jit, tl

@jit
def product(a, b, out, steps, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr):
    m, k = tl.arange(0, BLOCK), tl.arange(0, DEPTH)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(steps):
        x = tl.load(a + m[:, None] * 16 * DEPTH + (step * DEPTH + k)[None, :])
        y = tl.load(b + (step * DEPTH + k)[:, None] * BLOCK + m[None, :])
        total = tl.dot(x, y, total, input_precision=PRECISION)
    tl.store(out + m[:, None] * BLOCK + m[None, :], total)

@jit
def copy(a, out, size, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(a + at * stride, mask=at < size), mask=at < size)

@jit
def keep(a, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(a + at)
    tl.store(out + at, values - tl.sum(values, 0))

@jit
def wrong(a, BLOCK: tl.constexpr):
    tl.store(a + tl.arange(0, BLOCK), tl.arange(0, 2 * BLOCK))
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A module of faulty kernels, which the compiler's process finds too."""
    (tmp_path / "planted_kernels.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("INFERLAB_CACHE", str(tmp_path / "cache"))
    yield importlib.import_module("planted_kernels")
    del sys.modules["planted_kernels"]


def product(planted, block, depth, dtype="fp16", precision="ieee", **more):
    signature = {"a": f"*{dtype}", "b": f"*{dtype}", "out": "*fp32", "steps": "i32"}
    constants = {"BLOCK": block, "DEPTH": depth, "PRECISION": precision}
    return Compile(planted.product, "planted", signature, constants, **more)


def copy(planted, stride="i32:1", size="i32:16"):
    signature = {"a": "*fp16", "out": "*fp16", "size": size, "stride": stride}
    return Compile(planted.copy, "planted", signature, {"BLOCK": 2048}, 4, wide_loads=True)


def keep(planted, block):
    signature = {"a": "*fp32", "out": "*fp32"}
    return Compile(planted.keep, "planted", signature, {"BLOCK": block}, num_warps=1)


def faults(jobs):
    return [
        f"{made.op} {made.label} on {made.target}: {', '.join(made.faults)}"
        for made in compiled.compile_all(jobs)
        if not made.good
    ]


@pytest.mark.slow
def test_planted_faults_are_found(planted):
    ampere, tesla = TARGETS["sm_80"], TARGETS["sm_75"]
    jobs = [
        (product(planted, 64, 32, tensor_cores=True), ampere),
        (product(planted, 64, 32, "fp32", tensor_cores=True), ampere),
        (product(planted, 64, 32, tensor_cores=True), tesla),
        (product(planted, 128, 128, num_stages=5, num_warps=8), ampere),
        (keep(planted, 16384), ampere),
        (copy(planted), ampere),
        (copy(planted, stride="i32"), ampere),
        (copy(planted, size="i32"), ampere),
        (Compile(planted.wrong, "planted", {"a": "*fp32"}, {"BLOCK": 16}), ampere),
        (copy(planted), TARGETS["gfx942"]),
        (copy(planted, stride="i32"), TARGETS["gfx942"]),
        (keep(planted, 65536), TARGETS["gfx942"]),
    ]
    found = list(compiled.compile_all(jobs))
    good, no_cores, old, too_large, spills, wide, strided, ragged, wrong, amd, *amd_faults = found

    assert good.good
    assert good.matrix_instructions > 0
    assert 0 < good.shared_bytes <= TARGETS["sm_80"].shared_bytes
    assert 0 < good.registers < 256
    assert no_cores.faults == ("no tensor-core instructions",)
    assert old.matrix_instructions == 0
    assert "no tensor-core instructions" not in old.faults  # it has none that Triton uses
    assert (
        too_large.faults[0] == f"takes {too_large.shared_bytes} bytes of shared memory, has 166912"
    )
    assert spills.spilled_bytes > 100
    assert spills.faults == (f"spills {spills.spilled_bytes} bytes a thread",)
    assert wide.good
    assert wide.wide_loads == wide.loads > 0
    assert strided.faults == ragged.faults == ("no 16-byte loads",)
    assert wrong.faults[0].startswith("does not compile: ")
    assert amd.good
    assert [len(one.faults) for one in amd_faults] == [1, 1]
    assert amd_faults[0].faults == ("no 16-byte loads",)
    assert amd_faults[1].faults[0].startswith("spills ")


def test_a_result_is_kept_until_its_source_changes(planted, monkeypatch):
    made = compiled.compile(copy(planted), TARGETS["sm_90"])
    monkeypatch.setattr(compiled.subprocess, "run", None)  # nothing is compiled
    assert compiled.compile(copy(planted), TARGETS["sm_90"]) == made
    with pytest.raises(TypeError):
        compiled.compile(copy(planted, stride="i32"), TARGETS["sm_90"])
    path = compiled._kept(copy(planted), TARGETS["sm_90"])
    assert json.loads(path.read_text())["loads"] == made.loads
    with open(planted.__file__, "a") as file:
        file.write("# changed\n")
    assert compiled._kept(copy(planted), TARGETS["sm_90"]) != path


def test_a_process_that_dies_is_one_line(planted, monkeypatch):
    monkeypatch.setattr(compiled.sys, "executable", "/bin/false")
    with pytest.raises(InferlabError, match="the compiler's process failed: no word"):
        compiled.compile(copy(planted), TARGETS["sm_90"])


def test_names_that_are_not_there():
    with pytest.raises(InferlabError, match="unknown op 'matmult': did you mean matmul"):
        compiled.cases(["matmult"])
    with pytest.raises(InferlabError, match="unknown target 'sm_91': did you mean sm_90"):
        compiled.cases(["matmul"], ["sm_91"])


def test_case_43_nothing_is_in_bf16_where_there_is_none():
    for case, _ in compiled.cases(targets=["sm_75"]):
        assert not any("bf16" in kind for kind in case.signature.values()), case.label


def test_every_launchers_first_choice_is_good():
    jobs = [compiled.cases([op], [target])[0] for op in OPS for target in FIRST]
    assert {made.op for made in compiled.compile_all(jobs)} == set(OPS)
    assert faults(jobs) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", OPS)
def test_every_choice_is_good(op, target):
    assert faults(compiled.cases([op], [target])) == []


def test_without_triton_it_is_one_line(monkeypatch):
    jobs = compiled.cases(["matmul"], ["sm_90"])
    monkeypatch.setenv("INFERLAB_HIDE", "triton")
    with pytest.raises(InferlabError, match="compiling kernels needs Triton"):
        compiled.cases(["matmul"], ["sm_90"])
    with pytest.raises(InferlabError, match="compiling kernels needs Triton"):
        compiled.compile(*jobs[0])
