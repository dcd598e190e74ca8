"""All-gathers of FSDP2 that write parameters where the model reads them. DeepSpeed: _in_place_zero.py.

FSDP2 gathers all parameters of a module into one buffer, and copies each parameter from there into its own
memory, on the stream of the model. Here, one call gathers each large parameter separately. The result is the
parameter, so that its copy disappears. The small parameters of a module are gathered together and copied.
FSDP2 keeps the tensor of a gathered parameter and frees its memory after use. Each all-gather gives the tensor
new memory: a part of a slot.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _in_place_zero
from ._coalescing import replace_everywhere
from ._compile import load as load_extension
from ._compile import require_torch

_extension = load_extension()
_OLDEST = (2, 11)  # earlier versions were not tried
_ALIGNMENT = 512  # bytes, as PyTorch's allocators align
_MINIMUM_BYTES = 4 << 20


def gather_in_place(
    model: torch.nn.Module, *, symmetric: bool = False, minimum_bytes: int = _MINIMUM_BYTES
) -> None:
    """Makes FSDP2 or DeepSpeed's ZeRO-3 gather the large parameters of `model` without copies.

    >>> layer = torch.nn.Linear(8, 8)
    >>> gather_in_place(layer)
    Traceback (most recent call last):
    ...
    ValueError: isthmus.torch.gather_in_place: the model has no module of FSDP2; call fully_shard on it first

    FSDP2: Call it after all calls of fully_shard, and with equal arguments on all ranks. Parameters of less
    than `minimum_bytes` after the gather are copied as before, and so are parameters that are sharded in
    another dimension than the first, offloaded, gathered with an extension (float8), or whose memory is kept
    (set_keep_unsharded_storage). With `symmetric`, parameters are gathered into the symmetric heap of the
    group, so that the copy engines need no staging area. The group must then belong to Isthmus; otherwise the
    first forward pass raises an error. Tested with groups of Isthmus, NCCL and Gloo.

    ZeRO-3: Pass the engine that deepspeed.initialize returned. With `symmetric`, which is then collective, the
    shards move to the symmetric heap, and the copy engines read them there.
    """
    require_torch(_OLDEST, "isthmus.torch.gather_in_place", "function", "train without it")
    if minimum_bytes < 1:
        raise ValueError(
            f"isthmus.torch.gather_in_place: minimum_bytes is {minimum_bytes}; pass at least 1 byte"
        )
    if _in_place_zero.is_engine(model):
        _in_place_zero.gather_in_place(model, _backend_with_heap if symmetric else None, minimum_bytes)
        return
    from torch.distributed.fsdp import FSDPModule

    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ValueError(
            "isthmus.torch.gather_in_place: the model has no module of FSDP2; call fully_shard on it first"
        )
    for module in modules:
        groups = getattr(module._get_fsdp_state(), "_fsdp_param_groups", [None])  # before 2.13: one group
        if len(groups) > 1:
            raise ValueError(
                f"isthmus.torch.gather_in_place: {type(module).__name__} has {len(groups)} groups of "
                "parameters, because shard_placement_fn returns several meshes; use one mesh per module"
            )
    _replace_functions()
    gather = _in_place_gather_class()(symmetric, minimum_bytes)
    for module in modules:
        module.set_custom_all_gather(gather)


class _Slots:
    """Memory for gathered parameters. A slot is used again after the work that reads its parameters.

    The parameters of one module are in one slot. Two slots per size are enough for the order of FSDP2: one
    module computes while the next one is gathered. A module that is the only one of its size has one slot.
    """

    def __init__(self) -> None:
        self._count = 0
        self._layouts: set[int] = set()
        self._free: deque[tuple[torch.Tensor, Any]] = deque()  # with the event of the last use

    def take(self, layout: _Layout, make_slot: Callable[[], torch.Tensor], stream: Any) -> _Lease:
        """`stream` waits for the last use of the slot. All ranks take the same slots in the same order."""
        self._layouts.add(id(layout))
        if self._count < min(len(self._layouts), 2) or not self._free:
            self._count += 1
            return _Lease(self, make_slot())
        memory, last_use = self._free.popleft()
        stream.wait_event(last_use)
        return _Lease(self, memory)

    def put(self, memory: torch.Tensor) -> None:
        stream = torch.get_device_module(memory.device).current_stream(memory.device)
        self._free.append((memory, stream.record_event()))


class _Lease:
    """Returns a slot when the last parameter in it has been freed."""

    def __init__(self, slots: _Slots, memory: torch.Tensor) -> None:
        self._slots, self.memory = slots, memory

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._slots.put(self.memory)


class _Views(NamedTuple):
    """The tensors in a slot."""

    shards: list[torch.Tensor]  # this rank's part of each parameter
    inputs: list[torch.Tensor]  # of the all-gathers
    outputs: list[torch.Tensor]
    copied: torch.Tensor | None  # the gathered small parameters, one row per rank
    counts: list[int]  # of the small parameters, per rank
    copies: list[torch.Tensor]  # each small parameter, one row per rank
    parameters: list[torch.Tensor]


class _Layout:
    """Where the parameters of a module are in a slot: large ones, small ones as gathered, and their copies."""

    def __init__(self, group: Any, parameters: Sequence[Any], minimum_bytes: int) -> None:
        self.group, self.device, self._ranks = group, parameters[0].device, group.size()
        self._all = parameters  # keeps their identities
        plain = [each for each in parameters if _is_plain(each)]
        self._large = [each for each in plain if self._gathered_bytes(each) >= minimum_bytes]
        small = [each for each in plain if each not in self._large] if self._large else []
        self._small = [each for each in small if _dtype_of(each) == _dtype_of(small[0])]
        self.placed = [*self._large, *self._small]
        self.others = [each for each in parameters if each not in self.placed]
        sizes = [self._gathered_bytes(each) for each in self.placed]
        self._offsets, self.size = [], 0  # in the order of `placed`, and of the gathered small parameters
        for each in [*sizes, sum(sizes[len(self._large) :])]:
            self._offsets.append(self.size)
            self.size += -(-each // _ALIGNMENT) * _ALIGNMENT
        self._views: dict[int, _Views] = {}

    def _gathered_bytes(self, parameter: Any) -> int:
        return parameter._sharded_param_data.numel() * _dtype_of(parameter).itemsize * self._ranks

    def views(self, slot: torch.Tensor) -> _Views:
        views = self._views.get(slot.data_ptr())
        if views is None:
            views = self._views[slot.data_ptr()] = self._make_views(slot)
        return views

    def _make_views(self, slot: torch.Tensor) -> _Views:
        rank, ranks, large = self.group.rank(), self._ranks, len(self._large)
        gathered = [
            slot[offset : offset + self._gathered_bytes(each)].view(_dtype_of(each))
            for offset, each in zip(self._offsets, self.placed, strict=False)
        ]
        outputs = gathered[:large]
        shards = [output.chunk(ranks)[rank] for output in outputs]
        inputs, copied = list(shards), None
        counts = [each.numel() // ranks for each in gathered[large:]]
        if counts:
            dtype = gathered[-1].dtype
            end = self._offsets[-1] + sum(counts) * ranks * dtype.itemsize
            copied = slot[self._offsets[-1] : end].view(dtype).view(ranks, -1)
            outputs.append(copied.flatten())
            inputs.append(copied[rank])
            shards.extend(copied[rank].split(counts))
        copies = [each.view(ranks, -1) for each in gathered[large:]]
        return _Views(shards, inputs, outputs, copied, counts, copies, gathered)


def _use(gathered: _Gathered) -> None:
    """Makes the parameters use their memory in the slot, on the current stream."""
    layout, views = gathered.layout, gathered.views
    if views.copied is not None:
        torch.split_with_sizes_copy(views.copied, views.counts, dim=1, out=views.copies)
    for each, view in zip(layout.placed, views.parameters, strict=True):
        if not each.all_gather_outputs:
            ranks = layout.group.size()
            each.init_all_gather_outputs([view.numel() // ranks], [view.dtype], ranks, layout.device)
    outputs = [each.all_gather_outputs[0] for each in layout.placed]
    _extension.give_memory(outputs, views.parameters, gathered.lease)
    gathered.lease = None  # FSDP2 keeps the all-gather longer than the parameters


def _dtype_of(parameter: Any) -> torch.dtype:
    """The datatype of the gathered parameter."""
    return parameter.param_dtype or parameter._sharded_param_data.dtype


def _is_plain(parameter: Any) -> bool:
    """Whether the shards are gathered as they are, and are consecutive in the gathered parameter."""
    return (
        parameter.fsdp_placement.dim == 0
        and not parameter.offload_to_cpu
        and not hasattr(parameter._sharded_local_tensor, "fsdp_pre_all_gather")
    )


@dataclass
class _Gathered:
    """An all-gather whose parameters are not in use yet."""

    layout: _Layout
    views: _Views
    lease: _Lease | None


def _backend_with_heap(group: Any, device: torch.device) -> Any:
    backend = group._get_backend(device)
    if backend.supports_tensor_alloc(device):
        return backend
    raise ValueError(
        f"isthmus.torch.gather_in_place: symmetric is True, but the backend {backend.name()} has no symmetric "
        "heap; use a group of Isthmus, or leave out symmetric"
    )


@functools.cache
def _in_place_gather_class() -> type:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

    class InPlaceGather(AllGather):
        """The collective of FSDP2's modules. FSDP2 calls it for parameters that this module does not place."""

        def __init__(self, symmetric: bool, minimum_bytes: int) -> None:
            self._symmetric, self._minimum_bytes = symmetric, minimum_bytes
            self._layouts: dict[int, _Layout] = {}
            self._slots: dict[tuple[Any, int], _Slots] = {}
            self._group: Any = None  # of the next call

        def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
            if not self._symmetric:
                return torch.empty(*size, dtype=dtype, device=device)
            backend = _backend_with_heap(self._group, device)
            return backend.allocate_tensor(torch.Size(size).numel(), dtype=dtype, device=device)

        def __call__(
            self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
        ) -> Any:
            # PyTorch 2.13 renamed the function.
            gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
            return gather(output_tensor, input_tensor, group=group, async_op=async_op)

        def layout_of(self, parameters: Sequence[Any], group: Any) -> _Layout | None:
            """Returns None if FSDP2 has to gather all parameters itself."""
            self._group = group
            if group.size() == 1 or parameters[0].sharded_state.name != "SHARDED":
                return None
            # Since PyTorch 2.15, the memory of a parameter can be kept, for graphs.
            if any(getattr(each, "keep_unsharded_storage", False) for each in parameters):
                return None
            layout = self._layouts.get(id(parameters[0]))
            if layout is None:
                layout = _Layout(group, parameters, self._minimum_bytes)
                self._layouts[id(parameters[0])] = layout
            return layout if layout.placed else None

        def take_slot(self, layout: _Layout, stream: Any) -> _Lease:
            slots = self._slots.setdefault((layout.group, layout.size), _Slots())
            make_slot = functools.partial(
                self.allocate, (layout.size,), dtype=torch.uint8, device=layout.device
            )
            return slots.take(layout, make_slot, stream)

    return InPlaceGather


