"""`split_group` for groups of Isthmus.

PyTorch's `split_group` requires a backend that splits its own communicator. Isthmus creates communicators at
first use, so a split is a new group of the listed ranks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ._coalescing import replace_everywhere
from ._compile import torch_version

_SPLIT = "split_group"

# Number of splits of a group. All ranks of a group split it in the same order.
_split_counts: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def replace_split_group(is_isthmus: Callable[[dist.ProcessGroup], bool]) -> None:
    """Replaces `split_group` for groups for which `is_isthmus` returns true."""
    original = getattr(c10d, _SPLIT, None)
    if original is not None and not hasattr(original, "_isthmus"):
        replace_everywhere(_SPLIT, original, _wrapped_split(original, is_isthmus))


def _wrapped_split(
    original: Callable[..., Any], is_isthmus: Callable[[dist.ProcessGroup], bool]
) -> Callable[..., Any]:
    signature = inspect.signature(original)
    # Since PyTorch 2.14, the order of the listed ranks is the order of the new ranks.
    order = {"sort_ranks": False} if torch_version() >= (2, 14) else {}

    @functools.wraps(original)
    def split_group(*arguments: Any, **named: Any) -> Any:
        call = signature.bind(*arguments, **named).arguments
        parent = call.get("parent_pg") or dist.group.WORLD
        if parent is None or not is_isthmus(parent):
            return original(*arguments, **named)
        if not (rank_lists := call.get("split_ranks")):
            raise ValueError("split_ranks cannot be None or empty")
        split_number = _split_counts[parent] = _split_counts.get(parent, 0) + 1
        own_ranks = next(
            (list(ranks) if order else sorted(ranks) for ranks in rank_lists if dist.get_rank(parent) in ranks),
            None,
        )
        if own_ranks is None:
            return None
        with _group_name(f"{parent.group_name}_split_{split_number}_{min(own_ranks)}"):
            return dist.new_group(
                [dist.get_global_rank(parent, rank) for rank in own_ranks],
                call.get("timeout"),
                call.get("backend") or dist.get_backend(parent),
                use_local_synchronization=True,
                group_desc=call.get("group_desc"),
                **order,
            )

    split_group._isthmus = True  # type: ignore[attr-defined]
    return split_group


@contextlib.contextmanager
def _group_name(name: str) -> Iterator[None]:
    """Names the groups that are created meanwhile.

    PyTorch's own name contains the number of groups of this rank, which can differ between ranks of a group.
    """
    original = c10d._process_group_name
    c10d._process_group_name = lambda *_, **__: name
    try:
        yield
    finally:
        c10d._process_group_name = original
