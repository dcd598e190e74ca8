"""The collectives of the collective table as methods of `Communicator`.

Conventions of all methods:

- Arrays are NumPy arrays or any object with DLPack or the buffer protocol (torch, JAX, CuPy, memoryview).
  They are C-contiguous and in memory of the communicator's platform. Nothing is copied.
- The element count is deduced from the arrays. If the sizes do not match the extents in the collective
  table, a ValueError with both sizes is raised before anything is written.
- With `out=None` the result is allocated like `send_buf`, if its shape is known on this rank. The result is
  returned. n is the number of ranks, and "blocks" are n equal blocks in rank order.
- `IN_PLACE` as `send_buf` or `out` means this rank's block of the other buffer.
- `dtype` reinterprets unsigned integers or bytes as that datatype (bfloat16 and fp8 without ml_dtypes).
- A type checker gets the type of the result from the arrays, and rejects unknown names of `op` and `dtype`.
- `stream` is the native stream of the platform (an integer or an object with `cuda_stream`). Host: None.

Blocking:
    Host: a call returns when this rank's part is complete. Devices: a call returns immediately and is ordered
    by the stream. The arrays must live until the stream has completed the operation.
Thread safety:
    Calls on the same communicator must not overlap.
Errors:
    A failure of the core raises `isthmus.Error`.
"""

from __future__ import annotations

from typing import Any

from ._buffers import IN_PLACE, Array, ArrayT, InPlace, allocate_like
from ._operations import Counts, Operations, Stream
from .table import Collective, Datatype, DatatypeName, ReductionOp, ReductionOpName


