"""From the arrays of a call to the operation that the core gets: shapes, counts, displacements, IN_PLACE."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from . import _isthmus
from ._buffers import IN_PLACE, View, allocate_like, view
from ._groups import run_or_defer
from .table import COLLECTIVES, DATATYPES, Collective, CollectiveRow, Datatype, Platform, ReductionOp
from .table import reduction_op as find_reduction_op

Array = Any
Counts = Sequence[int]


def native_stream(stream: Any) -> int:
    """The native stream handle: an integer, None, or an object that carries one."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):  # torch.cuda.Stream; cupy.cuda.Stream
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    raise TypeError(
        f"stream is a {type(stream).__name__}; an integer handle or a torch or CuPy stream is needed"
    )


def displacements(counts: Counts, displs: Counts | None) -> list[int]:
    """The given displacements, or those of blocks that follow each other without gaps."""
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


class Operations:
    """What the methods of `Collectives` are made of."""

    rank: int
    size: int
    _platform: Platform
    _native: _isthmus.Communicator

    def _allocate_output(self, send_buf: Array, out: Array | None, output_shape: Any) -> Array:
        """`out`, or an array like send_buf with the shape that `shape_of` makes of its shape."""
        if out is not None:
            return out
        if send_buf is None or send_buf is IN_PLACE:
            raise TypeError("out is needed when there is no send_buf to make it like")
        shape = getattr(send_buf, "shape", None)
        if shape is None:
            if not hasattr(send_buf, "__len__"):
                raise TypeError(
                    f"send_buf is a {type(send_buf).__name__}; an array is needed, of no axis for one number"
                )
            shape = (len(send_buf),)
        return allocate_like(send_buf, output_shape(tuple(shape)), "send_buf")

    def _block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] % self.size:
            raise ValueError(
                f"send_buf's first axis must be a multiple of {self.size} ranks; its shape is {shape}"
            )
        return shape[1:] if shape[0] == self.size else (shape[0] // self.size, *shape[1:])

    def _check_blocks(self, name: str, counts: Counts | None, displs: Counts | None) -> tuple[list[int], list[int]]:
        if counts is None:
            raise TypeError(f"{name} is needed on this rank")
        checked = _checked_counts(name, counts, self.size)
        return checked, _checked_counts(
            name.replace("counts", "displs"), displacements(checked, displs), self.size
        )

    def _result(self, send_buf: Array, out: Array | None) -> Array | None:
        return send_buf if out is IN_PLACE else out

    def _own_block(self, send_buf: Array | None, out: Array) -> Array:
        """The result of a collective whose in-place form leaves it in the own block of send_buf."""
        if out is not IN_PLACE:
            return out
        blocks = send_buf if hasattr(send_buf, "reshape") else np.asarray(send_buf)
        return blocks.reshape(self.size, -1)[self.rank].reshape(self._block_shape(tuple(blocks.shape)))

    def _own_varying_block(self, send_buf: Array | None, out: Array, counts: Any, displs: Any) -> Array:
        """The same where blocks differ in length."""
        if out is not IN_PLACE:
            return out
        flat = send_buf if hasattr(send_buf, "reshape") else np.asarray(send_buf)
        return flat.reshape(-1)[displs[self.rank] : displs[self.rank] + counts[self.rank]]

    def _run(
        self,
        collective: Collective,
        send_buf: Array | None,
        out: Array | None,
        *,
        op: ReductionOp | str = ReductionOp.sum,
        root: int = 0,
        dtype: Datatype | str | None = None,
        stream: Any = None,
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

    def _resolve_views(
        self, row: CollectiveRow, send_buf: Array, out: Array, dtype: Any, counts: dict[str, Any]
    ) -> tuple[View | None, View | None]:
        """The memory of both buffers, IN_PLACE resolved as THE TABLE defines it."""
        send_in_place, recv_in_place = send_buf is IN_PLACE, out is IN_PLACE
        if (send_in_place and recv_in_place) or (
            (send_in_place or recv_in_place) and (send_buf is None or out is None)
        ):
            raise ValueError(f"{row.name}: IN_PLACE refers to the other buffer, which is not given here")
        send = recv = None
        if send_buf is not None and not send_in_place:
            send = view(send_buf, "send_buf", dtype, self._platform, writable=recv_in_place)
        if out is not None and not recv_in_place:
            recv = view(out, "out", dtype, self._platform, writable=True)
        if send_in_place:
            send = self._own_block_view(row, recv, "RECV_BLOCK", counts.get("recv_counts"), counts.get("recv_displs"))
        if recv_in_place:
            recv = self._own_block_view(row, send, "SEND_BLOCK", counts.get("send_counts"), counts.get("send_displs"))
        return send, recv

    def _own_block_view(self, row: CollectiveRow, other: View, block_rule: str, counts: Any, displs: Any) -> View:
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

    def _element_count(self, row: CollectiveRow, send: View | None, recv: View | None, counts: dict[str, Any]) -> int:
        """The C ABI's `count`, checked against every buffer that is given."""
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
                        f"{row.name}: {name} has {buffer_view.elements} elements, which is no multiple of "
                        f"{self.size} ranks"
                    )
                counts_by_buffer[name] = buffer_view.elements // self.size
            elif extent == "COUNTS":
                self._check_extent(row, name, buffer_view, counts[f"{side}_counts"], counts[f"{side}_displs"])
        if len(set(counts_by_buffer.values())) > 1:
            counts_text = ", ".join(f"{name} {value}" for name, value in counts_by_buffer.items())
            raise ValueError(f"{row.name}: the buffers disagree about the count of elements: {counts_text}")
        return next(iter(counts_by_buffer.values()), 0)

    def _check_extent(
        self, row: CollectiveRow, name: str, buffer_view: View, counts: list[int], displs: list[int]
    ) -> None:
        end = max((displ + count for displ, count in zip(displs, counts, strict=True) if count), default=0)
        if end > buffer_view.elements:
            raise ValueError(
                f"{row.name}: {name} has {buffer_view.elements} elements, but its counts and displacements "
                f"reach to {end}"
            )


def _enqueue(native: _isthmus.Communicator, operation: _isthmus.Operation, *_kept_alive: View | None) -> None:
    _isthmus.enqueue(native, operation)
