"""Builds the operation for the core from the arrays of a call: shapes, counts, displacements, IN_PLACE."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from . import _isthmus
from ._buffers import IN_PLACE, View, allocate_like, view
from ._groups import run_or_defer
from .table import (
    COLLECTIVES,
    DATATYPES,
    Collective,
    CollectiveRow,
    Datatype,
    DatatypeName,
    Platform,
    ReductionOp,
    ReductionOpName,
)
from .table import reduction_op as find_reduction_op

Counts = Sequence[int]


class TorchStream(Protocol):
    """A torch.cuda.Stream."""

    @property
    def cuda_stream(self) -> int: ...


class CupyStream(Protocol):
    """A cupy.cuda.Stream."""

    @property
    def ptr(self) -> int: ...


Stream = int | TorchStream | CupyStream


def native_stream(stream: Stream | None) -> int:
    """Returns the native handle of a stream: an integer, None, or an object with a handle attribute."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):  # torch.cuda.Stream; cupy.cuda.Stream
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    raise TypeError(
        f"stream is a {type(stream).__name__}, must be an integer handle, a torch stream or a CuPy stream"
    )


def displacements(counts: Counts, displs: Counts | None) -> list[int]:
    """Returns the displacements as a list. None means contiguous blocks."""
    if displs is not None:
        return [int(displ) for displ in displs]
    return [0, *np.cumsum(np.asarray(counts, dtype=np.int64))[:-1].tolist()]


def _checked_counts(name: str, values: Counts, size: int) -> list[int]:
    checked = [int(value) for value in values]
    if len(checked) != size:
        raise ValueError(f"{name} has {len(checked)} entries, but the communicator has {size} ranks")
    if any(value < 0 for value in checked):
        raise ValueError(f"{name} must not be negative: {checked}")
    return checked


def _shape_of(array: Any) -> tuple[int, ...]:
    return tuple(array.shape) if hasattr(array, "shape") else np.asarray(array).shape


def _check_rmsnorm(shape: tuple[int, ...], views: dict[str, View]) -> int:
    """Checks the sizes and datatypes of allreduce_rmsnorm. Returns the number of rows."""
    own, hidden = views["input"], views["weight"].elements
    if shape[-1:] != (hidden,):
        raise ValueError(
            f"allreduce_rmsnorm: input has shape {shape}, its last axis must have the {hidden} elements of "
            "weight"
        )
    tokens = own.elements // hidden if hidden else 0
    datatypes = {"normalized": views["normalized"].datatype}
    datatypes |= dict.fromkeys(("scale", "scales"), Datatype.float32)
    elements = {"weight": hidden, "scale": 1, "scales": tokens}
    for name, each in views.items():
        datatype, count = datatypes.get(name, own.datatype), elements.get(name, own.elements)
        if each.datatype != datatype:
            raise TypeError(f"allreduce_rmsnorm: {name} holds {each.datatype.name}, must be {datatype.name}")
        if each.elements != count:
            raise ValueError(
                f"allreduce_rmsnorm: {name} has {each.elements} elements, must have {count} for an input of "
                f"shape {shape}"
            )
    return tokens


