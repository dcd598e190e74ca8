#!/usr/bin/env python3
"""Checks ISTHMUS_DMA_ALLGATHER=1 on GPUs: check_copy_engine.py OUT.json [RANKS].

All-gathers must use only the copy engine, have the same results as NCCL, and run no collective kernel.
PyTorch's profiler must show NCCL's kernels for calls to NCCL, and none for calls to Isthmus.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
from check_backend import fill_pattern, random, same
from torch.profiler import ProfilerActivity, profile

import isthmus.torch

reference: Any = None  # the group of PyTorch's NCCL backend
COUNTS = (1, 1000, 65536 + 3, 5 << 20)
# Kernels of a reduce_scatter, by backend. The peer-memory kernels are in an unnamed namespace, which compilers
# mangle in different ways.
KERNELS_OF_SUMS = {
    "nccl": re.compile(r"nccl.*ReduceScatter", re.IGNORECASE),
    "p2p": re.compile(r"isthmus.*p2p.*two_shot"),
}


def paths() -> set[tuple[str, str]]:
    """Returns the collectives that ran on the device since the last reset, with their backends."""
    rows = isthmus.torch.report()
    return {(row.collective, row.path.split(":")[0]) for row in rows if row.device != "cpu"}


def kernels_of(work: Any) -> Counter[str]:
    """Counts the operations that the device executes for `work`, by name, after a warm-up."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        work()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    return Counter(event.name for event in recorded.events() if event.device_type == device)


def collectives_in(kernels: Counter[str]) -> list[str]:
    """Returns the kernels of NCCL and of p2p."""
    return [name for name in kernels if "nccl" in name.lower() or "isthmus::" in name]


def symmetric(count: int, dtype: torch.dtype) -> torch.Tensor:
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    return backend.allocate_tensor(count, dtype=dtype, device=torch.device("cuda", torch.cuda.current_device()))


def values(make: Any) -> None:
    """Compares back-to-back gathers with NCCL, out of place and in place. `make` allocates the tensors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    isthmus.torch.reset_report()
    for dtype in (torch.bfloat16, torch.float32, torch.uint8):
        for count in COUNTS:
            for turn in range(3):
                mine = random(count, dtype, turn)
                theirs = fill_pattern(size * count, dtype)
                dist.all_gather_into_tensor(theirs, mine, group=reference)
                source, gathered, own = make(count, dtype), make(size * count, dtype), make(size * count, dtype)
                source.copy_(mine)
                dist.all_gather_into_tensor(gathered, source)
                part = own[rank * count : (rank + 1) * count]
                part.copy_(mine)
                dist.all_gather_into_tensor(own, part)
                source.zero_()  # ordered after the gather: peers must have fetched the data by then
                part.zero_()
                own[rank * count : (rank + 1) * count] = mine
                same(gathered, theirs)
                same(own, theirs)
    assert paths() == {("allgather", "copy_engine")}, paths()


def values_of_plain_memory() -> None:
    values(fill_pattern)


def values_of_the_symmetric_heap() -> None:
    values(symmetric)


def the_heap_serves_again() -> None:
    first = symmetric(1 << 20, torch.float32)
    place = first.data_ptr()
    other = symmetric(1 << 20, torch.float32)
    del first
    assert symmetric(1 << 20, torch.float32).data_ptr() == place
    del other
    if dist.get_rank() == 0:
        held_tensor = symmetric(1 << 20, torch.float32)
        place = held_tensor.data_ptr()
    else:
        place = symmetric(1 << 20, torch.float32).data_ptr()
    again = symmetric(1 << 20, torch.float32)
    assert again.data_ptr() != place, "rank 0 still uses the block, so no rank may get it"


def no_collective_kernel_runs() -> dict[str, dict[str, int]]:
    size = dist.get_world_size()
    factor = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    source, output = random(8 << 20, torch.bfloat16), fill_pattern(size * (8 << 20), torch.bfloat16)
    heap_source, heap_output = symmetric(8 << 20, torch.bfloat16), symmetric(size * (8 << 20), torch.bfloat16)
    heap_source.copy_(source)

    def products() -> None:
        for _ in range(4):
            torch.mm(factor, factor)

    def beside_a_product(output: torch.Tensor, source: torch.Tensor, group: Any) -> None:
        work = dist.all_gather_into_tensor(output, source, group=group, async_op=True)
        products()
        work.wait()

    alone = set(kernels_of(products))
    by_nccl = kernels_of(lambda: beside_a_product(output, source, reference))
    assert collectives_in(by_nccl), f"the profiler does not show NCCL's own kernels: {by_nccl}"
    staged = kernels_of(lambda: beside_a_product(output, source, None))
    heap = kernels_of(lambda: beside_a_product(heap_output, heap_source, None))
    same(heap_output, output)
    for found in (staged, heap):
        assert not collectives_in(found), found
        # apart from the products, there are only copies
        assert set(found) > alone and all(name.startswith("Mem") for name in set(found) - alone), found
    return {"nccl": dict(by_nccl), "staged": dict(staged), "heap": dict(heap)}


def fsdp2_gathers_without_kernels() -> dict[str, int]:
    """In a training step, all-gathers run no kernel and reduce-scatters run a kernel of NCCL or p2p."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda().bfloat16()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in [*model, model]:
        module.set_allocate_memory_from_process_group_for_comm(True)
    data = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
    isthmus.torch.reset_report()
    found = kernels_of(lambda: model(data).sum().backward())
    sums = {name: found[name] for name in collectives_in(found)}
    used = {path for collective, path in paths() if collective == "reduce_scatter"}
    assert used and used <= KERNELS_OF_SUMS.keys(), paths()
    assert sums and all(any(KERNELS_OF_SUMS[path].search(name) for path in used) for name in sums), found
    assert ("allgather", "copy_engine") in paths() and ("allgather", "nccl") not in paths(), paths()
    return sums


