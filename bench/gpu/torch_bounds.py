"""Leaves out collectives of PyTorch, to measure how short a training step can become without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

# Methods of a process group: collective, and the argument that has the data of all ranks. PyTorch 2.13 has new
# names for some of them.
LARGE_CALLS = {
    "_allgather_base": ("allgather", 0),
    "all_gather_single": ("allgather", 0),
    "allgather_into_tensor_coalesced": ("allgather", 0),
    "all_gather_single_coalesced": ("allgather", 0),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
}
LARGE_BYTES = 1 << 20


class NoWork:
    """The work object of a call that was left out."""

    def wait(self, *_: Any) -> bool:
        return True


class _Calls:
    """Calls that were left out.

    Memory that no gather has written gets this rank's shard. Otherwise, it can contain numbers that are not
    finite, and DeepSpeed then leaves out the update.
    """

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self._written: set[tuple[int, int]] = set()

    def leave_out(self, collective: str, group: Any, outputs: Any, inputs: Any, data: int) -> bool:
        """Returns False for small calls. `data`: the argument that has the data of all ranks."""
        pairs = list(
            zip(*(each if isinstance(each, list) else [each] for each in (outputs, inputs)), strict=True)
        )
        size = sum(pair[data].numel() * pair[data].element_size() for pair in pairs)
        if size < LARGE_BYTES:
            return False
        self.bytes.append(size)
        for output, given in pairs:
            (self._gather if collective == "allgather" else self._scatter)(
                group, output.detach(), given.detach()
            )
        return True

    def _gather(self, group: Any, output: Any, shard: Any) -> None:
        place = output.data_ptr(), output.numel()
        if place in self._written:
            return
        self._written.add(place)
        for part in output.flatten().chunk(group.size()):
            if part.data_ptr() != shard.data_ptr():
                part.copy_(shard.flatten())

    def _scatter(self, group: Any, output: Any, given: Any) -> None:
        own = given.flatten().chunk(group.size())[group.rank()]
        if own.data_ptr() != output.data_ptr():
            output.flatten().copy_(own)


@contextlib.contextmanager
def without(collectives: frozenset[str]) -> Iterator[list[int]]:
    """Leaves out the large calls of these collectives in all process groups. Yields the bytes of each."""
    calls = _Calls()
    originals = {
        method: vars(dist.ProcessGroup)[method]  # getattr would return a function that is no method of objects
        for method, (collective, _) in LARGE_CALLS.items()
        if collective in collectives and method in vars(dist.ProcessGroup)
    }

    def make(method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        collective, data = LARGE_CALLS[method]

        def call(group: Any, outputs: Any, inputs: Any, *more: Any) -> Any:
            if calls.leave_out(collective, group, outputs, inputs, data):
                return NoWork()
            return original.__get__(group)(outputs, inputs, *more)

        return call

    for method, original in originals.items():
        setattr(dist.ProcessGroup, method, make(method, original))
    try:
        yield calls.bytes
    finally:
        for method, original in originals.items():
            setattr(dist.ProcessGroup, method, original)
