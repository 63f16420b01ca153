"""Compile kernels for GPUs that are not here, and read in the machine code what became of them.

A compiler needs no GPU. Each op's module offers `aot(target)`: the kernels, as `Compile`, that
its launcher would choose on such a GPU. `compile` returns what they take there: shared memory,
registers, spills, tensor-core instructions, 16-byte loads. It works in a process of its own, since
this one may run kernels in the interpreter, and keeps what it found in the cache folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from inferlab.errors import InferlabError, unknown
from inferlab.kernels import backends

Capability = tuple[int, int] | str
"""(9, 0) for NVIDIA's sm_90, or the name of an AMD architecture, such as "gfx942"."""


@dataclass(frozen=True)
class Target:
    """A GPU architecture: its shared memory a block may have, and what it can multiply."""

    name: str
    shared_bytes: int
    has_bf16: bool = True
    has_tensor_cores: bool = True  # that Triton makes use of

    @property
    def capability(self) -> Capability:
        """What `config` of an op's module takes."""
        digits = self.name.removeprefix("sm_")
        return (int(digits[:-1]), int(digits[-1])) if digits.isdigit() else self.name


# Shared memory: CUDA C++ programming guide, technical specifications per compute capability;
# AMD CDNA 3 instruction set, local data share.
TARGETS = {
    target.name: target
    for target in (
        Target("sm_75", 64 << 10, has_bf16=False, has_tensor_cores=False),  # T4
        Target("sm_80", 163 << 10),  # A100
        Target("sm_86", 99 << 10),  # A10, RTX 30
        Target("sm_89", 99 << 10),  # L4, L40S, RTX 40
        Target("sm_90", 227 << 10),  # H100, H200
        Target("sm_100", 227 << 10),  # B200
        Target("sm_120", 99 << 10),  # RTX 50
        Target("gfx942", 64 << 10),  # MI300
    )
}


@dataclass(frozen=True)
class Compile:
    """One kernel with one launch configuration, and what must hold of its machine code.

    `signature` gives the type of each argument that is no constexpr, in Triton's words: "*fp16" a
    pointer (to 16 aligned bytes, as torch allocates), "i32", "i64", "fp32"; "i32:16" is a multiple
    of 16 and "i32:1" is 1, both of which a launch finds out by itself and compiles for.
    """

    kernel: Any
    label: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    tensor_cores: bool = False  # matrix instructions must be there, where the target has them
    wide_loads: bool = False  # loads of 16 bytes must be there


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of a `Compile` for a target, or why it could not."""

    op: str
    label: str
    target: str
    seconds: float
    shared_bytes: int = 0
    registers: int = 0  # a thread
    spilled_bytes: int = 0  # a thread
    matrix_instructions: int = 0
    wide_loads: int = 0  # load instructions of 16 bytes or more
    loads: int = 0  # all that read global memory
    faults: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the kernel runs on the target, and as it should."""
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return dataclasses.asdict(self) | {"good": self.good}


def ops() -> dict[str, ModuleType]:
    """Return the modules beside this one that say what they compile, {op: module}."""
    package = __name__.rpartition(".")[0]
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    modules = {name: importlib.import_module(f"{package}.{name}") for name in sorted(names)}
    return {name: module for name, module in modules.items() if hasattr(module, "aot")}


def cases(
    names: Collection[str] | None = None, targets: Collection[str] | None = None
) -> list[tuple[Compile, Target]]:
    """Return every kernel that the launchers of `names` would choose on each of `targets`.

    Raises InferlabError for an op or a target that is not there, and without Triton.
    """
    if not backends.has_triton():
        raise InferlabError(_NO_TRITON)
    known = ops()
    for kind, asked, there in (("op", names, known), ("target", targets, TARGETS)):
        for name in asked or ():
            if name not in there:
                raise unknown(kind, name, there)
    return [
        (case, TARGETS[target])
        for name in names or known
        for target in targets or TARGETS
        for case in known[name].aot(TARGETS[target])
    ]


def compile(case: Compile, target: Target) -> Compiled:
    """Compile one kernel for one target, or remember what came of it."""
    return next(compile_all([(case, target)]))


def compile_all(
    jobs: Sequence[tuple[Compile, Target]], workers: int | None = None
) -> Iterator[Compiled]:
    """Compile many, some at a time, and yield what became of each, in the order of `jobs`.

    Raises InferlabError without Triton.
    """
    if not backends.has_triton():
        raise InferlabError(_NO_TRITON)
    workers = workers or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        some = [jobs[i : i + _JOBS] for i in range(0, len(jobs), _JOBS)]
        for found in pool.map(_compile_some, some):
            yield from found


_NO_TRITON = "compiling kernels needs Triton, which is not installed (or hidden)"
_JOBS = 16  # that one process does, so that its start of some seconds is shared


def _compile_some(jobs: Sequence[tuple[Compile, Target]]) -> list[Compiled]:
    paths = [_kept(case, target) for case, target in jobs]
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    if missing:
        request = json.dumps([_job(*jobs[i]) for i in missing])
        environment = os.environ | {"TRITON_INTERPRET": "0"}
        command = [sys.executable, "-m", __name__]
        done = subprocess.run(
            command, input=request, env=environment, capture_output=True, text=True, check=False
        )
        answers = done.stdout.splitlines()
        if done.returncode or len(answers) != len(missing):
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise InferlabError(f"the compiler's process failed: {last}")
        for i, answer in zip(missing, answers, strict=True):
            paths[i].parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=paths[i].parent, delete=False) as file:
                file.write(answer)
            os.replace(file.name, paths[i])
    found = []
    for (case, target), path in zip(jobs, paths, strict=True):
        numbers = json.loads(path.read_text(encoding="utf-8"))
        error = numbers.pop("error", None)
        made = Compiled(_op(case), case.label, target.name, **numbers)
        faults = (error,) if error else tuple(_faults(case, target, made))
        found.append(dataclasses.replace(made, faults=faults))
    return found


