"""`inferlab bench kernels`: what it times, compiles and counts, and how it ends."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
import torch

from inferlab import cli, machine
from inferlab.kernels import backends, ops
from inferlab.kernels.gpu import compiled
from inferlab.measure import kernels, traffic

counts = pytest.mark.skipif(traffic.why_not() is not None, reason=str(traffic.why_not()))
compiles = pytest.mark.skipif(not backends.has_triton(), reason="Triton is not here")


@pytest.fixture
def run(monkeypatch, capsys):
    """Return run(*options): (exit code, stdout, stderr) of `inferlab bench kernels`."""

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["inferlab", "bench", "kernels", *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def small(monkeypatch):
    """Work so small that it takes no time, on two backends."""
    monkeypatch.setattr(kernels.Place, "pick", lambda at, interpreter, cpu, cuda: 64)
    monkeypatch.setattr(kernels, "_PAST_CACHES", {"cpu": 1 << 16, "cuda": 1 << 16})
    monkeypatch.setattr(kernels, "_ROUND_SECONDS", 0.0)
    monkeypatch.setattr(machine, "READ_BYTES", 1 << 22)


def test_times_are_medians_beside_this_runs_limits(small, run):
    code, out, err = run("--op", "matvec", "--op", "matmul", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["device"] in ("cpu", "cuda")
    assert found["bandwidth"] > 0 < found["product_rate"]
    assert [case["op"] for case in found["cases"]] == ["matmul", "matvec"]
    known = {case.op: case for case in kernels.cases(kernels.place())}
    for case in found["cases"]:
        assert list(case["backends"]) == kernels._backends(known[case["op"]], kernels.place())
        assert "torch" in case["backends"]
        for side in case["backends"].values():
            assert len(side["samples"]) >= 3 * kernels._ROUNDS
            assert min(side["samples"]) <= side["seconds"] <= max(side["samples"])
            assert side["bytes_per_second"] * side["seconds"] == pytest.approx(case["bytes"])
            assert side["flops_per_second"] * side["seconds"] == pytest.approx(case["flops"])
            assert side["fraction"] > 0


def test_only_ops_with_a_kernel_of_ours_are_timed_unless_named(small, run):
    code, out, _ = run()
    assert code == 0
    own = ops.TRITON if torch.cuda.is_available() else ops.SIMD
    for case in kernels.cases(kernels.place()):
        assert (f" {case.op} " in out) == (case.op in own)
    assert " vector_add " in run("--op", "vector_add")[1]


@pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
def test_every_backend_does_the_same_work(small):
    """What is timed side by side gives the same numbers."""
    at = kernels.Place("cpu", torch.float32)
    compared = set()
    for case in kernels.cases(at):
        torch.manual_seed(2)
        work = case.make()
        assert work.bytes > 0 < work.flops
        first, *others = [work.run(backend) for backend in kernels._backends(case, at)]
        for other in others:
            # Vectors that meet quantised weights are rounded to 8 bits.
            torch.testing.assert_close(other, first, rtol=2e-2, atol=2e-2, msg=case.label)
            compared.add(case.op)
    assert compared == set(ops.SIMD) & {case.op for case in kernels.cases(at)}


@compiles
def test_the_machine_code_as_json_and_as_a_table(run):
    options = ("--compile", "--op", "vector_add", "--target", "sm_90", "--target", "sm_75")
    code, out, err = run(*options, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {one["target"] for one in found} == {"sm_90", "sm_75"}
    for one in found:
        assert one["op"] == "vector_add"
        assert one["good"] is True
        assert one["faults"] == []
        assert one["spilled_bytes"] == 0 < one["registers"]
        assert one["wide_loads"] == one["loads"] > 0
    code, out, _ = run(*options)
    assert code == 0
    assert out.count(" sm_90 ") == out.count(" sm_75 ") == len(found) / 2
    assert f"{len(found)} kernels compiled, 0 at fault." in out


@compiles
def test_a_bad_verdict_is_shown_and_is_exit_code_1(run, monkeypatch):
    compile_all = compiled.compile_all

    def with_a_fault(jobs):
        for one in compile_all(jobs):
            fault = ("spills 8 bytes a thread",) if one.label.startswith("fp16") else ()
            yield dataclasses.replace(one, faults=fault)

    monkeypatch.setattr(compiled, "compile_all", with_a_fault)
    options = ("--compile", "--op", "vector_add", "--target", "sm_90")
    code, out, _ = run(*options)
    assert code == 1
    assert "spills 8" in out
    assert "2 kernels compiled, 1 at fault." in out
    code, out, _ = run(*options, "--json")
    assert (code, [one["good"] for one in json.loads(out)]) == (1, [True, False])


@counts
def test_traffic_as_json_and_as_a_table(run, monkeypatch):
    code, out, err = run("--traffic", "--op", "vector_add", "--json")
    (found,) = json.loads(out)
    assert (code, err) == (0, "")
    assert found["loaded_bytes"] == 2 * found["stored_bytes"]
    assert found["loaded_bytes"] + found["stored_bytes"] == found["fewest_bytes"]
    assert (found["ratio"], found["outside_bytes"], found["good"]) == (1, 0, True)
    code, out, _ = run("--traffic", "--op", "vector_add")
    assert (code, "1.000" in out, "good" in out) == (0, True, True)
    monkeypatch.setattr(kernels, "LIMIT", 0.99)
    code, out, _ = run("--traffic", "--op", "vector_add")
    assert (code, "moves too" in out) == (1, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--op", "matvek"], "unknown op 'matvek': did you mean matvec"),
        (["--compile", "--traffic"], "compile and traffic are two tables"),
        (["--target", "sm_90"], "target goes with --compile"),
        pytest.param(["--compile", "--target", "sm_9"], "unknown target 'sm_9'", marks=compiles),
        pytest.param(["--compile", "--op", "matvek"], "unknown op 'matvek'", marks=compiles),
        pytest.param(["--traffic", "--op", "matvek"], "unknown op 'matvek'", marks=counts),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(run, options, words):
    code, out, err = run(*options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize("option", ["--compile", "--traffic"])
def test_without_triton_it_is_one_line(run, monkeypatch, option):
    monkeypatch.setenv("INFERLAB_HIDE", "triton")
    code, out, err = run(option)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "needs Triton" in err