class Collectives(Operations):
    """Mixin that requires `rank`, `size`, `_platform` and `_native`."""

    # ---- one to all, all to one ----------------------------------------------------------------------

    def broadcast(
        self,
        send_buf: ArrayT,
        out: ArrayT | InPlace = IN_PLACE,
        root: int = 0,
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """out on every rank = send_buf of `root`. In place by default. send_buf is read on root only."""
        if out is IN_PLACE:
            out = send_buf
        send = send_buf if self.rank == root else None
        self._run(Collective.broadcast, send, out, root=root, dtype=dtype, stream=stream)
        return out

    def reduce(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        op: ReductionOp | ReductionOpName = "sum",
        root: int = 0,
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT | None:
        """out on root = reduction of send_buf over all ranks. Returns None on other ranks."""
        out = self._allocate_output(send_buf, out, lambda shape: shape) if self.rank == root else None
        self._run(Collective.reduce, send_buf, out, op=op, root=root, dtype=dtype, stream=stream)
        return self._result(send_buf, out)

    def gather(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        root: int = 0,
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT | None:
        """Block r of out on root = send_buf of rank r. Allocated as ``(n, *shape)``. Returns None
        on other ranks."""
        out = (
            self._allocate_output(send_buf, out, lambda shape: (self.size, *shape))
            if self.rank == root
            else None
        )
        self._run(Collective.gather, send_buf, out, root=root, dtype=dtype, stream=stream)
        return out

    def gatherv(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        root: int = 0,
        *,
        recv_counts: Counts | None = None,
        recv_displs: Counts | None = None,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT | None:
        """recv_counts[r] elements at recv_displs[r] of out on root = send_buf of rank r.

        Counts are required on root only. Without displacements the blocks are contiguous. An allocated result
        is one-dimensional.
        """
        counts = displs = None
        if self.rank == root:
            counts, displs = self._check_blocks("recv_counts", recv_counts, recv_displs)
            out = self._allocate_output(send_buf, out, lambda _: (sum(counts),))
        else:
            out = None
        self._run(
            Collective.gatherv,
            send_buf,
            out,
            root=root,
            recv_counts=counts,
            recv_displs=displs,
            dtype=dtype,
            stream=stream,
        )
        return out

    def scatter(
        self,
        send_buf: ArrayT | None,
        out: ArrayT | InPlace | None = None,
        root: int = 0,
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """out on rank r = block r of send_buf of root. Ranks other than root must pass `out`."""
        if self.rank == root:
            out = self._allocate_output(send_buf, out, self._block_shape)
        else:
            send_buf = None
        self._run(Collective.scatter, send_buf, out, root=root, dtype=dtype, stream=stream)
        return self._own_block(send_buf, out)

    def scatterv(
        self,
        send_buf: ArrayT | None,
        out: ArrayT | InPlace | None = None,
        root: int = 0,
        *,
        send_counts: Counts | None = None,
        send_displs: Counts | None = None,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """out on rank r = send_counts[r] elements at send_displs[r] of send_buf of root.

        Counts are required on root only. Ranks other than root must pass `out`.
        """
        counts = displs = None
        if self.rank == root:
            counts, displs = self._check_blocks("send_counts", send_counts, send_displs)
            out = self._allocate_output(send_buf, out, lambda _: (counts[self.rank],))
        else:
            send_buf = None
        self._run(
            Collective.scatterv,
            send_buf,
            out,
            root=root,
            send_counts=counts,
            send_displs=displs,
            dtype=dtype,
            stream=stream,
        )
        return self._own_varying_block(send_buf, out, counts, displs)

    # ---- all to all ----------------------------------------------------------------------------------

    def allreduce(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        op: ReductionOp | ReductionOpName = "sum",
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """out on every rank = reduction of send_buf over all ranks, bit-identical on all ranks."""
        out = self._allocate_output(send_buf, out, lambda shape: shape)
        self._run(Collective.allreduce, send_buf, out, op=op, dtype=dtype, stream=stream)
        return self._result(send_buf, out)

    def tree_allreduce(
        self,
        leaves: ArrayT,
        out: ArrayT | None = None,
        *,
        dtype: Datatype | DatatypeName | None = None,
    ) -> ArrayT:
        """out on every rank = sum of the leaves of all ranks. Its bits do not depend on the number of ranks.

        The first axis of `leaves` counts the leaves of this rank, and all ranks have the same number of them.
        All leaves in rank order form one binary tree: its first level adds leaves 0 and 1, 2 and 3, and so on.
        The next levels add these sums in the same way. A node without a neighbor moves up unchanged. Sums are
        float32 (float64 for float64), and the result is rounded once to the type of the leaves.

        Host memory only, and not inside `group()`.
        """
        out = self._allocate_output(leaves, out, lambda shape: shape[1:])
        self._run_tree(leaves, out, dtype)
        return out

    def allreduce_rmsnorm(
        self,
        input: ArrayT,
        residual: Array,
        weight: Array,
        eps: float,
        *,
        normalized: Array | None = None,
        residual_out: ArrayT | None = None,
        scale: Array | None = None,
        scales: Array | None = None,
        round_before_weight: bool = False,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> tuple[Any, ArrayT]:
        """Returns (normalized, residual_out): allreduce, residual addition and RMSNorm in one call.

            residual_out = sum of input over all ranks + residual
            normalized = residual_out / sqrt(mean of residual_out^2 over the row + eps) * weight

        Rows are the last axis of `input`, and `weight` has the size of one row. All ranks get the same bits.
        They are those of an allreduce in rank order that is followed by the other operations, each of which
        rounds to the type of the arrays (docs/guide/fused.md). With `round_before_weight`, the normalized row
        is also rounded before it is multiplied by the weight, as in LlamaRMSNorm of transformers.

        float8_e4m3: `scale` (one float32) divides all rows, or `scales` (one float32 per row) receives a scale
        for each row. Then `normalized` is required: an array of ml_dtypes.float8_e4m3fn, or of bytes.

        Not inside `group()`. On devices, this call needs the backend p2p and at least two ranks.
        """
        if normalized is None and (scale is not None or scales is not None):
            raise TypeError(
                "normalized is required with scale or scales; pass an array of float8_e4m3 or bytes"
            )
        if normalized is None:
            normalized = allocate_like(input, lambda shape: shape, "input")
        if residual_out is None:
            residual_out = allocate_like(input, lambda shape: shape, "input")
        arrays = {
            "input": input,
            "residual": residual,
            "weight": weight,
            "residual_out": residual_out,
            "normalized": normalized,
            "scale": scale,
            "scales": scales,
        }
        self._run_rmsnorm(arrays, eps, dtype, stream, round_before_weight)
        return normalized, residual_out

    def reduce_scatter(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        op: ReductionOp | ReductionOpName = "sum",
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """out on rank r = reduction of block r of send_buf over all ranks."""
        out = self._allocate_output(send_buf, out, self._block_shape)
        self._run(Collective.reduce_scatter, send_buf, out, op=op, dtype=dtype, stream=stream)
        return self._own_block(send_buf, out)

    def reduce_scatterv(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        op: ReductionOp | ReductionOpName = "sum",
        *,
        send_counts: Counts,
        send_displs: Counts | None = None,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """out on rank r = reduction of send_counts[r] elements at send_displs[r] of send_buf over all ranks.

        Counts and displacements must be equal on all ranks. Without displacements the blocks are contiguous.
        An allocated result is one-dimensional.
        """
        counts, displs = self._check_blocks("send_counts", send_counts, send_displs)
        out = self._allocate_output(send_buf, out, lambda _: (counts[self.rank],))
        self._run(
            Collective.reduce_scatterv,
            send_buf,
            out,
            op=op,
            send_counts=counts,
            send_displs=displs,
            dtype=dtype,
            stream=stream,
        )
        return self._own_varying_block(send_buf, out, counts, displs)

    def allgather(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Block r of out on every rank = send_buf of rank r. Allocated as ``(n, *shape)``."""
        out = self._allocate_output(send_buf, out, lambda shape: (self.size, *shape))
        self._run(Collective.allgather, send_buf, out, dtype=dtype, stream=stream)
        return out

    def allgatherv(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        *,
        recv_counts: Counts,
        recv_displs: Counts | None = None,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """recv_counts[r] elements at recv_displs[r] of out = send_buf of rank r. Allocated one-dimensional."""
        counts, displs = self._check_blocks("recv_counts", recv_counts, recv_displs)
        out = self._allocate_output(send_buf, out, lambda _: (sum(counts),))
        self._run(
            Collective.allgatherv,
            send_buf,
            out,
            recv_counts=counts,
            recv_displs=displs,
            dtype=dtype,
            stream=stream,
        )
        return out

    def alltoall(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Block s of out on rank r = block r of send_buf of rank s."""
        out = self._allocate_output(send_buf, out, lambda shape: shape)
        self._run(Collective.alltoall, send_buf, out, dtype=dtype, stream=stream)
        return self._result(send_buf, out)

    def alltoallv(
        self,
        send_buf: ArrayT | InPlace,
        out: ArrayT | InPlace | None = None,
        *,
        send_counts: Counts,
        recv_counts: Counts,
        send_displs: Counts | None = None,
        recv_displs: Counts | None = None,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """recv_counts[s] elements at recv_displs[s] of out on rank r = the block sent by rank s to rank r."""
        checked_send_counts, checked_send_displs = self._check_blocks("send_counts", send_counts, send_displs)
        checked_recv_counts, checked_recv_displs = self._check_blocks("recv_counts", recv_counts, recv_displs)
        out = self._allocate_output(send_buf, out, lambda _: (sum(checked_recv_counts),))
        self._run(
            Collective.alltoallv,
            send_buf,
            out,
            send_counts=checked_send_counts,
            send_displs=checked_send_displs,
            recv_counts=checked_recv_counts,
            recv_displs=checked_recv_displs,
            dtype=dtype,
            stream=stream,
        )
        return self._result(send_buf, out)

    # ---- point to point, barrier ---------------------------------------------------------------------------

    def send(
        self,
        send_buf: Array,
        peer: int,
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> None:
        """Sends send_buf to rank `peer`, which must call `recv`. Can block until the message is received."""
        self._run(Collective.send, send_buf, None, root=peer, dtype=dtype, stream=stream)

    def recv(
        self,
        out: ArrayT,
        peer: int,
        *,
        dtype: Datatype | DatatypeName | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Receives `out` from rank `peer`, which must call `send` with the same count and datatype."""
        self._run(Collective.recv, None, out, root=peer, dtype=dtype, stream=stream)
        return out

    def barrier(self, *, stream: Stream | None = None) -> None:
        """Host: blocks until all ranks have entered. Devices: blocks the stream until then."""
        self._run(Collective.barrier, None, None, stream=stream)
