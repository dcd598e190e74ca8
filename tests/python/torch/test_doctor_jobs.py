"""`isthmus doctor` names the rank of a process group that does something wrong, or nothing."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from crew import Crew

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_jobs import CULPRIT, FAULTS, examined


def goes_wrong(fault: str, meeting: str) -> None:
    with suppress(dist.DistBackendError):
        make_calls(fault, meeting)
    time.sleep(60)  # so that this process' recorder can be read


def make_calls(fault: str, meeting: str) -> None:
    """Those of rank_program.py."""
    wrong = dist.get_rank() == CULPRIT
    for _ in range(3):
        dist.all_reduce(torch.ones(1024))
    (Path(meeting) / str(dist.get_rank())).touch()
    if wrong and fault in ("die", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if fault == "die" else signal.SIGSTOP)
    if wrong and fault == "slow":
        time.sleep(60)
    if wrong and fault in ("skip", "reorder"):
        dist.broadcast(torch.ones(1024), 0)
        if fault == "skip":
            time.sleep(60)
        dist.all_reduce(torch.ones(1024))
    elements = 512 if wrong and fault == "count" else 1024
    dist.all_reduce(torch.ones(elements, dtype=torch.int32 if wrong and fault == "dtype" else torch.float32))
    dist.broadcast(torch.ones(1024), 1 if wrong and fault == "root" else 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_is_named(fault: str, fresh_crew: Callable[..., Crew], tmp_path: Path) -> None:
    crew = fresh_crew()
    crew.start(goes_wrong, fault, str(tmp_path))
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < crew.size:
        assert time.monotonic() < deadline, "the ranks don't come to the fault"
        time.sleep(0.02)
    trouble, sentence = FAULTS[fault]
    communicator = examined(crew.processes[0].pid, trouble)
    assert re.search(sentence, communicator["sentence"]), communicator["sentence"]
