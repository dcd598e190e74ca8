"""Communicators: one object per rank."""

from __future__ import annotations

import atexit
import json
import weakref
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _isthmus
from ._buffers import DtypeLike, array_bytes, extents_of, numpy_dtype
from ._collectives import Collectives
from ._groups import run_or_defer, run_outside_group
from ._operations import Stream, native_stream
from .table import (
    COLLECTIVES,
    DATATYPES,
    Collective,
    CollectiveName,
    Datatype,
    DatatypeName,
    Platform,
    PlatformName,
    ReductionOp,
    ReductionOpName,
)
from .table import collective as find_collective
from .table import datatype as find_datatype
from .table import platform as find_platform
from .table import reduction_op as find_reduction_op

if TYPE_CHECKING:
    from mpi4py import MPI


class Device(NamedTuple):
    """Device of a rank. `ordinal` is the number that the platform uses (CUDA device index, ...)."""

    platform: Platform
    ordinal: int = 0

    @classmethod
    def parse(cls, value: Device | str | tuple[Platform | PlatformName, int]) -> Device:
        """Parses a device, a pair, or text such as "host" or "cuda:1"."""
        if isinstance(value, str):
            name, _, ordinal = value.partition(":")
            if ordinal and not ordinal.isdecimal():
                raise ValueError(f"device {value!r}: the part after ':' must be an ordinal, as in 'cuda:1'")
            return cls(find_platform(name), int(ordinal or 0))
        platform, ordinal = value
        return cls(find_platform(platform), int(ordinal))


class UniqueId(bytes):
    """Bootstrap id: the address of a store and a secret. Treat it like a password."""

    @classmethod
    def create(cls, address: str | None = None) -> UniqueId:
        """Starts a store in this process at "host" or "host:port" (None: loopback, a free port).

        One rank calls this function and sends the id to the other ranks by any means. `id.hex()` and
        `UniqueId.fromhex` convert to and from text.
        """
        return cls(_isthmus.create_unique_id(address))

    def __repr__(self) -> str:
        return "<isthmus.UniqueId>"  # never print the secret

    __str__ = __repr__


