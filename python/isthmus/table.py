"""The collective table (include/isthmus/collectives.def) as Python data.

The enumerations and rows come from the compiled module, which is generated from the same file.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple, TypeVar

from . import _isthmus
from ._isthmus import Collective, Datatype, Platform, ReductionOp, Status
from ._names import unknown_name

__all__ = [
    "COLLECTIVES",
    "DATATYPES",
    "Collective",
    "CollectiveName",
    "CollectiveRow",
    "Datatype",
    "DatatypeName",
    "DatatypeRow",
    "Platform",
    "PlatformName",
    "ReductionOp",
    "ReductionOpName",
    "Status",
    "collective",
    "count_of_bytes",
    "datatype",
    "has_rank_blocks",
    "platform",
    "reduction_op",
]

# The names of the enumerations, for type checkers. A test compares them.
CollectiveName = Literal[
    "broadcast",
    "reduce",
    "allreduce",
    "reduce_scatter",
    "allgather",
    "allgatherv",
    "gather",
    "gatherv",
    "scatter",
    "scatterv",
    "alltoall",
    "alltoallv",
    "send",
    "recv",
    "barrier",
    "reduce_scatterv",
]
DatatypeName = Literal[
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3",
    "float8_e5m2",
]
PlatformName = Literal["host", "cuda", "hip", "level_zero", "opencl"]
ReductionOpName = Literal["sum", "prod", "min", "max", "avg"]

_Member = TypeVar("_Member", bound=IntEnum)

# Limits of allreduce_rmsnorm.h.
RMSNORM_DATATYPES = ("float16", "bfloat16", "float32")
RMSNORM_MAX_HIDDEN = 16384  # ISTHMUS_RMSNORM_MAX_HIDDEN
PRODUCT_MAX_ROWS = 16  # ISTHMUS_PRODUCT_MAX_ROWS


class CollectiveRow(NamedTuple):
    """One collective. collectives.def describes the columns."""

    collective: Collective
    peer: str  # NONE | ROOT | PEER
    reduces: bool
    send_ranks: str  # NONE | ROOT | ALL
    send_extent: str  # NOTHING | COUNT | COUNT_X_SIZE | COUNTS
    recv_ranks: str
    recv_extent: str
    in_place: str  # NEVER | SAME | RECV_BLOCK | SEND_BLOCK

    @property
    def name(self) -> str:
        return self.collective.name

    @property
    def has_equal_count(self) -> bool:
        """True if all ranks pass the same count: false for send, recv, the v-collectives and barrier."""
        extents = {self.send_extent, self.recv_extent}
        return self.peer != "PEER" and "COUNTS" not in extents and extents != {"NOTHING"}


class DatatypeRow(NamedTuple):
    """One datatype: its size in bytes and its kind (SIGNED, UNSIGNED, FLOATING)."""

    datatype: Datatype
    bytes: int
    kind: str

    @property
    def name(self) -> str:
        return self.datatype.name


COLLECTIVES = {row.name: row for row in (CollectiveRow(*columns) for columns in _isthmus.collective_rows())}
DATATYPES = {row.name: row for row in (DatatypeRow(*columns) for columns in _isthmus.datatype_rows())}


def _find_member(enumeration: type[_Member], label: str, value: _Member | str) -> _Member:
    """Returns `value` if it is a member of the enumeration, or the member with that name."""
    if isinstance(value, enumeration):
        return value
    try:
        return enumeration[str(value)]
    except KeyError:
        names = [member.name for member in enumeration]
        raise ValueError(unknown_name(label, value, names)) from None


def collective(value: Collective | str) -> Collective:
    """Returns the collective with that name. Raises ValueError with the list of names."""
    return _find_member(Collective, "collective", value)


def datatype(value: Datatype | str) -> Datatype:
    """Returns the datatype with that name. Raises ValueError with the list of names."""
    return _find_member(Datatype, "dtype", value)


def reduction_op(value: ReductionOp | str) -> ReductionOp:
    """Returns the reduction operation with that name. Raises ValueError with the list of names."""
    return _find_member(ReductionOp, "op", value)


def platform(value: Platform | str) -> Platform:
    """Returns the platform with that name. Raises ValueError with the list of names."""
    return _find_member(Platform, "platform", value)


def has_rank_blocks(name: str) -> bool:
    """True if `bytes` of a record or a rule include one block per rank. For allgather, bytes are per rank."""
    row = COLLECTIVES[name]
    return name != "allgather" and "COUNT_X_SIZE" in (row.send_extent, row.recv_extent)


def count_of_bytes(name: str, size_bytes: int, dtype: Datatype | str, ranks: int) -> int:
    """Returns the `count` of the C ABI for a size in bytes. It is at least 1 for a size above 0."""
    if COLLECTIVES[name].send_extent == COLLECTIVES[name].recv_extent == "NOTHING":
        return 0
    return max(1, size_bytes // _bytes_per_count(name, dtype, ranks)) if size_bytes else 0


def whole_elements(name: str, size_bytes: int, dtype: Datatype | str, ranks: int) -> int:
    """Returns the size in bytes that a call with count_of_bytes() has."""
    return count_of_bytes(name, size_bytes, dtype, ranks) * _bytes_per_count(name, dtype, ranks)


def _bytes_per_count(name: str, dtype: Datatype | str, ranks: int) -> int:
    return DATATYPES[datatype(dtype).name].bytes * (ranks if has_rank_blocks(name) else 1)