class Operations:
    """Argument checks and dispatch for the methods of `Collectives`."""

    rank: int
    size: int
    _platform: Platform
    _native: _isthmus.Communicator

    def _allocate_output(self, send_buf: Any, out: Any, output_shape: Any) -> Any:
        """Returns `out`, or a new array like send_buf with the shape `output_shape(send_buf.shape)`."""
        if out is not None:
            return out
        if send_buf is None or send_buf is IN_PLACE:
            raise TypeError("out is required if send_buf is None or IN_PLACE; pass an array")
        return allocate_like(send_buf, output_shape, "send_buf")

    def _block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] % self.size:
            raise ValueError(
                f"send_buf has shape {shape}, its first axis must be a multiple of {self.size} ranks"
            )
        return shape[1:] if shape[0] == self.size else (shape[0] // self.size, *shape[1:])

    def _check_blocks(
        self, name: str, counts: Counts | None, displs: Counts | None
    ) -> tuple[list[int], list[int]]:
        if counts is None:
            raise TypeError(f"{name} is None, but is required on this rank")
        checked = _checked_counts(name, counts, self.size)
        return checked, _checked_counts(
            name.replace("counts", "displs"), displacements(checked, displs), self.size
        )

    def _result(self, send_buf: Any, out: Any) -> Any:
        return send_buf if out is IN_PLACE else out

    def _own_block(self, send_buf: Any, out: Any) -> Any:
        """Returns `out`, or this rank's block of send_buf for an in-place call."""
        if out is not IN_PLACE:
            return out
        blocks = send_buf if hasattr(send_buf, "reshape") else np.asarray(send_buf)
        return blocks.reshape(self.size, -1)[self.rank].reshape(self._block_shape(tuple(blocks.shape)))

    def _own_varying_block(self, send_buf: Any, out: Any, counts: Any, displs: Any) -> Any:
        """Returns `out`, or this rank's block of send_buf for an in-place call of a v-collective."""
        if out is not IN_PLACE:
            return out
        flat = send_buf if hasattr(send_buf, "reshape") else np.asarray(send_buf)
        return flat.reshape(-1)[displs[self.rank] : displs[self.rank] + counts[self.rank]]

    def _run(
        self,
        collective: Collective,
        send_buf: Any,
        out: Any,
        *,
        op: ReductionOp | ReductionOpName = ReductionOp.sum,
        root: int = 0,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
        **counts: list[int] | None,
    ) -> None:
        row = COLLECTIVES[collective.name]
        send, recv = self._resolve_views(row, send_buf, out, dtype, counts)
        buffer = send or recv
        datatype = buffer.datatype if buffer else Datatype.uint8
        if send and recv and send.datatype != recv.datatype:
            raise TypeError(f"send_buf holds {send.datatype.name}, but out holds {recv.datatype.name}")
        count = self._element_count(row, send, recv, counts)
        operation = _isthmus.Operation.make(
            collective,
            datatype,
            find_reduction_op(op),
            int(root),
            count,
            send.address if send else 0,
            recv.address if recv else 0,
            stream=native_stream(stream),
            **counts,
        )
        run_or_defer(partial(_enqueue, self._native, operation, send, recv))

    def _run_tree(self, leaves: Any, out: Any, dtype: Datatype | DatatypeName | None) -> None:
        send = view(leaves, "leaves", dtype, self._platform, writable=False)
        recv = view(out, "out", dtype, self._platform, writable=True)
        if send.datatype != recv.datatype:
            raise TypeError(f"leaves holds {send.datatype.name}, but out holds {recv.datatype.name}")
        shape = _shape_of(leaves)
        leaf_count = shape[0] if shape else 0
        if leaf_count == 0 or send.elements != leaf_count * recv.elements:
            raise ValueError(
                f"tree_allreduce: leaves has shape {shape}, and out has {recv.elements} elements; "
                "leaves must contain at least one leaf of that many elements along its first axis"
            )
        run_or_defer(
            partial(
                _isthmus.tree_allreduce,
                self._native,
                send.address,
                leaf_count,
                recv.address,
                recv.elements,
                send.datatype,
            )
        )

    def _run_rmsnorm(
        self,
        arrays: dict[str, Any],
        eps: float,
        dtype: Datatype | DatatypeName | None,
        stream: Stream | None,
        round_before_weight: bool,
    ) -> None:
        """`arrays` has the names and the order of the buffers of the C API; None is a missing array."""
        is_quantized = arrays["scale"] is not None or arrays["scales"] is not None
        dtypes = {"scale": None, "scales": None, "normalized": Datatype.float8_e4m3 if is_quantized else dtype}
        views = {
            name: view(
                array,
                name,
                dtypes.get(name, dtype),
                self._platform,
                writable=name in ("residual_out", "normalized", "scales"),
            )
            for name, array in arrays.items()
            if array is not None
        }
        own, hidden = views["input"], views["weight"].elements
        tokens = _check_rmsnorm(_shape_of(arrays["input"]), views)
        addresses = {f"{name}_address": views[name].address if name in views else 0 for name in arrays}
        run_or_defer(
            partial(
                _isthmus.allreduce_rmsnorm,
                self._native,
                tokens,
                hidden,
                own.datatype,
                views["normalized"].datatype,
                eps,
                **addresses,
                stream=native_stream(stream),
                round_before_weight=round_before_weight,
            )
        )

    def _resolve_views(
        self, row: CollectiveRow, send_buf: Any, out: Any, dtype: Any, counts: dict[str, Any]
    ) -> tuple[View | None, View | None]:
        """Returns views of both buffers. IN_PLACE is resolved as defined by the collective table."""
        send_in_place, recv_in_place = send_buf is IN_PLACE, out is IN_PLACE
        if (send_in_place and recv_in_place) or (
            (send_in_place or recv_in_place) and (send_buf is None or out is None)
        ):
            raise ValueError(
                f"{row.name}: IN_PLACE refers to the other buffer, which is missing; pass an array"
            )
        send = recv = None
        if send_buf is not None and not send_in_place:
            send = view(send_buf, "send_buf", dtype, self._platform, writable=recv_in_place)
        if out is not None and not recv_in_place:
            recv = view(out, "out", dtype, self._platform, writable=True)
        if send_in_place:
            send = self._own_block_view(
                row, recv, "RECV_BLOCK", counts.get("recv_counts"), counts.get("recv_displs")
            )
        if recv_in_place:
            recv = self._own_block_view(
                row, send, "SEND_BLOCK", counts.get("send_counts"), counts.get("send_displs")
            )
        return send, recv

    def _own_block_view(
        self, row: CollectiveRow, other: View, block_rule: str, counts: Any, displs: Any
    ) -> View:
        if row.in_place == "SAME":
            return other
        if row.in_place != block_rule:
            allowed = {"NEVER": "neither buffer", "RECV_BLOCK": "send_buf only", "SEND_BLOCK": "out only"}[
                row.in_place
            ]
            raise ValueError(f"{row.name}: IN_PLACE is allowed for {allowed}")
        if counts is None:
            return other.block(self.rank, self.size)
        offset = displs[self.rank] * DATATYPES[other.datatype.name].bytes
        return View(other.source, other.address + offset, counts[self.rank], other.datatype)

    def _element_count(
        self, row: CollectiveRow, send: View | None, recv: View | None, counts: dict[str, Any]
    ) -> int:
        """Returns the `count` of the C ABI, checked against all buffers."""
        counts_by_buffer: dict[str, int] = {}
        for name, buffer_view, extent, side in (
            ("send_buf", send, row.send_extent, "send"),
            ("out", recv, row.recv_extent, "recv"),
        ):
            if buffer_view is None:
                continue
            if extent == "COUNT":
                counts_by_buffer[name] = buffer_view.elements
            elif extent == "COUNT_X_SIZE":
                if buffer_view.elements % self.size:
                    raise ValueError(
                        f"{row.name}: {name} has {buffer_view.elements} elements, must be a multiple of "
                        f"{self.size} ranks"
                    )
                counts_by_buffer[name] = buffer_view.elements // self.size
            elif extent == "COUNTS":
                self._check_extent(row, name, buffer_view, counts[f"{side}_counts"], counts[f"{side}_displs"])
        if len(set(counts_by_buffer.values())) > 1:
            counts_text = ", ".join(f"{name} {value}" for name, value in counts_by_buffer.items())
            raise ValueError(f"{row.name}: element counts of the buffers must be equal: {counts_text}")
        return next(iter(counts_by_buffer.values()), 0)

    def _check_extent(
        self, row: CollectiveRow, name: str, buffer_view: View, counts: list[int], displs: list[int]
    ) -> None:
        end = max((displ + count for displ, count in zip(displs, counts, strict=True) if count), default=0)
        if end > buffer_view.elements:
            raise ValueError(
                f"{row.name}: {name} has {buffer_view.elements} elements, but its counts and displacements "
                f"extend to {end}"
            )


def _enqueue(native: _isthmus.Communicator, operation: _isthmus.Operation, *_kept_alive: View | None) -> None:
    _isthmus.enqueue(native, operation)
