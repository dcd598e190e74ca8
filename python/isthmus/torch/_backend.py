"""Registers the backend for `init_process_group` and `new_group`."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ._coalescing import replace_coalescing_manager, replace_everywhere
from ._compile import load as load_extension
from ._environment import apply_environment
from ._graphs import guard_replay
from ._split import replace_split_group

NAME = "isthmus"

_extension = load_extension()
_next_default: list[Any] = []  # the backend of the next default group, if it exists already


def register() -> None:
    """Registers "isthmus" with torch.distributed. Does nothing if it is already registered."""
    replace_coalescing_manager(_backends_of)
    replace_split_group(is_isthmus)
    guard_replay(torch.cuda.CUDAGraph, _extension.take_captured)
    shrink_original = getattr(dist, "shrink_group", None)  # since PyTorch 2.10
    if shrink_original is not None and not hasattr(shrink_original, "_isthmus"):
        replace_everywhere("shrink_group", shrink_original, _wrapped_shrink(shrink_original))
    shutdown_original = getattr(dist.distributed_c10d, "_shutdown_backend", None)  # in PyTorch 2.6
    if shutdown_original is not None and not hasattr(shutdown_original, "_isthmus"):
        replace_everywhere("_shutdown_backend", shutdown_original, _wrapped_shutdown(shutdown_original))
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Waits on the host for all ranks of the group. On rank 0, the error names the ranks that did not arrive.

    torch.distributed.monitored_barrier does the same, but only for gloo. `timeout` limits the wait (default:
    the group's timeout). With `wait_all_ranks`, the error names all missing ranks, otherwise only the first.
    """
    backend = (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cpu"))
    default_timeout = timedelta(milliseconds=-1)  # c10d's value for an unset timeout
    backend.monitored_barrier(default_timeout if timeout is None else timeout, wait_all_ranks)


def reload_rules() -> None:
    """Applies the current configuration, environment and profile to all groups of this process.

    Waits for the device and closes all communicators. The next calls create new ones. All ranks must call it
    between the same collectives. Graphs with captured collectives must not be replayed afterwards. A tensor
    in the symmetric heap stays valid and keeps the memory of its old communicator, but new communicators
    treat it as ordinary memory.
    """
    apply_environment()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    for backend in {id(each): each for each in all_backends()}.values():
        backend.renew()


def as_timedelta(argument: str, value: timedelta | float) -> timedelta:
    """Accepts a number of seconds in addition to a timedelta."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise TypeError(
            f"isthmus.torch.{argument} is {value!r}; pass a positive number of seconds or a timedelta"
        )
    return timedelta(seconds=value)


def shrink(group: dist.ProcessGroup | None = None, wait: timedelta | float | None = None) -> dist.ProcessGroup:
    """Returns a group of the surviving ranks after a failure. The order of the ranks stays the same.

    Collective over the survivors. Ranks whose process has exited are excluded immediately. Other ranks that
    do not call this are excluded after `wait`, a timedelta or seconds (default: the group's timeout). As with
    torch.distributed.shrink_group, which creates the group, a shrunk default group becomes the new default
    group, and all other groups are destroyed. If no rank is lost, the group continues and is returned.
    """
    old = group or dist.distributed_c10d._get_default_group()
    backends = _backends_of(old)
    if not backends:
        raise TypeError(
            "isthmus.torch.shrink: the group has no isthmus backend; "
            "create it with a backend such as 'cpu:isthmus'"
        )
    if not hasattr(dist, "shrink_group"):
        raise RuntimeError(
            f"isthmus.torch.shrink: PyTorch {torch.__version__} has no torch.distributed.shrink_group; "
            "use PyTorch 2.10 or newer"
        )
    wait_s = 0.0 if wait is None else as_timedelta("shrink: wait", wait).total_seconds()
    lost_ranks = backends[0].agree_on_lost_ranks(wait_s)
    return dist.shrink_group(lost_ranks, group) if lost_ranks else old


def _wrapped_shrink(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def shrink_group(*arguments: Any, **named: Any) -> Any:
        group = signature.bind(*arguments, **named).arguments.get("group")
        devices = list((group or dist.distributed_c10d._get_default_group())._device_types)
        shrunk = original(*arguments, **named)
        # PyTorch registers the new backend for one device type, and with the type of gloo or NCCL. It casts
        # such a backend to its own class, for example in DistributedDataParallel.
        for backend in _backends_of(shrunk)[:1]:
            for device in devices:
                shrunk._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, backend)
            shrunk._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
            _forget_meshes()
        return shrunk

    shrink_group._isthmus = True  # type: ignore[attr-defined]
    return shrink_group


def _wrapped_shutdown(original: Callable[..., Any]) -> Callable[..., Any]:
    """Also shuts down Isthmus. destroy_process_group calls the original, which shuts down only NCCL."""

    @functools.wraps(original)
    def shutdown_backend(group: dist.ProcessGroup) -> None:
        for backend in _backends_of(group):
            backend.shutdown()
        original(group)

    shutdown_backend._isthmus = True  # type: ignore[attr-defined]
    return shutdown_backend


def _forget_meshes() -> None:
    """Clears the caches of DTensor after a change of the default group.

    They contain meshes of the old group. A mesh of the same size equals them, but this rank can have another
    place in it, and its tensors would get the shards of another rank.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import debug

    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()


def all_backends() -> list[Any]:
    """Returns the backends of all groups of this process. May be called from any thread."""
    return [each for group in list(dist.distributed_c10d._world.pg_map) for each in _backends_of(group)]


def is_isthmus(group: dist.ProcessGroup) -> bool:
    """Returns whether Isthmus is the backend for a device type of the group."""
    return bool(_backends_of(group))


def backend_for(group: dist.ProcessGroup, device: torch.device) -> Any:
    """Returns the Isthmus backend for a type of devices, or None if there is none."""
    if torch.device(device.type) not in group._device_types:
        return None
    backend = group._get_backend(torch.device(device.type))
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the backends
    return backend if isinstance(backend, _extension.ProcessGroupIsthmus) else None


def _backends_of(group: dist.ProcessGroup) -> list[Any]:
    backends = [backend_for(group, device) for device in group._device_types]
    return [each for each in backends if each is not None]


def _create(options: Any, _backend_options: Any) -> dist.Backend:
    """Creates the backend of a group on this rank. Communicators are created later, at first use."""
    if _next_default:
        return _next_default.pop()
    # Ranks that have created different numbers of groups use the same name for different groups.
    members = hashlib.sha1(repr(options.global_ranks_in_group).encode(), usedforsecurity=False).hexdigest()
    return create_backend(
        dist.PrefixStore(members[:16], options.store),
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        getattr(options, "enable_reconfigure", False),  # since PyTorch 2.14
    )


def create_backend(
    store: dist.Store,
    rank: int,
    size: int,
    timeout: timedelta,
    name: str,
    enable_reconfigure: bool = False,
    has_nonblocking_store: bool = False,
) -> Any:
    """Creates a backend that belongs to no group yet. No other group may use this part of the store.

    A communicator opens a connection to the store unless no user of the store waits for a key.
    """

    def fallback(store: dist.Store, rank: int, size: int, device: str) -> dist.Backend:
        return _torch_backend(store, rank, size, timeout, device)

    return _extension.ProcessGroupIsthmus(
        store,
        rank,
        size,
        timeout.total_seconds(),
        name,
        torch.version.hip is not None,
        fallback,
        enable_reconfigure,
        has_nonblocking_store,
    )


def replace_default_group(backend: Any, store: dist.Store, timeout: timedelta) -> None:
    """Destroys all groups and creates a default group with this backend."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _forget_meshes()
    _next_default.append(backend)
    try:
        dist.init_process_group(
            f"cpu:{NAME},cuda:{NAME}",
            store=store,
            rank=backend.rank(),
            world_size=backend.size(),
            timeout=timeout,
        )
    finally:
        _next_default.clear()


def _torch_backend(store: dist.Store, rank: int, size: int, timeout: timedelta, device: str) -> dist.Backend:
    """Creates PyTorch's own backend for operations that Isthmus does not support."""
    if device == "cpu":
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
