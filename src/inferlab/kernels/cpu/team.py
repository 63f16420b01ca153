"""A few threads that run one kernel together, and hand each other its pieces of work.

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
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from inferlab.kernels.cpu.jit import fetch_add, jit, load_acquire, prefetch

_CGROUP = Path("/sys/fs/cgroup/cpu.max")
_PATIENCE = 4000  # looks at a counter, some tens of microseconds
_FINISHED = 1 << 32  # in a cell; below it counts those who took the piece
_LINE = 64


def physical_cores() -> int:
    """Count the cores this process may use; hyperthreads of one core count once."""
    cores = len(_cores()) or os.cpu_count() or 1
    try:  # a container may be given many cores and the time of a few
        quota, period = _CGROUP.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return cores


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


def desk_bytes(pieces: int) -> int:
    """Return the bytes of a desk for `pieces`: a counter and a cell for each, in whole lines."""
    return (1 + pieces + 7) // 8 * 64


def desk(pieces: int) -> NDArray[np.int64]:
    """Return a fresh desk for one phase of `pieces`."""
    return np.zeros(desk_bytes(pieces) // 8, np.int64)


class Me(NamedTuple):
    """A thread in a kernel: which `member` it is of how many."""

    member: int
    members: int


class Ahead(NamedTuple):
    """Memory that a thread will read next: `stretches` of `bytes`, `step` bytes apart."""

    address: int
    bytes: int
    step: int
    stretches: int


NOTHING = Ahead(0, 0, 0, 0)


@jit
def first_piece(pieces, me):  # type: ignore[no-untyped-def]
    """Return the piece that a member takes first, if nobody was quicker."""
    return me.member * pieces // me.members


@jit
def take(desk, pieces, done, me, ahead):  # type: ignore[no-untyped-def]
    """Hand in the piece `done` (-1 for none) and take the next one; -1 once all are finished.

    `desk` is the address of a phase's zeroed memory, which the team shares: how many pieces are
    finished, and a cell for each that says whether it is taken or finished. Every member begins
    at a place of its own, goes on from piece to piece, and helps the others at the end. When all
    are taken, a thread asks memory for what it reads `ahead`, waits a little for those who hold
    the last pieces, and then does their work once more. So nobody waits for a thread that the
    operating system took off its core, and a phase needs no barrier. A piece must therefore
    write what it computes and nothing on the way to it, from inputs that stay as they are until
    the whole team is through.
    """
    cells = desk + 8
    piece = first_piece(pieces, me)
    if done >= 0:
        if fetch_add(cells + done * 8, _FINISHED) < _FINISHED:
            fetch_add(desk, 1)
        piece = done + 1
    for _ in range(pieces):
        if piece >= pieces:
            piece = 0
        cell = cells + piece * 8
        if load_acquire(cell) == 0 and fetch_add(cell, 1) == 0:
            return piece
        piece += 1
    for stretch in range(ahead.stretches):
        for at in range(0, ahead.bytes, _LINE):
            prefetch(ahead.address + stretch * ahead.step + at)
    looks = 0
    while load_acquire(desk) < pieces:
        looks += 1
        if looks > _PATIENCE:
            looks = 0
            for left in range(pieces):
                if load_acquire(cells + left * 8) < _FINISHED:
                    return left
    return -1


class _Job:
    """One call of a kernel. Who comes after the caller is through stays out of it."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call = call
        self._lock, self._closed = threading.Lock(), False
        self._inside: list[threading.Event] = []
        self._errors: list[BaseException] = []

    def join(self, member: int) -> None:
        with self._lock:
            if self._closed:
                return
            self._inside.append(left := threading.Event())
        try:
            self.call(member)
        except BaseException as error:
            self._errors.append(error)
        left.set()

    def close(self) -> None:
        """Wait until all who came in have left; raise what one of them raised."""
        with self._lock:
            self._closed = True
        for left in self._inside:
            left.wait()
        if self._errors:
            raise self._errors[0]


class Team:
    """`threads` members, the caller among them, that run one kernel at a time."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._places: list[set[int]] = _places(threads) if threads > 1 else []
        self._busy = threading.Lock()
        self._inboxes: list[SimpleQueue[_Job]] = [SimpleQueue() for _ in range(threads - 1)]
        for member, inbox in enumerate(self._inboxes, start=1):
            threading.Thread(target=self._serve, args=(member, inbox), daemon=True).start()

    def run(self, kernel: Callable[..., Any], *args: Any) -> None:
        """Call `kernel(me, *args)` in the caller and in every other thread that has a core.

        Returns when the caller's call has, and all others that began.
        """
        job = _Job(lambda member: kernel(Me(member, self.threads), *args))
        with self._busy, _staying(self._places[0] if self._places else None):
            try:
                for inbox in self._inboxes:
                    inbox.put(job)
                job.call(0)
                job.close()
            except BaseException:  # Ctrl-C too: nobody may be left at work on `args`
                with contextlib.suppress(Exception):
                    job.close()
                raise

    def _serve(self, member: int, inbox: SimpleQueue[_Job]) -> None:
        with _staying(self._places[member] if self._places else None):
            while True:
                inbox.get().join(member)


@functools.cache
def _team(threads: int, process: int) -> Team:
    return Team(threads)


def team(threads: int | None = None) -> Team:
    """Return this process's team of `threads` members; by default one for each physical core."""
    return _team(threads or physical_cores(), os.getpid())


@functools.cache
def _cores_here(process: int) -> int:
    return physical_cores()  # to count takes longer than a small job


def team_for(work: int, share: int) -> Team:
    """Return the team for a job beside torch's: no more threads than torch may have.

    One alone where there is less `work` than a `share` for each.
    """
    threads = min(_cores_here(os.getpid()), torch.get_num_threads())
    return team(threads if work >= share * threads else 1)
