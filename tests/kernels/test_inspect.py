"""The instructions that chapter 02 shows are those of the kernel's inner loop."""

from __future__ import annotations

import platform

import pytest

from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.kernels.cpu import inspect

needs_numba = pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")


@needs_numba
def test_the_dot_product_of_four_rows_is_a_loop_of_vector_instructions():
    from inferlab.kernels.cpu.matvec import dot4

    loop = inspect.busiest_loop(dot4)
    vectors = [line for line in loop if inspect.is_vector(line)]
    assert len(vectors) >= 5  # a vector of x, and four rows that meet it
    assert len(vectors) > len(loop) / 2
    counts = inspect.instructions(dot4)
    assert sum(counts.values()) == len(loop)
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    if platform.machine() in ("x86_64", "AMD64"):
        assert loop[-1].split()[0].startswith("j")


@needs_numba
def test_a_kernel_without_a_loop_says_so():
    from inferlab.kernels.cpu.jit import jit

    def double(x):  # type: ignore[no-untyped-def]
        return x + x

    with pytest.raises(InferlabError, match="kernel double has no loop"):
        inspect.busiest_loop(jit(double))


@pytest.mark.parametrize(
    ("instruction", "vector"),
    [
        ("vfmadd231ps (%rdx,%rbx,4), %ymm8, %ymm3", True),
        ("vpmaddubsw (%rdi,%r12), %ymm1, %ymm2", True),
        ("mulps %xmm1, %xmm0", True),
        ("vfmadd231ss (%rdx), %xmm8, %xmm3", False),
        ("vmovss (%rsi), %xmm4", False),
        ("addq $16, %rbx", False),
        ("fmla v0.4s, v1.4s, v2.4s", True),
        ("fmadd s0, s1, s2, s3", False),
    ],
)
def test_what_is_a_vector_instruction(instruction, vector):
    assert inspect.is_vector(instruction) is vector


def test_without_numba_it_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("INFERLAB_HIDE", "numba")
    with pytest.raises(InferlabError, match="numba is not installed"):
        inspect.assembly(None)
