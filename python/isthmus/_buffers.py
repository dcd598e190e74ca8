"""Checked zero-copy views of arrays from any library, and allocation of result arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from . import _isthmus
from .table import DATATYPES, Datatype, DatatypeName, Platform
from .table import datatype as find_datatype


class SupportsDLPack(Protocol):
    """An array of NumPy, torch, JAX, CuPy, ..."""

    def __dlpack__(self, *arguments: Any, **options: Any) -> Any: ...


class SupportsBuffer(Protocol):
    """An object with the buffer protocol, such as bytearray, memoryview or array.array."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


Array = SupportsDLPack | SupportsBuffer
# A method returns the type of the array that it gets.
ArrayT = TypeVar("ArrayT", bound=Array)


# Datatypes that `empty` accepts.
DtypeLike = Datatype | DatatypeName | np.dtype[Any] | type[Any]


class InPlace:
    """Type of `IN_PLACE`: the buffer is this rank's block of the other buffer (see the collective table)."""

    def __repr__(self) -> str:
        return "isthmus.IN_PLACE"


IN_PLACE = InPlace()

# DLPack device types that a communicator of each platform accepts.
_DEVICE_TYPES = {
    Platform.host: {1: "cpu", 3: "cuda host", 11: "rocm host", 13: "cuda managed"},
    Platform.cuda: {2: "cuda", 13: "cuda managed"},
    Platform.hip: {10: "rocm"},
    Platform.level_zero: {14: "oneapi"},
    Platform.opencl: {4: "opencl", 14: "oneapi"},
}

# Names in ml_dtypes of the types that NumPy lacks, and unsigned integer types of the same width.
_ML_DTYPES = {
    "bfloat16": Datatype.bfloat16,
    "float8_e4m3fn": Datatype.float8_e4m3,
    "float8_e5m2": Datatype.float8_e5m2,
}
_STORAGE_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_RAW_DATATYPES = (Datatype.uint8, Datatype.uint16)


class View:
    """Checked memory of one argument: `address` and `elements` of `datatype`. Keeps the array alive."""

    __slots__ = ("address", "datatype", "elements", "source")

    def __init__(self, source: Any, address: int, elements: int, datatype: Datatype) -> None:
        self.source = source
        self.address = address
        self.elements = elements
        self.datatype = datatype

    def block(self, index: int, blocks: int) -> View:
        """Returns block `index` of `blocks` blocks of equal size."""
        elements = self.elements // blocks
        address = self.address + index * elements * DATATYPES[self.datatype.name].bytes
        return View(self.source, address, elements, self.datatype)


def view(
    array: Any, name: str, dtype: Datatype | DatatypeName | None, platform: Platform, *, writable: bool
) -> View:
    """Returns a view of the memory of `array`, an object with DLPack or the buffer protocol.

    `dtype` can reinterpret unsigned integers or bytes as that datatype. Otherwise it must match the array.

    Raises:
        TypeError: the object supports neither protocol, or its element type is not supported.
        ValueError: the array is not contiguous, is on the wrong device, or is read-only.
    """
    ml_datatype = None
    exporter = array
    if isinstance(array, np.ndarray) and array.dtype.name in _ML_DTYPES:
        ml_datatype = _ML_DTYPES[array.dtype.name]
        exporter = array.view(_STORAGE_DTYPES[array.dtype.itemsize])
    buffer = _isthmus.import_buffer(exporter)
    if buffer is None:
        raise TypeError(unsupported_array_message(array, name))
    if not buffer.contiguous:
        raise ValueError(
            f"{name} must be C-contiguous; pass numpy.ascontiguousarray(...) or a contiguous block"
        )
    if writable and not buffer.writable:
        raise ValueError(f"{name} is read-only, but this call writes to it; pass a writable array")
    allowed = _DEVICE_TYPES[platform]
    if buffer.device_type not in allowed:
        raise ValueError(
            f"{name} is on DLPack device type {buffer.device_type}, but platform {platform.name} of the "
            f"communicator requires {' or '.join(allowed.values())} memory"
        )
    array_datatype = ml_datatype or buffer.datatype
    if dtype is None:
        if array_datatype is None:
            raise TypeError(_unsupported_dtype_message(array, name))
        return View(buffer, buffer.address, buffer.elements, array_datatype)
    return _reinterpret(buffer, name, ml_datatype, find_datatype(dtype))


