"""Failures are reported on every rank, immediately or within the timeout."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest
import torch
import torch.distributed as dist
from rank_processes import TIMEOUT_S, RankProcesses

import isthmus.torch
from isthmus.torch._compile import torch_version

_Result = TypeVar("_Result")


def wait_for_all_ranks(result: _Result) -> _Result:
    """Waits for all ranks after a failed call, so that every rank sees the failure before one exits."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"end {dist.get_rank()}", "")
    store.wait([f"end {rank}" for rank in range(dist.get_world_size())])
    return result


def late_rank() -> float:
    group = dist.new_group(timeout=timedelta(seconds=4))
    dist.all_reduce(torch.ones(4), group=group)
    if dist.get_rank() == 3:
        return wait_for_all_ranks(0.0)
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=r"isthmus: "):
        dist.all_reduce(torch.ones(4), group=group)
    return wait_for_all_ranks(time.monotonic() - begin)


def test_missing_call_raises_after_timeout(fresh_ranks: Callable[..., RankProcesses]) -> None:
    waited_s = fresh_ranks().run(late_rank)
    # A rank can fail earlier if a rank that started earlier has reported the failure.
    assert all(seconds < TIMEOUT_S for seconds in waited_s[:3]) and max(waited_s) > 0.9, waited_s


def wait_for_late_rank() -> str:
    group = dist.new_group(timeout=timedelta(seconds=3))
    dist.all_reduce(torch.ones(4), group=group)
    if dist.get_rank() == 3:
        return wait_for_all_ranks("")
    work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
    with pytest.raises(dist.DistBackendError) as failure:
        work.wait()
    return wait_for_all_ranks(str(failure.value))


def test_wait_names_the_missing_rank(fresh_ranks: Callable[..., RankProcesses]) -> None:
    # The wait starts before the call and has the same timeout, but it must not end first.
    texts = fresh_ranks().run(wait_for_late_rank)[:3]
    assert all("for rank 3" in text for text in texts), texts


def wait_with_short_timeout() -> tuple[float, str]:
    if dist.get_rank() == 0:
        return wait_for_all_ranks((0.0, ""))
    begin = time.monotonic()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    with pytest.raises(dist.DistBackendError) as failure:
        work.wait(timedelta(milliseconds=300))
    return wait_for_all_ranks((time.monotonic() - begin, str(failure.value)))


def test_wait_with_timeout(fresh_ranks: Callable[..., RankProcesses]) -> None:
    seconds, texts = zip(*fresh_ranks().run(wait_with_short_timeout)[1:], strict=True)
    # A rank whose wait times out ends the call for all, so a later rank may see that failure first.
    assert any("Timed out waiting 300ms" in text for text in texts), texts
    assert all(text.startswith("isthmus: ") for text in texts), texts
    assert max(seconds) > 0.2 and all(each < TIMEOUT_S for each in seconds), seconds


def kill_one_rank() -> str:
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 2:
        os.kill(os.getpid(), 9)
    try:
        while True:
            dist.all_reduce(torch.ones(4))
    except dist.DistBackendError as failure:
        return str(failure)


def test_killed_rank_ends_calls_of_other_ranks(fresh_ranks: Callable[..., RankProcesses]) -> None:
    ranks = fresh_ranks()
    ranks.start(kill_one_rank)
    for rank in (0, 1, 3):
        text = ranks.finish(rank, 60)
        assert "isthmus" in text
        assert "timed out" not in text.lower()


def abort_one_rank() -> str:
    dist.all_reduce(torch.ones(4))
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    if dist.get_rank() == 1:
        time.sleep(0.5)
        backend.abort()
    try:
        dist.all_reduce(torch.ones(4))
    except dist.DistBackendError as failure:
        return str(failure)
    return "no error"


def test_abort_ends_waits_on_every_rank(fresh_ranks: Callable[..., RankProcesses]) -> None:
    for text in fresh_ranks().run(abort_one_rank):
        assert "abort" in text, text
        assert "timed out" not in text.lower(), text


def release_group_with_callback() -> list[str]:
    """Only rank 0 makes the call. It releases the group before other ranks arrive, while it holds the GIL."""
    if dist.get_rank() != 0:
        return []
    store = dist.PrefixStore("dropped", dist.distributed_c10d._get_default_store())
    group = isthmus.torch._extension.ProcessGroupIsthmus(
        store, rank=0, size=2, timeout_s=60, name="dropped", hip=False, fallback=lambda *_: None
    )
    seen = []
    work = group.allreduce([torch.ones(4)])
    followed = work.get_future().then(lambda done: seen.append("called"))
    time.sleep(0.2)  # now the executor thread waits for the other rank
    del group
    with pytest.raises(dist.DistBackendError):
        work.wait()
    followed.wait()
    return seen


def test_group_release_with_callback_waiting_for_gil(fresh_ranks: Callable[..., RankProcesses]) -> None:
    begin = time.monotonic()
    assert fresh_ranks().run(release_group_with_callback)[0] == ["called"]
    assert time.monotonic() - begin < 60  # the timeout of the group


def late_for_barrier() -> str:
    isthmus.torch.monitored_barrier(timeout=timedelta(seconds=5))
    if dist.get_rank() == 2:
        return ""
    try:
        isthmus.torch.monitored_barrier(timeout=timedelta(seconds=3), wait_all_ranks=True)
    except dist.DistBackendError as failure:
        return str(failure)
    return "no error"


def test_monitored_barrier_names_missing_ranks(fresh_ranks: Callable[..., RankProcesses]) -> None:
    texts = fresh_ranks().run(late_for_barrier)
    assert "ranks that did not arrive within 3000 ms: 2" in texts[0]
    assert "waited 3000 ms for rank 0" in texts[1] and "waited" in texts[3]


def use_destroyed_group() -> None:
    group = dist.new_group([0, 1, 2, 3])
    backend = group._get_backend(torch.device("cpu"))
    dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group(group)
    with pytest.raises(dist.DistBackendError, match="was shut down"):
        backend.barrier().wait()
    dist.barrier()


@pytest.mark.skipif(torch_version() < (2, 7), reason="PyTorch 2.6 does not shut down custom backends")
def test_destroyed_group_raises(ranks: RankProcesses) -> None:
    ranks.run(use_destroyed_group)
