"""The operator torch.ops.isthmus.allreduce_rmsnorm, for the operations between two tensor-parallel layers."""

from __future__ import annotations

import torch
from torch.distributed import distributed_c10d as c10d

from ..table import RMSNORM_DATATYPES, RMSNORM_MAX_HIDDEN
from . import _matmul
from ._backend import backend_for

_DTYPES = tuple(getattr(torch, name) for name in RMSNORM_DATATYPES)
_SCHEMA = (
    "allreduce_rmsnorm(Tensor input, Tensor residual, Tensor weight, float eps, str group_name, "
    "Tensor? scale=None, bool row_scales=False, bool round_before_weight=False) -> "
    "(Tensor normalized, Tensor residual_out, Tensor scales)"
)

Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def allreduce_rmsnorm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_name: str,
    scale: torch.Tensor | None = None,
    row_scales: bool = False,
    round_before_weight: bool = False,
) -> Outputs:
    """Returns (normalized, residual_out, scales): allreduce, residual addition and RMSNorm of each row.

        residual_out = sum of input over all ranks + residual
        normalized = residual_out / sqrt(mean of residual_out^2 over the row + eps) * weight

    Rows are the last dimension. With `scale` (one float32), `normalized` is float8_e4m3fn: the rows divided by
    it. With `row_scales`, each row has its own scale, and `scales` has the shape of `input` with 1 as last
    dimension, as torch._scaled_mm requires. Otherwise, `scales` has no elements. With `round_before_weight`,
    the normalized row is rounded to the type of `input` before it is multiplied by the weight, as in
    LlamaRMSNorm of transformers. Otherwise, only the product is rounded, as in torch.nn.RMSNorm.

    One operator covers the three kinds of output. The schema of an operator fixes the number of its results, so
    `scales` always exists. `group_name` is `group.group_name`, because arguments in a graph cannot be groups.
    All results are new tensors, because torch.compile has to copy around operators that change their arguments.

    Collective, ordered by the current stream of the tensors' device. Has no gradient.
    """
    normalized, residual_out, scales = outputs = _allocate(
        input, residual, weight, eps, group_name, scale, row_scales
    )
    group = c10d._resolve_process_group(group_name)
    backend = backend_for(group, input.device)
    if backend is None:
        raise ValueError(
            f"isthmus::allreduce_rmsnorm: group {group_name} has no isthmus backend for {input.device.type}; "
            "create it with a backend such as 'cpu:isthmus,cuda:isthmus'"
        )
    backend.allreduce_rmsnorm(
        input.contiguous(),
        residual.contiguous(),
        weight.contiguous(),
        eps,
        residual_out,
        normalized,
        scale,
        scales if row_scales else None,
        round_before_weight,
    )
    return outputs


def _allocate(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_name: str,
    scale: torch.Tensor | None = None,
    row_scales: bool = False,
    round_before_weight: bool = False,
) -> Outputs:
    """Checks the arguments and returns uninitialized results. This is also the kernel for fake tensors."""
    hidden = input.shape[-1] if input.dim() else 0
    if input.dtype not in _DTYPES or not 1 <= hidden <= RMSNORM_MAX_HIDDEN:
        raise _error(
            f"input has the shape {list(input.shape)} and the type {input.dtype}",
            f"it must be float16, bfloat16 or float32, with 1 to {RMSNORM_MAX_HIDDEN} elements in the last "
            "dimension",
        )
    for name, tensor, shape in (("residual", residual, input.shape), ("weight", weight, input.shape[-1:])):
        if tensor.shape != shape or tensor.dtype != input.dtype or tensor.device != input.device:
            raise _error(
                f"{name} has the shape {list(tensor.shape)}, the type {tensor.dtype} and the device "
                f"{tensor.device}",
                f"input requires {list(shape)}, {input.dtype} and {input.device}",
            )
    if scale is not None and row_scales:
        raise _error("scale and row_scales are both set", "pass one of them")
    if scale is not None and (
        scale.numel() != 1 or scale.dtype != torch.float32 or scale.device != input.device
    ):
        raise _error(
            f"scale has the shape {list(scale.shape)}, the type {scale.dtype} and the device {scale.device}",
            f"it must have one element of type float32 on {input.device}",
        )
    if torch.is_grad_enabled() and any(each.requires_grad for each in (input, residual, weight)):
        raise _error("a tensor requires a gradient", "call it under torch.no_grad() or torch.inference_mode()")
    is_quantized = scale is not None or row_scales
    rows = (*input.shape[:-1], 1) if row_scales else (0,)
    return (
        input.new_empty(input.shape, dtype=torch.float8_e4m3fn if is_quantized else input.dtype),
        input.new_empty(input.shape),
        input.new_empty(rows, dtype=torch.float32),
    )


def _error(problem: str, rule: str) -> ValueError:
    return ValueError(f"isthmus::allreduce_rmsnorm: {problem}; {rule}")


def register_operators() -> torch.library.Library:
    """Registers the operators. They exist as long as the result."""
    library = torch.library.Library("isthmus", "FRAGMENT")
    library.define(_SCHEMA)
    for key in ("CPU", "CUDA"):
        library.impl("allreduce_rmsnorm", allreduce_rmsnorm, key)
    torch.library.register_fake("isthmus::allreduce_rmsnorm", _allocate, lib=library)
    _matmul.register(library)
    return library
