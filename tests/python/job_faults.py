"""What one rank of a job may do wrong, and what `isthmus doctor` says of it."""

from __future__ import annotations

import json
import time
from typing import Any

from rank_program import CULPRIT

from isthmus._isthmus import diagnose

PATIENCE_S = 60
# What each fault is called, and what the sentence says.
FAULTS = {
    "die": ("ended", rf"rank {CULPRIT} \(pid \d+\) has ended"),
    "stop": ("stopped", rf"rank {CULPRIT} \(pid \d+\) is stopped and has not entered allreduce #4"),
    "slow": ("missing", rf"rank {CULPRIT} \(pid \d+\) has not entered allreduce #4 \(float32 x 1024, sum\)"),
    "skip": ("mismatch", rf"rank {CULPRIT} \(pid \d+\) called broadcast #4"),
    "reorder": ("mismatch", rf"rank {CULPRIT} \(pid \d+\) called broadcast #4"),
    "count": ("mismatch", rf"rank {CULPRIT} \(pid \d+\) called allreduce #4 \(float32 x 512, sum\)"),
    "dtype": ("mismatch", rf"rank {CULPRIT} \(pid \d+\) called allreduce #4 \(int32 x 1024, sum\)"),
    "root": ("mismatch", rf"rank {CULPRIT} \(pid \d+\) called broadcast #5 \(float32 x 1024, root 1\)"),
}


def sentence_on_devices(fault: str) -> str:
    """Nobody knows whether a call that was handed to a stream has ended: of the last one it may say "in"."""
    diagnosis, sentence = FAULTS[fault]
    return sentence if diagnosis == "mismatch" else rf"rank {CULPRIT} \(pid \d+\) (is|has|still)"


def examined(pid: int, diagnosis: str) -> dict[str, Any]:
    """The job's only communicator, once that is wrong with it and the others have come."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        (found,) = json.loads(diagnose(pid, ""))["jobs"]
        (communicator,) = found["communicators"]
        if communicator["diagnosis"] == diagnosis and communicator["responsible_ranks"] == [CULPRIT]:
            return communicator
        assert time.monotonic() < deadline, communicator
        time.sleep(0.05)
