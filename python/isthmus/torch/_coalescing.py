"""Coalescing of calls, as `batch_isend_irecv` and DeepSpeed use it.

PyTorch's `_coalescing_manager` has no cleanup: after an exception in its body, the group keeps recording calls,
so all later collectives of the group would return without any effect. It also records the calls of other
threads. If the body names a device, the manager of this module leaves the recording to Isthmus.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

_MANAGER = "_coalescing_manager"


def replace_coalescing_manager(backends_of: Callable[[Any], list[Any]]) -> None:
    """Replaces `_coalescing_manager`. `backends_of` returns the backends of a group that belong to Isthmus."""
    original = getattr(c10d, _MANAGER, None)
    if original is not None and not hasattr(original, "_isthmus"):
        replace_everywhere(_MANAGER, original, _make_manager(original, backends_of))


def replace_everywhere(name: str, old: Any, new: Any) -> None:
    """Replaces a function of PyTorch also in the modules that have imported it by name."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


def _make_manager(original: Callable[..., Any], backends_of: Callable[[Any], list[Any]]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    @contextlib.contextmanager
    def manager(*arguments: Any, **named: Any) -> Iterator[Any]:
        call = signature.bind(*arguments, **named)
        call.apply_defaults()
        group = call.arguments["group"] or c10d._get_default_group()
        device = call.arguments.get("device")
        backend = group._get_backend(torch.device(device)) if device else None
        if getattr(backend, "wrapped_pg", backend) in backends_of(group):
            with _isthmus_batch(group, device, call.arguments["async_ops"], backends_of) as works:
                yield works
            return
        is_active = False
        try:
            with original(*arguments, **named) as works:
                is_active = True
                yield works
        except BaseException:
            if is_active:
                c10d._world.pg_coalesce_state.pop(group, None)
            raise

    manager._isthmus = True  # type: ignore[attr-defined]
    return manager


@contextlib.contextmanager
def _isthmus_batch(
    group: Any, device: Any, is_asynchronous: bool, backends_of: Callable[[Any], list[Any]]
) -> Iterator[Any]:
    group._start_coalescing(device)
    try:
        works = c10d._CoalescingManager()
        yield works
        work = group._end_coalescing(device)
    except BaseException:
        for backend in backends_of(group):
            backend.cancel_coalescing()
        raise
    if is_asynchronous:
        works.append(work)
    else:
        work.wait()
