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

    def text(self, text: str) -> str:
        """Return rank 0's text, on every rank."""
        told = [text]
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
def join(device: torch.device) -> Iterator[Group]:
    """Meet the other processes that torchrun started, and take the GPU of this one's number.

    Messages go through NCCL between GPUs, else through gloo. Raises InferlabError if there are
    more processes than GPUs, or this torch has no torch.distributed.
    """
    if not dist.is_available():
        raise InferlabError("this build of torch has no torch.distributed: run one process")
    if device.type == "cuda":
        local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= count:
            raise InferlabError(f"nproc-per-node must be at most {count}: a GPU for each process")
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    yield Group(device)
    dist.destroy_process_group()
