#!/usr/bin/env python3
"""Compares isthmus.torch on GPUs with PyTorch's NCCL backend: check_backend.py OUT.json [RANKS].

Results: data movement must be bit-identical. Reductions must be bit-identical on two ranks, where the order of
the sum does not matter, and equal within rounding on more ranks. Asynchronous contract: calls do not block the
host, events order streams, and memory is not reused too early.
"""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import isthmus.torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "python/torch"))
import layouts as layout_calls

reference: Any = None  # the group of PyTorch's NCCL backend
MOVED = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64]
REDUCED = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32]


def random(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(1000 * seed + dist.get_rank())
    values = torch.randint(-8, 8, (count,), generator=generator, device="cuda").float()
    values += torch.rand(count, generator=generator, device="cuda") if dtype.is_floating_point else 0
    return values.to(dtype)


def fill_pattern(count: int, dtype: torch.dtype) -> torch.Tensor:
    data = torch.empty(count, dtype=dtype, device="cuda")
    data.view(torch.uint8).fill_(1 if dtype == torch.bool else 0xA5)
    return data


def same(mine: torch.Tensor, theirs: torch.Tensor, exact: bool = True) -> None:
    size = dist.get_world_size()
    if exact or size == 2 or not mine.is_floating_point():
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)), (mine, theirs)
    else:  # paths differ in the order of additions and in rounding; values of random() are within +-9
        unit = size * torch.finfo(mine.dtype).eps
        torch.testing.assert_close(mine, theirs, rtol=unit, atol=9 * size * unit)


def data_movement() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in MOVED:
        for count in (1, 1000, 1 << 20):
            wire = torch.uint8 if dtype in (torch.float8_e4m3fn, torch.bool) else dtype  # types that NCCL lacks
            mine = random(count, dtype)
            theirs = fill_pattern(size * count, dtype)
            dist.all_gather_into_tensor(theirs.view(wire), mine.view(wire), group=reference)

            gathered = fill_pattern(size * count, dtype)
            dist.all_gather_into_tensor(gathered, mine)
            same(gathered, theirs)
            own = fill_pattern(size * count, dtype)
            own[rank * count : (rank + 1) * count] = mine
            dist.all_gather_into_tensor(own, own[rank * count : (rank + 1) * count])
            same(own, theirs)
            listed = [fill_pattern(count, dtype) for _ in range(size)]
            dist.all_gather(listed, mine)
            same(torch.cat(listed), theirs)

            for root in range(size):
                data = mine.clone() if rank == root else fill_pattern(count, dtype)
                dist.broadcast(data, root)
                same(data, theirs[root * count : (root + 1) * count])
                parts = [fill_pattern(count, dtype) for _ in range(size)] if rank == root else None
                dist.gather(mine, parts, dst=root)
                if parts is not None:
                    same(torch.cat(parts), theirs)
                back = fill_pattern(count, dtype)
                dist.scatter(back, list(theirs.split(count)) if rank == root else None, src=root)
                same(back, mine)

            exchanged, expected = fill_pattern(size * count, dtype), fill_pattern(size * count, dtype)
            dist.all_to_all_single(exchanged, theirs)
            dist.all_to_all_single(expected.view(wire), theirs.view(wire), group=reference)
            same(exchanged, expected)


def reductions() -> None:
    size = dist.get_world_size()
    operations = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    for dtype in REDUCED:
        for op in [*operations, *([dist.ReduceOp.AVG] if dtype.is_floating_point else [])]:
            for count in (7, 5000, 1 << 20):
                data = random(size * count, dtype)
                mine, theirs = data.clone(), data.clone()
                dist.all_reduce(mine, op)
                dist.all_reduce(theirs, op, group=reference)
                same(mine, theirs, exact=False)
                mine, theirs = fill_pattern(count, dtype), fill_pattern(count, dtype)
                dist.reduce_scatter_tensor(mine, data, op)
                dist.reduce_scatter_tensor(theirs, data, op, group=reference)
                same(mine, theirs, exact=False)
    mine, theirs = random(999, torch.float32), random(999, torch.float32)
    dist.all_reduce(mine, dist._make_nccl_premul_sum(0.5))
    dist.all_reduce(theirs, dist._make_nccl_premul_sum(0.5), group=reference)
    same(mine, theirs, exact=False)


