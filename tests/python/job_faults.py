"""Faults of one rank of a job, and the diagnosis of `isthmus doctor` for each."""

from __future__ import annotations

import json
import time
from typing import Any

from rank_program import FAULTY_RANK

from isthmus._isthmus import diagnose

DEADLINE_S = 60
# Diagnosis and pattern of its sentence by fault.
FAULTS = {
    "die": ("exited", rf"rank {FAULTY_RANK} \(pid \d+\) has exited"),
    "stop": ("stopped", rf"rank {FAULTY_RANK} \(pid \d+\) is stopped and has not entered allreduce #4"),
    "slow": (
        "missing",
        rf"rank {FAULTY_RANK} \(pid \d+\) has not entered allreduce #4 \(float32 x 1024, sum\)",
    ),
    "skip": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called broadcast #4"),
    "reorder": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called broadcast #4"),
    "count": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called allreduce #4 \(float32 x 512, sum\)"),
    "dtype": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called allreduce #4 \(int32 x 1024, sum\)"),
    "root": ("mismatch", rf"rank {FAULTY_RANK} \(pid \d+\) called broadcast #5 \(float32 x 1024, root 1\)"),
}


def device_sentence_pattern(fault: str) -> str:
    """Returns the pattern for devices. It is weaker, because the end of an enqueued call is unknown."""
    diagnosis, sentence = FAULTS[fault]
    return sentence if diagnosis == "mismatch" else rf"rank {FAULTY_RANK} \(pid \d+\) (is|has|still)"


def wait_for_diagnosis(pid: int, diagnosis: str) -> dict[str, Any]:
    """Returns the only communicator of a job when it has that diagnosis for the faulty rank."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        (job,) = json.loads(diagnose(pid, ""))["jobs"]
        (communicator,) = job["communicators"]
        if communicator["diagnosis"] == diagnosis and communicator["responsible_ranks"] == [FAULTY_RANK]:
            return communicator
        assert time.monotonic() < deadline, communicator
        time.sleep(0.05)
