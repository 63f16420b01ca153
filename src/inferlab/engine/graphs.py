"""A fixed sequence of kernel launches, recorded once and then replayed as a whole.

A decode step is a few hundred launches of some microseconds each. Started one by one from Python
the GPU would wait between them; a CUDA graph hands it all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Launch = Callable[[], object]
"""One launch with everything bound: addresses, sizes, numbers. It asks the host for nothing."""


class Graph:
    """Launches that run once as they are recorded, and again at each `replay`.

    What changes from run to run must be in tensors that the launches read: a recording keeps
    addresses and numbers, and runs no Python. On a CPU the launches themselves are the recording.
    """

    def __init__(self, launches: Sequence[Launch], device: torch.device) -> None:
        self._launches = tuple(launches)
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            self._run()
            return
        here, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            self._run()  # whatever compiles or allocates at a first call does it now
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on allocating meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._run()
            finally:
                graph.capture_end()
        here.wait_stream(side)
        self._graph = graph

    def replay(self) -> None:
        """Run the launches again, with what their tensors hold now."""
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def _run(self) -> None:
        for launch in self._launches:
            launch()