def direct_calls() -> None:
    """isthmus.torch.all_reduce: the same bits, in the order of other calls, streams and captured graphs."""
    for dtype in REDUCED:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            mine = random(5000, dtype)
            theirs = mine.clone()
            assert isthmus.torch.all_reduce(mine, op) is None
            dist.all_reduce(theirs, op)
            same(mine, theirs)
    data = torch.ones(1 << 22, device="cuda")
    view = torch.ones(64, 64, device="cuda").t()[::2]  # not contiguous
    work = dist.all_reduce(data, async_op=True)
    isthmus.torch.all_reduce(view)
    work.wait()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        isthmus.torch.all_reduce(data)
    torch.cuda.current_stream().wait_stream(stream)
    isthmus.torch.all_reduce(data)
    size = dist.get_world_size()
    assert torch.equal(data, torch.full_like(data, float(size**3)))
    assert torch.equal(view, torch.full_like(view, float(size)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        isthmus.torch.all_reduce(view)
    graph.replay()
    assert torch.equal(view, torch.full_like(view, float(size**2)))
    with torch.profiler.profile() as profile:
        isthmus.torch.all_reduce(view)
    assert any("allreduce" in event.key for event in profile.key_averages())


def tree_sums() -> None:
    """Sums of the same leaves have the same bits on one rank, on all ranks and on the host, also in a graph."""
    size = dist.get_world_size()
    groups = [dist.new_group([rank]) for rank in range(size)]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for count in (1000, 100_003):
            generator = torch.Generator().manual_seed(count)
            scale = 2.0 ** torch.randint(-6, 7, (4 * size, count), generator=generator)
            leaves = (torch.randn(4 * size, count, generator=generator) * scale).to(dtype)
            share = leaves.chunk(size)[dist.get_rank()].cuda()
            alone = isthmus.torch.tree_all_reduce(leaves, groups[dist.get_rank()])
            together = isthmus.torch.tree_all_reduce(share)
            same(together.cpu(), alone)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = isthmus.torch.tree_all_reduce(share)
            captured.zero_()
            graph.replay()
            same(captured, together)


def coalescing() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = [torch.full((count,), float(rank), device="cuda") for count in (5, 4096, 1 << 20)]
    outputs = [fill_pattern(size * each.numel(), each.dtype) for each in inputs]
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as manager:
        for output, each in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, each)
    manager.wait()
    for output in outputs:
        expected = torch.arange(float(size), device="cuda").repeat_interleave(output.numel() // size)
        same(output, expected)
    with dist._coalescing_manager(async_ops=True) as manager:
        for each in inputs:
            dist.all_reduce(each)
    manager.wait()
    for each in inputs:
        same(each, torch.full_like(each, size * (size - 1) / 2))


def messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ahead, behind = (rank + 1) % size, (rank - 1) % size
    for count in (3, 1 << 20):
        received = fill_pattern(count, torch.float32)
        operations = [
            dist.P2POp(dist.isend, torch.full((count,), float(rank), device="cuda"), ahead),
            dist.P2POp(dist.irecv, received, behind),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(received, torch.full_like(received, float(behind)))
    data = torch.full((1 << 18,), float(rank), device="cuda")
    if rank == 0:
        dist.send(data, 1)
    elif rank == 1:
        dist.recv(data, 0)
        same(data, torch.zeros_like(data))


def layouts() -> None:
    """Tensors of other strides on every rank, with and without coalescing, and in a captured graph."""
    with torch.device("cuda"):
        layout_calls.movements()
        layout_calls.sums()
        layout_calls.messages()
        data = layout_calls.transposed(torch.full(layout_calls.SIZES, float(dist.get_rank())))
        dist.all_reduce(data.clone(memory_format=torch.preserve_format))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(data)
        data.fill_(dist.get_rank() + 1.0)
        graph.replay()
        size = dist.get_world_size()
        assert data.eq(size * (size + 1) / 2).all()


def pinned_tensors() -> None:
    """Tensors in pinned and shared memory of the host."""
    size = dist.get_world_size()
    for data in (torch.ones(3, 50000).pin_memory(), torch.ones(3, 50000).share_memory_()):
        dist.all_reduce(data)
        assert data.eq(size).all()
        dist.all_reduce(data.t())
        assert data.eq(size * size).all()


def second_thread() -> None:
    """A thread with its own stream makes calls while the main thread waits."""
    size, totals = dist.get_world_size(), []

    def run() -> None:
        torch.cuda.set_device(device)
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(20):
                torch.cuda._sleep(int(1e6))
                data = torch.full((1 << 18, 2), float(step), device="cuda")
                work = dist.all_reduce(data[:, 1], async_op=step % 2 == 0)
                if work is not None:
                    work.wait()
                totals.append(data.sum(dtype=torch.float64).item())

    device = torch.cuda.current_device()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert totals == [(1 << 18) * step * (size + 1.0) for step in range(20)], totals


def failed_batch() -> None:
    """After an exception in a batch, no call of it starts, and the group works as before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    untouched = torch.full((3,), -1.0, device="cuda")
    receive = dist.P2POp(dist.irecv, untouched, (rank + 1) % size)
    overlapping = dist.P2POp(dist.irecv, torch.zeros(1, device="cuda").expand(3), (rank + 1) % size)
    try:
        dist.batch_isend_irecv([receive, overlapping])
        raise AssertionError("no exception")
    except ValueError as failure:
        assert "share memory" in str(failure), failure
    data = torch.full((2,), float(rank), device="cuda")
    dist.all_reduce(data)
    assert data.eq(size * (size - 1) / 2).all()
    messages()
    assert untouched.eq(-1.0).all()


def host_does_not_wait() -> dict[str, float]:
    """Collectives after 200 ms of GPU work return at once, and their results are correct."""
    data = [random(1 << 20, torch.float32, seed) for seed in range(10)]
    expected = [each.clone() for each in data]
    for each in expected:
        dist.all_reduce(each, group=reference)
    dist.all_reduce(data[0].clone())  # creates the communicator
    torch.cuda.synchronize()
    torch.cuda._sleep(int(2e8))
    start = time.perf_counter()
    works = [dist.all_reduce(each, async_op=True) for each in data]
    started = time.perf_counter() - start
    assert not works[-1].is_completed()
    for work in works:
        work.wait()
    waited = time.perf_counter() - start
    assert not works[-1].is_completed(), "wait() waited on the host"
    torch.cuda.synchronize()
    total = time.perf_counter() - start
    assert works[-1].is_completed()
    for mine, theirs in zip(data, expected, strict=True):
        same(mine, theirs, exact=False)
    assert waited < total / 4, (started, waited, total)
    return {
        "started_ms": round(started * 1e3, 2),
        "waited_ms": round(waited * 1e3, 2),
        "all_ms": round(total * 1e3, 1),
    }


def streams_are_ordered() -> None:
    """Producer, collective and consumer use three streams, and the tensors are released at once."""
    size = dist.get_world_size()
    for step in range(20):
        producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(producer):
            torch.cuda._sleep(int(2e6))
            data = torch.full((1 << 20,), float(step + dist.get_rank()), device="cuda")
            work = dist.all_reduce(data, async_op=True)
        with torch.cuda.stream(consumer):
            work.wait()
            total = data.sum(dtype=torch.float64)
        del work
        data.record_stream(consumer)
        del data
        noise = torch.full((1 << 20,), -1.0, device="cuda")  # overwrites memory that was freed too early
        consumer.synchronize()
        assert total.item() == (1 << 20) * (size * step + size * (size - 1) / 2), step
        del noise


def works_without_wait() -> None:
    size = dist.get_world_size()
    held_tensors = []
    for step in range(50):
        data = torch.full((1 << 18,), 1.0, device="cuda")
        output = torch.empty(size << 18, device="cuda")
        dist.all_gather_into_tensor(output, data, async_op=True)
        del data
        held_tensors.append(torch.full((1 << 18,), float("nan"), device="cuda"))
        if step % 10 == 9:
            torch.cuda.synchronize()
            assert output.eq(1.0).all()
            held_tensors.clear()


def futures() -> None:
    data = torch.full((1000,), 1.0, device="cuda")
    future = dist.all_reduce(data, async_op=True).get_future()
    halved = future.then(lambda done: done.value()[0] / 2)
    assert halved.wait().eq(dist.get_world_size() / 2).all()


def barriers_and_objects() -> None:
    torch.cuda._sleep(int(1e8))
    event = torch.cuda.Event()
    event.record()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    assert event.query(), "a barrier on a device must wait for the device's earlier work"
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, dist.get_rank())
    assert gathered == list(range(dist.get_world_size()))
    isthmus.torch.monitored_barrier(timeout=timedelta(seconds=20))


def graph_capture() -> None:
    """Collectives in a CUDA graph are replayed with new data."""
    size, rank = dist.get_world_size(), dist.get_rank()
    data = torch.zeros(1 << 16, device="cuda")
    gathered = torch.zeros(size << 16, device="cuda")
    for _ in range(2):  # creates communicators and finishes all setup
        dist.all_reduce(data)
        dist.all_gather_into_tensor(gathered, data)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(data)
        dist.all_gather_into_tensor(gathered, data)
    for step in range(5):
        data.fill_(float(step + rank))
        graph.replay()
        torch.cuda.synchronize()
        assert gathered.eq(size * step + size * (size - 1) / 2).all()


def fused_norms() -> None:
    """allreduce_rmsnorm has the bits of the host version: eagerly, compiled and in a graph with new data."""
    op = torch.ops.isthmus.allreduce_rmsnorm
    name, seed = dist.group.WORLD.group_name, 0
    compiled = torch.compile(lambda *tensors: op(*tensors, 1e-5, name), fullgraph=True)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for tokens, hidden in ((1, 64), (6, 6144), (138, 6144), (33, 8192), (5, 16384), (7, 1001)):
            generator = torch.Generator().manual_seed(seed := seed + 1)
            own, residual, weight = (
                torch.randn(extents, generator=generator, dtype=torch.float32).to(dtype)
                for extents in ((tokens, hidden), (tokens, hidden), (hidden,))
            )
            own = own * (dist.get_rank() + 1)
            scale = torch.tensor([0.37])
            on_device = [tensor.cuda() for tensor in (own, residual, weight)]
            for quantized in ({}, {"row_scales": True}, {"scale": scale}):
                expected = op(own, residual, weight, 1e-5, name, **quantized)
                moved = {key: value.cuda() if key == "scale" else value for key, value in quantized.items()}
                assert_same_bits(op(*on_device, 1e-5, name, **moved), expected)
            if hidden == 6144:
                expected = op(own, residual, weight, 1e-5, name)
                assert_same_bits(compiled(*on_device), expected)
                graph, first = torch.cuda.CUDAGraph(), on_device[0].clone()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    outputs = op(first, *on_device[1:], 1e-5, name)
                for factor in (1.0, 2.0, -0.5):
                    first.copy_(on_device[0] * factor)
                    graph.replay()
                    assert_same_bits(outputs, op(own * factor, residual, weight, 1e-5, name))


def row_parallel_layers() -> None:
    """matmul_allreduce against float64: eagerly, compiled and in a graph with new data."""
    op, name = torch.ops.isthmus.matmul_allreduce, dist.group.WORLD.group_name
    compiled = torch.compile(lambda *tensors: op(*tensors, name), fullgraph=True)
    for dtype in (torch.bfloat16, torch.float16):
        for rows, inner, columns in ((1, 256, 1024), (7, 100, 33), (16, 2048, 4096), (40, 64, 128)):
            # The seeds differ. Otherwise, sums of squares on the diagonal exceed the range of float16.
            own = random(rows * inner, dtype).view(rows, inner)
            weight = random(columns * inner, dtype, seed=1).view(columns, inner)

            def check(result: torch.Tensor, left: torch.Tensor, right: torch.Tensor = weight) -> None:
                exact, unit = left.double() @ right.double().t(), torch.finfo(result.dtype).eps
                magnitude = left.double().abs() @ right.double().abs().t()
                bound = unit * exact.abs() + (left.shape[1] + 8) * 2.0**-24 * magnitude
                dist.all_reduce(exact, group=reference)
                dist.all_reduce(bound, group=reference)
                first = result.clone()
                dist.broadcast(first, 0, group=reference)
                assert torch.equal(first, result)
                wrong = (result.double() - exact).abs() > bound + unit * exact.abs()
                places = wrong.nonzero()[:8].tolist()
                assert not wrong.any(), (left, wrong.shape, places, result[wrong], exact[wrong])

            check(op(own, weight, name), own)
            check(op(own, weight.t().contiguous().t(), name), own)
            check(compiled(own, weight), own)
            graph, first = torch.cuda.CUDAGraph(), own.clone()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                output = op(first, weight, name)
            for factor in (1.0, 2.0, -0.5):
                first.copy_(own * factor)
                graph.replay()
                check(output, first)


def check_product(result: torch.Tensor, exact: torch.Tensor, magnitude: torch.Tensor) -> None:
    unit = max(torch.finfo(result.dtype).eps, 1e-5)  # sums of float32 products
    bound = 2 * dist.get_world_size() * unit * magnitude
    wrong = (result.double() - exact).abs() > bound
    assert torch.isfinite(result).all() and not wrong.any(), (wrong.nonzero()[:8], result[wrong][:8])


def check_blocks(inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    """Compares the outputs of allgather_matmul and matmul_reduce_scatter with float64."""
    (own, up, down), (hidden, gathered, block) = inputs, outputs
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = own.new_empty((size * own.shape[0], own.shape[1]))
    dist.all_gather_into_tensor(rows, own, group=reference)
    if gathered.numel():
        assert torch.equal(gathered, rows)
    check_product(hidden, rows.double() @ up.double().t(), rows.double().abs() @ up.double().abs().t())
    exact, magnitude = (f(hidden.double()) @ f(down.double()).t() for f in (torch.clone, torch.abs))
    dist.all_reduce(exact, group=reference)
    dist.all_reduce(magnitude, group=reference)
    check_product(block, exact.chunk(size)[rank], magnitude.chunk(size)[rank])


def sequence_parallel_layers() -> None:
    """allgather_matmul and matmul_reduce_scatter: eagerly, compiled, with gradients and in a graph."""
    ops, name, size = torch.ops.isthmus, dist.group.WORLD.group_name, dist.get_world_size()

    def layer(own: torch.Tensor, up: torch.Tensor, down: torch.Tensor, returned: bool = False) -> Any:
        hidden, gathered = ops.allgather_matmul(own, up, name, return_gathered=returned)
        return hidden, gathered, ops.matmul_reduce_scatter(hidden, down, name)

    compiled = torch.compile(layer, fullgraph=True)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for rows, inner, columns in ((1, 64, 32), (37, 100, 33), (512, 1024, 768)):
            own = random(rows * inner, dtype).view(rows, inner) / 8
            up = random(columns * inner, dtype, seed=1).view(columns, inner) / 8
            down = random(inner * columns, dtype, seed=2).view(inner, columns) / 8
            tensors = (own, up, down)
            check_blocks(tensors, layer(*tensors))
            check_blocks(tensors, layer(*tensors, returned=True))
            check_blocks(tensors, layer(own, up.t().contiguous().t(), down.t().contiguous().t()))
            check_blocks(tensors, compiled(*tensors))
            check_gradients(*tensors)
            graph, first = torch.cuda.CUDAGraph(), own.clone()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                outputs = layer(first, up, down, True)
            for factor in (1.0, 0.5, -0.25):
                first.copy_(own * factor)
                graph.replay()
                layer(*tensors)  # runs and launches of one plan alternate
                graph.replay()
                check_blocks((first, up, down), outputs)
    paths = {row.collective: row.path for row in isthmus.torch.report() if "matmul_" in row.collective + "_"}
    assert paths["allgather_matmul"].startswith("fused:"), paths
    assert paths["matmul_reduce_scatter"].startswith("fused:"), paths
    graph, odd = torch.cuda.CUDAGraph(), torch.ones((size, 72), device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        try:
            ops.matmul_reduce_scatter(odd, odd[:1], name)
        except RuntimeError as error:
            assert "m = " in str(error) and "before the capture" in str(error), error
        else:
            raise AssertionError("a first call was captured")


def fused_model() -> None:
    """FusionPass in generated code: the collectives of a model are replaced, and its results stay right."""
    world = dist.group.WORLD

    def layer(own: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gathered = functional.all_gather_tensor(own, 0, world)
        hidden = torch.mm(gathered, up.t())
        return hidden, gathered, functional.reduce_scatter_tensor(torch.mm(hidden, down.t()), "sum", 0, world)

    fusion = isthmus.torch.FusionPass()
    compiled = torch.compile(layer, fullgraph=True, options={"post_grad_custom_pre_pass": fusion})
    sizes = ((512, 1024), (768, 1024), (1024, 768))
    tensors = tuple(
        random(rows * columns, torch.bfloat16, seed=seed).view(rows, columns) / 8
        for seed, (rows, columns) in enumerate(sizes)
    )
    with torch.no_grad():
        outputs = compiled(*tensors)
    assert fusion.replacements == 2, fusion.replacements
    check_blocks(tensors, outputs)


def check_gradients(*tensors: torch.Tensor) -> None:
    """The gradients of a layer against those of separate collectives over NCCL in float64."""
    ops, name, size = torch.ops.isthmus, dist.group.WORLD.group_name, dist.get_world_size()
    rank = dist.get_rank()
    own, up, down = leaves = [each.clone().requires_grad_() for each in tensors]
    hidden, _ = ops.allgather_matmul(own, up, name)
    output = ops.matmul_reduce_scatter(hidden, down, name)
    gradient = random(output.numel(), output.dtype, seed=3).view_as(output) / 8
    output.backward(gradient)
    gather = [each.new_empty((size * each.shape[0], each.shape[1])) for each in (own.detach(), gradient)]
    for whole, part in zip(gather, (own.detach(), gradient), strict=True):
        dist.all_gather_into_tensor(whole, part, group=reference)
    rows, of_rows = (each.double() for each in gather)
    of_hidden = of_rows @ down.double()
    of_own = of_hidden @ up.double()
    dist.all_reduce(of_own, group=reference)
    expected = (of_own.chunk(size)[rank], of_hidden.t() @ rows, of_rows.t() @ (rows @ up.double().t()))
    for leaf, exact in zip(leaves, expected, strict=True):
        check_product(leaf.grad, exact, exact.abs().amax().expand_as(exact))


def assert_same_bits(actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert torch.equal(ours.cpu().view(torch.uint8), theirs.view(torch.uint8)), (ours, theirs)


def fallbacks() -> None:
    bits = torch.tensor([1 << dist.get_rank()], device="cuda")
    try:
        dist.all_reduce(bits, dist.ReduceOp.BOR)
    except (RuntimeError, ValueError) as failure:  # NCCL's own error
        assert "Cannot use ReduceOp.BOR with NCCL" in str(failure), failure
    rows = [row for row in isthmus.torch.report() if row.path == "torch:nccl"]
    assert rows and rows[0].reason == "Isthmus has no bitwise reductions"


def report() -> list[str]:
    return sorted({f"{row.collective} {row.path}" for row in isthmus.torch.report() if row.device != "cpu"})


CHECKS = [
    data_movement,
    reductions,
    direct_calls,
    tree_sums,
    coalescing,
    messages,
    layouts,
    pinned_tensors,
    second_thread,
    failed_batch,
    host_does_not_wait,
    streams_are_ordered,
    works_without_wait,
    futures,
    barriers_and_objects,
    graph_capture,
    fused_norms,
    row_parallel_layers,
    sequence_parallel_layers,
    fused_model,
    fallbacks,
    report,
]


def body(rank: int, out: Path) -> None:
    global reference
    dist.init_process_group("cpu:isthmus,cuda:isthmus", timeout=timedelta(seconds=40), **ranks.init_arguments())
    reference = dist.new_group(backend="nccl")
    ranks.run_checks(rank, CHECKS, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    ranks.run(count, body, Path(sys.argv[1]))
