"""All-gathers of DeepSpeed's ZeRO-3 that write parameters where the model reads them.

DeepSpeed copies the shards of a layer into one buffer, gathers it, and copies each parameter from there into
its own memory. Here, one call gathers each large parameter separately, from its shard into its memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d


def is_engine(model: Any) -> bool:
    deepspeed = sys.modules.get("deepspeed")
    return deepspeed is not None and isinstance(model, deepspeed.DeepSpeedEngine)


def gather_in_place(
    engine: Any, heap_of: Callable[[Any, torch.device], Any] | None, minimum_bytes: int
) -> None:
    """Replaces the function with which DeepSpeed gathers the parameters of this engine.

    With `heap_of`, which returns the backend of a group, the shards move to the symmetric heap.
    """
    parameters = [each for each in engine.module.parameters() if hasattr(each, "ds_tensor")]
    if not parameters:
        raise ValueError(
            "isthmus.torch.gather_in_place: the engine of DeepSpeed does not shard parameters; "
            "set the stage of zero_optimization to 3"
        )
    if heap_of is not None:
        _move_shards(engine.optimizer, parameters, heap_of)
    for each in parameters:
        each.all_gather_coalesced = _replacement(each.all_gather_coalesced, minimum_bytes)


def _move_shards(optimizer: Any, parameters: list[Any], heap_of: Callable[[Any, torch.device], Any]) -> None:
    """Moves the buffer that holds the shards of all parameters, and the tensors that refer to it."""
    shards = getattr(optimizer, "lp_param_buffer", None)
    groups = {id(each.ds_process_group): each.ds_process_group for each in parameters}
    if shards is None or len(groups) > 1:
        reason = (
            "have no common buffer (they are offloaded, or there is no optimizer)"
            if shards is None
            else f"belong to {len(groups)} groups"
        )
        raise ValueError(
            f"isthmus.torch.gather_in_place: symmetric is True, but the parameters {reason}; "
            "leave out symmetric"
        )
    heap = heap_of(next(iter(groups.values())), shards.device)
    moved = heap.allocate_tensor(shards.numel(), dtype=shards.dtype, device=shards.device)
    moved.copy_(shards)
    begin = shards.data_ptr()
    users = [shards, *optimizer.fp16_partitioned_groups_flat, *optimizer._get_parameter_partitions()]
    offsets = [(each.data_ptr() - begin) // each.element_size() for each in users]
    for each, offset in zip(users, offsets, strict=True):
        each.data = moved.narrow(0, offset, each.numel())


def _replacement(original: Callable[..., Any], minimum_bytes: int) -> Callable[..., Any]:
    from deepspeed.runtime.zero.partition_parameters import MultipleAllGatherHandles

    def all_gather_coalesced(params: Iterable[Any], safe_mode: bool = False, quantize: bool = False) -> Any:
        """DeepSpeed passes the parameters of one or several modules, in any order."""
        parameters = sorted(params, key=lambda each: each.ds_id)
        groups = {each.ds_process_group for each in parameters}
        is_plain = not safe_mode and not quantize and len(groups) == 1
        large = [each for each in parameters if is_plain and _is_plain(each, minimum_bytes)]
        if not large:
            return original(parameters, safe_mode=safe_mode, quantize=quantize)
        chosen = {each.ds_id for each in large}
        others = [each for each in parameters if each.ds_id not in chosen]
        handles = [original(others)] if others else []
        return MultipleAllGatherHandles([*handles, _Gather(groups.pop(), large)])

    return all_gather_coalesced


def _is_plain(parameter: Any, minimum_bytes: int) -> bool:
    """Whether the shards are gathered as they are, and are in the memory of the device."""
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus, get_allgather_dtype

    shard = parameter.ds_tensor
    return (
        parameter.ds_status == ZeroParamStatus.NOT_AVAILABLE
        and parameter.ds_secondary_tensor is None
        and not hasattr(shard, "ds_quant_scale")
        and shard.device.type == parameter.device.type
        and get_allgather_dtype(parameter, shard) == shard.dtype
        and parameter.ds_numel * shard.element_size() >= minimum_bytes
    )


class _Gather:
    """The handle of an all-gather that DeepSpeed waits for."""

    def __init__(self, group: Any, parameters: list[Any]) -> None:
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

        self._status, self._parameters = ZeroParamStatus, parameters
        shards = [each.ds_tensor.detach() for each in parameters]
        self._gathered = [each.new_empty(each.numel() * group.size()) for each in shards]
        options = c10d.AllgatherOptions()
        options.asyncOp = True
        self._work = group.allgather_into_tensor_coalesced(self._gathered, shards, options)
        for each in parameters:
            each.ds_status = ZeroParamStatus.INFLIGHT

    def wait(self, **_: Any) -> None:
        if self._work is None:
            return
        self._work.wait()
        self._work = None
        for each, gathered in zip(self._parameters, self._gathered, strict=True):
            each.data = gathered.narrow(0, 0, each.ds_numel).view(each.ds_shape)
            each.ds_status = self._status.AVAILABLE
        self._gathered = []
