"""Groups that are created again, by some ranks only, or by splits, and groups in forked children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses

import isthmus.torch


def total(group: dist.ProcessGroup | None = None) -> float:
    data = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(data, group=group)
    return data.item()


def create_again() -> list[float]:
    """Creates the default group several times on one store. Each time, other calls are the first."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["TEST_STORE"].removeprefix("file://"), size)
    results = []
    for number in range(4):
        dist.init_process_group(
            "cpu:isthmus", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20)
        )
        if number == 1 and rank == 0:
            dist.isend(torch.ones(1), 1)  # rank 1 does not receive it, so only rank 0 opens the connection
        if number == 3:
            received = torch.zeros(1)
            sending = dist.isend(torch.tensor([float(rank)]), (rank + 1) % size)
            dist.recv(received, (rank - 1) % size)
            sending.wait()
            assert received.item() == (rank - 1) % size
        isthmus.torch.monitored_barrier(timeout=timedelta(seconds=20))
        results += [total(), total(dist.new_group())]
        if number == 1:
            dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        dist.destroy_process_group()
    return results


def test_default_group_again_on_the_same_store(fresh_ranks: Callable[..., RankProcesses]) -> None:
    ranks = fresh_ranks()
    assert ranks.run(create_again, backend=None) == [[10.0] * 8] * ranks.size


def different_numbers_of_groups() -> list[float]:
    rank = dist.get_rank()
    own_pair = [rank - rank % 2, rank - rank % 2 + 1]
    results = []
    for _ in range(2):
        pair = dist.new_group(own_pair)  # the other pair does not create it, and its own has the same name
        results.append(total(pair))
    if rank < 2:
        dist.new_group([rank], use_local_synchronization=True)
    halves = dist.distributed_c10d.split_group(split_ranks=[[0, 2], [1, 3]])
    results.append(total(halves))
    three = dist.distributed_c10d.split_group(split_ranks=[[3, 1, 0]])
    results.append(0.0 if three is None else total(three))
    again = dist.distributed_c10d.split_group(split_ranks=[[0, 2], [1, 3]])
    parts = dist.distributed_c10d.split_group(again, [[0], [1]])
    return [*results, total(again), total(parts), total()]


def use_other_groups() -> list[float]:
    isthmus.torch.replace_backends()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("cpu:gloo", os.environ["TEST_STORE"], timedelta(seconds=20), size, rank)
    return different_numbers_of_groups()


def test_ranks_with_different_numbers_of_groups(fresh_ranks: Callable[..., RankProcesses]) -> None:
    assert fresh_ranks().run(use_other_groups, backend=None) == [
        [3.0, 3.0, 4.0, 7.0, 4.0, 1.0, 10.0],
        [3.0, 3.0, 6.0, 7.0, 6.0, 2.0, 10.0],
        [7.0, 7.0, 4.0, 0.0, 4.0, 3.0, 10.0],
        [7.0, 7.0, 6.0, 7.0, 6.0, 4.0, 10.0],
    ]


def other_members() -> str:
    """Rank 0 creates a group of itself, and the others create groups of all ranks with the same name."""
    if dist.get_rank() == 0:
        alone = dist.new_group([0])
        assert total(alone) == 1.0
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    if dist.get_rank() > 1:
        return ""
    with pytest.raises(dist.DistBackendError) as failure:
        total(group)
    return str(failure.value)


def test_groups_of_other_members_do_not_meet(fresh_ranks: Callable[..., RankProcesses]) -> None:
    texts = fresh_ranks().run(other_members)
    assert "missing: 1" in texts[0] and "missing: 0" in texts[1], texts


# ---- forked children ------------------------------------------------------------------------------------


def status_of_child(work: Callable[[], object]) -> int | str:
    """Runs `work` in a forked child and returns its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 10 if work() is None else 11
        finally:
            os._exit(code)
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def use_in_child() -> None:
    for call in (
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: isthmus.torch.all_reduce(torch.ones(2)),
        lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
        lambda: dist.send(torch.ones(2), (dist.get_rank() + 1) % 4),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BOR),
    ):
        with pytest.raises(dist.DistBackendError, match=r"belongs to the parent process|invalid after fork"):
            call()


def forks() -> list[int | str]:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    received = torch.zeros(1)
    waiting = dist.irecv(received, (rank + 1) % size)  # its thread is blocked while the children run
    time.sleep(0.1)

    def wait_in_child() -> None:
        with pytest.raises(dist.DistBackendError, match="belongs to the parent process"):
            waiting.wait()

    def abort_in_child() -> None:
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()

    works = (dist.destroy_process_group, use_in_child, wait_in_child, abort_in_child)
    results = [status_of_child(work) for work in works]
    dist.barrier()
    dist.send(torch.tensor([float(rank)]), (rank - 1) % size)
    waiting.wait()
    assert received.item() == (rank + 1) % size
    assert total() == 10.0, "the children have not disturbed the group"
    return results


def test_forked_children(fresh_ranks: Callable[..., RankProcesses]) -> None:
    ranks = fresh_ranks()
    assert ranks.run(forks) == [[10] * 4] * ranks.size


PROGRAM = """
import os, signal, sys, time
import torch, torch.distributed as dist
import isthmus.torch
dist.init_process_group("cpu:isthmus", "file://" + sys.argv[1], rank=0, world_size=1)
dist.all_reduce(torch.ones(2), async_op=True).wait()
if os.fork() == 0:
    sys.exit(7)  # the end of the interpreter releases the group
signal.alarm(20)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
dist.destroy_process_group()
print("done")
"""


def test_forked_child_that_exits(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = subprocess.run(
        [sys.executable, program, tmp_path / "store"], capture_output=True, text=True, timeout=100, check=False
    )
    assert result.stdout == "done\n", result.stderr
