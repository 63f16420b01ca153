"""Several processes, one answer: how those that torchrun started keep in step.

    torchrun --nproc-per-node 2 -m inferlab generate "..."

Every rank runs the same loop over the same requests, on its part of the model (`model.sharding`).
Rank 0 decides what chance and a person decide: the next token, and when Ctrl-C ends it all.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from inferlab.errors import InferlabError

T = TypeVar("T")


class Group:
    """The processes that hold one model, through torch.distributed: `model.sharding.Group`.

    Each method is called by all ranks in the same order, or they wait for each other for ever.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device, self._interrupted = device, False

    def add(self, x: Tensor) -> Tensor:
        """Return the sum of every rank's x, written over x."""
        dist.all_reduce(x)
        return x

    def join(self, x: Tensor) -> Tensor:
        """Return every rank's x, all of one shape, side by side in the last dimension."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x)
        return torch.cat(parts, -1)

    def agree(self, tokens: list[int]) -> list[int]:
        """Return rank 0's tokens, on every rank.

        Ranks could sample the same, if it were not for a seed that nobody gave, and for GPUs,
        whose sums differ in the last bit. Raises KeyboardInterrupt, on every rank, if rank 0 heard
        Ctrl-C while it was `deferred`.
        """
        told = torch.tensor([*tokens, self._interrupted], device=self._device)
        dist.broadcast(told, 0)
        *tokens, interrupted = told.tolist()
        if interrupted:
            raise KeyboardInterrupt
        return tokens

    def text(self, read: Callable[[], str]) -> str:
        """Return on every rank the text that rank 0 reads."""
        told = ["" if self.rank else read()]
        dist.broadcast_object_list(told, 0)
        return told[0]

    def together(self, action: Callable[[], T]) -> T:
        """Do something on every rank. If it fails on one, all raise that InferlabError."""
        done, error = None, None
        try:
            done = action()
        except InferlabError as caught:
            error = str(caught)
        errors: list[str | None] = [None] * self.size
        dist.all_gather_object(errors, error)
        for rank, said in enumerate(errors):
            if said is not None:
                raise InferlabError(f"rank {rank}: {said}" if rank else said)
        return done  # type: ignore[return-value]

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let Ctrl-C wait for the next `agree`: who leaves amid a pass keeps the others waiting."""
        self._interrupted = False

        def note(*_: object) -> None:
            self._interrupted = True

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def join(device: str = "auto") -> Iterator[Group]:
    """Meet the other processes that torchrun started. On GPUs each takes that of its number.

    Messages go through NCCL between GPUs, else through gloo. Raises InferlabError if there are
    more processes than GPUs, or this torch has no torch.distributed.
    """
    if not dist.is_available():
        raise InferlabError("this build of torch has no torch.distributed: start one process")
    count = 0 if device == "cpu" else torch.cuda.device_count()
    if count:
        if int(os.environ["LOCAL_WORLD_SIZE"]) > count:
            raise InferlabError(f"nproc-per-node must be at most {count}: a GPU for each process")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Whoever waits for a message in C++ hears no Ctrl-C: let it end the process without Python.
    usual = signal.signal(signal.SIGINT, signal.SIG_DFL)
    dist.init_process_group("nccl" if count else "gloo")
    group = Group(torch.device("cuda" if count else "cpu"))
    if group.rank == 0:
        signal.signal(signal.SIGINT, usual)
    yield group
    signal.signal(signal.SIGINT, usual)
    # Only here: who leaves by an error must not wait for those that it leaves behind.
    dist.destroy_process_group()


def kernels(asked: str) -> str:
    """Return the kernels of a rank: torch's. A SIMD step and a recorded one run without a stop."""
    if asked not in ("auto", "torch"):
        raise InferlabError(f"kernels {asked} can't add up what several ranks compute: use torch")
    return "torch"
