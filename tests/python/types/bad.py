"""Program with mistakes that type checkers must find. The comments are the codes of the errors of mypy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import isthmus
import isthmus.fused
import isthmus.memory


def call_all(comm: isthmus.Communicator, values: NDArray[np.float64]) -> None:
    comm.allreduce(values, op="summ")  # arg-type
    comm.allreduce(values, dtype="f32")  # arg-type
    comm.allreduce([1.0, 2.0])  # arg-type
    comm.allreduce(values, 5.0)  # arg-type
    comm.allreduce(values, stream="default")  # arg-type
    comm.broadcast(isthmus.IN_PLACE)  # type-var
    comm.send(7, 1)  # arg-type
    comm.reduce(values).sum()  # union-attr
    name: str = comm.allgather(values)  # assignment
    comm.explain("alreduce")  # arg-type
    comm.explain("allreduce", op="mean")  # arg-type
    comm.empty(4, "float31")  # arg-type
    print(isthmus.memory.empty(4).name)  # attr-defined
    isthmus.fused.Plan(comm, values, values, kind="gemm")  # arg-type
    isthmus.fused.Plan(comm, values, values, mode="fast")  # arg-type
    isthmus.Device.parse(("cpu", 0))  # arg-type
    print(name)
