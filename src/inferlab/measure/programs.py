"""Watch the programs of a Triton kernel: who writes which element, and what a product loads.

Runs in the interpreter where there is no GPU. Raises InferlabError where Triton is missing.
"""

from __future__ import annotations

import torch

from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.measure import traffic


def owners(size: int, block: int) -> list[int]:
    """Return, for each of `size` elements, the program of `vector_add` that writes it.

    Each program adds `block` elements, a power of two. The kernel is launched with one program,
    then with two, and so on: what is new in the output is the last one's.
    """
    _needs_triton()
    from inferlab.kernels.gpu.vector_add import vector_add_kernel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = torch.rand(2, size, device=device)
    found = torch.full((size,), -1)
    for count in range(1, -(-size // block) + 1):
        out = torch.full_like(a, float("nan"))
        vector_add_kernel[(count,)](a, b, out, size, BLOCK=block)
        written = ~out.isnan().cpu()
        found[written & (found < 0)] = count - 1
        if not torch.equal(out[out == out], (a + b)[out == out]):
            raise InferlabError("vector_add wrote something that is no sum")
    return [int(number) for number in found]


def matmul_bytes(side: int, tile: int, depth: int = 16) -> int:
    """Return the bytes that `matmul` moves for square float32 matrices in square tiles.

    Counted access by access in the interpreter. Sides of tiles are powers of two from 16.
    """
    _needs_triton()
    from inferlab.kernels.gpu import matmul

    a, b = torch.rand(2, side, side)
    out = torch.empty(side, side)
    programs = (-(-side // tile)) ** 2
    with traffic.counting(matmul) as found:
        matmul.matmul_kernel[(programs,)](
            *(a, b, out, side, side, side, *a.stride(), *b.stride(), out.stride(0)),
            *(tile, tile, depth, matmul.GROUP),
        )
    return found.bytes


def _needs_triton() -> None:
    if not backends.has_triton():
        raise InferlabError("Triton is not installed (or hidden)")
