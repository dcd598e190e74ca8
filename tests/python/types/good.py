"""Program that type checkers accept. test_types.py runs mypy on it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import isthmus
import isthmus.fused
import isthmus.memory
from isthmus.table import ReductionOpName


class Tensor:
    """An array of a library that mypy has no types of."""

    def __dlpack__(self, *, stream: int | None = None) -> object: ...


class Stream:
    cuda_stream = 5


def reduce_with(
    comm: isthmus.Communicator, values: NDArray[np.float32], op: ReductionOpName
) -> NDArray[np.float32]:
    return comm.allreduce(values, op=op)


def call_all(comm: isthmus.Communicator, values: NDArray[np.float64], tensor: Tensor) -> None:
    assert_type(comm.allreduce(values), NDArray[np.float64])
    assert_type(comm.allreduce(values, isthmus.IN_PLACE, "max"), NDArray[np.float64])
    assert_type(comm.allreduce(isthmus.IN_PLACE, values), NDArray[np.float64])
    assert_type(comm.allreduce(tensor, op=isthmus.ReductionOp.min, stream=Stream()), Tensor)
    assert_type(comm.reduce(values, root=1), NDArray[np.float64] | None)
    assert_type(comm.broadcast(tensor), Tensor)
    assert_type(comm.broadcast(values, np.empty_like(values)), NDArray[np.float64])
    assert_type(comm.gather(values), NDArray[np.float64] | None)
    assert_type(comm.scatter(None, values), NDArray[np.float64])
    assert_type(comm.allgatherv(values, recv_counts=[1, 2]), NDArray[np.float64])
    assert_type(comm.alltoall(values, dtype="float64"), NDArray[np.float64])
    assert_type(comm.allreduce_rmsnorm(values, values, values, 1e-6), tuple[Any, NDArray[np.float64]])
    comm.allreduce(bytearray(4), bytearray(4), dtype=isthmus.Datatype.bfloat16)
    comm.send(memoryview(b"text"), 1)
    assert_type(comm.recv(bytearray(4), 1, stream=7), bytearray)
    comm.barrier()


def other_calls(comm: isthmus.Communicator) -> None:
    assert_type(comm.explain("allreduce", count=4, dtype="bfloat16", op="avg"), dict[str, Any])
    assert_type(isthmus.memory.empty((2, 3)), NDArray[Any])
    isthmus.memory.empty(4, np.float32, device="cuda:1")
    comm.empty(4, "bfloat16")
    matrix = np.ones((4, 4), np.float32)
    with isthmus.fused.Plan(comm, matrix, matrix, kind="gemm_reduce_scatter", mode="pipelined") as plan:
        plan(matrix, matrix, view="compute_only")
    with isthmus.group():
        comm.barrier()


def failure_code() -> isthmus.Status | None:
    try:
        isthmus.Communicator.from_unique_id(
            isthmus.UniqueId.create(), 0, 1, device=isthmus.Device.parse("host")
        )
    except isthmus.Error as failure:
        return failure.code
    return None