_live_communicators: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator(Collectives):
    """Communicator of one rank. A process can hold several. Create one with a classmethod.

    The collectives are methods.

    Thread safety:
        Calls on the same communicator must not overlap, except `abort`.
    Lifetime:
        Use it as a context manager, or call `close`. Arrays returned by `empty` keep their memory alive.
    """

    def __init__(self, native: _isthmus.Communicator) -> None:
        self._native = native
        self._cached_identity: tuple[int, int, Platform] | None = None
        _live_communicators.add(self)

    # ---- life cycle ----------------------------------------------------------------------------------

    @classmethod
    def from_unique_id(
        cls,
        id: bytes,
        rank: int,
        size: int,
        *,
        device: Device | str = "host",
        config: str | None = None,
        timeout: float = 0.0,
    ) -> Communicator:
        """Creates a communicator of `size` ranks that pass the same id. Collective.

        `config` is a TOML file (None: ISTHMUS_CONFIG and the default folders). `timeout` is the limit in
        seconds for every wait for other ranks (0: from the configuration, 300 by default). Several ranks of
        one process must call this from different threads, or use `create_all`.

        Blocking:
            Blocks until all ranks have called it.
        """
        parsed_device = Device.parse(device)
        return cls(_isthmus.create(bytes(id), int(rank), int(size), parsed_device, config, float(timeout)))

    @classmethod
    def from_mpi(
        cls,
        comm: MPI.Comm | None = None,
        *,
        device: Device | str = "host",
        config: str | None = None,
        timeout: float = 0.0,
    ) -> Communicator:
        """Creates a communicator from an mpi4py intracommunicator, which is duplicated. Collective.

        None means MPI_COMM_WORLD and does not require mpi4py. In this case MPI is initialized if necessary,
        and finalized at exit.

        Raises:
            RuntimeError: mpi4py uses a different MPI library than `isthmus` was built with.
            isthmus.Error: `comm` is MPI.COMM_NULL or an intercommunicator, which has two groups of ranks.
        """
        from .mpi import function_table

        return cls(_isthmus.create_mpi(function_table(comm), Device.parse(device), config, float(timeout)))

    @classmethod
    def create_all(
        cls,
        devices: int | Sequence[Device | str],
        *,
        config: str | None = None,
        timeout: float = 0.0,
    ) -> list[Communicator]:
        """Creates all ranks of a communicator in this process: n host ranks, or rank i on devices[i].

        Use them inside `group()`, or use one thread per rank.
        """
        if isinstance(devices, int):
            devices = ["host"] * devices
        parsed_devices = [Device.parse(device) for device in devices]
        return [cls(native) for native in _isthmus.create_all(parsed_devices, config, float(timeout))]

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Creates a subcommunicator of the ranks with the same color (>= 0), ordered by (key, rank).

        Collective. With color None, this rank joins no subcommunicator and the result is None. Several ranks
        of one process must call this from different threads or inside a group. The result can be used after
        the group ends.
        """
        if color is not None and color < 0:
            raise ValueError(f"color must be >= 0 or None, not {color}")
        child = _isthmus.Communicator.pending()
        run_or_defer(
            partial(self._native.split, child, _isthmus.NO_COLOR if color is None else int(color), int(key))
        )
        if color is None:
            return None
        return Communicator(child)

    def shrink(self, wait: float = 0.0) -> Communicator:
        """Creates a communicator of the surviving ranks after a failure, in their original order.

        Collective over the survivors. Ranks whose process has exited are excluded immediately. Other ranks
        that do not call it are excluded after `wait` seconds (0: the timeout). `parent_ranks` of the
        result lists the participants. This communicator is aborted and can only be closed. Several ranks
        of one process must call this from different threads or inside a group. The result can be used
        after the group ends.
        """
        child = _isthmus.Communicator.pending()
        run_or_defer(partial(self._native.shrink, child, float(wait)))
        return Communicator(child)

    def close(self) -> None:
        """Waits for the outstanding operations of this rank, but not for other ranks. Releases all resources.

        A call of another thread that still waits for other ranks is aborted. If arrays returned by `empty`
        exist, the resources are released with the last of them.
        """
        self._native.close()

    def abort(self) -> None:
        """Aborts the communicator on this rank and on all reachable ranks. Can be called from any thread."""
        self._native.abort()

    def check(self) -> None:
        """Raises the failure that aborted the communicator, including asynchronous failures. Does not block."""
        self._native.async_error()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return "<isthmus.Communicator closed>"
        return f"<isthmus.Communicator rank {self.rank} of {self.size} on {self._platform.name}>"

    # ---- queries -------------------------------------------------------------------------------------

    def _identity(self) -> tuple[int, int, Platform]:
        if self._cached_identity is None:  # constant, cached to save native calls in every collective
            self._cached_identity = (self._native.rank, self._native.size, self._native.device[0])
        return self._cached_identity

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""
        return self._identity()[0]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._identity()[1]

    @property
    def _platform(self) -> Platform:
        return self._identity()[2]

    @property
    def parent_ranks(self) -> list[int]:
        """Each rank's number in the parent communicator (before split or shrink). -1: not in a parent."""
        return [self._native.parent_rank(rank) for rank in range(self.size)]

    @property
    def local_size(self) -> int:
        """The number of ranks of this communicator in this process."""
        return self._native.local_size

    @property
    def device(self) -> Device:
        """The device of this rank."""
        return Device(*self._native.device)

    def info(self) -> dict[str, Any]:
        """Returns ranks, nodes, device, bootstrap, rules, and backends (with a reason if unavailable)."""
        return json.loads(self._native.info())

    def explain(
        self,
        collective: Collective | CollectiveName,
        *,
        count: int = 0,
        dtype: Datatype | DatatypeName = "float32",
        op: ReductionOp | ReductionOpName = "sum",
        root: int = 0,
        stream: Stream | None = None,
        rmsnorm: bool = False,
    ) -> dict[str, Any]:
        """Returns the backend, algorithm and rule that a call would use, and why other rules were rejected.

        Keys: `backend` and `algorithm` are the path, `reason` is its rule, `rejected` lists the other rules.
        `count` is the count of the C ABI, in elements per block (see the collective table). The result comes
        from the same selector that a real call uses. With `rmsnorm`, the allreduce is part of
        `allreduce_rmsnorm`, which needs special kernels on devices.
        """
        row = COLLECTIVES[find_collective(collective).name]
        counts = {
            f"{side}_{array}": [int(count)] * self.size
            if array == "counts"
            else [rank * int(count) for rank in range(self.size)]
            for side, extent in (("send", row.send_extent), ("recv", row.recv_extent))
            if extent == "COUNTS"
            for array in ("counts", "displs")
        }
        operation = _isthmus.Operation.make(
            row.collective,
            find_datatype(dtype),
            find_reduction_op(op),
            int(root),
            int(count),
            stream=native_stream(stream),
            **counts,
        )
        has_kernels = rmsnorm and self._platform != Platform.host  # the host runs an allreduce
        return json.loads(_isthmus.explain(self._native, operation, has_kernels))

    # ---- memory --------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: DtypeLike = "float32") -> Any:
        """Allocates an uninitialized array in the symmetric heap. Collective, with the same size on every rank.

        Collectives do not stage buffers in the symmetric heap. On the host the result is a NumPy array. On
        devices it is an object that exports bytes through `__dlpack__` (use `torch.from_dlpack`). The return
        type is Any, because it depends on the device.

        Lifetime:
            The memory lives as long as any view of the array. The communicator is released after the last view.
        """
        extents = extents_of(shape)
        is_host = self._platform == Platform.host
        item_bytes = numpy_dtype(dtype).itemsize if is_host else DATATYPES[find_datatype(dtype).name].bytes
        size = array_bytes(extents, item_bytes)
        allocation = run_outside_group(lambda: _isthmus.allocate_symmetric(self._native, size))
        return np.from_dlpack(allocation).view(numpy_dtype(dtype)).reshape(extents) if is_host else allocation


@atexit.register
def _close_all() -> None:
    """Closes all communicators before MPI is finalized, which happens after the exit handlers of Python."""
    for communicator in list(_live_communicators):
        communicator.close()


__all__ = ["Communicator", "Device", "UniqueId"]
