"""What makes Triton's interpreter bearable."""

from __future__ import annotations

import pytest

from inferlab.kernels.gpu import matvec, quant_matvec


def run_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it, which needs milliseconds for each program, run fewer and larger ones."""
    for kernel in (matvec, quant_matvec):

        def config(*sizes, right=kernel.config, **more):
            made = right(*sizes, **more)
            return made._replace(block_n=max(32, made.block_n), groups=1)

        monkeypatch.setattr(kernel, "config", config)
