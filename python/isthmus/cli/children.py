"""Questions that may hang or crash, answered by a process of its own: what isthmus.cli.checks has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

MARK = "isthmus-check:"
MODULE = "isthmus.cli.checks"


def ask(question: str, environment: dict[str, str], timeout: float) -> dict[str, Any]:
    """What `python -m isthmus.cli.checks QUESTION` tells; {"result": "failed", "what", "advice"} where it tells
    nothing. Never raises, and takes no longer than the time limit, in seconds."""
    child = subprocess.Popen(
        [sys.executable, "-m", MODULE, question],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what it started goes with it
    )
    try:
        printed, said = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return _failed(
            f"no answer within {timeout:g} s",
            f"try again with --timeout {4 * timeout:g} where the machine is busy; else it hangs, and "
            f"`{sys.executable} -m {MODULE} '{question}'` is the same by itself",
        )
    for line in reversed(printed.splitlines()):
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    last = said.strip().splitlines()[-1:] or ["it said nothing"]
    code = child.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return _failed(f"the check {how}: {last[0]}", _crash_advice(code))


def _failed(what: str, advice: str) -> dict[str, str]:
    return {"result": "failed", "what": what, "advice": advice}


def _crash_advice(code: int) -> str:
    if -code == signal.SIGBUS:
        return "shared memory ran out while it was in use: more room in /dev/shm and a higher memory limit"
    if -code == signal.SIGKILL:
        return "probably the system's memory ran out: see dmesg, and the container's memory limit"
    return "the last line may name a library; `isthmus info` lists where each comes from"
