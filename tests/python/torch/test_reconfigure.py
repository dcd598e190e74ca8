"""torch.distributed._reconfigure changes the members of a group. PyTorch has it since version 2.14."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from rank_processes import BACKEND, RankProcesses

import isthmus.torch

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="PyTorch has no torch.distributed._reconfigure"
)
TIMEOUT = timedelta(seconds=20)


def create_group(backend: str = BACKEND) -> dist.Store:
    """Creates a default group without members. Returns the store, which the ranks also use for handles."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["TEST_STORE"].removeprefix("file://"))
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT, enable_reconfigure=True
    )
    assert dist._supports_reconfigure()
    return store


def exchange_handles(store: dist.Store, name: str, ranks: Sequence[int] = range(4)) -> list[str]:
    store.set(f"{name}_{os.environ['RANK']}", dist._get_reconfigure_handle())
    return [store.get(f"{name}_{rank}").decode() for rank in ranks]


def reconfigure(uuid: int, handles: list[str] | set[str], timeout: timedelta = TIMEOUT) -> None:
    dist._reconfigure(uuid, handles, timeout=timeout).wait()


def sum_of_ranks() -> float:
    data = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(data)
    return data[0].item()


def change_members(backend: str) -> list[tuple[int, int, float]]:
    store, rank = create_group(backend), int(os.environ["RANK"])
    seen = []

    def use(uuid: int, handles: list[str] | set[str]) -> None:
        reconfigure(uuid, handles)
        seen.append((dist.get_rank(), dist.get_world_size(), sum_of_ranks()))

    with pytest.raises(dist.DistBackendError, match=r"call torch\.distributed\._reconfigure first"):
        dist.all_reduce(torch.ones(1))
    handles = exchange_handles(store, "start")
    use(10 + rank // 2, handles[rank // 2 * 2 :][:2])  # two pairs
    use(20, exchange_handles(store, "pairs")[::-1])  # all, in the reverse order
    use(30, set(exchange_handles(store, "all")))  # a set: the order of the current ranks
    if rank > 0:
        use(40, exchange_handles(store, "three", [1, 2, 3]))  # without rank 0
    return seen


@pytest.mark.parametrize("backend", [BACKEND, "gloo"])
def test_reconfigure_changes_ranks_and_size(fresh_ranks: Callable[..., RankProcesses], backend: str) -> None:
    if backend == "gloo":
        results = fresh_ranks().run(change_replaced, backend=None)
    else:
        results = fresh_ranks().run(change_members, backend, backend=None)
    for rank, seen in enumerate(results):
        assert seen[:3] == [(rank % 2, 2, 3.0), (3 - rank, 4, 10.0), (3 - rank, 4, 10.0)]
        assert seen[3:] == ([(rank - 1, 3, 6.0)] if rank else [])


def change_replaced() -> list[tuple[int, int, float]]:
    isthmus.torch.replace_backends()
    seen = change_members("gloo")
    assert all(row.path.startswith("shm") for row in isthmus.torch.report())
    return seen


def lose_rank_1() -> tuple[int, int, float]:
    store, rank = create_group(), int(os.environ["RANK"])
    reconfigure(1, exchange_handles(store, "start"))
    sum_of_ranks()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError):
        while True:
            sum_of_ranks()
    reconfigure(2, exchange_handles(store, "survivors", [0, 2, 3]))
    return dist.get_rank(), dist.get_world_size(), sum_of_ranks()


def test_reconfigure_continues_without_killed_rank(fresh_ranks: Callable[..., RankProcesses]) -> None:
    ranks = fresh_ranks()
    ranks.start(lose_rank_1, backend=None)
    assert [ranks.finish(rank) for rank in (0, 2, 3)] == [(0, 3, 6.0), (1, 3, 6.0), (2, 3, 6.0)]


def refuse_wrong_calls() -> float:
    store, rank = create_group(), int(os.environ["RANK"])
    handles = exchange_handles(store, "start")
    own = handles[rank]
    with pytest.raises(ValueError, match="do not contain that of this rank"):
        reconfigure(1, [handles[(rank + 1) % 4]])
    with pytest.raises(ValueError, match="is listed twice"):
        reconfigure(1, [own, own])
    with pytest.raises(ValueError, match="not from a group with the backend isthmus"):
        reconfigure(1, [own, "gloo:0:-1:0:"])
    reconfigure(10 + rank, [own])
    with pytest.raises(dist.DistBackendError, match=f"uuid {10 + rank} was already used"):
        reconfigure(10 + rank, [dist._get_reconfigure_handle()])
    assert sum_of_ranks() == 1.0  # the group is unchanged
    handles = exchange_handles(store, "again")
    if rank < 2:  # ranks 2 and 3 do not join
        with pytest.raises(dist.DistBackendError, match="did not join within 300 ms: 2, 3"):
            reconfigure(20, handles, timedelta(milliseconds=300))
    dist_handles = exchange_handles(store, "last")
    reconfigure(21, dist_handles)
    return sum_of_ranks()


def test_refused_reconfiguration_can_be_repeated(fresh_ranks: Callable[..., RankProcesses]) -> None:
    assert fresh_ranks().run(refuse_wrong_calls, backend=None) == [10.0] * 4


def unblock_waiting_ranks() -> float:
    store, rank = create_group(), int(os.environ["RANK"])
    reconfigure(1, exchange_handles(store, "start"))
    sum_of_ranks()
    handles = exchange_handles(store, "next")
    if rank != 0:  # these ranks wait for rank 0, which reconfigures the group
        with pytest.raises(dist.DistBackendError):
            sum_of_ranks()
    reconfigure(2, handles)
    return sum_of_ranks()


def test_reconfigure_releases_waiting_ranks(fresh_ranks: Callable[..., RankProcesses]) -> None:
    assert fresh_ranks().run(unblock_waiting_ranks, backend=None) == [10.0] * 4
