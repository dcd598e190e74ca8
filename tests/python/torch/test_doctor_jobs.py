"""`isthmus doctor` names the faulty rank of a process group."""

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


def run_faulty_calls(fault: str, ready_folder: str) -> None:
    with suppress(dist.DistBackendError):
        make_calls(fault, ready_folder)
    time.sleep(60)  # so that the recorder of this process can be read


@pytest.mark.parametrize("fault", FAULTS)
def test_doctor_names_the_faulty_rank(
    fault: str, fresh_ranks: Callable[..., RankProcesses], tmp_path: Path
) -> None:
    ranks = fresh_ranks()
    ranks.start(run_faulty_calls, fault, str(tmp_path))
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < ranks.size:
        assert time.monotonic() < deadline, "not all ranks reached the fault"
        time.sleep(0.02)
    problem, sentence = FAULTS[fault]
    communicator = wait_for_diagnosis(ranks.processes[0].pid, problem)
    assert re.search(sentence, communicator["sentence"]), communicator["sentence"]
