"""The first cell of every notebook: this machine by name, what is live and what is recorded."""

from __future__ import annotations

from inferlab import __version__, machine, records
from inferlab.figures import style
from inferlab.kernels import backends


def setup() -> None:
    """Give figures the book's look, and print which machine runs the cells that follow."""
    style.use()
    compilers = {"numba": backends.has_numba(), "Triton": backends.has_triton()}
    found = " and ".join(name for name, there in compilers.items() if there)
    print(f"inferlab {__version__} on {machine.name()}, with {found or 'torch alone'}")
    print("Live: what a cell measures, it measures here and now")
    recorded = [record["machine"]["name"] for record in records.all()]
    print(f"Recorded earlier: {'; '.join(recorded) or 'nothing yet'}")
