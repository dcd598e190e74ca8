"""What one rank of a job may do wrong, and what `isthmus doctor` says of it."""

from __future__ import annotations

import json
import time
from typing import Any

from rank_program import FAULTY_RANK

from isthmus._isthmus import diagnose

DEADLINE_S = 60
# What each fault is called, and what the sentence says.
FAULTS = {
    "die": ("ended", rf"rank {FAULTY_RANK} \(pid \d+\) has ended"),
    "stop": ("stopped", rf"rank {FAULTY_RANK} \(pid \d+\) is stopped and has not entered allreduce #4"),
    "slow": ("missing", rf"rank {FAULTY_RANK} \(pid \d+\) has not entered allreduce #4 \(float32 x 1024, sum\)"),
    "skip": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called broadcast #4"),
    "reorder": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called broadcast #4"),
    "count": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called allreduce #4 \(float32 x 512, sum\)"),
    "dtype": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called allreduce #4 \(int32 x 1024, sum\)"),
    "root": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called broadcast #5 \(float32 x 1024, root 1\)"),
}


def device_sentence_pattern(fault: str) -> str:
    """Nobody knows whether a call that was handed to a stream has ended: of the last one it may say "in"."""
    diagnosis, sentence = FAULTS[fault]
    return sentence if diagnosis == "mismatch" else rf"rank {FAULTY_RANK} \(pid \d+\) (is|has|still)"


def wait_for_diagnosis(pid: int, diagnosis: str) -> dict[str, Any]:
    """The job's only communicator, once that is wrong with it and the others have come."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        (job,) = json.loads(diagnose(pid, ""))["jobs"]
        (communicator,) = job["communicators"]
        if communicator["diagnosis"] == diagnosis and communicator["responsible_ranks"] == [FAULTY_RANK]:
            return communicator
        assert time.monotonic() < deadline, communicator
        time.sleep(0.05)