def _faults(case: Compile, target: Target, made: Compiled) -> Iterator[str]:
    if made.shared_bytes > target.shared_bytes:
        yield f"takes {made.shared_bytes} bytes of shared memory, has {target.shared_bytes}"
    if made.spilled_bytes:
        yield f"spills {made.spilled_bytes} bytes a thread"
    if case.tensor_cores and target.has_tensor_cores and not made.matrix_instructions:
        yield "no tensor-core instructions"
    if case.wide_loads and not made.wide_loads:
        yield "no 16-byte loads"


def _op(case: Compile) -> str:
    return str(case.kernel.fn.__module__).rpartition(".")[2]


def _job(case: Compile, target: Target) -> dict[str, Any]:
    # A number format is the one kind of constant that JSON lacks.
    constants = {
        name: value if isinstance(value, int | float | str | None) else {"dtype": str(value)}
        for name, value in case.constexprs.items()
    }
    return {
        "module": case.kernel.fn.__module__,
        "kernel": case.kernel.fn.__name__,
        "signature": dict(case.signature),
        "constexprs": constants,
        "options": {"num_warps": case.num_warps, "num_stages": case.num_stages},
        "target": target.name,
    }


def _kept(case: Compile, target: Target) -> Path:
    """Return where a result is kept: by the sources, the compiler, and all that it is given."""
    sources = [Path(__file__), *_sources(sys.modules[case.kernel.fn.__module__])]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    digest.update(metadata.version("triton").encode())
    digest.update(json.dumps(_job(case, target)).encode())
    return backends.cache_dir() / "compiled" / f"{digest.hexdigest()[:24]}.json"


def _sources(module: ModuleType) -> list[Path]:
    """Return the files of a kernel's module and of those whose kernels it calls."""
    names = {getattr(getattr(each, "fn", None), "__module__", "") for each in vars(module).values()}
    own = {name for name in names if name.startswith("inferlab.")} | {module.__name__}
    return [Path(str(sys.modules[name].__file__)) for name in sorted(own)]


# ---- in the process that compiles -------------------------------------------------------------

_MATRIX = {"ptx": r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)", "amdgcn": r"\bv_mfma"}
_LOADS = {
    "ptx": r"\b(?:ld\.(?:volatile\.|relaxed\.)?global|cp\.async\.c[ag]|cp\.async\.bulk)\S*.*",
    "amdgcn": r"\b(?:global|buffer|flat)_load\S*.*",
}
# Four words, two double words, an asynchronous copy of sixteen bytes, a copy of a whole tile.
_WIDE = {
    "ptx": r"\.v4\.[bfu]32|\.v8\.[bfu]32|\.v[24]\.[bfu]64|, 0x10\b|cp\.async\.bulk",
    "amdgcn": r"_load_(?:lds_)?(?:dwordx4|b128)",
}


def _compile(job: Mapping[str, Any]) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    language = triton.language
    module = importlib.import_module(job["module"])
    kernel = getattr(module, job["kernel"])
    constants = {
        name: language.dtype(value["dtype"]) if isinstance(value, dict) else value
        for name, value in job["constexprs"].items()
    }
    hints = {name: kind.partition(":")[2] for name, kind in job["signature"].items()}
    constants |= {name: 1 for name, hint in hints.items() if hint == "1"}
    signature = {
        name: "constexpr" if name in constants else job["signature"][name].partition(":")[0]
        for name in kernel.arg_names
    }
    multiples = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, kind in signature.items()
        if kind.startswith("*") or hints.get(name) == "16"
    }
    source = ASTSource(kernel, signature, constants, multiples)
    nvidia = job["target"].startswith("sm_")
    arch = int(job["target"][3:]) if nvidia else job["target"]
    target = GPUTarget("cuda", arch, 32) if nvidia else GPUTarget("hip", arch, 64)
    made = triton.compile(source, target=target, options=job["options"])
    text = "ptx" if nvidia else "amdgcn"
    loads = re.findall(_LOADS[text], made.asm[text])
    registers, spilled = _resources(made.asm)
    return {
        "shared_bytes": made.metadata.shared,
        "registers": registers,
        "spilled_bytes": spilled,
        "matrix_instructions": len(re.findall(_MATRIX[text], made.asm[text])),
        "wide_loads": sum(1 for load in loads if re.search(_WIDE[text], load)),
        "loads": len(loads),
    }


def _resources(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes that did not fit into them."""
    if "amdgcn" in asm:
        counts = dict(
            re.findall(r"\.(\w+_count|private_segment_fixed_size):\s*(\d+)", asm["amdgcn"])
        )
        # Scalars that do not fit go to lanes of a vector register; only vectors go to memory.
        return int(counts["vgpr_count"]), int(counts["private_segment_fixed_size"])
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # A kernel of ours has no other use for a stack than registers that did not fit.
    registers, stack, local = re.findall(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", said)[0]
    return int(registers), int(stack) + int(local)


def main() -> None:
    """Read jobs as JSON from stdin; answer each with a line of JSON."""
    for job in json.load(sys.stdin):
        start = time.perf_counter()
        try:
            answer = _compile(job)
        except Exception as error:  # whatever a compiler may raise is the answer
            text = " ".join(str(error).split()) or "no word"
            answer = {"error": f"does not compile: {type(error).__name__}: {text[:300]}"}
        print(json.dumps(answer | {"seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
