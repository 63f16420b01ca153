"""The machine instructions that the compiler made of a kernel, to look at."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from inferlab.errors import InferlabError
from inferlab.kernels import backends

_LABEL = re.compile(r"^(\.?L[\w.$]+):")
_JUMP = re.compile(r"^\s+(?:j\w+|b\.?\w*|cbn?z|tbn?z)\s.*?(\.?L[\w.$]+)$")


def assembly(kernel: Any, signature: tuple[Any, ...] | None = None) -> str:
    """Return the assembly of a compiled kernel, made afresh for this CPU with its own options.

    `signature` holds its arguments' numba types; left out, all are int64 (addresses and sizes).
    Raises InferlabError without numba.
    """
    if not backends.has_numba():
        raise InferlabError("kernels cannot be compiled: numba is not installed (or hidden)")
    import numba

    function = kernel.py_func
    types = signature or (numba.int64,) * function.__code__.co_argcount
    # Code that comes from numba's cache has no assembly any more.
    fresh = numba.jit(**kernel.targetoptions)(function)
    fresh.compile(types)
    return str(fresh.inspect_asm(fresh.signatures[0]))


def busiest_loop(kernel: Any, signature: tuple[Any, ...] | None = None) -> list[str]:
    """Return the instructions of the innermost loop with the most vector instructions.

    One instruction an entry, such as "vfmadd231ps (%rdx,%rbx,4), %ymm8, %ymm3"; the last jumps
    back to the first. Arguments as for `assembly`.
    """
    loops = list(_loops(assembly(kernel, signature).splitlines()))
    if not loops:
        raise InferlabError(f"kernel {kernel.py_func.__name__} has no loop")
    return max(loops, key=lambda loop: sum(map(is_vector, loop)))


def instructions(kernel: Any, signature: tuple[Any, ...] | None = None) -> dict[str, int]:
    """Count the instructions of the busiest loop by name, the most frequent first."""
    names = (line.split()[0] for line in busiest_loop(kernel, signature))
    return dict(Counter(names).most_common())


def is_vector(instruction: str) -> bool:
    """Whether an instruction, as `busiest_loop` gives it, works on a whole vector register.

    On x86 those on xmm, ymm and zmm registers that are not scalar ("ss", "sd"); on Arm those on
    arranged registers such as v0.4s.
    """
    name, _, operands = instruction.partition(" ")
    if re.search(r"%[xyz]mm", operands):
        return not re.search(r"(ss|sd)\d*$|^v?(mov[dq]|cvt\w*2s[sid]\w*|cvtt?s[sd]\w*)$", name)
    return bool(re.search(r"\bv\d+\.\d+[bhsd]", operands))


def _loops(lines: list[str]) -> Iterator[list[str]]:
    """Yield the bodies of loops that contain no other label."""
    label = ""
    body: list[str] = []
    for line in lines:
        if found := _LABEL.match(line):
            label, body = found[1], []
        elif re.match(r"^\s+[a-z]", line):
            body.append(" ".join(line.split()))
            jump = _JUMP.match(line)
            if jump and jump[1] == label:
                yield body
                label, body = "", []
