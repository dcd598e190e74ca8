"""Runs programs that start child processes, with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile

NO_END = 124


def run_with_children(command: list[str], variables: dict[str, str], limit_s: float) -> tuple[int, str]:
    """Returns the exit code, or NO_END, and the output. After `limit_s`, child processes are killed as well."""
    with tempfile.TemporaryFile("w+") as output:
        started = subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = started.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = NO_END
            # SIGTERM first: torchrun then ends its ranks, which are in other process groups.
            for number in (signal.SIGTERM, signal.SIGKILL):
                os.killpg(started.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(timeout=20)
                    break
        output.seek(0)
        return code, output.read()
