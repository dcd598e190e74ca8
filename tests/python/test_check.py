"""ISTHMUS_CHECK=1: mismatched calls are an error on all ranks and move no data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_on_all_ranks
from rank_program import SIZE
from test_jobs import DEADLINE_S, PROGRAM, start_job

import isthmus
from isthmus import launch
from isthmus.table import Status

COUNT = 64


@pytest.fixture(params=[2, 3])
def checked_ranks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[isthmus.Communicator]]:
    monkeypatch.setenv("ISTHMUS_CHECK", "1")
    communicators = isthmus.Communicator.create_all(request.param, timeout=20)
    yield communicators
    for communicator in communicators:
        communicator.close()


def expect_mismatch(call: Callable[[], Any]) -> isthmus.Error:
    with pytest.raises(isthmus.Error) as error_info:
        call()
    assert error_info.value.code == Status.mismatch, error_info.value
    return error_info.value


CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "count": (lambda comm, data, out: comm.allreduce(data[1:], out[1:]), "allreduce (float32 x 63, sum)"),
    "dtype": (
        lambda comm, data, out: comm.allreduce(data.view(np.int32), out.view(np.int32)),
        "int32 x 64, sum",
    ),
    "op": (lambda comm, data, out: comm.allreduce(data, out, op="max"), "float32 x 64, max"),
    "root": (lambda comm, data, out: comm.reduce(data, out, root=1), "reduce (float32 x 64, sum, root 1)"),
    "collective": (lambda comm, data, out: comm.broadcast(data, out), "broadcast (float32 x 64, root 0)"),
    "barrier": (lambda comm, data, out: comm.barrier(), "barrier by shm"),
    "split": (lambda comm, data, out: comm.split(0), "communicator_split"),
    "heap": (lambda comm, data, out: comm.empty(16, np.float32), "heap_allocate (64 bytes)"),
}


@pytest.mark.parametrize("fault", CALLS)
def test_mismatch_names_both_calls_and_moves_no_data(
    checked_ranks: list[isthmus.Communicator], fault: str
) -> None:
    faulty_rank = len(checked_ranks) - 1

    def work(comm: isthmus.Communicator) -> str:
        data, out = np.ones(COUNT, np.float32), np.full(COUNT, -1, np.float32)
        call, _ = CALLS[fault]
        if comm.rank != faulty_rank and fault == "root":
            failure = expect_mismatch(lambda: comm.reduce(data, out, root=0))
        elif comm.rank != faulty_rank:
            failure = expect_mismatch(lambda: comm.allreduce(data, out))
        else:
            failure = expect_mismatch(lambda: call(comm, data, out))
        assert (data == 1).all() and (out == -1).all()
        comm.allreduce(data, out)  # matching calls still work
        assert (out == len(checked_ranks)).all()
        return failure.message

    messages = run_on_all_ranks(checked_ranks, work)
    assert len(set(messages)) == 1, "messages differ between ranks"
    assert CALLS[fault][1] in messages[0] and "(float32 x 64, sum" in messages[0], messages[0]
    assert f"rank {faulty_rank} called" in messages[0] and "no data was moved" in messages[0], messages[0]


def test_group_mismatch_moves_no_data(checked_ranks: list[isthmus.Communicator]) -> None:
    data = [np.full(COUNT, rank + 1, np.float32) for rank in range(len(checked_ranks))]
    out = [np.full(COUNT, -1, np.float32) for _ in checked_ranks]

    def call_group(counts: list[int]) -> None:
        with isthmus.group():
            for comm, send_data, result, count in zip(checked_ranks, data, out, counts, strict=True):
                comm.barrier()
                comm.allreduce(send_data[:count], result[:count])

    expect_mismatch(lambda: call_group([COUNT] * (len(checked_ranks) - 1) + [COUNT - 1]))
    assert all((each == -1).all() for each in out)
    call_group([COUNT] * len(checked_ranks))
    assert all((each == sum(range(1, len(checked_ranks) + 1))).all() for each in out)


def test_send_and_recv_are_not_compared(checked_ranks: list[isthmus.Communicator]) -> None:
    def work(comm: isthmus.Communicator) -> None:
        data = np.full(COUNT, comm.rank, np.float32)
        if comm.rank == 0:
            comm.send(data, 1)
        elif comm.rank == 1:
            comm.recv(data, 0)
            assert (data == 0).all()
        comm.barrier()

    run_on_all_ranks(checked_ranks, work)


def test_invalid_check_setting_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_CHECK", "perhaps")
    with pytest.raises(isthmus.Error, match=r'environment ISTHMUS_CHECK: .*"perhaps"'):
        isthmus.Communicator.create_all(1)


@pytest.mark.parametrize("fault", ["skip", "reorder"])
def test_mismatch_between_processes_is_reported(fault: str, tmp_path: Path) -> None:
    with start_job(fault, tmp_path, 60, ISTHMUS_CHECK="1") as processes:
        for process in processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("mismatch: ranks make different calls: rank 2 called broadcast"), line


@pytest.mark.skipif(not Path(launch.launcher("mpich").executable).is_file(), reason="needs MPICH")
def test_mismatch_under_mpi_is_reported_on_every_rank() -> None:
    launcher = launch.launcher("mpich")
    command = [*launcher.command(SIZE, bind=False), sys.executable, str(PROGRAM), "count", "mpi", "end"]
    environment = launch.environment(launcher, SIZE) | {"ISTHMUS_BACKEND": "mpi", "ISTHMUS_CHECK": "1"}
    completed = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (
        completed.stdout.count("mismatch: ranks make different calls: rank 2 called allreduce (float32 x 512")
        == SIZE
    )