@functools.cache
def _replace_functions() -> None:
    """Replaces the two functions of FSDP2 that gather and copy. The originals serve other collectives."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    gather, copy_out = collectives.foreach_all_gather, collectives.foreach_all_gather_copy_out
    replace_everywhere("foreach_all_gather", gather, _make_gather(gather, collectives.AllGatherResult))
    replace_everywhere("foreach_all_gather_copy_out", copy_out, _make_copy_out(copy_out))


def _make_gather(original: Any, result_type: Any) -> Any:
    class InPlaceResult(result_type):
        """The result that FSDP2 keeps. Its field all_gather_output is a _Gathered."""

    @functools.wraps(original)
    def foreach_all_gather(
        fsdp_params: list[Any],
        group: Any,
        async_op: bool,
        all_gather_copy_in_stream: Any,
        all_gather_stream: Any,
        device: torch.device,
        all_gather_comm: Any,
    ) -> Any:
        streams = all_gather_copy_in_stream, all_gather_stream
        is_ours = isinstance(all_gather_comm, _in_place_gather_class())
        layout = all_gather_comm.layout_of(fsdp_params, group) if is_ours else None
        if layout is None:
            return original(fsdp_params, group, async_op, *streams, device, all_gather_comm)
        copied = None
        if layout.others:
            copied = original(layout.others, group, async_op, *streams, device, all_gather_comm)
        result = InPlaceResult(*_gather(all_gather_comm, layout, async_op, *streams), [], [], [])
        result.copied = copied  # FSDP2 keeps the result until its own copy is complete
        return result

    return foreach_all_gather


@torch.no_grad()
def _gather(gather: Any, layout: _Layout, async_op: bool, copy_in: Any, communication: Any) -> Any:
    """Starts the all-gather. Returns what FSDP2 keeps of it: the output, an event and a work object."""
    streams = torch.get_device_module(layout.device)
    with streams.stream(copy_in):
        lease = gather.take_slot(layout, copy_in)
        views = layout.views(lease.memory)
        torch._foreach_copy_(views.shards, [each._sharded_param_data for each in layout.placed])
    communication.wait_stream(copy_in)
    with streams.stream(communication):
        options = c10d.AllgatherOptions()
        options.asyncOp = async_op
        work = layout.group.allgather_into_tensor_coalesced(views.outputs, views.inputs, options)
        if work is not None and not async_op:  # NCCL returns no work then
            work.wait()
        event = communication.record_event()
    return _Gathered(layout, views, lease), event, work if async_op else None


def _make_copy_out(original: Any) -> Any:
    @functools.wraps(original)
    @torch.no_grad()
    def foreach_all_gather_copy_out(result: Any, parameters: Any, group: Any, **named: Any) -> None:
        if not isinstance(result.all_gather_output, _Gathered):
            original(result, parameters, group, **named)
            return
        layout = result.all_gather_output.layout
        if layout.others:
            original(result.copied, layout.others, group, **named)
        torch.get_device_module(layout.device).current_stream().wait_event(result.all_gather_event)
        if result.all_gather_work is not None:
            result.all_gather_work.wait()
        _use(result.all_gather_output)

    return foreach_all_gather_copy_out
