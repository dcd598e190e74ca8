"""Communicators over MPI in real jobs of several processes, with and without mpi4py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import job

PROGRAM = Path(__file__).with_name("mpi_program.py")


def documents(text: str) -> Iterator[dict]:
    """The JSON objects in a text; the launcher may put lines of several ranks into one."""
    decoder = json.JSONDecoder()
    while "{" in text:
        answer, end = decoder.raw_decode(text := text[text.index("{") :])
        yield answer
        text = text[end:]


def answers(ranks: int, mode: str, **variables: str) -> list[dict]:
    completed = job(ranks, PROGRAM, mode, **variables)
    assert completed.returncode == 0, completed.stderr
    told = list(documents(completed.stdout))
    assert len(told) == ranks
    return sorted(told, key=lambda answer: answer.get("rank", 0))


@pytest.mark.parametrize("mode", ["without_mpi4py", "with_mpi4py", "left_open"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_collectives_of_a_job(mode: str, ranks: int) -> None:
    if mode == "with_mpi4py":
        pytest.importorskip("mpi4py")
    for rank, told in enumerate(answers(ranks, mode)):
        assert (told["rank"], told["size"]) == (rank, ranks)
        assert told["sum"] == [ranks * (ranks + 1) // 2]
        assert told["gathered"] == list(range(ranks))
        assert told["heap"] == [ranks - 1]
        assert told["half"] == len(range(rank % 2, ranks, 2))
        assert told["backends"]["mpi"]
        assert told.get("mpi4py_sum", ranks) == ranks


@pytest.mark.parametrize("backend", ["mpi", "host"])
def test_a_forced_backend_gives_the_same(backend: str) -> None:
    for told in answers(4, "without_mpi4py", ISTHMUS_BACKEND=backend):
        assert told["sum"] == [10]
        assert told["gathered"] == [0, 1, 2, 3]


def test_a_part_of_the_world() -> None:
    pytest.importorskip("mpi4py")
    told = answers(4, "of_a_part")
    assert all(answer["size"] == 2 and answer["rank"] == answer["part"] for answer in told)
    assert sorted(answer["world"] for answer in told) == [0, 1, 2, 3]


def test_another_mpi_library_is_refused() -> None:
    pytest.importorskip("mpi4py")
    (told,) = answers(1, "other_library")
    assert "mpi4py uses MPICH" in told["error"]
    assert "isthmus was built with Some other MPI" in told["error"]
