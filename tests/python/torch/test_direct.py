"""isthmus.torch.all_reduce: the fast path and the calls that use torch.distributed.all_reduce."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses
from test_values import COUNT, REDUCED, assert_same, combined, part

import isthmus.torch
from isthmus.torch import _direct


def calls_of_torch_all_reduce() -> list[bool]:
    """Returns whether torch.distributed.all_reduce was called, for a plain sum and each SLOW_PATH_CASES."""
    inner, calls, uses_torch = _direct._torch_all_reduce, [], []

    def counted(*arguments, **named):
        calls.append(True)
        return inner(*arguments, **named)

    _direct._torch_all_reduce = counted
    try:
        for call in (lambda: check_all_reduce(torch.float32, "SUM"), *SLOW_PATH_CASES.values()):
            calls.clear()
            call()
            uses_torch.append(bool(calls))
    finally:
        _direct._torch_all_reduce = inner
    return uses_torch


def check_all_reduce(dtype: torch.dtype, op: str, group: dist.ProcessGroup | None = None) -> None:
    data = part(dist.get_rank(), dtype)
    assert isthmus.torch.all_reduce(data, getattr(dist.ReduceOp, op), group) is None
    assert_same(data, combined(op, dtype))


def asynchronous() -> None:
    data = part(dist.get_rank(), torch.float32)
    work = isthmus.torch.all_reduce(data, async_op=True)
    work.wait()
    assert_same(data, combined("SUM", torch.float32))


def complex_numbers() -> None:
    data = part(dist.get_rank(), torch.complex64)
    isthmus.torch.all_reduce(data)
    assert_same(data, sum(part(rank, torch.complex64) for rank in range(dist.get_world_size())))


def bitwise() -> None:
    data = torch.tensor([1 << dist.get_rank()])
    isthmus.torch.all_reduce(data, dist.ReduceOp.BOR)
    assert data.item() == (1 << dist.get_world_size()) - 1


def profiled() -> None:
    with torch.profiler.profile() as profile:
        check_all_reduce(torch.float32, "SUM")
    assert any("all_reduce" in event.key for event in profile.key_averages())


def coalesced() -> None:
    data = part(dist.get_rank(), torch.float32)
    with dist._coalescing_manager():
        isthmus.torch.all_reduce(data)
    assert_same(data, combined("SUM", torch.float32))


def after_pending_work() -> None:
    """Calls of both functions keep their order, regardless of the thread that runs them."""
    data = torch.ones(COUNT)
    works = [dist.all_reduce(data, async_op=True) for _ in range(3)]
    isthmus.torch.all_reduce(data)
    for work in works:
        work.wait()
    assert torch.equal(data, torch.full((COUNT,), float(dist.get_world_size() ** 4)))


SLOW_PATH_CASES = {
    "asynchronous": asynchronous,
    "bitwise": bitwise,
    "profiled": profiled,
    "coalesced": coalesced,
}


def values() -> None:
    pair = dist.new_group([0, 1])
    for dtype in REDUCED:
        for op in ("SUM", "MAX", "AVG"):
            check_all_reduce(dtype, op)
    if dist.get_rank() < 2:
        data = torch.ones(3)
        isthmus.torch.all_reduce(data, group=pair)
        assert torch.equal(data, torch.full((3,), 2.0))
    grid = torch.ones(4, 4)
    isthmus.torch.all_reduce(grid[:, ::2])
    assert torch.equal(grid, torch.tensor([[4.0, 1.0, 4.0, 1.0]] * 4))
    with pytest.raises(ValueError, match="share memory"):
        isthmus.torch.all_reduce(torch.ones(1).expand(4))
    complex_numbers()
    after_pending_work()


def test_values(ranks: RankProcesses) -> None:
    ranks.run(values)


def test_only_plain_sums_use_the_fast_path(ranks: RankProcesses) -> None:
    for uses_torch in ranks.run(calls_of_torch_all_reduce):
        assert dict(zip(["plain", *SLOW_PATH_CASES], uses_torch, strict=True)) == {
            "plain": False
        } | dict.fromkeys(SLOW_PATH_CASES, True)


def replaced() -> None:
    isthmus.torch.replace_backends()
    assert dist.all_reduce is dist.distributed_c10d.all_reduce is isthmus.torch.all_reduce
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ["TEST_STORE"], rank=rank, world_size=size)
    _direct._torch_all_reduce = None
    data = part(rank, torch.float32)
    dist.all_reduce(data)
    assert_same(data, combined("SUM", torch.float32))


def compiled_after_replacement() -> None:
    import torch.distributed.fsdp  # imports PyTorch's table of translated functions

    isthmus.torch.replace_backends()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ["TEST_STORE"], rank=rank, world_size=size)
    for fullgraph in (True, False):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):

            def doubled(data: torch.Tensor, op: dist.ReduceOp = op) -> torch.Tensor:
                dist.all_reduce(data, op=op)
                return data * 2

            torch._dynamo.reset()
            result = torch.compile(doubled, backend="aot_eager", fullgraph=fullgraph)(
                torch.full((3,), rank + 1.0)
            )
            expected = sum(range(1, size + 1)) if op == dist.ReduceOp.SUM else size
            assert torch.equal(result, torch.full((3,), 2.0 * expected))


def test_compiled_calls_of_replaced_backends(fresh_ranks: Callable[..., RankProcesses]) -> None:
    fresh_ranks().run(compiled_after_replacement, backend=None)


def test_replaced_backends_use_the_fast_path(fresh_ranks: Callable[..., RankProcesses]) -> None:
    fresh_ranks().run(replaced, backend=None)


def gloo_group() -> None:
    data = part(dist.get_rank(), torch.float32)
    isthmus.torch.all_reduce(data)
    assert_same(data, combined("SUM", torch.float32))
    assert isthmus.torch.report() == []
    # PyTorch 2.6 hangs if it destroys the group while a thread of gloo frees the last reference to a tensor.
    dist.destroy_process_group()
    del data


def test_other_backends_use_torch(ranks: RankProcesses) -> None:
    ranks.run(gloo_group, backend="gloo")


def destroyed_group() -> None:
    isthmus.torch.all_reduce(torch.ones(3))
    group = dist.group.WORLD
    dist.destroy_process_group()
    with pytest.raises(Exception, match="was shut down"):
        isthmus.torch.all_reduce(torch.ones(3), group=group)


def test_closed_group_raises(ranks: RankProcesses) -> None:
    ranks.run(destroyed_group)


def futures() -> None:
    """Requests one future before the call completes and one afterwards."""
    data = torch.ones(1 << 20)
    work = dist.all_reduce(data, async_op=True)
    early = work.get_future()
    assert torch.equal(early.wait()[0], data)
    work.wait()
    assert torch.equal(work.get_future().wait()[0], data)
    late = dist.all_reduce(data, async_op=True)
    late.wait()
    done = []
    late.get_future().then(lambda future: done.append(future.value()[0][0].item()))
    assert done == [float(dist.get_world_size() ** 2)]


def test_futures_are_created_on_request(ranks: RankProcesses) -> None:
    ranks.run(futures)