def _reinterpret(buffer: _isthmus.Buffer, name: str, ml_datatype: Datatype | None, requested: Datatype) -> View:
    array_datatype = ml_datatype or buffer.datatype
    if array_datatype == requested:
        return View(buffer, buffer.address, buffer.elements, requested)
    item_bytes = DATATYPES[requested.name].bytes
    is_raw = ml_datatype is None and buffer.datatype in _RAW_DATATYPES and buffer.item_bytes in (1, item_bytes)
    if not is_raw:
        actual = array_datatype.name if array_datatype is not None else "another type"
        raise TypeError(
            f"{name} holds {actual}, but dtype={requested.name}; only bytes or unsigned integers of the same "
            f"width can be reinterpreted as another datatype"
        )
    total = buffer.elements * buffer.item_bytes
    if total % item_bytes:
        raise ValueError(f"{name} has {total} bytes, must be a multiple of {item_bytes} ({requested.name})")
    return View(buffer, buffer.address, total // item_bytes, requested)


def unsupported_array_message(array: Any, name: str) -> str:
    if isinstance(array, np.ndarray):
        return _unsupported_dtype_message(array, name)
    hint = f"; pass numpy.array({name})" if isinstance(array, (list, tuple, int, float)) else ""
    return (
        f"{name} is a {type(array).__name__}, must be a NumPy array or an object with DLPack or the buffer "
        f"protocol{hint}"
    )


def _unsupported_dtype_message(array: Any, name: str) -> str:
    actual = getattr(array, "dtype", None)
    return f"{name} has dtype {actual}; allowed: {', '.join(DATATYPES)} (native byte order)"


def allocate_like(array: Any, output_shape: Callable[[tuple[int, ...]], tuple[int, ...]], name: str) -> Any:
    """Returns an uninitialized array like `array`: of its library, dtype and device.

    `output_shape` returns its shape from the shape of `array`.
    """
    if isinstance(array, np.ndarray):
        return np.empty(output_shape(array.shape), array.dtype)
    if hasattr(array, "new_empty"):  # torch
        return array.new_empty(output_shape(tuple(array.shape)))
    if hasattr(array, "__array_namespace__"):
        shape = output_shape(tuple(array.shape))
        return array.__array_namespace__().empty(shape, dtype=array.dtype, device=array.device)
    if _isthmus.import_buffer(array) is None:
        raise TypeError(unsupported_array_message(array, name))
    raise TypeError(f"cannot allocate a result like {name} ({type(array).__name__}); pass out")


def extents_of(shape: Any) -> tuple[int, ...]:
    """Returns a NumPy shape (an integer or a sequence of integers) as a tuple of extents."""
    sizes = (shape,) if isinstance(shape, (int, np.integer)) or np.ndim(shape) == 0 else tuple(shape)
    if not all(isinstance(extent, (int, np.integer)) for extent in sizes):
        raise TypeError(f"shape must be an integer or a sequence of integers, not {shape!r}")
    extents = tuple(int(extent) for extent in sizes)
    if any(extent < 0 for extent in extents):
        raise ValueError(f"shape must not be negative: {extents}")
    return extents


def array_bytes(extents: tuple[int, ...], item_bytes: int) -> int:
    """Returns the size of an array in bytes. Raises ValueError if it exceeds the address space."""
    total = math.prod(extents) * item_bytes
    if total >= 1 << 63:
        raise ValueError(f"shape {extents} of {item_bytes}-byte elements exceeds the address space")
    return total


def numpy_dtype(dtype: DtypeLike) -> np.dtype[Any]:
    """Returns the NumPy dtype of a datatype name. bfloat16 and fp8 require the package ml_dtypes."""
    name = dtype.name if isinstance(dtype, Datatype) else dtype
    ml_name = {value.name: key for key, value in _ML_DTYPES.items()}.get(name)
    if ml_name is None:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            f"NumPy has no {name}; install ml_dtypes, or use an unsigned dtype of the same width"
        ) from None
    return np.dtype(getattr(ml_dtypes, ml_name))
