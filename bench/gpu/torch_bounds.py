"""Leaves out collectives of PyTorch, to measure how short a training step can become without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

# Methods of a process group: collective, and the argument that has the data of all ranks.
LARGE_CALLS = {
    "_allgather_base": ("allgather", 0),
    "allgather_into_tensor_coalesced": ("allgather", 0),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
}
LARGE_BYTES = 1 << 20


class NoWork:
    """The work object of a call that was left out."""

    def wait(self, *_: Any) -> bool:
        return True


@contextlib.contextmanager
def without(collectives: frozenset[str]) -> Iterator[None]:
    """Leaves out the large calls of these collectives in all process groups."""
    originals = {
        method: vars(dist.ProcessGroup)[method]  # getattr would return a function that is no method of objects
        for method, (collective, _) in LARGE_CALLS.items()
        if collective in collectives
    }

    def make(method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any) -> Any:
            tensors = arguments[LARGE_CALLS[method][1]]
            tensors = tensors if isinstance(tensors, list) else [tensors]
            size = sum(each.numel() * each.element_size() for each in tensors)
            return NoWork() if size >= LARGE_BYTES else original.__get__(group)(*arguments)

        return call

    for method, original in originals.items():
        setattr(dist.ProcessGroup, method, make(method, original))
    try:
        yield
    finally:
        for method, original in originals.items():
            setattr(dist.ProcessGroup, method, original)
