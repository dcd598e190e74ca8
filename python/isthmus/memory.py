"""Device memory: plain blocks of a device, and blocks in the symmetric heap of a communicator.

>>> import isthmus.memory
>>> block = isthmus.memory.empty((2, 3), "float32")
>>> block.shape, isthmus.memory.query(block).bytes
((2, 3), 24)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from . import _isthmus
from ._buffers import Array, DtypeLike, array_bytes, extents_of, numpy_dtype
from .communicator import Communicator, Device
from .layout import environment_folder, preload
from .table import DATATYPES, Platform
from .table import datatype as find_datatype


class Block(NamedTuple):
    """A plain block: device, address, requested size, and the provider that allocated it."""

    device: Device
    address: int
    bytes: int
    provider: str
    pooled: bool


@overload
def empty(
    shape: int | Sequence[int],
    dtype: DtypeLike = ...,
    device: Literal["host"] = ...,
    *,
    unpooled: bool = ...,
) -> NDArray[Any]: ...


@overload
def empty(
    shape: int | Sequence[int], dtype: DtypeLike = ..., *, device: Device | str, unpooled: bool = ...
) -> Any: ...


@overload
def empty(
    shape: int | Sequence[int], dtype: DtypeLike, device: Device | str, *, unpooled: bool = ...
) -> Any: ...


def empty(
    shape: int | Sequence[int],
    dtype: DtypeLike = "float32",
    device: Device | str = "host",
    *,
    unpooled: bool = False,
) -> Any:
    """Allocates an uninitialized array in plain memory of a device.

    On the host the result is a NumPy array. On devices it is an object that exports bytes through
    `__dlpack__` (use `torch.from_dlpack`). With `unpooled` the block is allocated directly from the driver.

    Lifetime:
        The memory is released with the last view of the array. All work that uses it must be complete by then.
    Errors:
        Raises `isthmus.Error` with the list of providers that were tried.
    """
    _find_umf()
    target = Device.parse(device)
    extents = extents_of(shape)
    is_host = target.platform == Platform.host
    item_bytes = numpy_dtype(dtype).itemsize if is_host else DATATYPES[find_datatype(dtype).name].bytes
    allocation = _isthmus.allocate_device(target, array_bytes(extents, item_bytes), bool(unpooled))
    return np.from_dlpack(allocation).view(numpy_dtype(dtype)).reshape(extents) if is_host else allocation


def symmetric(communicator: Communicator, shape: int | Sequence[int], dtype: DtypeLike = "float32") -> Any:
    """Allocates an uninitialized array in the symmetric heap of a communicator, like `Communicator.empty`."""
    return communicator.empty(shape, dtype)


def query(array: Array | int) -> Block:
    """Returns the plain block that contains an array or an address. Raises `isthmus.Error` if there is none."""
    platform, ordinal, begin, size_bytes, provider, pooled = _isthmus.query_memory(_address(array))
    return Block(Device(Platform(platform), ordinal), begin, size_bytes, provider, pooled)


def explain(device: Device | str = "host") -> dict[str, Any]:
    """Returns the providers of a device in order (with a reason if unavailable), pools and live blocks."""
    _find_umf()
    return json.loads(_isthmus.explain_memory(Device.parse(device)))


def trim(device: Device | str = "host") -> None:
    """Returns unused memory in the pools of a device to the driver."""
    _isthmus.trim_memory(Device.parse(device))


def live_blocks() -> int:
    """Returns the number of plain and symmetric blocks of this process that have not been released yet."""
    return _isthmus.live_blocks()


def _address(array: Any) -> int:
    if isinstance(array, (int, np.integer)):
        return int(array)
    if isinstance(array, np.ndarray):
        return array.ctypes.data
    buffer = _isthmus.import_buffer(array)
    if buffer is None:
        raise TypeError(f"array is a {type(array).__name__}, must be an address or an object with DLPack")
    return buffer.address


@cache
def _find_umf() -> None:
    preload("ISTHMUS_UMF_LIBRARY", environment_folder() / "lib" / "libumf.so.1")


__all__ = ["Block", "empty", "explain", "live_blocks", "query", "symmetric", "trim"]
