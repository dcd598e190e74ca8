"""isthmus.torch.all_reduce: the same as torch.distributed.all_reduce by a shorter way, or that function."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses
from test_values import COUNT, REDUCED, combined, part, same

import isthmus.torch


def took_the_long_way() -> list[bool]:
    """For a plain sum and each of ASIDE: whether torch.distributed.all_reduce was called."""
    inner, seen, taken = dist.all_reduce, [], []

    def counted(*arguments, **named):
        seen.append(True)
        return inner(*arguments, **named)

    dist.all_reduce = counted
    try:
        for call in (lambda: same_as_ever(torch.float32, "SUM"), *ASIDE.values()):
            seen.clear()
            call()
            taken.append(bool(seen))
    finally:
        dist.all_reduce = inner
    return taken


def same_as_ever(dtype: torch.dtype, op: str, group: dist.ProcessGroup | None = None) -> None:
    data = part(dist.get_rank(), dtype)
    assert isthmus.torch.all_reduce(data, getattr(dist.ReduceOp, op), group) is None
    same(data, combined(op, dtype))


def asynchronous() -> None:
    data = part(dist.get_rank(), torch.float32)
    work = isthmus.torch.all_reduce(data, async_op=True)
    work.wait()
    same(data, combined("SUM", torch.float32))


def complex_numbers() -> None:
    data = part(dist.get_rank(), torch.complex64)
    isthmus.torch.all_reduce(data)
    same(data, sum(part(rank, torch.complex64) for rank in range(dist.get_world_size())))


def bitwise() -> None:
    data = torch.tensor([1 << dist.get_rank()])
    isthmus.torch.all_reduce(data, dist.ReduceOp.BOR)
    assert data.item() == (1 << dist.get_world_size()) - 1


def profiled() -> None:
    with torch.profiler.profile() as profile:
        same_as_ever(torch.float32, "SUM")
    assert any("all_reduce" in event.key for event in profile.key_averages())


def coalesced() -> None:
    data = part(dist.get_rank(), torch.float32)
    with dist._coalescing_manager():
        isthmus.torch.all_reduce(data)
    same(data, combined("SUM", torch.float32))


def behind_work_in_progress() -> None:
    """The order of calls holds between both functions, whichever thread runs them."""
    data = torch.ones(COUNT)
    works = [dist.all_reduce(data, async_op=True) for _ in range(3)]
    isthmus.torch.all_reduce(data)
    for work in works:
        work.wait()
    assert torch.equal(data, torch.full((COUNT,), float(dist.get_world_size() ** 4)))


ASIDE = {
    "asynchronous": asynchronous,
    "bitwise": bitwise,
    "profiled": profiled,
    "coalesced": coalesced,
}


def values() -> None:
    pair = dist.new_group([0, 1])
    for dtype in REDUCED:
        for op in ("SUM", "MAX", "AVG"):
            same_as_ever(dtype, op)
    if dist.get_rank() < 2:
        data = torch.ones(3)
        isthmus.torch.all_reduce(data, group=pair)
        assert torch.equal(data, torch.full((3,), 2.0))
    with pytest.raises(ValueError, match="not contiguous"):
        isthmus.torch.all_reduce(torch.ones(4, 4)[:, ::2])
    complex_numbers()
    behind_work_in_progress()


def test_values(ranks: RankProcesses) -> None:
    ranks.run(values)


def test_only_plain_sums_are_direct(ranks: RankProcesses) -> None:
    for taken in ranks.run(took_the_long_way):
        assert dict(zip(["plain", *ASIDE], taken, strict=True)) == {"plain": False} | dict.fromkeys(ASIDE, True)


def by_gloo() -> None:
    same_as_ever(torch.float32, "SUM")
    assert isthmus.torch.report() == []


def test_other_backends_are_left_alone(ranks: RankProcesses) -> None:
    ranks.run(by_gloo, backend="gloo")


def closed() -> None:
    isthmus.torch.all_reduce(torch.ones(3))
    group = dist.group.WORLD
    dist.destroy_process_group()
    with pytest.raises(Exception, match="was shut down"):
        isthmus.torch.all_reduce(torch.ones(3), group=group)


def test_a_closed_group_says_so(ranks: RankProcesses) -> None:
    ranks.run(closed)


def futures() -> None:
    """A future that is asked for before the call has ended, and one after."""
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


def test_futures_are_made_when_asked_for(ranks: RankProcesses) -> None:
    ranks.run(futures)
