"""Ends coalescing after an exception.

PyTorch's `_coalescing_manager`, which `batch_isend_irecv` uses, has no cleanup: after an exception in its
body, the group keeps recording calls, so all later collectives of the group would return without any effect.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed import distributed_c10d as c10d

_MANAGER = "_coalescing_manager"


def end_coalescing_after_exceptions(backends_of: Callable[[Any], list[Any]]) -> None:
    """Replaces `_coalescing_manager`. `backends_of` returns the backends of a group that belong to Isthmus."""
    original = getattr(c10d, _MANAGER, None)
    if original is not None and not hasattr(original, "_isthmus"):
        replace_everywhere(_MANAGER, original, _with_cleanup(original, backends_of))


def replace_everywhere(name: str, old: Any, new: Any) -> None:
    """Replaces a function of PyTorch also in the modules that have imported it by name."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


def _with_cleanup(original: Callable[..., Any], backends_of: Callable[[Any], list[Any]]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    @contextlib.contextmanager
    def manager(*arguments: Any, **named: Any) -> Iterator[Any]:
        group = signature.bind(*arguments, **named).arguments.get("group") or c10d._get_default_group()
        is_active = False
        try:
            with original(*arguments, **named) as works:
                is_active = True
                yield works
        except BaseException:
            if is_active:
                c10d._world.pg_coalesce_state.pop(group, None)
                for backend in backends_of(group):
                    backend.cancel_coalescing()
            raise

    manager._isthmus = True  # type: ignore[attr-defined]
    return manager
