"""Matrix products fused with an allgather, reduce-scatter or allreduce.

>>> import numpy as np, isthmus, isthmus.fused
>>> with isthmus.Communicator.create_all(1)[0] as ranks:
...     a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
...     with isthmus.fused.Plan(ranks, a, b) as plan:
...         plan(a, b)[0].tolist()
[3.0, 3.0, 3.0, 3.0]

Arrays are NumPy arrays (host) or objects with DLPack, `shape` and `strides` (torch tensors). They are
two-dimensional and in memory of the communicator's platform. bfloat16 is supported as the type of torch or of
ml_dtypes.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from . import _isthmus
from ._buffers import Array, ArrayT, numpy_dtype, unsupported_array_message, view
from ._names import unknown_name
from ._operations import Stream, native_stream
from .communicator import Communicator
from .layout import preload
from .table import DATATYPES, Datatype, DatatypeName, Platform
from .table import datatype as find_datatype

KindName = Literal["allgather_gemm", "gemm_reduce_scatter", "gemm_allreduce"]
ModeName = Literal["model", "sequential", "pipelined"]
ViewName = Literal["whole", "compute_only", "communication_only"]
_TORCH_DEVICES = {"cpu": Platform.host, "cuda": Platform.cuda}


class Matrix(NamedTuple):
    """Memory layout of a matrix. `leading` is the distance in elements between rows (column-major: columns)."""

    address: int
    datatype: Datatype
    rows: int
    cols: int
    leading: int
    column_major: bool


def matrix(array: Any, name: str, platform: Platform, *, writable: bool = False) -> Matrix:
    """Returns the memory layout of a two-dimensional array. One of its strides must be one element.

    Raises:
        TypeError, ValueError: the array is not supported. The message contains its name.
    """
    if not hasattr(array, "shape"):
        raise TypeError(unsupported_array_message(array, name))
    shape, strides = tuple(int(size) for size in array.shape), _element_strides(array)
    if len(shape) != 2:
        raise ValueError(f"{name} has shape {shape}, must be two-dimensional")
    rows, cols = shape
    row_major = strides[1] == 1 or cols <= 1
    if not row_major and not (strides[0] == 1 or rows <= 1):
        raise ValueError(f"{name} has strides {strides} elements; rows or columns must be contiguous")
    leading = max(strides[0], cols, 1) if row_major else max(strides[1], rows, 1)
    address, datatype = _memory(array, row_major, name, platform, writable)
    return Matrix(address, datatype, rows, cols, leading, not row_major)


def _memory(array: Any, row_major: bool, name: str, platform: Platform, writable: bool) -> tuple[int, Datatype]:
    # Torch tensors expose their address directly. A DLPack capsule would synchronize streams unnecessarily.
    if _TORCH_DEVICES.get(getattr(getattr(array, "device", None), "type", "")) == platform:
        dtype_name = str(array.dtype).removeprefix("torch.")
        if dtype_name in DATATYPES and hasattr(array, "data_ptr"):
            return array.data_ptr(), find_datatype(dtype_name)
    # `view` requires contiguous memory, so pass the first row or column. The core checks the full extent.
    first_line = array[:1, :] if row_major else array.T[:1, :]
    line_view = view(first_line, name, None, platform, writable=writable)
    return line_view.address, line_view.datatype


def _element_strides(array: Any) -> tuple[int, ...]:
    if callable(getattr(array, "stride", None)):  # torch
        return tuple(array.stride())
    return tuple(int(stride) // array.dtype.itemsize for stride in array.strides)


def _check_name(label: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(unknown_name(label, value, allowed))


@cache
def _find_blas() -> None:
    package = importlib.util.find_spec("scipy_openblas32")
    for folder in (package.submodule_search_locations or ()) if package else ():
        preload("ISTHMUS_BLAS_LIBRARY", Path(folder) / "lib" / "libscipy_openblas.so")


class Plan:
    """Plan for products of arrays with the layout of `a` and `b`. It can run any number of times. Collective.

    kind "allgather_gemm":
        C = allgather(A) @ B. `a` contains this rank's rows of A. `b` is all of B or, with `sharded_b`, this
        rank's columns of B. Every rank gets all rows of C.
    kind "gemm_reduce_scatter":
        C = this rank's rows of the sum of A @ B over all ranks. `a` has all rows.
    kind "gemm_allreduce":
        C = all rows of the sum of A @ B over all ranks. `a` has all rows, and their number can have any value.

    `output` is the datatype of C (default: the type of the input). `mode` is "model", "sequential" or
    "pipelined". `chunks` is the number of chunks per rank (0: chosen by the cost model).

    Thread safety:
        Several ranks of one process must create and run plans from different threads.
    Errors:
        Raises isthmus.Error. If arguments differ between ranks, its code is MISMATCH on all ranks.
    """

    def __init__(
        self,
        communicator: Communicator,
        a: Array,
        b: Array,
        *,
        kind: KindName = "allgather_gemm",
        output: Datatype | DatatypeName | None = None,
        mode: ModeName = "model",
        chunks: int = 0,
        sharded_b: bool = False,
        trace: bool = False,
    ) -> None:
        _check_name("kind", kind, get_args(KindName))
        _check_name("mode", mode, get_args(ModeName))
        _find_blas()
        self._communicator = communicator
        self._platform = communicator.device.platform
        left, right = matrix(a, "a", self._platform), matrix(b, "b", self._platform)
        if left.column_major:
            raise ValueError("a must have contiguous rows")
        if left.cols != right.rows or left.datatype != right.datatype:
            raise ValueError(
                f"a is {left.rows} x {left.cols} {left.datatype.name}, b {right.rows} x {right.cols} "
                f"{right.datatype.name}: a's columns must be b's rows, of one type"
            )
        is_allgather, size = kind == "allgather_gemm", communicator.size
        self.m, self.k, self.n = left.rows * (size if is_allgather else 1), left.cols, right.cols
        self._c_rows = self.m // size if kind == "gemm_reduce_scatter" else self.m
        self._shapes = (left._replace(address=0), right._replace(address=0))
        self.output = left.datatype if output is None else find_datatype(output)
        flags = (_isthmus.FUSED_SHARDED_B if sharded_b else 0) | (_isthmus.FUSED_TRACE if trace else 0)
        self._native = _isthmus.FusedPlan(
            communicator._native,
            getattr(_isthmus.FusedKind, kind),
            getattr(_isthmus.FusedMode, mode),
            self.m,
            self.n,
            self.k,
            left.datatype,
            self.output,
            right.column_major,
            flags,
            left.leading,
            right.leading,
            0,
            int(chunks),
        )

    def __call__(
        self,
        a: ArrayT,
        b: ArrayT,
        *,
        out: ArrayT | None = None,
        bias: ArrayT | None = None,
        gathered_a: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        view: ViewName = "whole",
        stream: Stream | None = None,
    ) -> ArrayT:
        """Computes out = alpha * allgather(a) @ b + beta * out + bias and returns `out` (None: a new array).

        For the other kinds, out receives the sum of alpha * a @ b over all ranks, plus bias, and beta must be
        0. `gathered_a` receives all of A.

        Blocking:
            Host: returns when this rank's part is complete. Devices: enqueues on `stream` (default for torch
            tensors: the current stream). The arrays must live until the stream has completed the product.
        """
        _check_name("view", view, get_args(ViewName))
        left, right = matrix(a, "a", self._platform), matrix(b, "b", self._platform)
        if (left._replace(address=0), right._replace(address=0)) != self._shapes:
            raise ValueError(
                "a and b must have the shapes, strides and types of the arrays that the plan was created for"
            )
        if out is None:
            if beta != 0:
                raise ValueError(f"beta = {beta} reads out, but out is None; pass out")
            out = self._allocate(a)
        c_address = self._dense(out, "out", (self._c_rows, self.n), self.output)
        gathered_address = 0
        if gathered_a is not None:
            gathered_address = self._dense(gathered_a, "gathered_a", (self.m, self.k), left.datatype)
        bias_address = 0 if bias is None else self._vector(bias)
        self._native.run(
            left.address,
            right.address,
            c_address,
            bias_address,
            gathered_address,
            float(alpha),
            float(beta),
            getattr(_isthmus.FusedView, view),
            self._stream(a, stream),
        )
        return out

    def _allocate(self, sample: Any) -> Any:
        if isinstance(sample, np.ndarray):
            return np.empty((self._c_rows, self.n), numpy_dtype(self.output))
        import torch

        return torch.empty((self._c_rows, self.n), dtype=getattr(torch, self.output.name), device=sample.device)

    def _dense(self, array: Any, name: str, shape: tuple[int, int], datatype: Datatype) -> int:
        operand = matrix(array, name, self._platform, writable=True)
        if (operand.rows, operand.cols) != shape or operand.datatype != datatype or operand.column_major:
            raise ValueError(f"{name} must be {shape[0]} x {shape[1]} {datatype.name} with contiguous rows")
        if operand.leading != max(shape[1], 1) and shape[0] > 1:
            raise ValueError(f"{name} has {operand.leading} elements between rows, must be dense ({shape[1]})")
        return operand.address

    def _vector(self, bias: Any) -> int:
        bias_view = view(bias, "bias", None, self._platform, writable=False)
        if bias_view.elements != self.n or bias_view.datatype != self.output:
            raise ValueError(
                f"bias has {bias_view.elements} elements of {bias_view.datatype.name}, must have {self.n} of "
                f"{self.output.name}"
            )
        return bias_view.address

    def _stream(self, a: Any, stream: Any) -> int:
        if stream is None and self._platform != Platform.host and hasattr(a, "is_cuda"):
            import torch

            stream = torch.cuda.current_stream(a.device)
        return native_stream(stream)

    @property
    def info(self) -> dict[str, Any]:
        """Mode with reason, chunks, execution order of groups, predicted times, libraries, workspace, notes."""
        return json.loads(self._native.info())

    @property
    def trace(self) -> dict[str, Any]:
        """The latest run on this rank in Chrome trace format. Waits for the run. Requires trace=True."""
        return json.loads(self._native.trace())

    def close(self) -> None:
        """Waits for the runs of this rank and releases the workspace."""
        self._native.close()

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
