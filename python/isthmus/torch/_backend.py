"""The backend's registration: what `init_process_group` and `new_group` call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ._knobs import apply_knobs

NAME = "isthmus"

try:
    from . import _extension
except ImportError as failure:
    raise ImportError(
        f"isthmus.torch was not built for PyTorch {torch.__version__}: {failure}. "
        "Build it with scripts/build in an environment that has this PyTorch (docs/torch.md)."
    ) from failure


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
    unset = timedelta(milliseconds=-1)  # c10d's own mark for it
    backend.monitored_barrier(unset if timeout is None else timeout, wait_all_ranks)


def reload_rules() -> None:
    """Lets all groups of this process take the present configuration, environment and profile.

    Waits for the device, then closes their communicators; the next calls make new ones. Every rank calls it
    between the same collectives, with no collective captured in a graph that is to be replayed. A tensor of the
    symmetric heap stays valid, but is plain memory to the new communicators, and keeps the old one's memory.
    """
    apply_knobs()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    for backend in {id(each): each for each in _backends()}.values():
        backend.renew()


def _backends() -> list[Any]:
    groups = dist.distributed_c10d._world.pg_map
    found = [group._get_backend(device) for group in groups for device in group._device_types]
    # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps them
    inner = [getattr(each, "wrapped_pg", each) for each in found]
    return [each for each in inner if isinstance(each, _extension.ProcessGroupIsthmus)]


def _create(options: Any, _backend_options: Any) -> dist.Backend:
    """One rank's backend of one group. Nothing is exchanged here: communicators are made when first used."""
    timeout = options.timeout

    def fallback(store: dist.Store, device: str) -> dist.Backend:
        return _torch_backend(store, options.group_rank, options.group_size, timeout, device)

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
