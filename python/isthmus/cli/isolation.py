"""Runs checks of isthmus.cli.checks, which can hang or crash, in a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

RESULT_PREFIX = "isthmus-check:"
CHECK_MODULE = "isthmus.cli.checks"
_GLOBAL_SUFFIXES = ("_LIBRARY", "_CACHE_DIR")


def run_isolated(check: str, environment: dict[str, str], timeout: float) -> dict[str, Any]:
    """Returns the result of `python -m isthmus.cli.checks CHECK`.

    Without a result it returns {"result": "failed", "details", "hint"}. Never raises, and returns within the
    time limit in seconds.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", CHECK_MODULE, check],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that its child processes can also be killed
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return _failed_result(
            f"the check did not finish within {timeout:g} s",
            f"on a busy machine retry with --timeout {4 * timeout:g}; to debug it, run "
            f"`{sys.executable} -m {CHECK_MODULE} '{check}'`",
        )
    for line in reversed(stdout.splitlines()):
        if line.startswith(RESULT_PREFIX):
            return json.loads(line.removeprefix(RESULT_PREFIX))
    last_line = stderr.strip().splitlines()[-1:] or ["no output"]
    code = process.returncode
    exit_text = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return _failed_result(f"the check {exit_text}: {last_line[0]}", _crash_hint(code))


def environment_without_settings(visible_prefixes: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns the environment without the settings of the user, except library paths and `visible_prefixes`."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ISTHMUS_")
        or name.endswith(_GLOBAL_SUFFIXES)
        or name.startswith(visible_prefixes)
    }


def _failed_result(details: str, hint: str) -> dict[str, str]:
    return {"result": "failed", "details": details, "hint": hint}


def _crash_hint(code: int) -> str:
    if -code == signal.SIGBUS:
        return "shared memory is exhausted; increase the size of /dev/shm and the memory limit"
    if -code == signal.SIGKILL:
        return "memory is probably exhausted; check dmesg and the memory limit of the container"
    return "check the library in the last line of output, if any; `isthmus info` lists the path of each library"
