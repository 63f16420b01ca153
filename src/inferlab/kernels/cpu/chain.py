"""As much arithmetic for each byte as one likes: a chain of multiply-adds on every number read.

Numbers stay in vector registers while their chains run, several side by side, so that either the
memory sets the time or the multipliers do, and nothing between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import float32

from inferlab.kernels import backends
from inferlab.kernels.cpu.jit import floats, jit
from inferlab.kernels.cpu.team import NOTHING, desk, take, team

CHUNK = 1 << 15  # numbers that a thread takes at a time, 128 KiB
_STREAMS = 4  # places from which a chunk is read at once, as in `matvec`
_FLIGHT = 8  # vectors side by side: a multiply-add takes four cycles, and two begin in each

if backends.has_numba():
    from llvmlite import binding, ir
    from numba import types
    from numba.core import cgutils

    from inferlab.kernels.cpu.jit import intrinsic

    LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8

    def _instruction(flight: int) -> Any:
        """Return the loop over whole blocks of `flight` vectors, as one instruction for numba."""
        streams = min(_STREAMS, flight)
        vector, index = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)

        @intrinsic
        def run(_context, address, quarter, blocks, steps, scale, shift, out):  # type: ignore[no-untyped-def]
            """Add the chains of blocks * flight * LANES numbers into LANES sums at `out`.

            The streams begin `quarter` bytes apart.
            """

            def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
                address, quarter, blocks, steps, scale, shift, out = args
                spread = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)

                def everywhere(number: Any) -> Any:
                    lane = builder.insert_element(
                        ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0)
                    )
                    return builder.shuffle_vector(lane, lane, spread)

                def stream(number: int) -> Any:
                    at = builder.add(address, builder.mul(quarter, index(number)))
                    return builder.inttoptr(at, vector.as_pointer())

                kind = ir.FunctionType(vector, [vector] * 3)
                name = f"llvm.fmuladd.v{LANES}f32"
                multiply_add = cgutils.get_or_insert_function(builder.module, kind, name)
                factor, summand = everywhere(scale), everywhere(shift)
                zero = ir.Constant(vector, [0.0] * LANES)
                total = cgutils.alloca_once_value(builder, zero)
                values = [cgutils.alloca_once(builder, vector) for _ in range(flight)]
                bases, each = [stream(i) for i in range(streams)], flight // streams
                with cgutils.for_range(builder, blocks) as loop:
                    first = builder.mul(loop.index, index(each))
                    for number, value in enumerate(values):
                        at = builder.add(first, index(number % each))
                        read = builder.load(builder.gep(bases[number // each], [at]))
                        read.align = 4
                        builder.store(read, value)
                    with cgutils.for_range(builder, steps):
                        for value in values:
                            args = [builder.load(value), factor, summand]
                            builder.store(builder.call(multiply_add, args), value)
                    sums = [builder.load(value) for value in values]
                    while len(sums) > 1:
                        pairs = zip(sums[::2], sums[1::2], strict=True)
                        sums = [builder.fadd(a, b) for a, b in pairs]
                    builder.store(builder.fadd(builder.load(total), sums[0]), total)
                place = builder.inttoptr(out, vector.as_pointer())
                builder.store(builder.load(total), place).align = 4
                return context.get_dummy_value()

            signature = types.void(*[types.int64] * 4, types.float32, types.float32, types.int64)
            return signature, build

        return run

    _side_by_side, _one_by_one = _instruction(_FLIGHT), _instruction(1)
else:
    LANES = 8
    _side_by_side = _one_by_one = jit


@jit
def chain_piece(x, count, steps, scale, shift, flight, out):  # type: ignore[no-untyped-def]
    """Put the sum of the chains of `count` float32 at address `x` into one float32 at `out`."""
    sums = np.zeros(LANES, np.float32)
    at = sums.ctypes.data
    if flight > 1:
        blocks = count // (flight * LANES)
        quarter = blocks * flight // _STREAMS * LANES * 4
        _side_by_side(x, quarter, blocks, steps, scale, shift, at)
    else:
        blocks = count // LANES
        _one_by_one(x, 0, blocks, steps, scale, shift, at)
    total = float32(0)
    for lane in range(LANES):
        total += sums[lane]
    rest = floats(x, count)
    for i in range(blocks * flight * LANES, count):
        value = rest[i]
        for _ in range(steps):
            value = value * scale + shift
        total += value
    floats(out, 1)[0] = total


@jit
def _chain(me, x, count, steps, scale, shift, flight, rounds, out, desk):  # type: ignore[no-untyped-def]
    whole = (count + CHUNK - 1) // CHUNK
    piece = take(desk.ctypes.data, whole, -1, me, NOTHING)
    while piece >= 0:
        first = piece * CHUNK
        size = min(CHUNK, count - first)
        for _ in range(rounds):
            chain_piece(x + first * 4, size, steps, scale, shift, flight, out + piece * 4)
        piece = take(desk.ctypes.data, whole, piece, me, NOTHING)


def pieces(size: int) -> int:
    """Return how many sums `launch` writes for `size` numbers."""
    return -(-size // CHUNK)


def launch(
    x: Any,
    steps: int,
    scale: float,
    shift: float,
    out: Any,
    threads: int | None,
    *,
    lone: bool = False,
    rounds: int = 1,
) -> Any:
    """Fill `out` [pieces(n)] with sums of the chains of x [n]; dense float32 on a CPU.

    With `lone` a vector goes through its whole chain before the next one is read. Each piece is
    read `rounds` times, after the first from a cache.
    """
    count, numbers = x.numel(), (float32(scale), float32(shift))
    flight, sums = 1 if lone else _FLIGHT, desk(pieces(count))
    args = (x.data_ptr(), count, steps, *numbers, flight, rounds, out.data_ptr(), sums)
    team(threads).run(_chain, *args)
    return out
