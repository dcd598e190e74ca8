"""A job that loses ranks continues with the survivors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses

import isthmus.torch

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/elastic/train.py"


def test_training_continues_with_three_of_four() -> None:
    lose = 0
    command = [sys.executable, str(EXAMPLE), "--ranks", "4", "--lose", str(lose), "--at", "7", "--steps", "40"]
    variables = {**os.environ, "ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none", "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    losses = re.search(r"3 ranks, loss ([\d.]+) -> ([\d.]+)", completed.stdout)
    assert losses and float(losses[2]) < float(losses[1]) / 4, completed.stdout
    assert f"lost: [{lose}]" in completed.stdout
    assert len(re.findall(rf"step \d+: .*rank {lose}", completed.stdout)) >= 1, completed.stdout


def lose_two_ranks() -> tuple[int, int, float, list[float]]:
    dist.all_reduce(torch.ones(4))
    before = dist.get_rank()
    if before in (1, 2):
        os.kill(os.getpid(), 9)
    with pytest.raises(dist.DistBackendError):
        while True:
            dist.all_reduce(torch.ones(4))
    group = isthmus.torch.shrink()
    assert group == dist.group.WORLD
    total = torch.tensor([float(before + 1)])
    dist.all_reduce(total)
    part = dist.new_group([0, 1])  # the store also serves new groups
    parts = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(parts, torch.tensor([float(before)]), group=part)
    return dist.get_rank(), dist.get_world_size(), total.item(), [each.item() for each in parts]


def test_shrink_to_two_of_four(fresh_ranks: Callable[..., RankProcesses]) -> None:
    ranks = fresh_ranks()
    ranks.start(lose_two_ranks)
    assert ranks.finish(0) == (0, 2, 5.0, [0.0, 3.0])
    assert ranks.finish(3) == (1, 2, 5.0, [0.0, 3.0])


def fail_without_lost_rank(is_aborted: bool) -> tuple[bool, float]:
    group = dist.new_group(timeout=timedelta(seconds=4))
    dist.all_reduce(torch.ones(4), group=group)
    work = None
    if dist.get_rank() != 3:
        work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
        if is_aborted:
            with pytest.raises(dist.DistBackendError):  # the timeout of this rank or of another rank
                work.wait(timedelta(milliseconds=100))
    dist.barrier()  # in the default group, so that no rank shrinks before all calls have started
    smaller_group = isthmus.torch.shrink(group, timedelta(seconds=20))
    if work is not None:
        with pytest.raises(dist.DistBackendError):
            work.wait()
    total = torch.ones(1)
    dist.all_reduce(total, group=smaller_group)
    return smaller_group == group, total.item()


@pytest.mark.parametrize("is_aborted", [False, True])
def test_group_continues_if_no_rank_is_lost(
    fresh_ranks: Callable[..., RankProcesses], is_aborted: bool
) -> None:
    assert fresh_ranks().run(fail_without_lost_rank, is_aborted) == [(True, 4.0)] * 4


def shrink_before_first_call() -> None:
    with pytest.raises(dist.DistBackendError, match="has made no collective call yet"):
        isthmus.torch.shrink()


def test_shrink_before_first_call_raises(fresh_ranks: Callable[..., RankProcesses]) -> None:
    fresh_ranks().run(shrink_before_first_call)