def calls_keep_their_order() -> None:
    """Calls on several streams and with several backends stay in order, as with a single library."""
    for count in (1000, 20 << 20):  # reduce_scatter uses p2p, then NCCL
        keep_their_order(count, [torch.cuda.Stream() for _ in range(3)])


def keep_their_order(count: int, streams: list[torch.cuda.Stream]) -> None:
    size = dist.get_world_size()
    mine, wide = random(count, torch.bfloat16), random(size * count, torch.bfloat16)
    gathered, again, expected = (fill_pattern(size * count, torch.bfloat16) for _ in range(3))
    summed, expected_sum = (fill_pattern(count, torch.bfloat16) for _ in range(2))
    dist.all_gather_into_tensor(expected, mine, group=reference)
    dist.reduce_scatter_tensor(expected_sum, wide)
    dist.all_gather_into_tensor(gathered, mine)
    gathered.fill_(-1)
    torch.cuda.synchronize()
    ends = [torch.cuda.Event() for _ in streams]
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        dist.all_gather_into_tensor(gathered, mine)
        ends[0].record()
    with torch.cuda.stream(streams[1]):
        dist.reduce_scatter_tensor(summed, wide)
        ends[1].record()
    with torch.cuda.stream(streams[2]):
        dist.all_gather_into_tensor(again, mine)
        ends[2].record()
    for earlier, later in ((0, 1), (1, 2)):
        ends[later].synchronize()
        assert ends[earlier].query(), f"call {later} ended before call {earlier}"
    same(gathered, expected)
    same(again, expected)
    same(summed, expected_sum)


def graph_capture() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    data = torch.zeros(1 << 16, device="cuda")
    gathered = torch.zeros(size << 16, device="cuda")
    dist.all_gather_into_tensor(gathered, data)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_gather_into_tensor(gathered, data)
    for step in range(5):
        data.fill_(float(step + rank))
        graph.replay()
        torch.cuda.synchronize()
        expected = torch.arange(float(step), float(step + size), device="cuda").repeat_interleave(1 << 16)
        same(gathered, expected)


def rules_change() -> None:
    """Switches the option off and on in one job, while a tensor in the symmetric heap stays alive."""
    size = dist.get_world_size()
    held_tensor = symmetric(size * 1000, torch.float32)
    without = None  # the default backend of small gathers: p2p if it is built, otherwise nccl
    for dma in ("0", "1", "0", "1"):
        os.environ["ISTHMUS_DMA_ALLGATHER"] = dma
        isthmus.torch.reload_rules()
        isthmus.torch.reset_report()
        for make in (fill_pattern, symmetric):
            mine = random(1000, torch.float32, int(dma))
            theirs, ours = fill_pattern(size * 1000, torch.float32), make(size * 1000, torch.float32)
            dist.all_gather_into_tensor(theirs, mine, group=reference)
            dist.all_gather_into_tensor(ours, mine)
            same(ours, theirs)
        dist.all_gather_into_tensor(held_tensor, mine)
        same(held_tensor, theirs)
        if without is None:
            (without,) = {path for _, path in paths()}
            assert without in ("p2p", "nccl"), without
        assert paths() == {("allgather", "copy_engine" if dma == "1" else without)}, paths()


CHECKS = [
    values_of_plain_memory,
    values_of_the_symmetric_heap,
    the_heap_serves_again,
    no_collective_kernel_runs,
    fsdp2_gathers_without_kernels,
    calls_keep_their_order,
    graph_capture,
    rules_change,
]


def body(rank: int, out: Path) -> None:
    global reference
    dist.init_process_group("cpu:isthmus,cuda:isthmus", timeout=timedelta(seconds=30), **ranks.init_arguments())
    reference = dist.new_group(backend="nccl")
    ranks.run_checks(rank, CHECKS, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["ISTHMUS_DMA_ALLGATHER"] = "1"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    ranks.run(count, body, Path(sys.argv[1]))
