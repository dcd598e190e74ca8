"""`isthmus doctor` names the rank of a process group that does something wrong, or nothing."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist
from rank_processes import RankProcesses

sys.path.insert(0, str(Path(__file__).parents[1]))
from faulty_calls import make_calls
from job_faults import FAULTS, wait_for_diagnosis


def goes_wrong(fault: str, meeting: str) -> None:
    with suppress(dist.DistBackendError):
        make_calls(fault, meeting)
    time.sleep(60)  # so that this process' recorder can be read


@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_is_named(fault: str, fresh_ranks: Callable[..., RankProcesses], tmp_path: Path) -> None:
    ranks = fresh_ranks()
    ranks.start(goes_wrong, fault, str(tmp_path))
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < ranks.size:
        assert time.monotonic() < deadline, "the ranks don't come to the fault"
        time.sleep(0.02)
    trouble, sentence = FAULTS[fault]
    communicator = wait_for_diagnosis(ranks.processes[0].pid, trouble)
    assert re.search(sentence, communicator["sentence"]), communicator["sentence"]
