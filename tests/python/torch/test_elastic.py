"""examples/elastic/ddp.py under torchrun continues after the end of a rank."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.distributed as dist
from rank_processes import QUIET

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/elastic/ddp.py"
RANKS = 3


def run_and_kill(ranks: Sequence[int]) -> tuple[int, str]:
    """Runs the example, kills these ranks in the middle and returns the exit code and the output."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [sys.executable, *launcher, "-m", "isthmus.torch", "--elastic", str(EXAMPLE)]
    variables = os.environ | QUIET | {"STEPS": "1000000" if len(ranks) == RANKS else "100"}
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables, errors="replace"
    )
    assert job.stdout is not None
    output, pids = "", {}
    for line in job.stdout:
        output += line
        pids |= {int(rank): int(pid) for rank, pid in re.findall(r"rank (\d): pid (\d+)", line)}
        if len(pids) == RANKS:
            for rank in ranks:
                os.kill(pids.pop(rank), signal.SIGKILL)
    return job.wait(), output


pytestmark = pytest.mark.skipif(not hasattr(dist, "shrink_group"), reason="PyTorch has no shrink_group")


def test_torchrun_job_continues_without_killed_rank() -> None:
    code, output = run_and_kill([0])
    assert code == 0, output
    assert "isthmus: rank 0 was ended by SIGKILL" in output
    assert f"{RANKS - 1} ranks, step 100" in output


def test_torchrun_job_fails_if_all_ranks_are_killed() -> None:
    code, output = run_and_kill(range(RANKS))
    assert code != 0 and output.count("was ended by SIGKILL") == RANKS, output
