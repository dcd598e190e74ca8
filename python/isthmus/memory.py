"""Memory of devices: plain blocks that cost no host memory, and blocks of a communicator's symmetric heap.

>>> import isthmus.memory
>>> block = isthmus.memory.empty((2, 3), "float32")
>>> block.shape, isthmus.memory.query(block).bytes
((2, 3), 24)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from . import _isthmus
from ._buffers import array_bytes, extents_of, numpy_dtype
from .communicator import Communicator, Device
from .layout import environment_folder, preload
from .table import DATATYPES, Platform
from .table import datatype as find_datatype


class Block(NamedTuple):
    """A plain block: where it is, its size as it was asked for, and the provider that made it."""

    device: Device
    address: int
    bytes: int
    provider: str
    pooled: bool


def empty(
    shape: int | Sequence[int],
    dtype: Any = "float32",
    device: Device | str = "host",
    *,
    unpooled: bool = False,
) -> Any:
    """An uninitialised array in plain memory of a device.

    On the host it is a NumPy array, else an object with `__dlpack__` (`torch.from_dlpack`) of bytes. The
    memory goes back to its provider with the last view of the array: by then the work that uses it must be
    done. `unpooled`: a block of its own from the driver. Raises `isthmus.Error` that lists what was tried.
    """
    _find_umf()
    target = Device.parse(device)
    extents = extents_of(shape)
    is_host = target.platform == Platform.host
    item_bytes = numpy_dtype(dtype).itemsize if is_host else DATATYPES[find_datatype(dtype).name].bytes
    allocation = _isthmus.allocate_device(target, array_bytes(extents, item_bytes), bool(unpooled))
    return np.from_dlpack(allocation).view(numpy_dtype(dtype)).reshape(extents) if is_host else allocation


def symmetric(communicator: Communicator, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """An uninitialised array in the communicator's symmetric heap: `Communicator.empty`."""
    return communicator.empty(shape, dtype)


def query(array: Any) -> Block:
    """The plain block that holds an array (or an address). Raises `isthmus.Error` where there is none."""
    platform, ordinal, begin, size_bytes, provider, pooled = _isthmus.query_memory(_address(array))
    return Block(Device(Platform(platform), ordinal), begin, size_bytes, provider, pooled)


def explain(device: Device | str = "host") -> dict[str, Any]:
    """A device's providers in their order, why each that is missing is, its pools and its live blocks."""
    _find_umf()
    return json.loads(_isthmus.explain_memory(Device.parse(device)))


def trim(device: Device | str = "host") -> None:
    """Gives what the pools of a device hold unused back to the driver."""
    _isthmus.trim_memory(Device.parse(device))


def live_blocks() -> int:
    """Blocks of this process, plain and symmetric, that nobody has released yet."""
    return _isthmus.live_blocks()


def _address(array: Any) -> int:
    if isinstance(array, (int, np.integer)):
        return int(array)
    if isinstance(array, np.ndarray):
        return array.ctypes.data
    buffer = _isthmus.import_buffer(array)
    if buffer is None:
        raise TypeError(f"array is {type(array).__name__}, must be an address or speak DLPack")
    return buffer.address


@cache
def _find_umf() -> None:
    preload("ISTHMUS_UMF_LIBRARY", environment_folder() / "lib" / "libumf.so.1")


__all__ = ["Block", "empty", "explain", "live_blocks", "query", "symmetric", "trim"]
