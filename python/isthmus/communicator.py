"""Communicators: one rank's membership in a group of ranks."""

from __future__ import annotations

import atexit
import json
import weakref
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from . import _isthmus
from ._buffers import array_bytes, extents_of, numpy_dtype
from ._collectives import Collectives
from ._groups import run_or_defer
from ._operations import native_stream
from .table import COLLECTIVES, DATATYPES, Datatype, Platform, ReductionOp
from .table import collective as find_collective
from .table import datatype as find_datatype
from .table import platform as find_platform
from .table import reduction_op as find_reduction_op


class Device(NamedTuple):
    """What a rank is bound to; `ordinal` is the platform's own numbering (CUDA device index, ...)."""

    platform: Platform
    ordinal: int = 0

    @classmethod
    def parse(cls, value: Device | str | tuple[Any, int]) -> Device:
        """From a device, a pair, or text such as "host" or "cuda:1"."""
        if isinstance(value, str):
            name, _, ordinal = value.partition(":")
            if ordinal and not ordinal.isdecimal():
                raise ValueError(f"device {value!r}: the part after ':' must be an ordinal, as in 'cuda:1'")
            return cls(find_platform(name), int(ordinal or 0))
        platform, ordinal = value
        return cls(find_platform(platform), int(ordinal))


class UniqueId(bytes):
    """How ranks find each other: a store's address and a secret. Treat it as a password."""

    @classmethod
    def create(cls, address: str | None = None) -> UniqueId:
        """Starts a store in this process, at "host" or "host:port" (None: loopback, a free port).

        One rank calls this and gives the id to the others by any means it has (`id.hex()` and
        `UniqueId.fromhex` as text).
        """
        return cls(_isthmus.create_unique_id(address))

    def __repr__(self) -> str:
        return "<isthmus.UniqueId>"  # never print the secret

    __str__ = __repr__


_live_communicators: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator(Collectives):
    """One rank's membership; a process may hold many. Make one with a classmethod.

    Calls on one communicator must not overlap, except `abort`. The collectives are methods. Use it as
    a context manager, or `close` it; arrays of `empty` keep the memory under them alive.
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
        """Collective over `size` ranks with the same id; blocks until all have met.

        `config` is a TOML file (None: ISTHMUS_CONFIG and the usual folders); `timeout` in seconds bounds
        every wait for other ranks (0: from the configuration, 300 by default). Several ranks of one
        process call this from a thread each, or use `all`.
        """
        parsed_device = Device.parse(device)
        return cls(_isthmus.create(bytes(id), int(rank), int(size), parsed_device, config, float(timeout)))

    @classmethod
    def from_mpi(
        cls,
        comm: Any = None,
        *,
        device: Device | str = "host",
        config: str | None = None,
        timeout: float = 0.0,
    ) -> Communicator:
        """Collective over an mpi4py communicator, which is duplicated; None means MPI_COMM_WORLD.

        None needs no mpi4py: MPI is initialised if nobody has, and finalised at exit. Raises
        RuntimeError when mpi4py uses another MPI than `isthmus` was built with.
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
        """All ranks of one communicator in this process: n host ranks, or rank i on devices[i].

        Use them inside `group()`, or from a thread each.
        """
        if isinstance(devices, int):
            devices = ["host"] * devices
        parsed_devices = [Device.parse(device) for device in devices]
        return [cls(native) for native in _isthmus.create_all(parsed_devices, config, float(timeout))]

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Ranks with the same color (>= 0) form a new communicator, ordered by (key, old rank).

        Collective. With color None this rank joins none and gets None. Several ranks of one process
        call this from a thread each, or inside a group, where the result may be used after its end.
        """
        if color is not None and color < 0:
            raise ValueError(f"color must be >= 0 or None, not {color}")
        child = _isthmus.Communicator.pending()
        run_or_defer(partial(self._native.split, child, _isthmus.NO_COLOR if color is None else int(color), int(key)))
        if color is None:
            return None
        return Communicator(child)

    def shrink(self, wait: float = 0.0) -> Communicator:
        """After a failure: the ranks that still call this form a new communicator, in their old order.

        Collective over the survivors. Ranks whose process has ended count as lost at once, others that do
        not call are waited for `wait` seconds (0: the timeout) and left out; `parent_ranks` of the result
        tells who is in. This communicator is poisoned and only to be closed. Several ranks of one process
        call this from a thread each, or inside a group, where the result may be used after its end.
        """
        child = _isthmus.Communicator.pending()
        run_or_defer(partial(self._native.shrink, child, float(wait)))
        return Communicator(child)

    def close(self) -> None:
        """Waits for this rank's outstanding operations and releases everything; never for other ranks.

        A call of another thread that still waits for other ranks is aborted. While arrays of `empty`
        live, the release waits for the last of them.
        """
        self._native.close()

    def abort(self) -> None:
        """Poisons the communicator here and, as far as they can be reached, on the others. Any thread."""
        self._native.abort()

    def check(self) -> None:
        """Raises the failure that poisoned the communicator, asynchronous ones included. Does not wait."""
        self._native.async_error()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, exception_type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return "<isthmus.Communicator closed>"
        return f"<isthmus.Communicator rank {self.rank} of {self.size} on {self._platform.name}>"

    # ---- queries -------------------------------------------------------------------------------------

    def _identity(self) -> tuple[int, int, Platform]:
        if self._cached_identity is None:  # constant for the communicator's life; saves calls in every collective
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
        """By rank: its number in the communicator that this one was split or shrunk from; -1: in none."""
        return [self._native.parent_rank(rank) for rank in range(self.size)]

    @property
    def local_size(self) -> int:
        """Ranks of this communicator that live in this process."""
        return self._native.local_size

    @property
    def device(self) -> Device:
        """What this rank is bound to."""
        return Device(*self._native.device)

    def info(self) -> dict[str, Any]:
        """Ranks, nodes, device, bootstrap, backends with the reason of each that is missing, and rules."""
        return json.loads(self._native.info())

    def explain(
        self,
        collective: str,
        *,
        count: int = 0,
        dtype: Datatype | str = "float32",
        op: ReductionOp | str = "sum",
        root: int = 0,
        stream: Any = None,
    ) -> dict[str, Any]:
        """Which backend, algorithm and rule a call would take, and why every other rule did not.

        `count` is the C ABI's: elements of each block (see THE TABLE). It runs the selector that a real
        call runs, so it is never a guess.
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
        return json.loads(_isthmus.explain(self._native, operation))

    # ---- memory --------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """An uninitialised array in the symmetric heap: collective, with the same size on every rank.

        Collectives whose buffers lie in it are not staged. On the host it is a NumPy array, else an
        object with `__dlpack__` (`torch.from_dlpack`) of bytes. The memory lives as long as any view of
        the array; the communicator is released after the last one.
        """
        extents = extents_of(shape)
        is_host = self._platform == Platform.host
        item_bytes = numpy_dtype(dtype).itemsize if is_host else DATATYPES[find_datatype(dtype).name].bytes
        allocation = _isthmus.allocate_symmetric(self._native, array_bytes(extents, item_bytes))
        return np.from_dlpack(allocation).view(numpy_dtype(dtype)).reshape(extents) if is_host else allocation


@atexit.register
def _close_all() -> None:
    """Communicators must go before MPI is finalised, which happens after Python's exit handlers."""
    for communicator in list(_live_communicators):
        communicator.close()


__all__ = ["Communicator", "Device", "UniqueId"]
