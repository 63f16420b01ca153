"""A few threads that run one kernel together, with barriers of their own.

Python threads rather than numba's: a compiled kernel runs without the GIL, so one entry a
decode step costs microseconds, where a parallel region a layer costs far more as soon as
another process holds one of the cores.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from inferlab.kernels.cpu.jit import fetch_add, jit, load_acquire, prefetch, yield_core

WORK = 64  # where in `sync` the counters of work begin, in bytes: a cache line of their own
_LINE = 64
_SPINS = 1000  # some microseconds
_OPEN = 1 << 62  # more arrivals than any barrier waits for
_Job = Callable[[int], None]


def physical_cores() -> int:
    """Count the cores this process may use; hyperthreads of one core count once."""
    return len(_cores()) or os.cpu_count() or 1


def _cores() -> list[set[int]]:
    """Return the CPUs that this thread may use, core by core; nothing where no one can say."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores: dict[str, set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), set()).add(cpu)
    return list(cores.values())


def _places(members: int) -> list[set[int]]:
    """Return a set of CPUs for each member, none in two sets; nothing if there are too few."""
    cores = _cores()
    if len(cores) < members:
        return []
    return [set().union(*cores[member::members]) for member in range(members)]


@contextlib.contextmanager
def _staying(place: set[int] | None) -> Iterator[None]:
    """Keep the calling thread on some CPUs for a while.

    A scheduler may leave two threads that meet all the time on one core, beside an idle one.
    """
    if place is None:
        yield
        return
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.sched_setaffinity(0, place)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


@jit
def meet(arrivals, goal, m, member):  # type: ignore[no-untyped-def]
    """Wait until `goal` arrivals in all have been counted; meanwhile prefetch what comes next.

    `arrivals` is the address of a counter that only grows; `m` is the matrix (`matvec.MATRIX`)
    whose first chunk this member will read after the barrier.
    """
    fetch_add(arrivals, 1)
    ahead = m.data + member * m.chunk * m.stride
    end = m.data + min(m.rows, (member + 1) * m.chunk) * m.stride
    spins = 0
    while load_acquire(arrivals) < goal:
        if ahead < end:
            for line in range(4):
                prefetch(ahead + line * _LINE)
            ahead += 4 * _LINE
        elif spins < _SPINS:
            spins += 1
        else:
            # A virtual core may have been taken away from whom we wait for.
            yield_core()


class Team:
    """`threads` members, the caller among them, that run one kernel at a time.

    `sync` is memory for the kernels' own use, zeroed before each run: the barrier's counter
    first, and from byte `WORK` on one counter of handed-out work for each product.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.sync = np.zeros(4096, np.int64)
        self._places: list[set[int]] = _places(threads) if threads > 1 else []
        self._busy = threading.Lock()
        self._inboxes: list[SimpleQueue[_Job]] = [SimpleQueue() for _ in range(threads - 1)]
        self._done: SimpleQueue[tuple[_Job, BaseException | None]] = SimpleQueue()
        for member, inbox in enumerate(self._inboxes, start=1):
            threading.Thread(target=self._serve, args=(member, inbox), daemon=True).start()

    def run(self, kernel: Callable[..., Any], *args: Any) -> None:
        """Call `kernel(member, threads, sync, *args)` in every thread; return when all have."""
        with self._busy, _staying(self._places[0] if self._places else None):
            self.sync.fill(0)
            try:
                self._share(lambda member: kernel(member, self.threads, self.sync, *args))
            except BaseException:  # Ctrl-C too: no thread may be left in a barrier or in `args`
                self.sync[0] = _OPEN
                self._share(lambda member: None)
                raise

    def _share(self, job: _Job) -> None:
        for inbox in self._inboxes:
            inbox.put(job)
        job(0)
        left = len(self._inboxes)
        while left:
            finished, error = self._done.get()
            left -= finished is job  # else what an interrupted run left behind
            if error is not None and finished is job:
                raise error

    def _serve(self, member: int, inbox: SimpleQueue[_Job]) -> None:
        with _staying(self._places[member] if self._places else None):
            while True:
                job, error = inbox.get(), None
                try:
                    job(member)
                except BaseException as raised:
                    self.sync[0], error = _OPEN, raised
                self._done.put((job, error))


@functools.cache
def _team(threads: int, process: int) -> Team:
    return Team(threads)


def team(threads: int | None = None) -> Team:
    """Return this process's team of `threads` members; by default one for each physical core."""
    return _team(threads or physical_cores(), os.getpid())
