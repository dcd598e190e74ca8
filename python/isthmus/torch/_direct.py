"""all_reduce without what PyTorch does around a call: its Python, the dispatcher, a work and a future."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ._backend import _backends_of

_SUM: Any = dist.ReduceOp.SUM
_OP = type(_SUM)

# Which backend of ours serves a group's CPU tensors; False: none does.
_backend_by_group: WeakKeyDictionary[dist.ProcessGroup, Any] = WeakKeyDictionary()


def all_reduce(
    tensor: torch.Tensor, op: Any = _SUM, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> dist.Work | None:
    """torch.distributed.all_reduce, sooner back: for a small CPU tensor most of that call is PyTorch's own.

    Same arguments, results, errors, order and threads; calls of both may follow each other. What is more than a
    plain reduction in place on the host goes to torch.distributed.all_reduce itself: other devices, backends,
    subclasses, asynchronous calls, tensors that require gradients, coalescing, compilation, profilers, modes.
    """
    if torch.compiler.is_compiling():
        return dist.all_reduce(tensor, op, group, async_op)
    process_group = c10d._world.default_pg if group is None else group
    if (
        type(tensor) is torch.Tensor
        and type(op) is _OP
        and not async_op
        and isinstance(process_group, dist.ProcessGroup)
    ):
        backend = _backend_by_group.get(process_group)
        if backend is None:
            backend = _backend_by_group[process_group] = _find_backend(process_group)
        if backend and process_group not in c10d._world.pg_coalesce_state and backend.try_allreduce_inline(tensor, op):
            return None
    return dist.all_reduce(tensor, op, group, async_op)


def _find_backend(group: dist.ProcessGroup) -> Any:
    """Our backend, unless something wraps it, such as what TORCH_DISTRIBUTED_DEBUG=DETAIL adds."""
    if torch.device("cpu") not in group._device_types:
        return False
    backend = group._get_backend(torch.device("cpu"))
    return backend if backend in _backends_of(group) else False
