"""Isthmus: collective communication for accelerators and hosts with one small API.

>>> import numpy as np, isthmus
>>> ranks = isthmus.Communicator.create_all(2)
>>> arrays = [np.full(3, rank + 1.0) for rank in range(2)]
>>> with isthmus.group():
...     sums = [comm.allreduce(array) for comm, array in zip(ranks, arrays)]
>>> sums[1].tolist()
[3.0, 3.0, 3.0]
"""

from ._buffers import IN_PLACE
from ._groups import group
from ._isthmus import version as _version
from .communicator import Communicator, Device, UniqueId
from .errors import Error
from .partition import partition
from .table import COLLECTIVES, DATATYPES, Collective, Datatype, Platform, ReductionOp, Status

__version__ = _version()

__all__ = [
    "COLLECTIVES",
    "DATATYPES",
    "IN_PLACE",
    "Collective",
    "Communicator",
    "Datatype",
    "Device",
    "Error",
    "Platform",
    "ReductionOp",
    "Status",
    "UniqueId",
    "group",
    "partition",
]
