"""Killed ranks are excluded and replaced. Each rank is a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import run_on_all_ranks

import isthmus
from isthmus import Communicator, Error, Status

RANK = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import isthmus

rank, size, lost, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])

def meet(name, makes):
    path = folder / name
    if makes:
        (folder / "part").write_bytes(isthmus.UniqueId.create())
        (folder / "part").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return path.read_bytes()

comm = isthmus.Communicator.from_unique_id(meet("first", rank == 0), rank, size, timeout=60)
for step in range(1000):
    if rank == lost and step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        total = comm.allreduce(np.full(1000, rank + step, np.int64))
    except isthmus.Error as error:
        assert f"rank {lost}" in str(error), error
        assert error.ranks == (lost,), (error.ranks, error)
        break
old, comm = comm, comm.shrink()
old.close()
before = comm.parent_ranks
assert before == [each for each in range(size) if each != lost], before
assert comm.allreduce(np.array([rank])).tolist() == [sum(before)]
if comm.rank == 0:
    (folder / "shrunk").touch()
with isthmus.Communicator.from_unique_id(meet("second", comm.rank == 0), comm.rank, size) as grown:
    assert grown.allreduce(np.array([1])).tolist() == [size]
    assert grown.parent_ranks == [-1] * size
    print("done", comm.size, grown.size)
"""

NEWCOMER = """
import sys, time
from pathlib import Path
import numpy as np
import isthmus

path, rank, size = Path(sys.argv[1]) / "second", int(sys.argv[2]), int(sys.argv[3])
while not path.exists():
    time.sleep(0.01)
with isthmus.Communicator.from_unique_id(path.read_bytes(), rank, size) as grown:
    print("joined", grown.allreduce(np.array([1])).tolist())
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    package = str(Path(isthmus.__file__).parent.parent)
    command = [sys.executable, "-c", program, *(str(each) for each in arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": package},
    )


@pytest.mark.parametrize("killed_rank", [0, 1])
def test_killed_rank_is_replaced_after_shrink(killed_rank: int, tmp_path: Path) -> None:
    ranks = [start(RANK, rank, 3, killed_rank, tmp_path) for rank in range(3)]
    newcomer = start(NEWCOMER, tmp_path, 2, 3)
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=90)
        if rank == killed_rank:
            assert process.returncode == -signal.SIGKILL, err
        else:
            assert (process.returncode, out.split()) == (0, ["done", "2", "3"]), err
    out, err = newcomer.communicate(timeout=90)
    assert out == "joined [3]\n", err


def test_shrink_works_in_threads_and_groups(ranks: list[Communicator]) -> None:
    shrunk = run_on_all_ranks(ranks, lambda comm: comm.shrink())
    with isthmus.group():
        shrunk_again = [comm.shrink() for comm in shrunk]
    for index, comm in enumerate(shrunk_again):
        assert (comm.rank, comm.size) == (index, len(ranks))
        assert comm.parent_ranks == list(range(len(ranks)))
    with isthmus.group():
        sums = [comm.allreduce(np.ones(3)) for comm in shrunk_again]
    assert all((each == len(ranks)).all() for each in sums)
    with pytest.raises(Error) as error_info:
        ranks[0].barrier()
    assert error_info.value.code == Status.aborted
    for comm in [*shrunk, *shrunk_again]:
        comm.close()


def test_shrink_without_majority_is_rejected(pair: list[Communicator]) -> None:
    with pytest.raises(Error, match="it is unknown whether rank 0 exited") as error_info:
        pair[1].shrink(wait=0.2)
    assert error_info.value.code == Status.timeout
    with pytest.raises(Error, match=r"wait_s = -1 must be in \[0, 1e9\]"):
        pair[1].shrink(wait=-1)
