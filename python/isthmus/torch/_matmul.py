"""The operator torch.ops.isthmus.matmul_allreduce, a row-parallel linear layer."""

from __future__ import annotations

import torch
from torch.distributed import distributed_c10d as c10d

from ._backend import backend_for

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_SCHEMA = "matmul_allreduce(Tensor input, Tensor weight, str group_name) -> Tensor"


def matmul_allreduce(input: torch.Tensor, weight: torch.Tensor, group_name: str) -> torch.Tensor:
    """Returns the sum of torch.nn.functional.linear(input, weight) over the ranks of a group.

    `input` is [..., k] and `weight` is [n, k], as in torch.nn.Linear. Each rank has its own part of the inner
    dimension, and k can differ between ranks. Each rank rounds its product to the type of the tensors, and the
    group's allreduce adds the products. For few rows, one kernel does both on CUDA devices, if the group has a
    backend with such a kernel. It reads rows of the weight, so each of these calls copies a weight with other
    strides than [>= k, 1]. `group_name` is `group.group_name`, because arguments in a graph cannot be groups.

    Collective, ordered by the current stream of the tensors' device. Has no gradient.
    """
    output = _allocate(input, weight, group_name)
    backend = backend_for(c10d._resolve_process_group(group_name), input.device)
    if backend is None:
        raise ValueError(
            f"isthmus::matmul_allreduce: group {group_name} has no isthmus backend for {input.device.type}; "
            "create it with a backend such as 'cpu:isthmus,cuda:isthmus'"
        )
    rows, products = input.flatten(0, -2), output.flatten(0, -2)
    if not backend.try_matmul_allreduce(rows, weight, products):
        torch.mm(rows, weight.t(), out=products)
        backend.allreduce([products]).wait()
    return output


def _allocate(input: torch.Tensor, weight: torch.Tensor, group_name: str) -> torch.Tensor:
    """Checks the arguments and returns an uninitialized result. This is also the kernel for fake tensors."""
    if input.dtype not in _DTYPES or input.dim() < 2:
        raise _error(
            f"input has the shape {list(input.shape)} and the type {input.dtype}",
            "it must be float16, bfloat16 or float32, with at least two dimensions",
        )
    if (
        weight.dim() != 2
        or weight.shape[1] != input.shape[-1]
        or weight.dtype != input.dtype
        or weight.device != input.device
    ):
        raise _error(
            f"weight has the shape {list(weight.shape)}, the type {weight.dtype} and the device "
            f"{weight.device}",
            f"input requires [n, {input.shape[-1]}], {input.dtype} and {input.device}",
        )
    if torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad):
        raise _error("a tensor requires a gradient", "call it under torch.no_grad() or torch.inference_mode()")
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def _error(problem: str, rule: str) -> ValueError:
    return ValueError(f"isthmus::matmul_allreduce: {problem}; {rule}")


def register(library: torch.library.Library) -> None:
    """Adds the operator to a library."""
    library.define(_SCHEMA)
    for key in ("CPU", "CUDA"):
        library.impl("matmul_allreduce", matmul_allreduce, key)
    torch.library.register_fake("isthmus::matmul_allreduce", _allocate, lib=library)
