"""The backend's registration: what `init_process_group` and `new_group` call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ._compile import load as load_extension
from ._environment import apply_environment

NAME = "isthmus"

_extension = load_extension()


def register() -> None:
    """Makes "isthmus" known to torch.distributed; again: does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Waits on the host until all ranks of the group came; rank 0's error names those that did not.

    torch.distributed.monitored_barrier is the same for gloo, and refuses every other backend. `timeout` bounds
    the wait (default: the group's); with `wait_all_ranks` all missing ranks are named, else the first.
    """
    backend = (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cpu"))
    default_timeout = timedelta(milliseconds=-1)  # c10d's own mark for it
    backend.monitored_barrier(default_timeout if timeout is None else timeout, wait_all_ranks)


def reload_rules() -> None:
    """Lets all groups of this process take the present configuration, environment and profile.

    Waits for the device, then closes their communicators; the next calls make new ones. Every rank calls it
    between the same collectives, with no collective captured in a graph that is to be replayed. A tensor of the
    symmetric heap stays valid, but is plain memory to the new communicators, and keeps the old one's memory.
    """
    apply_environment()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    for backend in {id(each): each for each in _backends()}.values():
        backend.renew()


def shrink(group: dist.ProcessGroup | None = None, wait: timedelta | None = None) -> dist.ProcessGroup:
    """After a failure: the group of the ranks that still call this, in their old order, to go on with.

    Collective over the survivors. Ranks whose process has ended count as lost at once, others that do not call
    are waited for `wait` (default: the group's timeout) and left out. As with torch.distributed.shrink_group,
    which does the rest, a shrunk default group is the new default group, and all other groups are gone. Where
    nobody is lost after all, the group itself goes on and is returned.
    """
    old = group or dist.distributed_c10d._get_default_group()
    backends = _backends_of(old)
    if not backends:
        raise TypeError("isthmus does not serve this group: make it with a backend such as 'cpu:isthmus'")
    if not hasattr(dist, "shrink_group"):
        raise RuntimeError(f"PyTorch {torch.__version__} has no torch.distributed.shrink_group: 2.10 has")
    devices = list(old._device_types)
    lost_ranks = backends[0].agree_on_lost_ranks(0.0 if wait is None else wait.total_seconds())
    if not lost_ranks:
        return old
    shrunk = dist.shrink_group(lost_ranks, group)
    backend = _backends_of(shrunk)[0]
    for device in devices:  # shrink_group leaves it at one
        if device not in shrunk._device_types:
            shrunk._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, backend)
    return shrunk


def is_isthmus(group: dist.ProcessGroup) -> bool:
    """Whether Isthmus serves a device type of the group."""
    return bool(_backends_of(group))


def _backends() -> list[Any]:
    return [each for group in dist.distributed_c10d._world.pg_map for each in _backends_of(group)]


def _backends_of(group: dist.ProcessGroup) -> list[Any]:
    backends = [group._get_backend(device) for device in group._device_types]
    # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps them
    unwrapped = [getattr(each, "wrapped_pg", each) for each in backends]
    return [each for each in unwrapped if isinstance(each, _extension.ProcessGroupIsthmus)]


def _create(options: Any, _backend_options: Any) -> dist.Backend:
    """One rank's backend of one group. Nothing is exchanged here: communicators are made when first used."""
    timeout = options.timeout

    def fallback(store: dist.Store, rank: int, size: int, device: str) -> dist.Backend:
        return _torch_backend(store, rank, size, timeout, device)

    return _extension.ProcessGroupIsthmus(
        options.store,
        options.group_rank,
        options.group_size,
        timeout.total_seconds(),
        options.group_id,
        torch.version.hip is not None,
        fallback,
    )


def _torch_backend(store: dist.Store, rank: int, size: int, timeout: timedelta, device: str) -> dist.Backend:
    """PyTorch's own backend for what Isthmus has no image of."""
    if device == "cpu":
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
