"""Communicators over MPI in jobs of several processes, with and without mpi4py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import run_mpi_job

PROGRAM = Path(__file__).with_name("mpi_program.py")


def parse_documents(text: str) -> Iterator[dict]:
    """Yields the JSON objects in a text. The launcher can merge lines of several ranks."""
    decoder = json.JSONDecoder()
    while "{" in text:
        reply, end = decoder.raw_decode(text := text[text.index("{") :])
        yield reply
        text = text[end:]


def run_mode(ranks: int, mode: str, **variables: str) -> list[dict]:
    completed = run_mpi_job(ranks, PROGRAM, mode, **variables)
    assert completed.returncode == 0, completed.stderr
    replies = list(parse_documents(completed.stdout))
    assert len(replies) == ranks
    return sorted(replies, key=lambda reply: reply.get("rank", 0))


@pytest.mark.parametrize("mode", ["without_mpi4py", "with_mpi4py", "not_closed"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_collectives_of_mpi_job(mode: str, ranks: int) -> None:
    if mode == "with_mpi4py":
        pytest.importorskip("mpi4py")
    for rank, reply in enumerate(run_mode(ranks, mode)):
        assert (reply["rank"], reply["size"]) == (rank, ranks)
        assert reply["sum"] == [ranks * (ranks + 1) // 2]
        assert reply["gathered"] == list(range(ranks))
        assert reply["heap"] == [ranks - 1]
        assert reply["half"] == len(range(rank % 2, ranks, 2))
        assert reply["backends"]["mpi"] == "available"
        assert reply.get("mpi4py_sum", ranks) == ranks


@pytest.mark.parametrize("backend", ["mpi", "shm"])
def test_forced_backend_gives_same_results(backend: str) -> None:
    for reply in run_mode(4, "without_mpi4py", ISTHMUS_BACKEND=backend):
        assert reply["sum"] == [10]
        assert reply["gathered"] == [0, 1, 2, 3]


def test_communicator_over_mpi_subcommunicator() -> None:
    pytest.importorskip("mpi4py")
    replies = run_mode(4, "on_subcommunicator")
    assert all(reply["size"] == 2 and reply["rank"] == reply["part"] for reply in replies)
    assert sorted(reply["world"] for reply in replies) == [0, 1, 2, 3]


STOPPED_RANK = """
import os, signal
import isthmus, numpy
comm = isthmus.Communicator.from_mpi(timeout=2)
values, sums = numpy.ones(4), numpy.zeros(4)
comm.allreduce(values, out=sums)
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    comm.allreduce(values, out=sums)
except isthmus.Error as error:
    print("reported", error.ranks, flush=True)
"""


def test_job_ends_after_a_rank_was_lost(tmp_path: Path) -> None:
    """MPI_Finalize at exit waits for all ranks, also for those that a call has reported as lost."""
    program = tmp_path / "program.py"
    program.write_text(STOPPED_RANK)
    completed = run_mpi_job(2, program, ISTHMUS_BACKEND="shm")
    assert "reported (1,)" in completed.stdout, completed.stdout + completed.stderr
    assert completed.returncode != 0


def test_other_mpi_library_is_rejected() -> None:
    pytest.importorskip("mpi4py")
    (reply,) = run_mode(1, "other_library")
    assert "mpi4py uses MPICH" in reply["error"]
    assert "isthmus was built with Some other MPI" in reply["error"]


def test_intercommunicator_and_null_are_rejected() -> None:
    pytest.importorskip("mpi4py")
    for reply in run_mode(2, "unsupported_communicators"):
        errors = reply["errors"]
        code, message = errors["inter"]
        assert code == "invalid_argument"
        assert "comm is an intercommunicator, must be an intracommunicator" in message
        assert "MPI_Intercomm_merge" in message
        code, message = errors["null"]
        assert code == "invalid_argument" and "MPI_COMM_NULL" in message
        assert errors["number"] == ["TypeError", "comm is a int, must be an mpi4py communicator or None"]
        assert reply["merged"] == [2]
