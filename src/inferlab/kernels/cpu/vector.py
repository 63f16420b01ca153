"""A few words for vector registers, which numba has no types for: 32 bytes that kernels compute on.

Each word becomes one or a few instructions. They are LLVM's portable ones, lowered to whatever the
CPU has, but for products of bytes, where AVX2 has an instruction that no pattern is matched to.
Addresses need no alignment. Nothing is reassociated: results are the same on every CPU.
"""

from __future__ import annotations

from typing import Any

from inferlab.kernels import backends
from inferlab.kernels.cpu.jit import jit

if backends.has_numba():
    import operator

    from llvmlite import ir
    from numba import types
    from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
    from numba.extending import intrinsic as _intrinsic
    from numba.extending import lower_builtin, models, register_model

    intrinsic: Any = _intrinsic(prefer_literal=True)

    _ELEMENTS = {
        "i8": ir.IntType(8),
        "i16": ir.IntType(16),
        "i32": ir.IntType(32),
        "i64": ir.IntType(64),
        "f16": ir.HalfType(),
        "f32": ir.FloatType(),
    }

    class Vector(types.Type):
        """The type of 32 bytes in a register: `lanes` numbers side by side."""

        def __init__(self, element: str, lanes: int) -> None:
            self.element, self.lanes = element, lanes
            super().__init__(name=f"{element}x{lanes}")

    @register_model(Vector)
    class _Model(models.PrimitiveModel):
        def __init__(self, manager: Any, kind: Vector) -> None:
            super().__init__(manager, kind, _ir(kind.element, kind.lanes))

    def _ir(element: str, lanes: int) -> Any:
        return ir.VectorType(_ELEMENTS[element], lanes)

    BYTES, SHORTS = Vector("i8", 32), Vector("i16", 16)
    INTS, FLOATS, FOUR = Vector("i32", 8), Vector("f32", 8), Vector("f32", 4)
    _ADDRESS = types.int64

    def _splat(element: str, lanes: int, value: float) -> Any:
        return ir.Constant(_ir(element, lanes), [value] * lanes)

    def _shuffle(builder: Any, value: Any, lanes: Any, other: Any = None) -> Any:
        other = ir.Constant(value.type, ir.Undefined) if other is None else other
        index = ir.Constant(ir.VectorType(_ELEMENTS["i32"], len(lanes)), list(lanes))
        return builder.shuffle_vector(value, other, index)

    def _read(builder: Any, address: Any, kind: Any) -> Any:
        return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)

    def _as_bytes(builder: Any, value: Any) -> Any:
        return builder.bitcast(value, _ir("i8", 32))

    def _has(context: Any, feature: str) -> bool:
        """Whether the CPU that is compiled for has a feature; numba's cache knows it as well."""
        return f"+{feature}" in context.codegen().magic_tuple()[2].split(",")

    # Sums and products of whole vectors.

    @infer_global(operator.add)
    class _Sums(ConcreteTemplate):
        cases = [signature(kind, kind, kind) for kind in (SHORTS, INTS, FLOATS, FOUR)]  # noqa: RUF012

    @infer_global(operator.mul)
    class _Products(ConcreteTemplate):
        cases = [signature(FLOATS, FLOATS, FLOATS)]  # noqa: RUF012

    @lower_builtin(operator.add, SHORTS, SHORTS)
    @lower_builtin(operator.add, INTS, INTS)
    def _add_whole(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.add(*args)

    @lower_builtin(operator.add, FLOATS, FLOATS)
    @lower_builtin(operator.add, FOUR, FOUR)
    def _add_floats(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fadd(*args, flags=("contract",))

    @lower_builtin(operator.mul, FLOATS, FLOATS)
    def _multiply(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fmul(*args, flags=("contract",))

    # From memory and back.

    @intrinsic
    def load_bytes(_context, address):  # type: ignore[no-untyped-def]
        """Read 32 bytes."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _read(builder, args[0], _ir("i8", 32))

        return BYTES(_ADDRESS), build

    @intrinsic
    def load_shorts(_context, address):  # type: ignore[no-untyped-def]
        """Read 16 int16."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _read(builder, args[0], _ir("i16", 16))

        return SHORTS(_ADDRESS), build

    def _read_eight_times(address: Any, kind: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            wide = _shuffle(builder, _read(builder, args[0], _ir("i32", 1)), [0] * 8)
            return builder.bitcast(wide, _ir(kind.element, kind.lanes))

        return kind(address), build

    @intrinsic
    def spread_bytes(_context, address):  # type: ignore[no-untyped-def]
        """Read four bytes, eight times over."""
        return _read_eight_times(address, BYTES)

    @intrinsic
    def spread_shorts(_context, address):  # type: ignore[no-untyped-def]
        """Read two int16, eight times over."""
        return _read_eight_times(address, SHORTS)

    @intrinsic
    def store_shorts(_context, address, value):  # type: ignore[no-untyped-def]
        """Write 16 int16."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            builder.store(args[1], builder.inttoptr(args[0], args[1].type.as_pointer()), align=2)
            return context.get_dummy_value()

        return types.void(_ADDRESS, SHORTS), build

    @intrinsic
    def load_floats(_context, address):  # type: ignore[no-untyped-def]
        """Read eight float32."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _read(builder, args[0], _ir("f32", 8))

        return FLOATS(_ADDRESS), build

    @intrinsic
    def store_floats(_context, address, value):  # type: ignore[no-untyped-def]
        """Write eight float32."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            builder.store(args[1], builder.inttoptr(args[0], args[1].type.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(_ADDRESS, FLOATS), build

    @intrinsic
    def store_low_bytes(_context, address, value):  # type: ignore[no-untyped-def]
        """Write the low byte of each of eight int32."""
        return _store_low(address, value, "i8")

    @intrinsic
    def store_low_shorts(_context, address, value):  # type: ignore[no-untyped-def]
        """Write the low half of each of eight int32."""
        return _store_low(address, value, "i16")

    def _store_low(address: Any, value: Any, element: str) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            low = builder.trunc(args[1], _ir(element, 8))
            builder.store(low, builder.inttoptr(args[0], low.type.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(address, value), build

    @intrinsic
    def swap_middle(_context, value):  # type: ignore[no-untyped-def]
        """Put each four of eight int32 in the order 0, 2, 1, 3."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _shuffle(builder, args[0], [0, 2, 1, 3, 4, 6, 5, 7])

        return INTS(INTS), build

    # Scales: halves read, widened and spread over lanes.

    def _widen_halves(context: Any, builder: Any, bits: Any) -> Any:
        """Float16 bits, <n x i16>, as <n x float>."""
        n = bits.type.count
        if _has(context, "f16c") or "aarch64" in context.codegen().magic_tuple()[0]:
            return builder.fpext(builder.bitcast(bits, _ir("f16", n)), _ir("f32", n))
        # Without the instruction LLVM would call a library. Exponents move by 112; those of
        # infinity and NaN by 224.
        wide = builder.zext(bits, _ir("i32", n))
        sign = builder.shl(builder.and_(wide, _splat("i32", n, 0x8000)), _splat("i32", n, 16))
        rest = builder.shl(builder.and_(wide, _splat("i32", n, 0x7FFF)), _splat("i32", n, 13))
        big = builder.fmul(builder.bitcast(rest, _ir("f32", n)), _splat("f32", n, 2.0**112))
        endless = builder.icmp_unsigned(">=", rest, _splat("i32", n, 0x7C00 << 13))
        top = builder.select(endless, _splat("i32", n, 0x7F800000), _splat("i32", n, 0))
        whole = builder.or_(builder.or_(builder.bitcast(big, _ir("i32", n)), top), sign)
        return builder.bitcast(whole, _ir("f32", n))

    @intrinsic
    def eight_halves(_context, address):  # type: ignore[no-untyped-def]
        """Read eight float16."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _widen_halves(context, builder, _read(builder, args[0], _ir("i16", 8)))

        return FLOATS(_ADDRESS), build

    @intrinsic
    def totals(_context, a, b, c, d):  # type: ignore[no-untyped-def]
        """Sum the lanes of each of four vectors: four float32, each in the same order."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            def add(left: Any, right: Any, lanes: list[int], others: list[int]) -> Any:
                return builder.fadd(
                    _shuffle(builder, left, lanes, right), _shuffle(builder, left, others, right)
                )

            halves = ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])
            ab, cd = add(args[0], args[1], *halves), add(args[2], args[3], *halves)
            pairs = add(ab, cd, [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
            return add(pairs, pairs, [0, 4, 2, 6], [1, 5, 3, 7])

        return FOUR(FLOATS, FLOATS, FLOATS, FLOATS), build

    @intrinsic
    def spread_half(_context, address):  # type: ignore[no-untyped-def]
        """Read one float16 into all lanes."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            one = _read(builder, args[0], _ir("i16", 1))
            return _widen_halves(context, builder, _shuffle(builder, one, [0] * 8))

        return FLOATS(_ADDRESS), build

    @intrinsic
    def spread(_context, value):  # type: ignore[no-untyped-def]
        """Put one float32 in all lanes."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            empty = ir.Constant(_ir("f32", 8), ir.Undefined)
            one = builder.insert_element(empty, args[0], ir.IntType(32)(0))
            return _shuffle(builder, one, [0] * 8)

        return FLOATS(types.float32), build

    # Unpacking, and products of bytes.

    @intrinsic
    def low_nibbles(_context, value):  # type: ignore[no-untyped-def]
        """Keep the low four bits of each byte."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.and_(args[0], _splat("i8", 32, 15))

        return BYTES(BYTES), build

    @intrinsic
    def high_nibbles(_context, value):  # type: ignore[no-untyped-def]
        """Move the high four bits of each byte down."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.lshr(args[0], _splat("i8", 32, 4))

        return BYTES(BYTES), build

    @intrinsic
    def nibble(_context, value, index):  # type: ignore[no-untyped-def]
        """Keep one nibble (a literal 0 to 3, from the lowest) of each two bytes: 16 int16."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            by = _splat("i16", 16, 4 * signature.args[1].literal_value)
            down = builder.lshr(builder.bitcast(args[0], _ir("i16", 16)), by)
            return builder.and_(down, _splat("i16", 16, 15))

        return (SHORTS(BYTES, index), build) if isinstance(index, types.Literal) else None

    @intrinsic
    def signed_byte(_context, value, index):  # type: ignore[no-untyped-def]
        """Keep one signed byte (a literal 0 for the low one, or 1) of each two: 16 int16."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            pairs, eight = builder.bitcast(args[0], _ir("i16", 16)), _splat("i16", 16, 8)
            high = pairs if signature.args[1].literal_value else builder.shl(pairs, eight)
            return builder.ashr(high, eight)

        return (SHORTS(BYTES, index), build) if isinstance(index, types.Literal) else None

    @intrinsic
    def dot_shorts(_context, left, right):  # type: ignore[no-untyped-def]
        """Multiply 16 int16, and add each two neighbours: eight int32."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            wide = (builder.sext(arg, _ir("i32", 16)) for arg in args)
            return _sum_pairs(builder, builder.mul(*wide))

        return INTS(SHORTS, SHORTS), build

    def _avx2(builder: Any, name: str, result: Any, args: Any) -> Any:
        """Call an instruction of AVX2 that LLVM has a word of its own for."""
        kind = ir.FunctionType(result, [arg.type for arg in args])
        name = f"llvm.x86.avx2.{name}"
        return builder.call(
            builder.module.globals.get(name) or ir.Function(builder.module, kind, name), args
        )

    @intrinsic
    def dot_pairs(_context, small, signed):  # type: ignore[no-untyped-def]
        """Multiply bytes, 0 to 128 and -127 to 127, and add each two neighbours: 16 int16."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            if _has(context, "avx2"):
                return _avx2(builder, "pmadd.ub.sw", _ir("i16", 16), args)
            even, odd = (
                builder.mul(
                    builder.zext(_shuffle(builder, args[0], range(i, 32, 2)), _ir("i16", 16)),
                    builder.sext(_shuffle(builder, args[1], range(i, 32, 2)), _ir("i16", 16)),
                )
                for i in (0, 1)
            )
            return builder.add(even, odd)

        return SHORTS(BYTES, BYTES), build

    def _sum_pairs(builder: Any, products: Any) -> Any:
        """Add each two neighbours of <16 x i32>."""
        return builder.add(*(_shuffle(builder, products, range(i, 16, 2)) for i in (0, 1)))

    # From whole numbers to floats and back.

    @intrinsic
    def to_floats(_context, value):  # type: ignore[no-untyped-def]
        """Turn eight int32 into float32."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.sitofp(args[0], _ir("f32", 8))

        return FLOATS(INTS), build

    def _float_part(value: Any, index: Any, bits: int) -> Any:
        """Turn part `index` of each int32, so many bits long (4 without a sign), into float32."""

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = bits * signature.args[1].literal_value
            up, down = _splat("i32", 8, 32 - bits - at), _splat("i32", 8, 32 - bits)
            wide = builder.shl(builder.bitcast(args[0], _ir("i32", 8)), up)
            part = builder.lshr(wide, down) if bits == 4 else builder.ashr(wide, down)
            return builder.sitofp(part, _ir("f32", 8))

        return (FLOATS(value, index), build) if isinstance(index, types.Literal) else None

    @intrinsic
    def float_byte(_context, value, index):  # type: ignore[no-untyped-def]
        """Take one signed byte (a literal 0 to 3) of each four: eight float32."""
        return _float_part(value, index, 8)

    @intrinsic
    def float_nibble(_context, value, index):  # type: ignore[no-untyped-def]
        """Take four bits (a literal 0 to 7, from the lowest) of each four bytes: eight float32."""
        return _float_part(value, index, 4)

    @intrinsic
    def two_quads(_context, address, step):  # type: ignore[no-untyped-def]
        """Read four bytes, and four more `step` on: eight int32, signed."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            first, second = (
                _read(builder, at, _ir("i8", 4)) for at in (args[0], builder.add(*args))
            )
            return builder.sext(_shuffle(builder, first, range(8), second), _ir("i32", 8))

        return INTS(_ADDRESS, _ADDRESS), build

    @intrinsic
    def rounded(_context, value):  # type: ignore[no-untyped-def]
        """Round eight float32 of at most 2^21 to the nearest int32, halves to even."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            # 1.5 * 2^23: whole numbers are then the last bits of the sum.
            shifted = builder.fadd(args[0], _splat("f32", 8, 12582912.0))
            return builder.sub(
                builder.bitcast(shifted, _ir("i32", 8)), _splat("i32", 8, 0x4B400000)
            )

        return INTS(FLOATS), build

    # Over all lanes.

    @intrinsic
    def larger(_context, left, right):  # type: ignore[no-untyped-def]
        """Return the larger magnitude lane by lane; NaN if either is."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            a, b = (_magnitude(builder, value) for value in args)
            keep = builder.fcmp_unordered(">", a, b)  # true for NaN in either
            either = builder.fcmp_unordered("uno", b, b)
            return builder.select(either, b, builder.select(keep, a, b))

        return FLOATS(FLOATS, FLOATS), build

    def _magnitude(builder: Any, value: Any) -> Any:
        bits = builder.bitcast(value, _ir("i32", 8))
        return builder.bitcast(builder.and_(bits, _splat("i32", 8, 0x7FFFFFFF)), _ir("f32", 8))

    @intrinsic
    def lane(_context, value, index):  # type: ignore[no-untyped-def]
        """Return one lane, by a literal index, as a float32."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.extract_element(args[0], ir.IntType(32)(signature.args[1].literal_value))

        fits = isinstance(index, types.Literal)
        return (types.float32(value, index), build) if fits else None

    @intrinsic
    def turned(_context, value, by):  # type: ignore[no-untyped-def]
        """Move lane i + `by` (a literal) to lane i, round the end."""

        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            by = signature.args[1].literal_value
            return _shuffle(builder, args[0], [(i + by) % 8 for i in range(8)])

        return (FLOATS(FLOATS, by), build) if isinstance(by, types.Literal) else None

else:
    load_bytes = load_shorts = load_floats = store_shorts = store_floats = store_low_bytes = jit
    store_low_shorts = swap_middle = spread_bytes = spread_shorts = spread_half = spread = jit
    eight_halves = totals = lane = turned = rounded = larger = low_nibbles = high_nibbles = jit
    nibble = signed_byte = dot_shorts = dot_pairs = to_floats = float_byte = float_nibble = jit
    two_quads = jit


@jit
def total(value):  # type: ignore[no-untyped-def]
    """Return the sum of eight float32, in a fixed order."""
    value = value + turned(value, 4)
    value = value + turned(value, 2)
    return lane(value + turned(value, 1), 0)
