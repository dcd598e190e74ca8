"""Questions that may hang or crash, answered by a process of its own: what isthmus.cli.checks has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

RESULT_PREFIX = "isthmus-check:"
CHECK_MODULE = "isthmus.cli.checks"


def run_isolated(check: str, environment: dict[str, str], timeout: float) -> dict[str, Any]:
    """What `python -m isthmus.cli.checks QUESTION` tells; {"result": "failed", "details", "hint"} where it tells
    nothing. Never raises, and takes no longer than the time limit, in seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", CHECK_MODULE, check],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what it started goes with it
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return _failed(
            f"no answer within {timeout:g} s",
            f"try again with --timeout {4 * timeout:g} where the machine is busy; else it hangs, and "
            f"`{sys.executable} -m {CHECK_MODULE} '{check}'` is the same by itself",
        )
    for line in reversed(stdout.splitlines()):
        if line.startswith(RESULT_PREFIX):
            return json.loads(line.removeprefix(RESULT_PREFIX))
    last_line = stderr.strip().splitlines()[-1:] or ["it said nothing"]
    code = process.returncode
    exit_text = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return _failed(f"the check {exit_text}: {last_line[0]}", _crash_hint(code))


def _failed(details: str, hint: str) -> dict[str, str]:
    return {"result": "failed", "details": details, "hint": hint}


def _crash_hint(code: int) -> str:
    if -code == signal.SIGBUS:
        return "shared memory ran out while it was in use: more room in /dev/shm and a higher memory limit"
    if -code == signal.SIGKILL:
        return "probably the system's memory ran out: see dmesg, and the container's memory limit"
    return "the last line may name a library; `isthmus info` lists where each comes from"
