"""Programs that start processes of their own, with an end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile

NO_END = 124


def run_with_children(command: list[str], variables: dict[str, str], limit_s: float) -> tuple[int, str]:
    """The exit code, or NO_END, and what was printed. Past `limit_s` the processes that it started end, too."""
    with tempfile.TemporaryFile("w+") as said:
        started = subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = started.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = NO_END
            # Asked first: torchrun ends its ranks, which it has set apart.
            for number in (signal.SIGTERM, signal.SIGKILL):
                os.killpg(started.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(timeout=20)
                    break
        said.seek(0)
        return code, said.read()
